"""A thread takes batches from the loader while the step before them is still at work."""

import queue
import threading

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, Subset, TensorDataset


class Prefetcher:
    def __init__(self, loader, depth=3):
        self.loader, self.depth = loader, depth

    def fill(self, batches):
        for batch in self.loader:
            batches.put([part.contiguous() for part in batch])
        batches.put(None)

    def __iter__(self):
        batches = queue.Queue(self.depth)
        threading.Thread(target=self.fill, args=(batches,), daemon=True).start()
        while (batch := batches.get()) is not None:
            yield batch


def main():
    dist.init_process_group("gloo")
    rank, world_size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    inputs, targets = torch.randn(103, 8), torch.randint(3, (103,))
    train_set, val_set = TensorDataset(inputs[:80], targets[:80]), TensorDataset(inputs, targets)
    sampler = DistributedSampler(train_set)
    train_loader = Prefetcher(DataLoader(train_set, batch_size=8, sampler=sampler))
    share = Subset(val_set, range(rank, len(val_set), world_size))
    val_loader = Prefetcher(DataLoader(share, batch_size=8))
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3))
    ddp = DDP(model)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.05 * world_size)

    for epoch in range(3):
        sampler.set_epoch(epoch)
        for inputs, targets in train_loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(ddp(inputs), targets).backward()
            optimizer.step()

        totals = torch.zeros(2)
        with torch.no_grad():
            for inputs, targets in val_loader:
                right = (model(inputs).argmax(1) == targets).sum()
                totals += torch.tensor([float(right), len(targets)])
        dist.all_reduce(totals)
        if rank == 0:
            print(f"epoch {epoch} accuracy {(totals[0] / totals[1]).item():.3f}")
    dist.destroy_process_group()


main()
