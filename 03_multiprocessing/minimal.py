"""Minimal training on all GPUs (or two CPU processes) from one `python` command.

python 03_multiprocessing/minimal.py
"""

import tempfile

import torch
import torch.distributed as dist
from torch import multiprocessing as mp
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def worker(rank: int, world_size: int, meeting: str) -> None:
    """One process. It starts empty, so seed, device and data are made here."""
    device = torch.device("cpu")
    if torch.cuda.is_available():
        device = torch.device("cuda", rank)
        torch.cuda.set_device(device)
    backend = "nccl" if device.type == "cuda" else "gloo"
    dist.init_process_group(backend, meeting, rank=rank, world_size=world_size)

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


if __name__ == "__main__":  # each worker imports this file, and must not spawn too
    processes = torch.cuda.device_count() or 2
    with tempfile.TemporaryDirectory() as folder:
        meeting = f"file://{folder}/meeting"  # they find each other by this file
        mp.spawn(worker, (processes, meeting), processes)
