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


def main() -> None:
    device = torch.device("cpu")
    if torch.cuda.is_available():
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(device)  # without it every process opens GPU 0 as well
    backend = "nccl" if device.type == "cuda" else "gloo"
    dist.init_process_group(backend)  # waits for all
    rank, world_size = dist.get_rank(), dist.get_world_size()

    torch.manual_seed(0)
    points = torch.randn(512, 8)
    data = TensorDataset(points, (points.sum(1) > 0).long())
    batch_size = 64  # of all processes together
    sampler = DistributedSampler(data)  # shuffles, and gives each process a share
    loader = DataLoader(data, batch_size // world_size, sampler=sampler)

    layers = nn.Linear(8, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 2)
    model = nn.Sequential(*layers).to(device)
    ddp_model = DistributedDataParallel(model)  # for training, model for the rest
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    fp16 = "fp16" in sys.argv
    dtype = torch.float16 if fp16 else torch.bfloat16
    scaler = torch.amp.GradScaler(device.type, enabled=fp16)  # bf16 needs none

    for epoch in range(3):
        sampler.set_epoch(epoch)  # without it every epoch has the same order
        for inputs, targets in loader:
            with torch.autocast(device.type, dtype):  # not around backward
                logits = ddp_model(inputs.to(device))
                loss = nn.functional.cross_entropy(logits, targets.to(device))
            optimizer.zero_grad()
            scaler.scale(loss).backward()
            scaler.step(optimizer)  # no step, if a gradient has overflowed on any rank
            scaler.update()
        if rank == 0:  # the loss is that of its own share
            print(f"epoch {epoch}  loss of the last batch {loss.item():.4f}")

    if rank == 0:  # one writer
        torch.save(model.state_dict(), "model.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
