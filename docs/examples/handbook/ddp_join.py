"""Uneven inputs: three batches on rank 0, five on rank 1. Without Join, with it, and its limits.

torchrun --standalone --nproc-per-node 2 docs/examples/handbook/ddp_join.py
"""

import contextlib
import re
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.join import Join
from torch.nn.parallel import DistributedDataParallel

BATCHES = [3, 5]


def train(
    name: str, context: type | None, group: dist.ProcessGroup | None = None, **options
) -> None:
    """One pass over this rank's batches; the gradient of each is 1 on every rank."""
    model = DistributedDataParallel(nn.Linear(1, 1, bias=False), process_group=group)
    gradients, after = [], ""
    try:
        with context([model], **options) if context else contextlib.nullcontext():
            for _ in range(BATCHES[rank]):
                model.zero_grad()
                model(torch.ones(1, 1)).sum().backward()
                gradients.append(model.module.weight.grad.item())
                with torch.no_grad():
                    model.module.weight -= 0.1 * model.module.weight.grad
    except RuntimeError as error:  # the text, without file name and address
        after = re.search(r"Timed out|Rank \d exhausted|Detected at least one rank", str(error))[0]
        after = f", then: {after}"
    print(f"rank {rank} {name}: gradients {gradients}{after}")
    if context and not after:
        weights = [torch.empty(1, 1) for _ in BATCHES]
        dist.all_gather(weights, model.module.weight.detach())
        assert torch.equal(weights[0], weights[1])
        # After the loop every rank comes here once, so this is the place to count.
        steps = torch.tensor(len(gradients))
        dist.all_reduce(steps)
        print(f"rank {rank} {name}: the same weights, {steps.item()} batches in all")


if __name__ == "__main__":
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    # A group of its own, which gives up soon: after a timeout it is of no more use.
    impatient = dist.new_group(timeout=timedelta(seconds=2))
    train("without Join", None, impatient)
    dist.barrier()  # rank 0 has long been here
    train("Join", Join)
    train("Join, divided by those that are left", Join, divide_by_initial_world_size=False)
    train("Join, throwing", Join, throw_on_early_termination=True)
    dist.barrier()
    dist.destroy_process_group()
