"""Many classes, as for faces: each rank has the weights of some, the backbone is under DDP."""

import torch
import torch.distributed as dist
import torch.distributed.nn.functional as dist_nn
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

CLASSES = 12


class DividedSoftmax(nn.Module):
    def __init__(self, width, rank, world_size):
        super().__init__()
        self.count = CLASSES // world_size
        self.first = rank * self.count
        self.weight = nn.Parameter(0.1 * torch.randn(self.count, width))

    def forward(self, features, targets):
        """The mean loss over the batches of all ranks."""
        features = torch.cat(dist_nn.all_gather(features))
        gathered = [torch.empty_like(targets) for _ in range(dist.get_world_size())]
        dist.all_gather(gathered, targets)
        local = torch.cat(gathered) - self.first
        mine = (local >= 0) & (local < self.count)

        logits = features @ self.weight.T
        chosen = logits.gather(1, local.clamp(0, self.count - 1)[:, None])[:, 0]
        total = dist_nn.all_reduce(logits.exp().sum(1))
        return (total.log() - dist_nn.all_reduce(chosen * mine)).mean()


def main():
    dist.init_process_group("gloo")
    rank, world_size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    dataset = TensorDataset(torch.randn(96, 8), torch.randint(CLASSES, (96,)))
    sampler = DistributedSampler(dataset)
    loader = DataLoader(dataset, batch_size=8, sampler=sampler, drop_last=True)
    backbone = DDP(nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 8)))
    torch.manual_seed(1 + rank)
    head = DividedSoftmax(8, rank, world_size)
    optimizer = torch.optim.SGD([*backbone.parameters(), *head.parameters()], lr=0.1)

    for epoch in range(3):
        sampler.set_epoch(epoch)
        for images, targets in loader:
            loss = head(backbone(images), targets)
            optimizer.zero_grad()
            loss.backward()
            head.weight.grad /= world_size  # each rank has the loss of all
            optimizer.step()
    dist.destroy_process_group()


main()
