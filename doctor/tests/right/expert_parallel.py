"""A mixture of experts, one a rank: tokens travel, gradients of the shared part are averaged."""

import torch
import torch.distributed as dist
import torch.distributed.nn.functional as dist_nn
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


class Experts(nn.Module):
    def __init__(self, width, rank, world_size):
        super().__init__()
        self.gate = nn.Linear(width, world_size)
        torch.manual_seed(100 + rank)
        self.expert = nn.Sequential(nn.Linear(width, 16), nn.ReLU(), nn.Linear(16, width))

    def forward(self, x):
        weight, chosen = self.gate(x).softmax(-1).max(-1)
        order = chosen.argsort(stable=True)
        sent = torch.bincount(chosen, minlength=dist.get_world_size())
        received = torch.empty_like(sent)
        dist.all_to_all_single(received, sent)
        there = exchange(x[order], received.tolist(), sent.tolist())
        back = exchange(self.expert(there), sent.tolist(), received.tolist())
        return x + weight[:, None] * torch.empty_like(back).index_copy(0, order, back)


def exchange(x, outputs, inputs):
    empty = x.new_empty(sum(outputs), x.shape[1])
    return dist_nn.all_to_all_single(empty, x.contiguous(), outputs, inputs)


dist.init_process_group("gloo")
rank, world_size = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
dataset = TensorDataset(torch.randn(96, 8), torch.randint(3, (96,)))
sampler = DistributedSampler(dataset)
loader = DataLoader(dataset, batch_size=12, sampler=sampler)
model = nn.Sequential(nn.Linear(8, 8), Experts(8, rank, world_size), nn.Linear(8, 3))
shared = [p for name, p in model.named_parameters() if "expert" not in name]
own = [p for name, p in model.named_parameters() if "expert" in name]
optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)

for epoch in range(2):
    sampler.set_epoch(epoch)
    for inputs, targets in loader:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(inputs), targets).backward()
        for p in shared:
            dist.all_reduce(p.grad)
        for p in (*shared, *own):  # an expert has had the tokens of all ranks
            p.grad /= world_size
        optimizer.step()
dist.destroy_process_group()
