"""Denys88/rl_games pull 363, 2026-08-05: each rank normalises by its own running statistics.

https://github.com/Denys88/rl_games/pull/363
Gradients were averaged, but not the running mean and variance of observations, which are buffers:
on each rank they are those of its own environments. So the ranks trained slightly different models,
and rank 0's was saved. The author measured Pong on two ranks: a mean reward of 86.9 after 2,000
epochs, and 94.8 when they are merged. Mended as the project did: after each epoch all ranks add up
what is new in their statistics. The doctor notes it only, as a rank may keep its own on purpose.
Doctor: unequal_buffers at optimizer.step()
"""

import sys

import torch
import torch.distributed as dist
from torch import nn

MENDED = "--mended" in sys.argv
OBSERVATIONS = 6


class RunningMeanStd(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.register_buffer("running_mean", torch.zeros(width, dtype=torch.float64))
        self.register_buffer("running_var", torch.ones(width, dtype=torch.float64))
        self.register_buffer("count", torch.ones((), dtype=torch.float64))
        self.merged = self.totals()

    def totals(self) -> torch.Tensor:
        """Count, sums and sums of squares, (3, width)."""
        mean = self.running_mean
        square = self.running_var + mean.square()
        return torch.stack([torch.ones_like(mean), mean, square]) * self.count

    def set_totals(self, totals: torch.Tensor) -> None:
        self.count = totals[0, 0]
        self.running_mean = totals[1] / self.count
        self.running_var = totals[2] / self.count - self.running_mean.square()

    def merge(self) -> None:
        """Only what is new since the last time: the rest is common already."""
        new = self.totals() - self.merged
        dist.all_reduce(new)
        self.set_totals(self.merged + new)
        self.merged = self.totals()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        new = torch.stack([torch.full_like(x[0], len(x)), x.sum(0), x.square().sum(0)])
        self.set_totals(self.totals() + new)
        return ((x - self.running_mean) / (self.running_var + 1e-5).sqrt()).float()


dist.init_process_group("gloo")
rank, world_size = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
network = nn.Sequential(nn.Linear(OBSERVATIONS, 32), nn.ELU(), nn.Linear(32, 2))
running_mean_std = RunningMeanStd(OBSERVATIONS)
optimizer = torch.optim.Adam(network.parameters(), lr=0.003)
torch.manual_seed(1 + rank)  # for the environments

for _ in range(4):
    for _ in range(4):
        obs = torch.randn(16, OBSERVATIONS, dtype=torch.float64) * 3 + rank
        value = obs[:, :2].float()
        loss = nn.functional.mse_loss(network(running_mean_std(obs)), value)
        optimizer.zero_grad()
        loss.backward()
        grads = [p.grad for p in network.parameters()]
        flat = nn.utils.parameters_to_vector(grads)
        dist.all_reduce(flat)
        nn.utils.vector_to_parameters(flat / world_size, grads)
        optimizer.step()
    if MENDED:
        running_mean_std.merge()

print(f"rank {rank}: mean of the first observation {running_mean_std.running_mean[0]:.2f}")
dist.destroy_process_group()
