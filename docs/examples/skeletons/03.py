"""Minimal training on all GPUs (or two CPU processes) from one `python` command.

python docs/examples/skeletons/03.py
"""

import os
import socket

import torch
import torch.distributed as dist
from torch import multiprocessing as mp
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def worker(rank: int, world_size: int, port: int) -> None:
    """One process. It starts empty: seeds, devices and data are made here, not in the parent."""
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    device = torch.device("cpu")
    if torch.cuda.is_available():
        device = torch.device("cuda", rank)
        torch.cuda.set_device(device)
    backend = "nccl" if device.type == "cuda" else "gloo"
    dist.init_process_group(backend, rank=rank, world_size=world_size)
    torch.manual_seed(0)
    points = torch.randn(512, 8)
    data = TensorDataset(points, (points.sum(1) > 0).long())
    global_batch = 64  # of all processes together
    sampler = DistributedSampler(data)
    loader = DataLoader(data, batch_size=global_batch // world_size, sampler=sampler)
    model = nn.Linear(8, 2).to(device)
    ddp_model = nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for epoch in range(3):
        sampler.set_epoch(epoch)
        for inputs, targets in loader:
            loss = nn.functional.cross_entropy(ddp_model(inputs.to(device)), targets.to(device))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        if rank == 0:
            print(f"epoch {epoch}  loss of the last batch {loss.item():.4f}")
    if rank == 0:
        torch.save(model.state_dict(), "skeleton.pt")
    dist.destroy_process_group()


if __name__ == "__main__":  # each worker imports this file: without the guard it would spawn too
    processes = torch.cuda.device_count() or 2
    with socket.create_server(("127.0.0.1", 0)) as free:  # closed again, so rank 0 can listen there
        port = free.getsockname()[1]
    mp.spawn(worker, (processes, port), processes)
