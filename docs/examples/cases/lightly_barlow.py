"""lightly-ai/lightly issue 1977, 2026-07-09: an all_reduce inside the loss, without autograd.

https://github.com/lightly-ai/lightly/issues/1977
The Barlow Twins loss summed its cross-correlation over ranks with dist.all_reduce. Its value was
right, but the part of the gradient that flows through the other ranks was lost: after DDP's
averaging exactly 1 / world_size of it was left, for four and a half years. It was found by an
audit of all losses, not by a training run. Mended as the project did: a collective that autograd
follows.
Doctor: lost_gradient at dist.all_reduce(c)
"""

import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed._functional_collectives import all_reduce
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

MENDED = "--mended" in sys.argv


def normalize(z: torch.Tensor) -> torch.Tensor:
    return (z - z.mean(0)) / z.std(0)


class BarlowTwinsLoss(nn.Module):
    def __init__(self, lambda_param: float = 5e-3) -> None:
        super().__init__()
        self.lambda_param = lambda_param

    def forward(self, z_a: torch.Tensor, z_b: torch.Tensor) -> torch.Tensor:
        c = normalize(z_a).T @ normalize(z_b) / len(z_a) / dist.get_world_size()
        if MENDED:
            c = all_reduce(c, "sum", dist.group.WORLD)
        else:
            dist.all_reduce(c)
        on_diagonal = (c.diagonal() - 1).square().sum()
        off_diagonal = c.square().sum() - c.diagonal().square().sum()
        return on_diagonal + self.lambda_param * off_diagonal


dist.init_process_group("gloo")
torch.manual_seed(0)
dataset = TensorDataset(torch.randn(64, 12))
sampler = DistributedSampler(dataset, drop_last=True)
dataloader = DataLoader(dataset, batch_size=8, sampler=sampler, drop_last=True)

model = DistributedDataParallel(nn.Sequential(nn.Linear(12, 16), nn.ReLU(), nn.Linear(16, 6)))
criterion = BarlowTwinsLoss()
optimizer = torch.optim.SGD(model.parameters(), lr=0.06)
torch.manual_seed(dist.get_rank())  # for the two views

for epoch in range(2):
    sampler.set_epoch(epoch)
    for (x,) in dataloader:
        views = torch.cat([x + 0.1 * torch.randn_like(x), x + 0.1 * torch.randn_like(x)])
        z_a, z_b = model(views).chunk(2)
        loss = criterion(z_a, z_b)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

dist.destroy_process_group()
