"""RuiningLi/particulate issue 22, 2026-08-24: the cosine schedule rises again, several times.

https://github.com/RuiningLi/particulate/issues/22
On 8 GPUs accelerate stepped the prepared scheduler 8 times for each optimizer step, so the cosine
of 100k steps repeats "instead of decaying once"; it ends at its peak. Two full runs measured it:
gIoU 0.717 with the fault and 0.731 without, so it does not explain the 0.838 of the released
checkpoint. The authors have not answered. Mended here by accelerate's own switch for a program
that counts its steps itself.
Doctor: schedule at CosineAnnealingLR(optimizer
"""

import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import mse_loss
from torch.nn.parallel import DistributedDataParallel
from torch.optim.lr_scheduler import CosineAnnealingLR, LRScheduler
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

MENDED = "--mended" in sys.argv
MAX_STEPS = 24


class AcceleratedScheduler:
    """What accelerate makes of a scheduler: by default it steps for all processes."""

    def __init__(self, scheduler: LRScheduler, step_with_optimizer: bool = True) -> None:
        self.scheduler = scheduler
        self.step_with_optimizer = step_with_optimizer

    def step(self) -> None:
        steps = dist.get_world_size() if self.step_with_optimizer else 1
        for _ in range(steps):
            self.scheduler.step()


dist.init_process_group("gloo")
torch.manual_seed(0)
points = torch.randn(96, 3)
axes = points @ torch.randn(3, 3)
dataset = TensorDataset(points, axes)
sampler = DistributedSampler(dataset)
dataloader = DataLoader(dataset, batch_size=4, sampler=sampler)

model = DistributedDataParallel(nn.Sequential(nn.Linear(3, 32), nn.GELU(), nn.Linear(32, 3)))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
scheduler = CosineAnnealingLR(optimizer, T_max=MAX_STEPS)
if MENDED:
    scheduler = AcceleratedScheduler(scheduler, step_with_optimizer=False)
else:
    scheduler = AcceleratedScheduler(scheduler)

for epoch in range(MAX_STEPS // len(dataloader)):
    sampler.set_epoch(epoch)
    for cloud, target in dataloader:
        loss = mse_loss(model(cloud), target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        scheduler.step()

    if dist.get_rank() == 0:
        print(f"epoch {epoch}: learning rate {optimizer.param_groups[0]['lr']:.5f}")

dist.destroy_process_group()
