"""The least that trains on all GPUs (or two CPU processes) from one `python` command."""

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
    device = torch.device("cuda", rank) if torch.cuda.is_available() else torch.device("cpu")
    if device.type == "cuda":
        torch.cuda.set_device(device)
    backend = "nccl" if device.type == "cuda" else "gloo"
    dist.init_process_group(backend, rank=rank, world_size=world_size)
    torch.manual_seed(0)
    data = TensorDataset(torch.randn(64, 8), torch.randint(0, 2, (64,)))
    sampler = DistributedSampler(data, seed=0)
    model = nn.parallel.DistributedDataParallel(nn.Linear(8, 2).to(device))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for epoch in range(3):
        sampler.set_epoch(epoch)
        for inputs, targets in DataLoader(data, batch_size=8, sampler=sampler):
            loss = nn.functional.cross_entropy(model(inputs.to(device)), targets.to(device))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        print(f"rank {rank} epoch {epoch} loss {loss.item():.4f}")
    dist.destroy_process_group()


if __name__ == "__main__":  # each worker imports this file: without the guard it would spawn too
    processes = torch.cuda.device_count() or 2
    with socket.create_server(("127.0.0.1", 0)) as free:  # closed again, so rank 0 can listen there
        port = free.getsockname()[1]
    mp.spawn(worker, (processes, port), processes)
