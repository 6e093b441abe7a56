"""Rare classes are drawn more often, and training stops when the score no longer rises.

torchrun --standalone --nproc-per-node 2 docs/examples/tasks/weighted/multi.py
"""

from itertools import islice

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Sampler, TensorDataset, WeightedRandomSampler

EPOCHS, BATCH, PATIENCE, CLASSES = 20, 24, 2, 4


def make_data(count, seed):
    """Stands for your data: of four classes, the first has most of the points."""
    centres = torch.randn(CLASSES, 16, generator=torch.Generator().manual_seed(0))
    generator = torch.Generator().manual_seed(seed)
    share = torch.tensor([0.7, 0.15, 0.1, 0.05])
    targets = share.multinomial(count, replacement=True, generator=generator)
    points = centres[targets] + 1.5 * torch.randn(count, 16, generator=generator)
    return TensorDataset(points, targets)


class Share(Sampler):
    """All ranks draw the same order; rank r takes every world_size-th of it."""

    def __init__(self, sampler, rank, world_size):
        self.sampler, self.rank, self.world_size = sampler, rank, world_size

    def __len__(self):
        return len(self.sampler) // self.world_size

    def __iter__(self):
        return islice(self.sampler, self.rank, len(self) * self.world_size, self.world_size)


@torch.inference_mode()
def evaluate(model, loader):
    """How many of each class are right, and how many there are."""
    model.eval()
    totals = torch.zeros(2, CLASSES, dtype=torch.int64)
    for points, targets in loader:
        right = model(points).argmax(1) == targets
        totals[0] += targets[right].bincount(minlength=CLASSES)
        totals[1] += targets.bincount(minlength=CLASSES)
    return totals


def main():
    dist.init_process_group("gloo")
    rank, world_size = dist.get_rank(), dist.get_world_size()

    train_set, val_set = make_data(125, seed=1), make_data(301, seed=2)
    targets = train_set.tensors[1]
    weights = 1 / targets.bincount(minlength=CLASSES)[targets]
    generator = torch.Generator().manual_seed(0)
    sampler = WeightedRandomSampler(weights, len(train_set), generator=generator)
    sampler = Share(sampler, rank, world_size)
    train_loader = DataLoader(train_set, BATCH // world_size, sampler=sampler, drop_last=True)
    share = range(rank, len(val_set), world_size)
    val_loader = DataLoader(val_set, BATCH // world_size, sampler=share)

    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, CLASSES))
    ddp_model = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    best, bad_epochs = 0.0, 0

    for epoch in range(EPOCHS):
        model.train()
        for points, targets in train_loader:
            loss = cross_entropy(ddp_model(points), targets)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

        totals = evaluate(model, val_loader)
        dist.all_reduce(totals)  # so all ranks have one score, and stop together
        right, count = totals
        score = (right / count).mean().item()  # each class weighs the same
        if rank == 0:
            print(f"epoch {epoch}: balanced accuracy {score:.4f} on {count.sum()} points")
        bad_epochs = 0 if score > best else bad_epochs + 1
        if score > best:
            best = score
            if rank == 0:
                torch.save(model.state_dict(), "best.pt")
        if bad_epochs >= PATIENCE:
            break

    dist.destroy_process_group()


if __name__ == "__main__":
    main()
