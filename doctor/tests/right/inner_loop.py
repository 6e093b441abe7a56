"""Meta-learning (first-order MAML): an optimizer of its own for a copy of the model in each step,
and gradients of the copies, averaged by hand, for the model."""

import copy

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

dist.init_process_group("gloo")
torch.manual_seed(0)
model = nn.Linear(8, 3)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
dataset = TensorDataset(torch.randn(128, 8), torch.randint(3, (128,)))
sampler = DistributedSampler(dataset)

for epoch in range(2):
    sampler.set_epoch(epoch)
    for inputs, targets in DataLoader(dataset, batch_size=16, sampler=sampler):
        fast = copy.deepcopy(model)
        inner = torch.optim.SGD(fast.parameters(), lr=0.05)
        for _ in range(2):
            inner.zero_grad()
            nn.functional.cross_entropy(fast(inputs[:8]), targets[:8]).backward()
            inner.step()
        fast.zero_grad()
        nn.functional.cross_entropy(fast(inputs[8:]), targets[8:]).backward()
        for parameter, copied in zip(model.parameters(), fast.parameters(), strict=True):
            parameter.grad = copied.grad.clone()
            dist.all_reduce(parameter.grad)
            parameter.grad /= dist.get_world_size()
        optimizer.step()
dist.destroy_process_group()
