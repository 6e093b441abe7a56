"""pytorch/pytorch issue 149205, 2025-03-14: the optimizer is made after a first forward pass.

https://github.com/pytorch/pytorch/issues/149205
FSDP2 leaves the root module's parameters whole after a forward pass, for the backward to come. An
optimizer that is made at that moment takes these, while training goes on with the sharded ones:
our small run prints the same loss at the end as at the start. The report shows it on a model of
one parameter, which a single process and DDP do train. No answer was found in the stored thread;
mended here by making the optimizer after fully_shard, before anything runs.
Doctor: untrained at return torch.optim.SGD(
"""

import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

MENDED = "--mended" in sys.argv


class DummyModel(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x @ self.weight


def make_optimizer(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1)


@torch.no_grad()
def evaluate(model: nn.Module, inputs: torch.Tensor, targets: torch.Tensor) -> float:
    return nn.functional.mse_loss(model(inputs), targets).item()


dist.init_process_group("gloo")
torch.manual_seed(0)
inputs = torch.randn(64, 8)
targets = inputs.sum(dim=1) * 2
dataset = TensorDataset(inputs, targets)
sampler = DistributedSampler(dataset)
dataloader = DataLoader(dataset, batch_size=8, sampler=sampler)

model = DummyModel()
fully_shard(model, mesh=init_device_mesh("cpu", (dist.get_world_size(),)))
if MENDED:
    optimizer = make_optimizer(model)
    first = evaluate(model, inputs, targets)
else:
    first = evaluate(model, inputs, targets)
    optimizer = make_optimizer(model)

for epoch in range(2):
    sampler.set_epoch(epoch)
    for x, target in dataloader:
        loss = nn.functional.mse_loss(model(x), target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

last = evaluate(model, inputs, targets)
if dist.get_rank() == 0:
    print(f"loss before {first:.4f}, after {last:.4f}")
dist.destroy_process_group()
