"""A batch that spoils the loss on one rank is skipped by all: they agree by an all_reduce."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def any_rank(flag):
    agreed = torch.tensor(float(flag))
    dist.all_reduce(agreed, op=dist.ReduceOp.MAX)
    return bool(agreed)


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    inputs, targets = torch.randn(80, 8), torch.randn(80)
    inputs[[3, 40, 41]] = float("nan")  # as broken files give
    dataset = TensorDataset(inputs, targets)
    sampler = DistributedSampler(dataset)
    loader = DataLoader(dataset, batch_size=4, sampler=sampler)
    model = DDP(nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1), nn.Flatten(0)))
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    skipped = 0

    for epoch in range(3):
        sampler.set_epoch(epoch)
        for inputs, targets in loader:
            loss = nn.functional.mse_loss(model(inputs), targets)
            if any_rank(not torch.isfinite(loss)):
                skipped += 1
                continue
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        if rank == 0:
            print(f"epoch {epoch}: {skipped} batches skipped so far")
    dist.destroy_process_group()


main()
