"""yaak-ai/rbyte pull 106, 2026-07-12: every rank draws the same samples.

https://github.com/yaak-ai/rbyte/pull/106
The loader is no torch DataLoader, so Lightning could not give it a DistributedSampler, and its
RandomSampler was seeded alike on all ranks: each trained on the same batches, and more GPUs only
repeated the work. The first run on two GPUs showed it: both went through all 549 batches. No
earlier run had used more than one. Mended as the project proposes (the pull request is open): a
DistributedSampler, and set_epoch.
Doctor: same_samples at loss.backward()
"""

import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import BatchSampler, DistributedSampler, RandomSampler

MENDED = "--mended" in sys.argv


class Rides:
    """Samples of recorded rides, (9,): eight numbers that were measured, and the steering."""

    def __init__(self) -> None:
        measured = torch.randn(96, 8)
        self.samples = torch.cat([measured, measured.mean(1, keepdim=True)], 1)

    def __len__(self) -> int:
        return len(self.samples)

    def __getitems__(self, index: list[int]) -> torch.Tensor:
        return self.samples[index]


class NodeDataLoader:
    """Threads make the batches ahead."""

    def __init__(self, dataset: Rides, batch_size: int, num_workers: int) -> None:
        self.dataset = dataset
        self.num_workers = num_workers
        if MENDED:
            self.sampler = DistributedSampler(dataset)
        else:
            self.sampler = RandomSampler(dataset)
        self.batches = BatchSampler(self.sampler, batch_size, drop_last=False)

    def __iter__(self) -> Iterator[torch.Tensor]:
        with ThreadPoolExecutor(self.num_workers) as pool:
            yield from pool.map(self.dataset.__getitems__, self.batches)


dist.init_process_group("gloo")
torch.manual_seed(1337)
loader = NodeDataLoader(Rides(), batch_size=8, num_workers=2)
model = DistributedDataParallel(nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 1)))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)

for epoch in range(2):
    if MENDED:
        loader.sampler.set_epoch(epoch)
    for batch in loader:
        loss = nn.functional.mse_loss(model(batch[:, :8]), batch[:, 8:])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

dist.destroy_process_group()
