"""Minimal training, and an evaluation that is exact for any number of processes.

torchrun --standalone --nproc-per-node 2 07_dist_eval/minimal.py
"""

import os

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

    torch.manual_seed(1)
    val_points = torch.randn(103, 8)
    val_data = TensorDataset(val_points, (val_points.sum(1) > 0).long())
    share = range(rank, len(val_data), world_size)  # each image once: on two, 52 and 51
    val_loader = DataLoader(val_data, batch_size, sampler=share)
    for buffer in model.buffers():  # BatchNorm's statistics: after training they differ
        dist.broadcast(buffer, src=0)

    model.eval()  # this one: ddp_model would wait for a rank that has fewer batches
    sums = torch.zeros(2, device=device)
    with torch.inference_mode():
        for inputs, targets in val_loader:
            logits, targets = model(inputs.to(device)), targets.to(device)
            sums[0] += (logits.argmax(1) == targets).sum()
            sums[1] += len(targets)
    dist.all_reduce(sums)  # after the loop: also on a rank that has no image at all
    if rank == 0:
        correct, count = sums.tolist()
        print(f"accuracy {100 * correct / count:.2f}%, {count:.0f} images")

    if rank == 0:  # one writer
        torch.save(model.state_dict(), "model.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
