"""As in MoCo: keys of all ranks go into a queue, which is a buffer and the same on each of them."""

import copy

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


class MoCo(nn.Module):
    def __init__(self, encoder, width, length):
        super().__init__()
        self.query, self.key = encoder, copy.deepcopy(encoder).requires_grad_(False)
        self.register_buffer("queue", nn.functional.normalize(torch.randn(length, width), dim=1))
        self.register_buffer("place", torch.zeros((), dtype=torch.long))

    def forward(self, one, two):
        with torch.no_grad():
            for slow, fast in zip(self.key.parameters(), self.query.parameters(), strict=True):
                slow.lerp_(fast, 0.05)
            keys = nn.functional.normalize(self.key(two), dim=1)
        queries = nn.functional.normalize(self.query(one), dim=1)
        right = (queries * keys).sum(1, keepdim=True)
        logits = torch.cat([right, queries @ self.queue.clone().T], dim=1) / 0.2
        self.enqueue(keys)
        return logits

    @torch.no_grad()
    def enqueue(self, keys):
        everyone = [torch.empty_like(keys) for _ in range(dist.get_world_size())]
        dist.all_gather(everyone, keys)
        keys = torch.cat(everyone)
        rows = (self.place + torch.arange(len(keys))) % len(self.queue)
        self.queue[rows] = keys
        self.place.copy_((self.place + len(keys)) % len(self.queue))


dist.init_process_group("gloo")
torch.manual_seed(0)
dataset = TensorDataset(torch.randn(64, 8))
sampler = DistributedSampler(dataset)
loader = DataLoader(dataset, batch_size=8, sampler=sampler, drop_last=True)
model = DDP(MoCo(nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4)), 4, 48))
trained = [p for p in model.parameters() if p.requires_grad]
optimizer = torch.optim.SGD(trained, lr=0.03, momentum=0.9, weight_decay=1e-4)
torch.manual_seed(dist.get_rank())
for epoch in range(3):
    sampler.set_epoch(epoch)
    for (images,) in loader:
        one, two = (images + 0.1 * torch.randn_like(images) for _ in range(2))
        logits = model(one, two)
        loss = nn.functional.cross_entropy(logits, torch.zeros(len(logits), dtype=torch.long))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
dist.destroy_process_group()
