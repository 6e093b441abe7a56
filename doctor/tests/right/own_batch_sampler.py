"""Batches of like lengths by a batch sampler of one's own, which hides the size of a batch."""

import random

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader, Dataset


class Texts(Dataset):
    def __init__(self, size):
        lengths = random.Random(0)
        self.texts = [list(range(1, lengths.randint(3, 12))) for _ in range(size)]

    def __len__(self):
        return len(self.texts)

    def __getitem__(self, n):
        return torch.tensor(self.texts[n]), len(self.texts[n]) % 2


class LengthBatches:
    """Every rank cuts the same shuffled batches, and takes each world_size-th."""

    def __init__(self, lengths, tokens, rank, world_size):
        self.lengths, self.tokens, self.rank, self.world_size = lengths, tokens, rank, world_size
        self.epoch = 0
        self.batches = self.cut()

    def cut(self):
        batches, order = [[]], sorted(range(len(self.lengths)), key=self.lengths.__getitem__)
        for n in order:
            if (len(batches[-1]) + 1) * self.lengths[n] > self.tokens:
                batches.append([])
            batches[-1].append(n)
        return batches + batches[: -len(batches) % self.world_size]  # as many for each rank

    def __iter__(self):
        order = random.Random(self.epoch).sample(self.batches, len(self.batches))
        self.epoch += 1
        return iter(order[self.rank :: self.world_size])

    def __len__(self):
        return len(self.batches) // self.world_size


def collate(items):
    texts, targets = zip(*items, strict=True)
    return pad_sequence(texts, batch_first=True), torch.tensor(targets)


dist.init_process_group("gloo")
dataset = Texts(75)
sampler = LengthBatches(list(map(len, dataset.texts)), 48, dist.get_rank(), dist.get_world_size())
loader = DataLoader(dataset, batch_sampler=sampler, collate_fn=collate)
torch.manual_seed(0)
model = DDP(nn.Sequential(nn.EmbeddingBag(16, 8, padding_idx=0), nn.ReLU(), nn.Linear(8, 2)))
optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
for _ in range(3):
    for texts, targets in loader:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(texts), targets).backward()
        optimizer.step()
dist.destroy_process_group()
