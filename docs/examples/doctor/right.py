"""Trains with DDP on CPU processes; the doctor finds nothing. faults.py breaks it, line by line."""

from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, Subset, TensorDataset

dist.init_process_group("gloo", timeout=timedelta(seconds=10))
rank, world_size = dist.get_rank(), dist.get_world_size()

torch.manual_seed(0)
images, targets = torch.randn(91, 8), torch.randint(3, (91,))
train_set = TensorDataset(images[:70], targets[:70])
val_set = TensorDataset(images[70:], targets[70:])
share = Subset(val_set, range(rank, len(val_set), world_size))
sampler = DistributedSampler(train_set)
loader = DataLoader(train_set, batch_size=8, sampler=sampler)
val_loader = DataLoader(share, batch_size=8)

model = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.Dropout(), nn.Linear(16, 3))
ddp = DDP(model)
optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1 * world_size)
scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0)
torch.manual_seed(rank)  # for dropout

for epoch in range(3):
    sampler.set_epoch(epoch)
    model.train()
    for images, targets in loader:
        loss = nn.functional.cross_entropy(ddp(images), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    for buffer in model.buffers():
        dist.broadcast(buffer, 0)
    model.eval()
    totals = torch.zeros(2)
    with torch.no_grad():
        for images, targets in val_loader:
            loss = nn.functional.cross_entropy(model(images), targets, reduction="sum")
            totals += torch.tensor([loss, len(targets)])
    dist.all_reduce(totals)
    scheduler.step(totals[0] / totals[1])
    if rank == 0:
        torch.save(model.state_dict(), "checkpoint.pt")

dist.destroy_process_group()
