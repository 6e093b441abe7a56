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


def main(rank: int, world_size: int, meeting: str) -> None:  # one of the processes
    device = torch.device("cpu")
    if torch.cuda.is_available():
        device = torch.device("cuda", rank)
        torch.cuda.set_device(device)  # without it every process opens GPU 0 as well
    backend = "nccl" if device.type == "cuda" else "gloo"
    # Waits for all, which find each other by a file.
    dist.init_process_group(backend, meeting, rank=rank, world_size=world_size)

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

    for epoch in range(3):
        sampler.set_epoch(epoch)  # without it every epoch has the same order
        for inputs, targets in loader:
            logits = ddp_model(inputs.to(device))
            loss = nn.functional.cross_entropy(logits, targets.to(device))
            optimizer.zero_grad()
            loss.backward()  # the gradients are averaged over the processes in here
            optimizer.step()
        if rank == 0:  # the loss is that of its own share
            print(f"epoch {epoch}  loss of the last batch {loss.item():.4f}")

    if rank == 0:  # one writer
        torch.save(model.state_dict(), "model.pt")
    dist.destroy_process_group()


if __name__ == "__main__":  # each process imports this file, and must not spawn too
    processes = torch.cuda.device_count() or 2
    with tempfile.TemporaryDirectory() as folder:
        meeting = f"file://{folder}/meeting"
        mp.spawn(main, (processes, meeting), processes)
