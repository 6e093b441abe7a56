"""Two batches of validation as a first check, then a backward pass of a copy to count operations;
training comes after both. Each rank's score is that of its share, and all are added up."""

import copy

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


@torch.no_grad()
def validate(model, loader, limit):
    model.eval()
    totals = torch.zeros(2)
    for n, (inputs, targets) in enumerate(loader):
        if n == limit:
            break
        totals[0] += (model(inputs).argmax(1) == targets).sum()
        totals[1] += len(targets)
    dist.all_reduce(totals)
    model.train()
    return (totals[0] / totals[1]).item()


def main():
    dist.init_process_group("gloo")
    rank, world_size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    train_set = TensorDataset(torch.randn(96, 6), torch.randint(3, (96,)))
    val_set = TensorDataset(torch.randn(40, 6), torch.randint(3, (40,)))
    sampler = DistributedSampler(train_set)
    loader = DataLoader(train_set, batch_size=8, sampler=sampler)
    share = range(rank, len(val_set), world_size)
    val_loader = DataLoader(val_set, batch_size=4, sampler=share)
    model = nn.Linear(6, 3)
    ddp = DDP(model)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)

    validate(model, val_loader, limit=2)
    copy.deepcopy(model)(torch.randn(8, 6)).sum().backward()
    for epoch in range(3):
        sampler.set_epoch(epoch)
        for inputs, targets in loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(ddp(inputs), targets).backward()
            optimizer.step()
        score = validate(model, val_loader, limit=100)
        if rank == 0:
            print(f"epoch {epoch} score {score:.3f}")
    dist.destroy_process_group()


main()
