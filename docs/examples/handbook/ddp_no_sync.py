"""Gradient accumulation with no_sync: the gradient of the big batch, and one all-reduce.

torchrun --standalone --nproc-per-node 2 docs/examples/handbook/ddp_no_sync.py
"""

import contextlib

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn.parallel import DistributedDataParallel

PARTS = 4


def count(counter: list[int], bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:
    """The usual all-reduce, counted."""
    counter[0] += 1
    return default_hooks.allreduce_hook(dist.group.WORLD, bucket)


def loss_of(model: nn.Module, inputs: Tensor, parts: int) -> Tensor:
    return model(inputs).square().mean() / parts  # the sum over the parts is a mean of means


if __name__ == "__main__":
    dist.init_process_group("gloo")
    rank, world_size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    alone = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 2)).double()
    batch = torch.randn(world_size * PARTS * 5, 3, dtype=torch.float64)
    loss_of(alone, batch, 1).backward()  # what one process computes from all of it

    model = DistributedDataParallel(alone)
    reduced = [0]
    model.register_comm_hook(reduced, count)
    expected = [p.grad.clone() for p in alone.parameters()]
    mine = batch.chunk(world_size)[rank].chunk(PARTS)
    for way in ("without no_sync", "no_sync", "no_sync, forward outside"):
        model.zero_grad()
        reduced[0] = 0
        for number, part in enumerate(mine, 1):
            quiet = way != "without no_sync" and number < PARTS  # the last one reduces
            context = model.no_sync() if quiet else contextlib.nullcontext()
            if way == "no_sync, forward outside":  # too late: forward has decided
                loss = loss_of(model, part, PARTS)
                with context:
                    loss.backward()
            else:
                with context:
                    loss_of(model, part, PARTS).backward()
        for parameter, gradient in zip(model.parameters(), expected, strict=True):
            torch.testing.assert_close(parameter.grad, gradient, rtol=0, atol=1e-12)
        print(f"rank {rank} {way}: all-reduces: {reduced[0]}; gradient of the big batch")

    dist.barrier()
    dist.destroy_process_group()
