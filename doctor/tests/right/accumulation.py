"""Gradients are accumulated under no_sync, with a shorter last group in each epoch."""

from contextlib import nullcontext

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

ACCUMULATE = 4


def train_epoch(model, loader, optimizer):
    optimizer.zero_grad()
    for n, (inputs, targets) in enumerate(loader):
        last = (n + 1) % ACCUMULATE == 0 or n + 1 == len(loader)
        group = min(ACCUMULATE, len(loader) - n // ACCUMULATE * ACCUMULATE)
        with nullcontext() if last else model.no_sync():
            loss = nn.functional.cross_entropy(model(inputs), targets)
            (loss / group).backward()
        if last:
            nn.utils.clip_grad_norm_(model.parameters(), max_norm=1.0)
            optimizer.step()
            optimizer.zero_grad()


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    dataset = TensorDataset(torch.randn(80, 8), torch.randint(5, (80,)))
    sampler = DistributedSampler(dataset)
    loader = DataLoader(dataset, batch_size=4, sampler=sampler)
    model = DDP(nn.Sequential(nn.Linear(8, 32), nn.GELU(), nn.Dropout(0.1), nn.Linear(32, 5)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    steps = -(-len(loader) // ACCUMULATE)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=3)
    torch.manual_seed(rank)

    for epoch in range(3):
        sampler.set_epoch(epoch)
        train_epoch(model, loader, optimizer)
        scheduler.step()
        if rank == 0:
            print(f"epoch {epoch}: {steps} steps, rate {scheduler.get_last_lr()[0]:.2e}")
            torch.save(model.module.state_dict(), "model.pt")
    dist.destroy_process_group()


main()
