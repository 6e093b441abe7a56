"""From DataParallel to DDP: the lines that change, and the same weights at the end.

torchrun --standalone --nproc-per-node 2 docs/examples/handbook/dp_to_ddp.py
"""

import os

os.environ["CUDA_VISIBLE_DEVICES"] = ""  # before torch looks: the same output on every machine

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, DistributedSampler, SequentialSampler, TensorDataset

BATCH = 16  # what DataParallel's loader says: the images of all GPUs together


def build() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 3)).double()


def train(model: nn.Module, loader: DataLoader) -> float:
    """The loop, which is the same for both."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for images, targets in loader:
        loss = cross_entropy(model(images), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return loss.item()


if __name__ == "__main__":
    torch.manual_seed(1)
    data = TensorDataset(torch.randn(64, 8).double(), torch.randint(0, 3, (64,)))

    # Before: one process, the loader gives the whole batch, the wrapper cuts it up.
    before = nn.DataParallel(build())
    loader = DataLoader(data, batch_size=BATCH, sampler=SequentialSampler(data))
    last_before = train(before, loader)

    # After: a process for each GPU, the sampler gives each its share, BATCH is divided.
    dist.init_process_group("gloo")
    rank, world_size = dist.get_rank(), dist.get_world_size()
    after = nn.parallel.DistributedDataParallel(build())
    sampler = DistributedSampler(data, shuffle=False, drop_last=True)
    loader = DataLoader(data, batch_size=BATCH // world_size, sampler=sampler)
    last_after = train(after, loader)

    torch.testing.assert_close(after.module.state_dict(), before.module.state_dict())
    losses = f"{last_before:.6f}, of this rank's share {last_after:.6f}"
    print(f"rank {rank} equal weights; loss of the last batch {losses}")
    mean = torch.tensor(last_after, dtype=torch.float64)
    dist.all_reduce(mean)
    torch.testing.assert_close(mean.item() / world_size, last_before)
    dist.barrier()
    dist.destroy_process_group()
