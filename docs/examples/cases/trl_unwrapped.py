"""huggingface/trl issue 7245, 2026-09-16: the loss is computed on the unwrapped model.

https://github.com/huggingface/trl/issues/7245
With its fused loss the trainer took the model out of the wrapper. DDP's own forward pass is
what prepares the averaging of gradients, so each rank kept its own, in three releases. A
maintainer noticed it when he compared the gradients of two GPUs: 310 of 310 parameters differed.
Mended as the project did: the loss is computed through the wrapper.
Doctor: unequal_gradients at loss.backward()
"""

import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import logsigmoid
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

MENDED = "--mended" in sys.argv


class Policy(nn.Module):
    """A score for each of two answers to a prompt, or the fused loss of both."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Sequential(nn.Linear(12, 16), nn.Tanh(), nn.Linear(16, 1))

    def forward(self, chosen: torch.Tensor, rejected: torch.Tensor) -> torch.Tensor:
        return -logsigmoid(self.head(chosen) - self.head(rejected)).mean()


class DPOTrainer:
    def __init__(self, train_dataset: TensorDataset) -> None:
        sampler = DistributedSampler(train_dataset)
        self.dataloader = DataLoader(train_dataset, batch_size=8, sampler=sampler)
        self.model = DistributedDataParallel(Policy())
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.01)

    def compute_loss(self, chosen: torch.Tensor, rejected: torch.Tensor) -> torch.Tensor:
        if MENDED:
            model = self.model
        else:
            model = self.model.module
        return model(chosen, rejected)

    def train(self, num_train_epochs: int) -> None:
        for epoch in range(num_train_epochs):
            self.dataloader.sampler.set_epoch(epoch)
            for chosen, rejected in self.dataloader:
                loss = self.compute_loss(chosen, rejected)
                self.optimizer.zero_grad()
                loss.backward()
                self.optimizer.step()


dist.init_process_group("gloo")
torch.manual_seed(0)
pairs = TensorDataset(torch.randn(64, 12) + 0.5, torch.randn(64, 12))
DPOTrainer(pairs).train(num_train_epochs=2)
dist.destroy_process_group()
