"""A loader that keeps its workers and one endless pass; its sampler counts epochs by itself."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Sampler, TensorDataset


class CountingSampler(Sampler):
    """Each epoch it is asked for has another order, however far ahead the workers are."""

    def __init__(self, size, rank, world_size):
        self.size, self.rank, self.world_size = size, rank, world_size
        self.epoch = 0

    def __iter__(self):
        generator = torch.Generator().manual_seed(self.epoch)
        self.epoch += 1
        order = torch.randperm(self.size, generator=generator).tolist()
        return iter(order[self.rank :: self.world_size])

    def __len__(self):
        return self.size // self.world_size


class RepeatSampler:
    def __init__(self, sampler):
        self.sampler = sampler

    def __iter__(self):
        while True:
            yield from iter(self.sampler)


class InfiniteDataLoader(DataLoader):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        object.__setattr__(self, "batch_sampler", RepeatSampler(self.batch_sampler))
        self.iterator = super().__iter__()

    def __len__(self):
        return len(self.batch_sampler.sampler)

    def __iter__(self):
        for _ in range(len(self)):
            yield next(self.iterator)


def main():
    dist.init_process_group("gloo")
    rank, world_size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    dataset = TensorDataset(torch.randn(64, 8), torch.randint(3, (64,)))
    sampler = CountingSampler(len(dataset), rank, world_size)
    loader = InfiniteDataLoader(dataset, batch_size=8, sampler=sampler, num_workers=2)
    model = DDP(nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02 * world_size, momentum=0.9)
    for _ in range(4):
        for images, targets in loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(images), targets).backward()
            optimizer.step()
    dist.destroy_process_group()


main()
