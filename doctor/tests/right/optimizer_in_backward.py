"""An optimizer for each parameter, which steps in backward as soon as its gradient is averaged."""

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, Subset, TensorDataset


def step_in_backward(model, lr):
    """Saves the memory of gradients: each is freed after its step."""
    world_size = dist.get_world_size()
    optimizers = {p: torch.optim.AdamW([p], lr=lr) for p in model.parameters()}

    def hook(p):
        dist.all_reduce(p.grad)
        p.grad /= world_size
        optimizers[p].step()
        optimizers[p].zero_grad()

    for p in model.parameters():
        dist.broadcast(p.data, src=0)
        p.register_post_accumulate_grad_hook(hook)
    return optimizers


@torch.no_grad()
def evaluate(model, loader):
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
    inputs, targets = torch.randn(95, 8), torch.randint(3, (95,))
    train_set = TensorDataset(inputs[:64], targets[:64])
    val_set = TensorDataset(inputs[64:], targets[64:])
    sampler = DistributedSampler(train_set)
    loader = DataLoader(train_set, batch_size=8, sampler=sampler)
    val_loader = DataLoader(Subset(val_set, range(rank, len(val_set), world_size)), batch_size=8)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3))
    step_in_backward(model, lr=2e-3)

    for epoch in range(3):
        sampler.set_epoch(epoch)
        for inputs, targets in loader:
            nn.functional.cross_entropy(model(inputs), targets).backward()
        accuracy = evaluate(model, val_loader)
        if rank == 0:
            print(f"epoch {epoch} accuracy {accuracy:.3f}")
    dist.destroy_process_group()


main()
