"""A job that is requeued goes on in the middle of an epoch, where its checkpoint was made."""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

EPOCHS, BATCH = 3, 4


class ResumableSampler(DistributedSampler):
    start = 0  # samples of this rank that the epoch has had already

    def __iter__(self):
        return iter(list(super().__iter__())[self.start :])

    def __len__(self):
        return super().__len__() - self.start


def train(dataset, stop_after=None):
    torch.manual_seed(0)
    model = DDP(nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    sampler = ResumableSampler(dataset)
    loader = DataLoader(dataset, batch_size=BATCH, sampler=sampler)
    first, done, steps = 0, 0, 0
    if os.path.exists("checkpoint.pt"):
        state = torch.load("checkpoint.pt")
        model.module.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        first, done = state["epoch"], state["done"]

    for epoch in range(first, EPOCHS):
        sampler.set_epoch(epoch)
        sampler.start = done * BATCH
        for inputs, targets in loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(inputs), targets).backward()
            optimizer.step()
            done, steps = done + 1, steps + 1
            if steps == stop_after:
                if dist.get_rank() == 0:
                    parts = {"model": model.module.state_dict(), "epoch": epoch, "done": done}
                    torch.save({**parts, "optimizer": optimizer.state_dict()}, "checkpoint.pt")
                dist.barrier()
                return
        done = 0


dist.init_process_group("gloo")
generator = torch.Generator().manual_seed(1)
inputs = torch.randn(64, 8, generator=generator)
dataset = TensorDataset(inputs, inputs[:, :3].argmax(1))
train(dataset, stop_after=11)  # the time limit of the first job
train(dataset)
dist.destroy_process_group()
