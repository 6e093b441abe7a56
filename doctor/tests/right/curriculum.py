"""Each epoch goes from easy samples to hard ones, in an order that all ranks read from a cache.
Each may have made it, and moved it to its place when it was whole."""

import os
import tempfile

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, Subset, TensorDataset


def cache(order):
    number, path = tempfile.mkstemp(dir=".")
    os.close(number)
    torch.save(order, path)
    os.replace(path, "order.pt")


def main():
    dist.init_process_group("gloo")
    rank, world_size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    inputs, targets = torch.randn(64, 8), torch.randint(3, (64,))
    dataset = TensorDataset(inputs, targets)
    cache(inputs.norm(dim=1).argsort())
    order = torch.load("order.pt").tolist()
    easy = Subset(dataset, order[:32])
    loaders = [
        DataLoader(easy, batch_size=4, sampler=DistributedSampler(easy, shuffle=False)),
        DataLoader(dataset, batch_size=4, sampler=order[rank::world_size]),
    ]
    model = DDP(nn.Linear(8, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    for loader in loaders:
        for _ in range(2):
            for inputs, targets in loader:
                optimizer.zero_grad()
                nn.functional.cross_entropy(model(inputs), targets).backward()
                optimizer.step()
    dist.destroy_process_group()


main()
