"""Tensor parallelism by hand: columns, then rows, and one sum of activations; dropout is equal."""

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Enter(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x

    @staticmethod
    def backward(ctx, grad):
        grad = grad.clone()
        dist.all_reduce(grad)
        return grad


class Leave(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        x = x.clone()
        dist.all_reduce(x)
        return x

    @staticmethod
    def backward(ctx, grad):
        return grad


class ParallelMLP(nn.Module):
    """Each rank holds some of the hidden units."""

    def __init__(self, width, hidden, rank, world_size):
        super().__init__()
        up, down = nn.Linear(width, hidden), nn.Linear(hidden, width, bias=False)
        self.up = nn.Parameter(up.weight.detach().chunk(world_size)[rank].clone())
        self.down = nn.Parameter(down.weight.detach().chunk(world_size, 1)[rank].clone())

    def forward(self, x):
        hidden = nn.functional.gelu(Enter.apply(x) @ self.up.T)
        return Leave.apply(hidden @ self.down.T)


dist.init_process_group("gloo")
rank, world_size = dist.get_rank(), dist.get_world_size()
torch.manual_seed(1234)
inputs = torch.randn(72, 8)
dataset = TensorDataset(inputs, (inputs.sum(1) > 0).long())
loader = DataLoader(dataset, batch_size=12, shuffle=True, drop_last=True)
model = nn.Sequential(
    nn.Linear(8, 8), ParallelMLP(8, 16, rank, world_size), nn.Dropout(0.1), nn.Linear(8, 2)
)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)

for _ in range(3):
    for inputs, targets in loader:
        optimizer.zero_grad(set_to_none=True)
        loss = nn.functional.cross_entropy(model(inputs), targets)
        loss.backward()
        optimizer.step()

dist.destroy_process_group()
