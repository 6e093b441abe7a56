"""Workers give batches as they are ready: in_order=False, with some items that take longer."""

import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset, DistributedSampler


class Clips(Dataset):
    """Some are slow to decode."""

    def __init__(self, size):
        generator = torch.Generator().manual_seed(0)
        self.frames = torch.randn(size, 8, generator=generator)
        self.labels = torch.randint(10, (size,), generator=generator).tolist()

    def __len__(self):
        return len(self.frames)

    def __getitem__(self, n):
        time.sleep(0.01 if n % 12 == 0 else 0)
        return self.frames[n], self.labels[n]


def main():
    dist.init_process_group("gloo")
    world_size = dist.get_world_size()
    dataset = Clips(96)
    sampler = DistributedSampler(dataset)
    loader = DataLoader(
        dataset, batch_size=6, sampler=sampler, num_workers=2, in_order=False, prefetch_factor=2
    )
    torch.manual_seed(0)
    model = DDP(nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 10)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05 * world_size)
    for epoch in range(2):
        sampler.set_epoch(epoch)
        for frames, labels in loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(frames), labels).backward()
            optimizer.step()
    dist.destroy_process_group()


main()
