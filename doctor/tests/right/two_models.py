"""How far is a layer in parts from the whole one? Both are stepped once, on the same rows."""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard


def layer():
    torch.manual_seed(0)
    return nn.Linear(12, 12, bias=False)


def main():
    dist.init_process_group("gloo")
    whole, parts = layer(), layer()
    fully_shard(parts, mesh=init_device_mesh("cpu", (dist.get_world_size(),)))
    rows = torch.randn(8, 12, generator=torch.Generator().manual_seed(1))
    for model in (whole, parts):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        model(rows).square().mean().backward()
        optimizer.step()
    apart = (parts.weight.full_tensor() - whole.weight).abs().max().item()
    if dist.get_rank() == 0:
        print(f"apart by {apart:.2g}")
    dist.destroy_process_group()


main()
