"""What making a DDP does: it checks, then every rank gets the weights and buffers of rank 0.

torchrun --standalone --nproc-per-node 2 docs/examples/handbook/ddp_construction.py
"""

from collections.abc import Callable

import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def refused(what: str, make: Callable[[], nn.Module]) -> None:
    """Print the beginning of the error that this ends with, on each rank."""
    try:
        make()
    except (RuntimeError, ValueError) as error:
        print(f"rank {rank} {what}: {type(error).__name__}: {str(error)[:62]}")
    else:
        raise AssertionError(f"{what}: no error")


def batch_norm(value: float) -> nn.Module:
    """One parameter and one buffer that say who made them."""
    module = nn.BatchNorm1d(1)
    nn.init.constant_(module.weight, value)
    module.running_mean.fill_(value)
    return module


if __name__ == "__main__":
    dist.init_process_group("gloo")
    rank = dist.get_rank()

    for name, options in {"default": {}, "init_sync=False": {"init_sync": False}}.items():
        module = DistributedDataParallel(batch_norm(10.0 + rank), **options).module
        weight, buffer = module.weight.item(), module.running_mean.item()
        print(f"rank {rank} {name}: weight {weight:.0f}, buffer {buffer:.0f}")

    linear = nn.Linear(2, 2)
    # The ranks compare how many parameters they have; only those that are trained count.
    frozen_here = nn.Linear(2, 2)
    frozen_here.bias.requires_grad_(rank == 0)
    refused("other parameters", lambda: DistributedDataParallel(frozen_here))
    refused(
        "nothing to train", lambda: DistributedDataParallel(nn.Linear(2, 2).requires_grad_(False))
    )
    refused("device_ids on a CPU", lambda: DistributedDataParallel(linear, device_ids=[0]))
    mixed = nn.Sequential(linear, nn.Linear(2, 2, device="meta"))
    refused("two kinds of devices", lambda: DistributedDataParallel(mixed))
    refused("shapes unknown yet", lambda: DistributedDataParallel(nn.LazyLinear(2)))

    dist.barrier()
    dist.destroy_process_group()
