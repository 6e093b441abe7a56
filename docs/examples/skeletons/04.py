"""The least that trains in mixed precision: bf16, or fp16 with loss scaling if that is asked for.

torchrun --standalone --nproc-per-node 2 docs/examples/skeletons/04.py [fp16]
"""

import os
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

device = torch.device("cpu")
if torch.cuda.is_available():
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
dtype = torch.float16 if "fp16" in sys.argv else torch.bfloat16
scaler = torch.amp.GradScaler(device.type, enabled=dtype == torch.float16)  # bf16 needs none
torch.manual_seed(0)
data = TensorDataset(torch.randn(64, 8), torch.randint(0, 2, (64,)))
sampler = DistributedSampler(data, seed=0)
model = nn.parallel.DistributedDataParallel(nn.Linear(8, 2).to(device))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(3):
    sampler.set_epoch(epoch)
    for inputs, targets in DataLoader(data, batch_size=8, sampler=sampler):
        with torch.autocast(device.type, dtype):  # forward and loss; backward does as they did
            loss = nn.functional.cross_entropy(model(inputs.to(device)), targets.to(device))
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)  # before anything that looks at the gradients
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)  # no step, if a gradient has overflowed
        scaler.update()
    print(f"rank {dist.get_rank()} epoch {epoch} loss {loss.item():.4f} {scaler.state_dict()}")
dist.destroy_process_group()
