"""baidu-baige/LoongForge pull 163, 2026-08-14: no_sync stands around the backward pass alone.

https://github.com/baidu-baige/LoongForge/pull/163
With gradient accumulation the trainer entered no_sync only for backward. DDP decides in the
forward pass whether it averages, so every micro-step was sent all the same: four all-reduces for
a step of four micro-steps. The gradients are right, and only time is lost. The pull request does
not say how it was noticed. Mended as the project did: forward and backward are both inside.
Doctor: no_sync at with self._grad_sync_ctx(sync_grads)
"""

import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

MENDED = "--mended" in sys.argv


class VLATrainer:
    def __init__(self, accumulation: int) -> None:
        self.accumulation = accumulation
        policy = nn.Sequential(nn.Linear(12, 32), nn.GELU(), nn.Linear(32, 7))
        self.model = DistributedDataParallel(policy)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.01)

    def _grad_sync_ctx(self, sync_grads: bool) -> AbstractContextManager:
        return nullcontext() if sync_grads else self.model.no_sync()

    def _train_forward(self, observation: torch.Tensor, action: torch.Tensor) -> torch.Tensor:
        return nn.functional.mse_loss(self.model(observation), action) / self.accumulation

    def _backward_loss(self, loss: torch.Tensor, sync_grads: bool = True) -> None:
        with self._grad_sync_ctx(sync_grads):
            loss.backward()

    def train_step(self, data_iterator: Iterator[list[torch.Tensor]]) -> None:
        for micro_step in range(1, self.accumulation + 1):
            batch = next(data_iterator)
            last = micro_step == self.accumulation
            if MENDED:
                with self._grad_sync_ctx(last):
                    loss = self._train_forward(*batch)
                    self._backward_loss(loss)
            else:
                loss = self._train_forward(*batch)
                self._backward_loss(loss, sync_grads=last)

        self.optimizer.step()
        self.optimizer.zero_grad()


dist.init_process_group("gloo")
torch.manual_seed(0)
observations = torch.randn(96, 12)
dataset = TensorDataset(observations, observations[:, :7].tanh())
sampler = DistributedSampler(dataset)
dataloader = DataLoader(dataset, batch_size=4, sampler=sampler)

trainer = VLATrainer(accumulation=4)
for epoch in range(2):
    sampler.set_epoch(epoch)
    data_iterator = iter(dataloader)
    for _ in range(len(dataloader) // trainer.accumulation):
        trainer.train_step(data_iterator)

dist.destroy_process_group()
