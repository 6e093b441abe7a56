"""broadcast: one rank's tensor overwrites that of all others, in place.

torchrun --standalone --nproc-per-node 3 docs/examples/handbook/coll_broadcast.py
"""

import sys

import torch
import torch.distributed as dist
from torch import nn


def say(text: str) -> None:
    """One write a line, so that lines of several ranks do not mix."""
    sys.stdout.write(f"rank {dist.get_rank()} {text}\n")


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()

    tensor = torch.arange(3) + 10 * rank
    say(f"before: {tensor.tolist()}")
    dist.broadcast(tensor, src=1)
    say(f"after:  {tensor.tolist()}")

    # What it is for: other seeds, other weights; then those of rank 0 everywhere.
    torch.manual_seed(rank)
    model = nn.Linear(2, 1)
    for parameter in model.parameters():
        dist.broadcast(parameter.detach(), src=0)
    torch.manual_seed(0)
    torch.testing.assert_close(model.weight, nn.Linear(2, 1).weight, rtol=0, atol=0)
    say("weights: those of rank 0")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
