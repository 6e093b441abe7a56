"""A cache that one rank makes while the others wait at a lock: all open the same lock file."""

import fcntl
import os
from contextlib import contextmanager

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


@contextmanager
def locked(path):
    with open(path, "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        try:
            yield
        finally:
            fcntl.flock(lock, fcntl.LOCK_UN)


def load_dataset(folder):
    """From the cache; whoever comes first makes it."""
    os.makedirs(folder, exist_ok=True)
    path = os.path.join(folder, "train.pt")
    with locked(path + ".lock"):
        if not os.path.exists(path):
            generator = torch.Generator().manual_seed(0)
            inputs = torch.randn(72, 8, generator=generator)
            torch.save({"inputs": inputs, "targets": (inputs[:, 0] > 0).float()}, path)
    data = torch.load(path)
    return TensorDataset(data["inputs"], data["targets"])


def main():
    dist.init_process_group("gloo")
    dataset = load_dataset("cache")
    sampler = DistributedSampler(dataset)
    loader = DataLoader(dataset, batch_size=6, sampler=sampler)
    torch.manual_seed(0)
    model = DDP(nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 1), nn.Flatten(0)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for epoch in range(2):
        sampler.set_epoch(epoch)
        for inputs, targets in loader:
            loss = nn.functional.binary_cross_entropy_with_logits(model(inputs), targets)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    if dist.get_rank() == 0:
        torch.save(model.module.state_dict(), "model.pt")
    dist.destroy_process_group()


main()
