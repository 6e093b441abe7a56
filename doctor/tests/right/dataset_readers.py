"""A data set that holds functions and objects by name: their addresses differ between ranks."""

import functools

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset, DistributedSampler


class Normalize:
    def __init__(self, mean, std):
        self.mean, self.std = mean, std

    def __call__(self, x):
        return (x - self.mean) / self.std


class Scenes(Dataset):
    """Colour and depth of a scene, read by a function each."""

    def __init__(self, size):
        generator = torch.Generator().manual_seed(0)
        self.raw = torch.rand(size, 8, generator=generator)
        self.readers = {"rgb": lambda n: self.raw[n, :6], "depth": lambda n: self.raw[n, 6:]}
        self.transforms = {"rgb": Normalize(0.5, 0.25), "depth": functools.partial(torch.mul, 10)}
        self._format_kwargs = {"transform": self.join}
        self.caches = {"seen": set(), "locks": object()}

    def join(self, parts):
        return torch.cat(list(parts.values()))

    def __len__(self):
        return len(self.raw)

    def __getitem__(self, n):
        self.caches["seen"].add(n)
        parts = {name: self.transforms[name](read(n)) for name, read in self.readers.items()}
        return self._format_kwargs["transform"](parts), int(self.raw[n].sum() > 4)


def main():
    dist.init_process_group("gloo")
    dataset = Scenes(72)
    sampler = DistributedSampler(dataset)
    loader = DataLoader(dataset, batch_size=6, sampler=sampler)
    torch.manual_seed(0)
    model = DDP(nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 2)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for epoch in range(2):
        sampler.set_epoch(epoch)
        for inputs, targets in loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(inputs), targets).backward()
            optimizer.step()
    dist.destroy_process_group()


main()
