"""huggingface/accelerate issue 4199, 2026-09-02: a share of the data is divided once more.

https://github.com/huggingface/accelerate/issues/4199
prepare takes every loader for one of the whole data set, and gives each rank every N-th of its
batches. If the script had divided the data by rank already, each rank goes through 1/N of its own
share in an epoch. The loss curve looks normal, and there is no warning. Earlier reports of it go
back to April 2025 (issue 3520). Mended as the issue and three pulls propose (none is merged, so far
as we know): prepare is told that the loader has the rank's share.
Doctor: overlapping_samples at return DataLoader(dataloader.dataset
"""

import sys
from collections.abc import Iterator

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import BatchSampler, DataLoader, Subset, TensorDataset

MENDED = "--mended" in sys.argv


class BatchSamplerShard:
    """What prepare puts around the batch sampler: every N-th batch."""

    def __init__(self, batch_sampler: BatchSampler, num_processes: int, process_index: int) -> None:
        self.batch_sampler = batch_sampler
        self.num_processes = num_processes
        self.process_index = process_index

    def __len__(self) -> int:
        return len(self.batch_sampler) // self.num_processes

    def __iter__(self) -> Iterator[list[int]]:
        for n, batch in enumerate(self.batch_sampler):
            if n % self.num_processes == self.process_index:
                yield batch


def prepare(dataloader: DataLoader, already_sharded: bool) -> DataLoader:
    if already_sharded:
        return dataloader
    shard = BatchSamplerShard(dataloader.batch_sampler, dist.get_world_size(), dist.get_rank())
    return DataLoader(dataloader.dataset, batch_sampler=shard)


dist.init_process_group("gloo")
rank, world_size = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
x = torch.randn(96, 12)
dataset = TensorDataset(x, x[:, :4].argmax(1))
own = Subset(dataset, range(rank, len(dataset), world_size))  # all that this rank has to keep
dataloader = DataLoader(own, batch_size=4, shuffle=True)
if MENDED:
    dataloader = prepare(dataloader, already_sharded=True)
else:
    dataloader = prepare(dataloader, already_sharded=False)

model = DistributedDataParallel(nn.Sequential(nn.Linear(12, 32), nn.ReLU(), nn.Linear(32, 4)))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
for _ in range(2):
    for batch, target in dataloader:
        loss = nn.functional.cross_entropy(model(batch), target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

if rank == 0:
    print(f"{len(dataloader)} batches of 4 in an epoch, of {len(own)} samples")
dist.destroy_process_group()
