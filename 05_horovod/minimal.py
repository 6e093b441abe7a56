"""Minimal training under horovodrun, on all GPUs of a machine or on CPU processes.

horovodrun -np 2 -H localhost:2 --gloo python 05_horovod/minimal.py
"""

import horovod.torch as hvd
import torch
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def main() -> None:
    hvd.init()  # horovodrun has told this process who it is
    device = torch.device("cpu")
    if torch.cuda.is_available():
        device = torch.device("cuda", hvd.local_rank())
        torch.cuda.set_device(device)  # without it every process opens GPU 0 as well
    rank, world_size = hvd.rank(), hvd.size()

    torch.manual_seed(0)
    points = torch.randn(512, 8)
    data = TensorDataset(points, (points.sum(1) > 0).long())
    batch_size = 64  # of all processes together
    sampler = DistributedSampler(data, world_size, rank)  # shuffles, gives each a share
    loader = DataLoader(data, batch_size // world_size, sampler=sampler)

    layers = nn.Linear(8, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 2)
    model = nn.Sequential(*layers).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters())
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)

    for epoch in range(3):
        sampler.set_epoch(epoch)  # without it every epoch has the same order
        for inputs, targets in loader:
            logits = model(inputs.to(device))
            loss = nn.functional.cross_entropy(logits, targets.to(device))
            optimizer.zero_grad()
            loss.backward()  # each gradient sets off as soon as it is there
            optimizer.step()  # waits for the averages, then updates
        if rank == 0:  # the loss is that of its own share
            print(f"epoch {epoch}  loss of the last batch {loss.item():.4f}")

    if rank == 0:  # one writer
        torch.save(model.state_dict(), "model.pt")
    hvd.shutdown()


if __name__ == "__main__":
    main()
