"""Minimal training of a model that one GPU cannot hold: each rank keeps a part of it.

torchrun --standalone --nproc-per-node 2 08_fsdp2/minimal.py
"""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
)
from torch.distributed.fsdp import fully_shard
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
    # Each process keeps a part of its own weights, which the seed has made equal.
    for layer in model[0], model[3]:  # of a real model its blocks, gathered in turn
        fully_shard(layer)
    fully_shard(model)  # what is in none of them
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)  # of these parts

    for epoch in range(3):
        sampler.set_epoch(epoch)  # without it every epoch has the same order
        for inputs, targets in loader:
            logits = model(inputs.to(device))
            loss = nn.functional.cross_entropy(logits, targets.to(device))
            optimizer.zero_grad()
            loss.backward()  # each process gets the average of its part in here
            optimizer.step()
        if rank == 0:  # the loss is that of its own share
            print(f"epoch {epoch}  loss of the last batch {loss.item():.4f}")

    torch.manual_seed(1)
    val_points = torch.randn(103, 8)
    val_targets = (val_points.sum(1) > 0).long()
    extra = -len(val_points) % world_size  # all ranks must call the model equally often
    val_points = nn.functional.pad(val_points, (0, 0, 0, extra))
    val_targets = nn.functional.pad(val_targets, (0, extra), value=-1)  # counts nowhere
    val_data = TensorDataset(val_points, val_targets)
    share = range(rank, len(val_data), world_size)
    val_loader = DataLoader(val_data, batch_size, sampler=share)
    for buffer in model.buffers():
        dist.broadcast(buffer, src=0)

    model.eval()
    sums = torch.zeros(2, device=device)
    with torch.inference_mode():
        for inputs, targets in val_loader:
            logits, targets = model(inputs.to(device)), targets.to(device)
            sums[0] += (logits.argmax(1) == targets).sum()
            sums[1] += (targets >= 0).sum()
    dist.all_reduce(sums)
    if rank == 0:
        correct, count = sums.tolist()
        print(f"accuracy {100 * correct / count:.2f}%, {count:.0f} images")

    whole = StateDictOptions(full_state_dict=True, cpu_offload=True)
    weights = get_model_state_dict(model, options=whole)  # on all ranks: it gathers
    if rank == 0:  # one writer
        torch.save(weights, "model.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
