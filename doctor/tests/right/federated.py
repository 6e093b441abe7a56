"""Federated averaging: clients are of unequal size, and ranks make unequal numbers of steps."""

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, Subset, TensorDataset

ROUNDS, BATCH = 4, 5
SIZES = (40, 25, 20, 15)  # samples of each client


def local_training(model, client):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for inputs, targets in DataLoader(client, batch_size=BATCH, shuffle=True):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(inputs), targets).backward()
        optimizer.step()


@torch.no_grad()
def average(model, size):
    """Weighted by the number of samples that a rank has trained on."""
    total = torch.tensor(float(size))
    dist.all_reduce(total)
    for p in model.parameters():
        p *= size / total
        dist.all_reduce(p)


def main():
    dist.init_process_group("gloo")
    rank, world_size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    dataset = TensorDataset(torch.randn(100, 8), torch.randint(3, (100,)))
    ends = torch.tensor(SIZES).cumsum(0).tolist()
    clients = [range(end - size, end) for end, size in zip(ends, SIZES, strict=True)]
    mine = [n for client in clients[rank::world_size] for n in client]
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3))
    torch.manual_seed(rank)

    for n in range(ROUNDS):
        local_training(model, Subset(dataset, mine))
        average(model, len(mine))
        if rank == 0:
            torch.save({"round": n, "model": model.state_dict()}, "global.pt")
    dist.destroy_process_group()


main()
