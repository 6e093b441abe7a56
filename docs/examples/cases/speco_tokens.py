"""verl-project/verl-SpeCo pull 29, 2026-07-17: the summed loss is averaged once more.

https://github.com/verl-project/verl-SpeCo/pull/29
The loss of all ranks is added up by dist.all_reduce and divided by all tokens. backward does not
follow dist.all_reduce, so each rank has the gradient of its own part of that sum; the average over
ranks divides it by their number again: a run on N ranks trains with 1/N of its learning rate.
Clipping hides it at first, as the report says. Mended there, and here: backward starts from the
rank's own sum, times the number of ranks, divided by all tokens.
Doctor: lost_gradient at dist.all_reduce(total)
"""

import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

MENDED = "--mended" in sys.argv


def step_loss(loss_sum: torch.Tensor, token_sum: torch.Tensor) -> torch.Tensor:
    """The mean over the tokens of all ranks."""
    dist.all_reduce(token_sum)
    if MENDED:
        total = loss_sum * dist.get_world_size()
    else:
        total = loss_sum
        dist.all_reduce(total)
    return total / token_sum


dist.init_process_group("gloo")
torch.manual_seed(0)
inputs = torch.randn(64, 8)
mask = torch.arange(64) % 3 > 0  # the tokens that count
dataset = TensorDataset(inputs, inputs.roll(1, 1), mask)
sampler = DistributedSampler(dataset)
dataloader = DataLoader(dataset, batch_size=8, sampler=sampler)
drafter = DistributedDataParallel(nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 8)))
optimizer = torch.optim.SGD(drafter.parameters(), lr=0.2)

for epoch in range(3):
    sampler.set_epoch(epoch)
    for x, target, counts in dataloader:
        losses = (drafter(x) - target).square().mean(dim=1)
        loss = step_loss((losses * counts).sum(), counts.sum())
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(drafter.parameters(), 1.0)
        optimizer.step()

print(f"rank {dist.get_rank()}, loss {loss.item():.4f}")
dist.destroy_process_group()
