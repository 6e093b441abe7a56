"""NVIDIA-NeMo/Automodel pull 2468, 2026-06-09: one rank alone skips a batch.

https://github.com/NVIDIA-NeMo/Automodel/pull/2468
If all samples of a batch are too short, the trainer raises NoValidAnchorsError, and the loop went
on with the next batch: on that rank alone, since the others have other samples. Its gradients were
then averaged with those of another batch, and at the end one rank waited for ever. It was found by
reading. Mended as the project did: all ranks skip if one of them has nothing valid.
Doctor: unequal_steps at self.optimizer.step()
"""

import sys
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

MENDED = "--mended" in sys.argv


class NoValidAnchorsError(ValueError):
    pass


class TrainRecipe:
    def __init__(self, dataloader: DataLoader) -> None:
        self.dataloader = dataloader
        self.model = DistributedDataParallel(nn.Linear(12, 4))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.01)

    def valid_anchors(self, lengths: torch.Tensor) -> torch.Tensor:
        valid = lengths > 4
        if not valid.any():
            raise NoValidAnchorsError
        return valid

    def all_ranks_have_valid(self, lengths: torch.Tensor) -> bool:
        have = torch.tensor(int((lengths > 4).any()))
        dist.all_reduce(have, dist.ReduceOp.MIN)
        return bool(have)

    def run_train_validation_loop(self) -> None:
        for epoch in range(2):
            self.dataloader.sampler.set_epoch(epoch)
            for inputs, targets, lengths in self.dataloader:
                if MENDED:
                    if not self.all_ranks_have_valid(lengths):
                        continue
                try:
                    valid = self.valid_anchors(lengths)
                except NoValidAnchorsError:
                    continue
                loss = nn.functional.cross_entropy(self.model(inputs)[valid], targets[valid])
                self.optimizer.zero_grad()
                loss.backward()
                self.optimizer.step()


dist.init_process_group("gloo", timeout=timedelta(seconds=8))
torch.manual_seed(0)
inputs = torch.randn(80, 12)
lengths = torch.randint(1, 9, (80,))
samples = TensorDataset(inputs, inputs[:, :4].argmax(1), lengths)
TrainRecipe(DataLoader(samples, 2, sampler=DistributedSampler(samples))).run_train_validation_loop()
dist.destroy_process_group()
