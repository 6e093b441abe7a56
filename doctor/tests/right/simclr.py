"""Contrastive training: two views of each image, compared with those of all ranks."""

import torch
import torch.distributed as dist
import torch.distributed.nn.functional as dist_nn
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset, DistributedSampler


class TwoViews(Dataset):
    def __init__(self, images):
        self.images = images

    def __len__(self):
        return len(self.images)

    def view(self, n):
        return self.images[n] + 0.1 * torch.randn_like(self.images[n])

    def __getitem__(self, n):
        return (self.view(n), self.view(n)), n % 5


def contrast(one, two, temperature=0.2):
    """NT-Xent; gradients go through the features of other ranks, too."""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    mine = nn.functional.normalize(torch.cat([one, two]), dim=1)
    everyone = torch.cat(dist_nn.all_gather(mine.contiguous()))
    count = len(one)
    row = torch.arange(2 * count)
    itself = row + rank * 2 * count
    partner = (row + count) % (2 * count) + rank * 2 * count
    scores = mine @ everyone.T / temperature
    assert scores.shape == (2 * count, 2 * count * world_size)
    scores = scores.scatter(1, itself[:, None], float("-inf"))
    return nn.functional.cross_entropy(scores, partner)


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    dataset = TwoViews(torch.randn(64, 8))
    sampler = DistributedSampler(dataset)
    loader = DataLoader(dataset, batch_size=8, sampler=sampler, drop_last=True)
    model = DDP(nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4)))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    torch.manual_seed(31 + dist.get_rank())

    for epoch in range(3):
        sampler.set_epoch(epoch)
        for (one, two), _ in loader:
            features = model(torch.cat([one, two]))
            loss = contrast(*features.chunk(2))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    dist.destroy_process_group()


main()
