"""Minimal exact evaluation, with any number of processes: start 1, 2 or 3 and compare.

torchrun --standalone --nproc-per-node 3 07_dist_eval/minimal.py
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
share = range(rank, len(data), world_size)  # each image once: on three, 335, 334, 334
loader = DataLoader(data, batch_size=64, sampler=share)  # 64 on each rank

layers = nn.Linear(8, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 10)
model = nn.Sequential(*layers).to(device)
for buffer in model.buffers():  # BatchNorm statistics: after training they differ
    dist.broadcast(buffer, src=0)

model.eval()  # this one, not the DistributedDataParallel around it
sums = torch.zeros(3, dtype=torch.float64, device=device)
loss_sum, correct, images = sums  # each is a view: what is added to it is in sums
with torch.inference_mode():
    for inputs, targets in loader:
        logits, targets = model(inputs.to(device)).double(), targets.to(device)
        loss_sum += nn.functional.cross_entropy(logits, targets, reduction="sum")
        correct += (logits.argmax(1) == targets).sum()
        images += len(targets)
# Outside of the loop: as often on a rank that has no images at all.
dist.all_reduce(sums)

if rank == 0:
    all_loss, all_correct, count = sums.tolist()
    acc1 = 100 * all_correct / count
    print(f"loss {all_loss / count:.6f}  acc1 {acc1:.4f}  images {count:.0f}")
dist.destroy_process_group()
