"""hao-ai-lab/FastVideo pull 1666, 2026-07-30: LoRA is added after the model was sharded.

https://github.com/hao-ai-lab/FastVideo/pull/1666
fully_shard sees the parameters that a module has when it is called. Adapters that come later are
whole on each rank, and nothing averages their gradients: each rank steps by its own samples, from
a draw of its own. The base is frozen, so the sharded part never shows it. The report names no run.
Mended there by a broadcast and by hooks that average; here by adding the adapters first.
Doctor: drifting_weights at optimizer = torch
"""

import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

MENDED = "--mended" in sys.argv


class LoRALinear(nn.Module):
    """A frozen layer and what is learned beside it."""

    def __init__(self, base: nn.Linear, rank: int = 2) -> None:
        super().__init__()
        self.base = base.requires_grad_(False)
        self.lora_A = nn.Parameter(torch.randn(rank, base.in_features) / 8)
        self.lora_B = nn.Parameter(torch.zeros(base.out_features, rank))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.base(x) + x @ self.lora_A.T @ self.lora_B.T


def inject_lora(model: nn.Sequential) -> None:
    for index in (0, 2):
        model[index] = LoRALinear(model[index])


dist.init_process_group("gloo")
torch.manual_seed(0)
inputs = torch.randn(64, 8)
dataset = TensorDataset(inputs, inputs.roll(1, 1))
sampler = DistributedSampler(dataset)
dataloader = DataLoader(dataset, batch_size=8, sampler=sampler)

transformer = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 8))
mesh = init_device_mesh("cpu", (dist.get_world_size(),))
if MENDED:
    inject_lora(transformer)
    fully_shard(transformer, mesh=mesh)
else:
    fully_shard(transformer, mesh=mesh)
    inject_lora(transformer)
trainable = [p for p in transformer.parameters() if p.requires_grad]
optimizer = torch.optim.AdamW(trainable, lr=0.01)

for epoch in range(3):
    sampler.set_epoch(epoch)
    for x, target in dataloader:
        loss = nn.functional.mse_loss(transformer(x), target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

print(f"rank {dist.get_rank()}, loss {loss.item():.4f}")
dist.destroy_process_group()
