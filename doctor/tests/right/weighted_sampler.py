"""Rare classes are drawn more often: all ranks draw one list with replacement, and divide it."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Sampler, TensorDataset


class DistributedWeightedSampler(Sampler):
    def __init__(self, weights, seed=0):
        self.weights, self.seed, self.epoch = weights, seed, 0
        self.rank, self.world_size = dist.get_rank(), dist.get_world_size()
        self.count = len(weights) // self.world_size

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __len__(self):
        return self.count

    def __iter__(self):
        generator = torch.Generator().manual_seed(self.seed + self.epoch)
        count = self.count * self.world_size
        drawn = torch.multinomial(self.weights, count, replacement=True, generator=generator)
        return iter(drawn[self.rank :: self.world_size].tolist())


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    inputs = torch.randn(90, 8)
    targets = (inputs[:, 0] > 1).long()  # one in six
    dataset = TensorDataset(inputs, targets)
    weights = 1 / torch.bincount(targets)[targets].float()
    sampler = DistributedWeightedSampler(weights)
    loader = DataLoader(dataset, batch_size=9, sampler=sampler)
    model = DDP(nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 2)))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)

    for epoch in range(3):
        sampler.set_epoch(epoch)
        for inputs, targets in loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(inputs), targets).backward()
            optimizer.step()
        if dist.get_rank() == 0:
            torch.save(model.module.state_dict(), "model.pt")
    dist.destroy_process_group()


main()
