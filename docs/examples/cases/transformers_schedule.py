"""huggingface/transformers pull 24088, 2023-06-07: the learning rate falls N times too fast.

https://github.com/huggingface/transformers/pull/24088
The Trainer had just moved to accelerate, whose prepared scheduler steps once for each process. The
length of its schedule had already been divided by the number of processes, so with N GPUs the rate
was at its end after 1/N of the run. A user laid the learning rates of two logs side by side
(issue 23986). Mended as the project did: the scheduler is not prepared any more.
Doctor: schedule at LambdaLR(optimizer, linear)
"""

import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim.lr_scheduler import LambdaLR, LRScheduler
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

MENDED = "--mended" in sys.argv


class PreparedScheduler:
    """Steps for all processes, because most programs count the steps of one."""

    def __init__(self, scheduler: LRScheduler) -> None:
        self.scheduler = scheduler

    def step(self) -> None:
        for _ in range(dist.get_world_size()):
            self.scheduler.step()


def create_scheduler(optimizer: torch.optim.Optimizer, num_training_steps: int) -> LRScheduler:
    def linear(step: int) -> float:
        return max(0.0, 1 - step / num_training_steps)

    return LambdaLR(optimizer, linear)


dist.init_process_group("gloo")
torch.manual_seed(0)
inputs = torch.randn(128, 12)
train_dataset = TensorDataset(inputs, inputs[:, :3].argmax(1))
sampler = DistributedSampler(train_dataset)
train_dataloader = DataLoader(train_dataset, batch_size=8, sampler=sampler)

model = DistributedDataParallel(nn.Sequential(nn.Linear(12, 16), nn.ReLU(), nn.Linear(16, 3)))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
scheduler = create_scheduler(optimizer, num_training_steps=2 * len(train_dataloader))
if MENDED:
    lr_scheduler = scheduler
else:
    lr_scheduler = PreparedScheduler(scheduler)

for epoch in range(2):
    sampler.set_epoch(epoch)
    for features, labels in train_dataloader:
        loss = nn.functional.cross_entropy(model(features), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        lr_scheduler.step()

dist.destroy_process_group()
