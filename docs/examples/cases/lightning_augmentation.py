"""Lightning-AI/pytorch-lightning pull 21399, 2025-12-01: all epochs repeat the augmentation.

https://github.com/Lightning-AI/pytorch-lightning/pull/21399
With seed_everything(workers=True) Lightning seeds each loader worker from torch's new seed of the
epoch, shifted up by 32 bits. torch's CPU generator uses only the lowest 32 bits of a seed: they
depended on worker and rank alone. In 2024 a user saw it in his augmentations (issue 20412); in
2025 another printed random numbers, which were those of seed 1 for every seed. Mended as the
project did: all bits are mixed first.
Doctor: equal_randomness at train_set, batch_size=8
"""

import sys
from functools import partial

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler

MENDED = "--mended" in sys.argv
BITS = (1 << 64) - 1


def worker_seed(base_seed: int, worker_id: int, rank: int) -> int:
    seed = base_seed << 32 | worker_id << 16 | rank
    if MENDED:
        for _ in range(2):
            seed ^= seed >> 33
            seed = seed * 0x9E3779B97F4A7C15 & BITS
    return (seed * 6364136223846793005 + 1) & BITS


def worker_init_function(worker_id: int, rank: int) -> None:
    base_seed = torch.initial_seed() - worker_id
    torch.manual_seed(worker_seed(base_seed, worker_id, rank))


class Pictures(Dataset):
    """A picture of noisy brightness, (16,), and its class."""

    def __init__(self) -> None:
        self.pictures = torch.randn(128, 16)
        self.labels = self.pictures[:, :3].argmax(1)
        self.brightness = torch.distributions.Uniform(0.7, 1.3)

    def __len__(self) -> int:
        return len(self.pictures)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        return self.brightness.sample() * self.pictures[index], self.labels[index]


dist.init_process_group("gloo")
torch.manual_seed(42)
train_set = Pictures()
sampler = DistributedSampler(train_set)
seed_workers = partial(worker_init_function, rank=dist.get_rank())
workers = {"num_workers": 2, "worker_init_fn": seed_workers}
train_loader = DataLoader(train_set, batch_size=8, sampler=sampler, **workers)

model = DistributedDataParallel(nn.Linear(16, 3))
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)

for epoch in range(2):
    sampler.set_epoch(epoch)
    for pictures, labels in train_loader:
        loss = nn.functional.cross_entropy(model(pictures), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

dist.destroy_process_group()
