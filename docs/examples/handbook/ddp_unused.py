"""A parameter without a gradient: the error, and what find_unused_parameters makes of it.

torchrun --standalone --nproc-per-node 2 docs/examples/handbook/ddp_unused.py
"""

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel


class TwoHeads(nn.Module):
    """A trunk, and two heads of which forward uses one."""

    def __init__(self) -> None:
        super().__init__()
        self.trunk, self.a, self.b = nn.Linear(2, 2), nn.Linear(2, 1), nn.Linear(2, 1)

    def forward(self, inputs: Tensor, head: str) -> Tensor:
        return getattr(self, head)(self.trunk(inputs))


def describe(model: nn.Module) -> str:
    """Which heads have a gradient, and the size of it."""
    heads = {"a": model.module.a.bias.grad, "b": model.module.b.bias.grad}
    return ", ".join(f"{k} {'None' if g is None else g.item()}" for k, g in heads.items())


if __name__ == "__main__":
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    inputs, size = torch.ones(1, 2), rank + 1.0  # a gradient is 1 on rank 0 and 2 on rank 1

    model = DistributedDataParallel(TwoHeads())
    try:
        for step in (1, 2):
            (size * model(inputs, "a").sum()).backward()
            print(f"rank {rank} default, step {step}: {describe(model)}")
    except RuntimeError as error:
        print(f"rank {rank} default, step {step}: RuntimeError: {str(error)[:76]}")

    model = DistributedDataParallel(TwoHeads(), find_unused_parameters=True)
    for step in (1, 2):
        model.zero_grad()
        (size * model(inputs, "a").sum()).backward()
        print(f"rank {rank} find_unused_parameters, step {step}: {describe(model)}")

    # Ranks that use different heads: where a gradient is missing it counts as zero.
    model.zero_grad()
    (size * model(inputs, "ab"[rank]).sum()).backward()
    print(f"rank {rank} uses head {'ab'[rank]} alone: {describe(model)}")

    dist.barrier()
    dist.destroy_process_group()
