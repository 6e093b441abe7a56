"""SAM: uphill by the gradient of a rank, the gradient there is averaged, then back and a step."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


class Climb:
    """Moves the weights, and back exactly to where they were."""

    def __init__(self, parameters, rho=0.05):
        self.parameters, self.rho = list(parameters), rho

    @torch.no_grad()
    def up(self):
        norm = torch.stack([p.grad.norm() for p in self.parameters]).norm() + 1e-12
        self.before = [p.clone() for p in self.parameters]
        for p in self.parameters:
            p += self.rho / norm * p.grad
            p.grad = None

    @torch.no_grad()
    def back(self):
        for p, before in zip(self.parameters, self.before, strict=True):
            p.copy_(before)


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    dataset = TensorDataset(torch.randn(72, 8), torch.randint(3, (72,)))
    sampler = DistributedSampler(dataset)
    loader = DataLoader(dataset, batch_size=6, sampler=sampler)
    model = DDP(nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    climb = Climb(model.parameters())

    for epoch in range(3):
        sampler.set_epoch(epoch)
        for inputs, targets in loader:
            with model.no_sync():
                nn.functional.cross_entropy(model(inputs), targets).backward()
            climb.up()
            nn.functional.cross_entropy(model(inputs), targets).backward()
            climb.back()
            optimizer.step()
            optimizer.zero_grad()
        if dist.get_rank() == 0:
            torch.save(model.module.state_dict(), f"epoch-{epoch}.pt")
    dist.destroy_process_group()


main()
