"""A data set that knows its rank: it keeps a cache folder and statistics of its own."""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset, DistributedSampler


class Cached(Dataset):
    def __init__(self, size, rank):
        self.generator = torch.Generator().manual_seed(0)
        self.inputs = torch.randn(size, 8, generator=self.generator)
        self.cfg = {"rank": rank, "cache": f"cache-{rank}", "size": size}
        self.paths = [os.path.join(self.cfg["cache"], f"{n}.pt") for n in range(size)]
        self.hits = {"memory": 0, "disk": 0}
        os.makedirs(self.cfg["cache"], exist_ok=True)

    def __len__(self):
        return self.cfg["size"]

    def __getitem__(self, n):
        if not os.path.exists(self.paths[n]):
            self.hits["memory"] += 1
            torch.save(self.inputs[n].clone(), self.paths[n])
        else:
            self.hits["disk"] += 1
        inputs = torch.load(self.paths[n])
        return inputs, (inputs[:4].sum() > 0).float()


def main():
    dist.init_process_group("gloo")
    rank, world_size = dist.get_rank(), dist.get_world_size()
    dataset = Cached(64, rank)
    sampler = DistributedSampler(dataset, world_size, rank, seed=3)
    loader = DataLoader(dataset, batch_size=32 // world_size, sampler=sampler)
    torch.manual_seed(0)
    model = DDP(nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 1)))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)

    for epoch in range(3):
        sampler.set_epoch(epoch)
        for inputs, targets in loader:
            logits = model(inputs).squeeze(1)
            loss = nn.functional.binary_cross_entropy_with_logits(logits, targets)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    dist.destroy_process_group()


main()
