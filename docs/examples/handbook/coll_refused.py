"""Calls that gloo refuses, and what to do in their place.

torchrun --standalone --nproc-per-node 2 docs/examples/handbook/coll_refused.py
"""

from collections.abc import Callable

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank, world_size = dist.get_rank(), dist.get_world_size()


def attempt(call: Callable, *args: object) -> None:
    try:
        call(*args)
    except RuntimeError as error:
        if rank == 0:
            print(f"{call.__name__}: {str(error).splitlines()[0]}")


one = torch.ones(1)
# Sizes that differ between ranks: pad them, or all_gather_object.
attempt(dist.all_gather, [torch.ones(1), torch.ones(2)], torch.ones(rank + 1))
# One row for each rank: the concatenated shape (world_size,) works.
attempt(dist.all_gather_into_tensor, torch.ones(world_size, 1), one)
attempt(dist.reduce_scatter_tensor, one, torch.ones(world_size, 1))
# Types: int16 and float8; tensor.view(torch.uint8) can be sent. In a group of its own: gloo's
# barrier waits for all earlier calls of its group, and may raise the error of this one again.
attempt(dist.broadcast, one.short(), 0, dist.new_group())

dist.barrier()
dist.destroy_process_group()
