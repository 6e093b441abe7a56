"""Minimal training in mixed precision by torch.amp: bf16, or fp16 with loss scaling.

torchrun --standalone --nproc-per-node 2 04_apex/minimal.py [fp16]
"""

import os
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

device = torch.device("cpu")
if torch.cuda.is_available():
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
rank, world_size = dist.get_rank(), dist.get_world_size()
fp16 = "fp16" in sys.argv
dtype = torch.float16 if fp16 else torch.bfloat16
scaler = torch.amp.GradScaler(device.type, enabled=fp16)  # bf16 needs none

torch.manual_seed(0)
points = torch.randn(512, 8)
data = TensorDataset(points, (points.sum(1) > 0).long())
global_batch = 64  # of all processes together
sampler = DistributedSampler(data)
loader = DataLoader(data, batch_size=global_batch // world_size, sampler=sampler)

model = nn.Linear(8, 2).to(device)
ddp_model = DistributedDataParallel(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

for epoch in range(3):
    sampler.set_epoch(epoch)
    for inputs, targets in loader:
        with torch.autocast(device.type, dtype):  # not around backward
            logits = ddp_model(inputs.to(device))
            loss = nn.functional.cross_entropy(logits, targets.to(device))
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)  # before anything that looks at the gradients
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)  # no step, if a gradient has overflowed on any rank
        scaler.update()
    if rank == 0:
        print(f"epoch {epoch}  loss {loss.item():.4f}  {scaler.state_dict()}")

if rank == 0:
    torch.save(model.state_dict(), "model.pt")
dist.destroy_process_group()
