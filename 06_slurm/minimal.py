"""Minimal training on all tasks that srun has started: a GPU for each, or CPUs.

srun -K --ntasks 2 python 06_slurm/minimal.py
"""

import os
import subprocess

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

if "SLURM_STEP_ID" not in os.environ:  # login node, or a batch script without srun
    raise SystemExit(f"start it with srun -K --ntasks 2 python {__file__}")
rank = int(os.environ["SLURM_PROCID"])
world_size = int(os.environ["SLURM_STEP_NUM_TASKS"])
nodes = ["scontrol", "show", "hostnames", os.environ["SLURM_STEP_NODELIST"]]
first_node = subprocess.check_output(nodes, text=True).split()[0]
os.environ["MASTER_ADDR"] = first_node  # rank 0 is there
os.environ["MASTER_PORT"] = str(10_000 + int(os.environ["SLURM_JOB_ID"]) % 20_000)

device, backend = torch.device("cpu"), "gloo"
if gpus := torch.cuda.device_count():  # 1, if each task is shown only its own
    device = torch.device("cuda", int(os.environ["SLURM_LOCALID"]) % gpus)
    backend = "nccl"
    torch.cuda.set_device(device)
dist.init_process_group(backend, rank=rank, world_size=world_size)

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
        logits = ddp_model(inputs.to(device))
        loss = nn.functional.cross_entropy(logits, targets.to(device))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    if rank == 0:
        print(f"epoch {epoch}  loss of the last batch {loss.item():.4f}")

if rank == 0:
    torch.save(model.state_dict(), "model.pt")
dist.destroy_process_group()
