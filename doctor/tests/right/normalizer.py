"""Observations are normalised by running statistics, which all ranks put together every few steps,
and compared with the outputs of a frozen random network. Gradients are averaged by hand."""

import torch
import torch.distributed as dist
from torch import nn

WIDTH, ROUNDS, STEPS = 6, 4, 5


class Normalizer(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.register_buffer("mean", torch.zeros(width))
        self.register_buffer("var", torch.ones(width))
        self.register_buffer("count", torch.ones(()))
        self.news = torch.zeros(3, width)  # sums since the ranks have heard of each other

    def forward(self, x):
        new = torch.stack([torch.full_like(self.mean, len(x)), x.sum(0), x.square().sum(0)])
        self.news += new
        self.add(new)
        return (x - self.mean) / (self.var + 1e-5).sqrt()

    def add(self, new):
        """The statistics are replaced, not changed in place."""
        count = self.count + new[0, 0]
        mean = (self.mean * self.count + new[1]) / count
        square = (self.var + self.mean.square()) * self.count + new[2]
        self.mean, self.var, self.count = mean, square / count - mean.square(), count

    def synchronize(self):
        own = self.news.clone()
        dist.all_reduce(self.news)
        self.add(self.news - own)
        self.news = torch.zeros_like(own)


dist.init_process_group("gloo")
rank, world_size = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
target = nn.Sequential(nn.Linear(WIDTH, 16), nn.ReLU(), nn.Linear(16, 4)).requires_grad_(False)
stem = nn.Linear(WIDTH, 16).requires_grad_(False)
predictor = nn.Sequential(stem, nn.ReLU(), nn.Linear(16, 4))
torch.manual_seed(1 + rank)  # for the observations
normalizer = Normalizer(WIDTH)
optimizer = torch.optim.Adam([p for p in predictor.parameters() if p.requires_grad], lr=1e-2)
for _ in range(ROUNDS):
    for _ in range(STEPS):
        observed = normalizer(rank + 2 * torch.randn(8, WIDTH))
        loss = nn.functional.mse_loss(predictor(observed), target(observed))
        optimizer.zero_grad()
        loss.backward()
        for p in predictor[2].parameters():
            dist.all_reduce(p.grad)
            p.grad /= world_size
        optimizer.step()
    normalizer.synchronize()
dist.destroy_process_group()
