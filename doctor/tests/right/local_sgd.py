"""Local SGD by hand: each rank steps alone, and every fourth step the weights are averaged."""

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

PERIOD = 4


@torch.no_grad()
def average(model):
    for p in model.parameters():
        dist.all_reduce(p.data)
        p.data /= dist.get_world_size()


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    inputs = torch.randn(96, 8)
    dataset = TensorDataset(inputs, inputs.norm(dim=1))
    sampler = DistributedSampler(dataset)
    loader = DataLoader(dataset, batch_size=6, sampler=sampler)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1), nn.Flatten(0))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
    average(model)  # equal from the start

    step = 0
    for epoch in range(3):
        sampler.set_epoch(epoch)
        for inputs, targets in loader:
            loss = nn.functional.mse_loss(model(inputs), targets)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
            if step % PERIOD == 0:
                average(model)
        if rank == 0:
            print(f"epoch {epoch} loss {loss.item():.4f}")
    average(model)
    if rank == 0:
        torch.save(model.state_dict(), "model.pt")
    dist.destroy_process_group()


main()
