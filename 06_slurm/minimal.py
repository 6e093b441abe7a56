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


def main() -> None:
    if "SLURM_STEP_ID" not in os.environ:  # login node, or a batch script without srun
        raise SystemExit(f"start it with srun -K --ntasks 2 python {__file__}")
    nodes = ["scontrol", "show", "hostnames", os.environ["SLURM_STEP_NODELIST"]]
    first_node = subprocess.check_output(nodes, text=True).split()[0]
    gpus = torch.cuda.device_count() or 1  # 1, if each task is shown only its own
    # What torchrun would have set.
    os.environ["RANK"] = os.environ["SLURM_PROCID"]
    os.environ["WORLD_SIZE"] = os.environ["SLURM_STEP_NUM_TASKS"]
    os.environ["LOCAL_RANK"] = str(int(os.environ["SLURM_LOCALID"]) % gpus)
    os.environ["MASTER_ADDR"] = first_node  # rank 0 is there
    os.environ["MASTER_PORT"] = str(10_000 + int(os.environ["SLURM_JOB_ID"]) % 20_000)

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


if __name__ == "__main__":
    main()
