"""The next batch is fetched before the step, as a loop does that copies it ahead to a GPU."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, Subset, TensorDataset


def with_next(loader):
    """Pairs of a batch and whether it is the last: always one batch ahead."""
    batches = iter(loader)
    current = next(batches)
    while current is not None:
        following = next(batches, None)
        yield current, following is None
        current = following


@torch.no_grad()
def evaluate(model, loader):
    totals = torch.zeros(2)
    for inputs, targets in loader:
        error = (model(inputs).squeeze(1) - targets).square().sum()
        totals += torch.tensor([error, len(targets)])
    dist.all_reduce(totals)
    return (totals[0] / totals[1]).item()


def main():
    dist.init_process_group("gloo")
    rank, world_size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    inputs = torch.randn(93, 4)
    targets = inputs.sum(1).sin()
    train_set = TensorDataset(inputs[:72], targets[:72])
    val_set = TensorDataset(inputs[72:], targets[72:])
    sampler = DistributedSampler(train_set)
    loader = DataLoader(train_set, batch_size=6, sampler=sampler)
    share = Subset(val_set, range(rank, len(val_set), world_size))
    val_loader = DataLoader(share, batch_size=6)
    ddp = DDP(nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 1)))
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.02 * world_size)

    for epoch in range(3):
        sampler.set_epoch(epoch)
        for (inputs, targets), last in with_next(loader):
            loss = nn.functional.mse_loss(ddp(inputs).squeeze(1), targets)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if last:
                error = evaluate(ddp.module, val_loader)
        if rank == 0:
            print(f"epoch {epoch} error {error:.4f}")
    dist.destroy_process_group()


main()
