"""Minimal exact evaluation, with any number of processes: start 1, 2 or 3 and compare.

torchrun --standalone --nproc-per-node 3 docs/examples/skeletons/07.py
"""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

device = torch.device("cpu")
if torch.cuda.is_available():
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
rank, world_size = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
data = TensorDataset(torch.randn(1003, 8), torch.randint(0, 10, (1003,)))
model = nn.Sequential(nn.Linear(8, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 10))
model = model.to(device).eval()  # this one, not the DistributedDataParallel around it
for buffer in model.buffers():  # BatchNorm's statistics: after training each rank has its own
    dist.broadcast(buffer, src=0)
share = range(rank, len(data), world_size)  # each image once: 335, 334 and 334 on three ranks
totals = torch.zeros(3, dtype=torch.float64, device=device)  # loss sum, correct, images
with torch.inference_mode():
    for inputs, targets in DataLoader(data, batch_size=64, sampler=share):  # 64 on each rank
        logits, targets = model(inputs.to(device)).double(), targets.to(device)
        totals[0] += nn.functional.cross_entropy(logits, targets, reduction="sum")
        totals[1] += (logits.argmax(1) == targets).sum()
        totals[2] += len(targets)
dist.all_reduce(totals)  # outside of the loop: as often on a rank that has no images at all
loss, correct, images = totals.tolist()
if rank == 0:
    print(f"loss {loss / images:.6f}  acc1 {100 * correct / images:.4f}  images {images:.0f}")
dist.destroy_process_group()
