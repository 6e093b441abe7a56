"""TorchDSP/torchsig issue 343, 2025-03-26: transforms draw alike in all loader workers.

https://github.com/TorchDSP/torchsig/issues/343
A transform has a numpy generator of its own. torch seeds its own generator and those of random and
numpy anew in each worker, but not this one: every worker has a copy in the same state. It was
noticed by printing the first numbers of each worker, all equal. The loader that the project wrote
against it repeats its numbers in each epoch (measured); mended here by torch's seed of the worker,
new in each epoch, and the rank.
Doctor: equal_randomness at dataset, batch_size=8
"""

import sys
from functools import partial

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler, get_worker_info

MENDED = "--mended" in sys.argv


class Noise:
    def __init__(self, seed: int) -> None:
        self.seed(seed)

    def seed(self, seed: int | list[int]) -> None:
        self.np_rng = np.random.default_rng(seed)

    def __call__(self, signal: torch.Tensor) -> torch.Tensor:
        power = self.np_rng.uniform(0.0, 0.5)
        return signal + power * torch.from_numpy(self.np_rng.standard_normal(len(signal))).float()


class Modulations(Dataset):
    """A noisy signal, (32,), and the class of its frequency."""

    def __init__(self, transform: Noise) -> None:
        self.transform = transform

    def __len__(self) -> int:
        return 128

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        label = index % 4
        signal = torch.sin(torch.arange(32) * (label + 1) / 5 + index)
        return self.transform(signal), label


def init_worker(worker_id: int, rank: int) -> None:
    info = get_worker_info()
    info.dataset.transform.seed([info.seed, rank])


dist.init_process_group("gloo")
torch.manual_seed(0)
dataset = Modulations(Noise(seed=42))
sampler = DistributedSampler(dataset)
workers = {"num_workers": 2}
if MENDED:
    workers["worker_init_fn"] = partial(init_worker, rank=dist.get_rank())
loader = DataLoader(dataset, batch_size=8, sampler=sampler, **workers)

model = DistributedDataParallel(nn.Sequential(nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 4)))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)

for epoch in range(2):
    sampler.set_epoch(epoch)
    for signals, labels in loader:
        loss = nn.functional.cross_entropy(model(signals), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

dist.destroy_process_group()
