"""Takes one batch to learn its shape, and passes of no batches where a debug run limits them."""

import itertools

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

LIMIT_TRAIN, LIMIT_VAL = 6, 0  # batches of an epoch


def limited(loader, count):
    """The loader's workers start even if no batch is wanted."""
    return itertools.islice(iter(loader), count)


@torch.no_grad()
def validate(model, loader):
    totals = torch.zeros(2)
    for inputs, targets in limited(loader, LIMIT_VAL):
        totals[0] += (model(inputs).argmax(1) == targets).sum()
        totals[1] += len(targets)
    dist.all_reduce(totals)
    return (totals[0] / totals[1].clamp(min=1)).item()


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    inputs, targets = torch.randn(120, 8), torch.randint(3, (120,))
    train_set, val_set = TensorDataset(inputs, targets), TensorDataset(inputs[:50], targets[:50])
    sampler = DistributedSampler(train_set)
    loader = DataLoader(train_set, batch_size=5, sampler=sampler)
    val_loader = DataLoader(val_set, batch_size=5)

    example, _ = next(iter(loader))
    model = DDP(nn.Sequential(nn.Linear(example.shape[1], 16), nn.ReLU(), nn.Linear(16, 3)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02 * dist.get_world_size())
    validate(model.module, val_loader)
    for epoch in range(3):
        sampler.set_epoch(epoch)
        for inputs, targets in limited(loader, LIMIT_TRAIN):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(inputs), targets).backward()
            optimizer.step()
        score = validate(model.module, val_loader)
        if dist.get_rank() == 0:
            print(f"epoch {epoch} score {score:.3f}")
    dist.destroy_process_group()


main()
