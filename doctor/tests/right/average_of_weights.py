"""An exponential average of the weights, kept by hand on each rank, is what is evaluated."""

import copy

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, Subset, TensorDataset


class EMA:
    def __init__(self, model, decay):
        self.model = copy.deepcopy(model).eval().requires_grad_(False)
        self.decay = decay

    @torch.no_grad()
    def update(self, model):
        for mine, theirs in zip(self.model.parameters(), model.parameters(), strict=True):
            mine.lerp_(theirs, 1 - self.decay)
        for mine, theirs in zip(self.model.buffers(), model.buffers(), strict=True):
            mine.copy_(theirs)


@torch.no_grad()
def accuracy_of(model, loader):
    totals = torch.zeros(2)
    for inputs, targets in loader:
        totals[0] += (model(inputs).argmax(1) == targets).sum()
        totals[1] += len(targets)
    dist.all_reduce(totals)
    return (totals[0] / totals[1]).item()


def main():
    dist.init_process_group("gloo")
    rank, world_size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    inputs, targets = torch.randn(110, 8), torch.randint(3, (110,))
    train_set, val_set = TensorDataset(inputs[:80], targets[:80]), TensorDataset(inputs, targets)
    sampler = DistributedSampler(train_set)
    loader = DataLoader(train_set, batch_size=8, sampler=sampler)
    share = Subset(val_set, range(rank, len(val_set), world_size))
    val_loader = DataLoader(share, batch_size=16)
    model = nn.Sequential(nn.Linear(8, 16), nn.LayerNorm(16), nn.ReLU(), nn.Linear(16, 3))
    ema = EMA(model, decay=0.9)
    ddp = DDP(model)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.05 * world_size)

    for epoch in range(3):
        sampler.set_epoch(epoch)
        for inputs, targets in loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(ddp(inputs), targets).backward()
            optimizer.step()
            ema.update(model)
        accuracy = accuracy_of(ema.model, val_loader)
        if rank == 0:
            print(f"epoch {epoch} accuracy {accuracy:.3f}")
            torch.save({"ema": ema.model.state_dict(), "epoch": epoch}, "checkpoint.pt")
    dist.destroy_process_group()


main()
