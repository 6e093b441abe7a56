"""Smith42/astroPT pull 64, 2026-06-12: all ranks read the same stream, from its beginning.

https://github.com/Smith42/astroPT/pull/64
The galaxies are streamed from a Hugging Face data set. For a stream no DistributedSampler can be
given, and nothing else divided it: each rank read every galaxy, in the same order, so N GPUs made
the same step N times. The seed of each rank was its own, but a stream that is not shuffled draws
nothing. The pull request says so, and names no run. Mended as the project did,
by split_dataset_by_node, of which the functions below have what is needed here.
Doctor: same_samples at DataLoader(tds_hf
"""

import sys
from collections.abc import Iterator

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, IterableDataset

MENDED = "--mended" in sys.argv


class Stream(IterableDataset):
    """A stream of galaxies, each a row of nine patches."""

    def __init__(self, rank: int = 0, world_size: int = 1) -> None:
        self.rank, self.world_size = rank, world_size

    def __iter__(self) -> Iterator[torch.Tensor]:
        for number in range(self.rank, 256, self.world_size):
            yield torch.randn(9, 12, generator=torch.Generator().manual_seed(number)).cumsum(0)


def split_dataset_by_node(dataset: Stream, rank: int, world_size: int) -> Stream:
    return Stream(rank, world_size)


dist.init_process_group("gloo")
ddp_rank, ddp_world_size = dist.get_rank(), dist.get_world_size()
seed_offset = ddp_rank
torch.manual_seed(1337 + seed_offset)

tds_hf = Stream()
if MENDED:
    tds_hf = split_dataset_by_node(tds_hf, ddp_rank, ddp_world_size)
tdl = iter(DataLoader(tds_hf, batch_size=8))

model = nn.Sequential(nn.Linear(12, 32), nn.GELU(), nn.Linear(32, 12))
model = DistributedDataParallel(model)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)

for iter_num in range(16):
    patches = next(tdl)
    loss = nn.functional.huber_loss(model(patches[:, :-1]), patches[:, 1:])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if iter_num % 4 == 0 and ddp_rank == 0:
        print(f"iter {iter_num}: loss {loss.item():.4f}")

dist.destroy_process_group()
