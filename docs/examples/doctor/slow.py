"""A training that something makes slow, to try `doctor --speed` on: two processes, no GPU.

python doctor --speed torchrun --standalone --nproc-per-node 2 docs/examples/doctor/slow.py
"""

import argparse
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler

BY = ["input", "rank 1", "communication", "step"]


class Slow(Dataset):
    """4000 points; each takes 4 ms, where that is wanted."""

    def __init__(self, slow: bool) -> None:
        self.slow = slow

    def __len__(self) -> int:
        return 4000

    def __getitem__(self, i: int) -> tuple[torch.Tensor, int]:
        if self.slow:
            time.sleep(0.004)
        return torch.randn(64), i % 10


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--by", choices=BY, default="input")
    args = parser.parse_args()

    dist.init_process_group("gloo")
    rank, world_size = dist.get_rank(), dist.get_world_size()
    train_set = Slow(args.by == "input" or (args.by == "rank 1" and rank == 1))
    sampler = DistributedSampler(train_set, drop_last=True)
    loader = DataLoader(train_set, 32 // world_size, sampler=sampler, num_workers=1, drop_last=True)
    width = 3000 if args.by == "communication" else 64  # 9 million weights
    model = nn.Sequential(
        nn.Linear(64, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 10)
    )
    ddp_model = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001)

    for epoch in range(20):
        sampler.set_epoch(epoch)
        for inputs, targets in loader:
            loss = nn.functional.cross_entropy(ddp_model(inputs), targets)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if args.by == "step":
                time.sleep(0.05)

    dist.destroy_process_group()


if __name__ == "__main__":
    main()
