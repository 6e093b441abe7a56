"""A padded sampler for the evaluation: each rank leaves out its own repeats, sums are added up."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


@torch.no_grad()
def evaluate(model, loader):
    """Mean absolute error over the set."""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    share = len(range(rank, len(loader.dataset), world_size))  # without the sampler's padding
    errors = []
    for inputs, targets in loader:
        errors.append((model(inputs).squeeze(1) - targets).abs())
    errors = torch.cat(errors)[:share]
    totals = torch.stack([errors.sum(), torch.tensor(float(len(errors)))])
    dist.all_reduce(totals)
    assert totals[1] == len(loader.dataset)
    return (totals[0] / totals[1]).item()


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    inputs = torch.randn(105, 6)
    targets = inputs.square().sum(1)
    train_set, val_set = TensorDataset(inputs[:70], targets[:70]), TensorDataset(inputs, targets)
    sampler = DistributedSampler(train_set)
    loader = DataLoader(train_set, batch_size=7, sampler=sampler)
    val_sampler = DistributedSampler(val_set, shuffle=False)
    val_loader = DataLoader(val_set, batch_size=20, sampler=val_sampler)
    model = DDP(nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 1)))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)

    for epoch in range(3):
        sampler.set_epoch(epoch)
        for inputs, targets in loader:
            loss = nn.functional.l1_loss(model(inputs).squeeze(1), targets)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        error = evaluate(model.module, val_loader)
        if dist.get_rank() == 0:
            print(f"epoch {epoch} error {error:.4f}")
    dist.destroy_process_group()


main()
