"""All ranks leave the training together: the score that decides is that of the whole set."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, Subset, TensorDataset


class EarlyStopping:
    def __init__(self, patience):
        self.best, self.bad, self.patience = float("inf"), 0, patience

    def __call__(self, loss):
        """Whether this one is the best, and whether to stop."""
        better = loss < self.best
        self.best = min(self.best, loss)
        self.bad = 0 if better else self.bad + 1
        return better, self.bad >= self.patience


@torch.no_grad()
def validate(model, loader):
    model.eval()
    totals = torch.zeros(2, dtype=torch.float64)
    for inputs, targets in loader:
        totals[0] += nn.functional.cross_entropy(model(inputs), targets, reduction="sum")
        totals[1] += len(targets)
    dist.all_reduce(totals)
    model.train()
    return (totals[0] / totals[1]).item()


def main():
    dist.init_process_group("gloo")
    rank, world_size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    inputs, targets = torch.randn(101, 8), torch.randint(3, (101,))
    train_set = TensorDataset(inputs[:64], targets[:64])
    val_set = TensorDataset(inputs[64:], targets[64:])
    sampler = DistributedSampler(train_set)
    loader = DataLoader(train_set, batch_size=8, sampler=sampler)
    val_loader = DataLoader(Subset(val_set, range(rank, len(val_set), world_size)), batch_size=8)
    model = DDP(nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 3)))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    stopping = EarlyStopping(patience=2)

    for epoch in range(20):
        sampler.set_epoch(epoch)
        for inputs, targets in loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(inputs), targets).backward()
            optimizer.step()
        best, stop = stopping(validate(model.module, val_loader))
        if best and rank == 0:
            torch.save(model.module.state_dict(), "best.pt")
        if stop:
            break
    dist.destroy_process_group()


main()
