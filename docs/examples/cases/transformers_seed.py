"""huggingface/transformers issue 37932, 2025-05-02: loader workers are seeded alike on all ranks.

https://github.com/huggingface/transformers/issues/37932
The Trainer's seed_worker seeded each worker with the seed that torch had just given it. That one
comes from the rank's own generator, which has the same seed on every rank: worker 0 of rank 0 and
worker 0 of rank 1 augmented alike. It was noticed by printing a random number in __getitem__.
Mended as the project did (pull 37980): the seed grows with the rank and the number of workers.
Doctor: equal_randomness at dataset, batch_size=8
"""

import random
import sys
from functools import partial

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler

MENDED = "--mended" in sys.argv


def set_seed(seed: int) -> None:
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)


def seed_worker(worker_id: int, num_workers: int, rank: int) -> None:
    if MENDED:
        set_seed(torch.initial_seed() % 2**32 + num_workers * rank)
    else:
        set_seed(torch.initial_seed() % 2**32)


class Pictures(Dataset):
    """A noisy picture, (16,), and its class."""

    def __init__(self) -> None:
        self.pictures = torch.randn(128, 16)
        self.labels = self.pictures[:, :3].argmax(1)

    def __len__(self) -> int:
        return len(self.pictures)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        picture = self.pictures[index]
        return picture + 0.1 * torch.randn_like(picture), self.labels[index]


class Trainer:
    def __init__(self, model: nn.Module, dataset: Dataset) -> None:
        self.model = DistributedDataParallel(model)
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        self.sampler = DistributedSampler(dataset)
        init = partial(seed_worker, num_workers=2, rank=dist.get_rank())
        loader = partial(DataLoader, num_workers=2, worker_init_fn=init)
        self.dataloader = loader(dataset, batch_size=8, sampler=self.sampler)

    def train(self, num_train_epochs: int) -> None:
        for epoch in range(num_train_epochs):
            self.sampler.set_epoch(epoch)
            for pictures, labels in self.dataloader:
                loss = nn.functional.cross_entropy(self.model(pictures), labels)
                self.optimizer.zero_grad()
                loss.backward()
                self.optimizer.step()


dist.init_process_group("gloo")
set_seed(42)
dataset = Pictures()
Trainer(nn.Linear(16, 3), dataset).train(num_train_epochs=2)
dist.destroy_process_group()
