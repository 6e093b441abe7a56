"""Four ranks as in Megatron: linear layers cut over pairs, DDP over the two equal parts."""

import torch
import torch.distributed as dist
import torch.distributed.nn.functional as dist_nn
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

TP = 2


class Copy(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, group):
        ctx.group = group
        return x.view_as(x)

    @staticmethod
    def backward(ctx, grad):
        return dist_nn.all_reduce(grad.contiguous(), group=ctx.group), None


class Reduce(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, group):
        return dist_nn.all_reduce(x.contiguous(), group=group)

    @staticmethod
    def backward(ctx, grad):
        return grad, None


class Regressor(nn.Module):
    def __init__(self, tp_group, tp_rank):
        super().__init__()
        self.tp_group = tp_group
        self.embed = nn.Linear(6, 8)
        torch.manual_seed(100 + tp_rank)  # the parts of a layer differ, its copies do not
        self.column, self.row = nn.Linear(8, 8), nn.Linear(8, 1, bias=False)

    def forward(self, x):
        x = Copy.apply(torch.tanh(self.embed(x)), self.tp_group)
        return Reduce.apply(self.row(torch.relu(self.column(x))), self.tp_group).squeeze(1)


dist.init_process_group("gloo")
rank, world_size = dist.get_rank(), dist.get_world_size()
tp_groups = [dist.new_group(range(n, n + TP)) for n in range(0, world_size, TP)]
dp_groups = [dist.new_group(range(n, world_size, TP)) for n in range(TP)]
dp_rank, tp_rank = divmod(rank, TP)

torch.manual_seed(0)
inputs = torch.randn(64, 6)
dataset = TensorDataset(inputs, inputs.sin().sum(1))
sampler = DistributedSampler(dataset, num_replicas=world_size // TP, rank=dp_rank)
loader = DataLoader(dataset, batch_size=8, sampler=sampler)
model = Regressor(tp_groups[dp_rank], tp_rank)
ddp = DDP(model, process_group=dp_groups[tp_rank])
optimizer = torch.optim.SGD(ddp.parameters(), lr=0.01)
for epoch in range(3):
    sampler.set_epoch(epoch)
    for inputs, targets in loader:
        optimizer.zero_grad()
        nn.functional.mse_loss(ddp(inputs), targets).backward()
        optimizer.step()
dist.destroy_process_group()
