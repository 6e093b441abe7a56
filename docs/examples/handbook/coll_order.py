"""Collectives have no names: they are matched by their order. Another order, other sums, no error.

torchrun --standalone --nproc-per-node 2 docs/examples/handbook/coll_order.py
"""

import sys
from datetime import timedelta

import torch
import torch.distributed as dist


def say(text: str) -> None:
    """One write a line, so that lines of several ranks do not mix."""
    sys.stdout.write(f"rank {dist.get_rank()} {text}\n")


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()

    loss, hits = torch.tensor([0.5]), torch.tensor([80.0])
    first, second = (loss, hits) if rank == 0 else (hits, loss)
    dist.all_reduce(first)
    dist.all_reduce(second)
    say(f"loss {loss.item()}, hits {hits.item()}, should be 1.0 and 160.0")

    # One call is missing on rank 1. The other waits, here for three seconds (else 30 minutes).
    group = dist.new_group(timeout=timedelta(seconds=3))
    if rank == 0:
        try:
            dist.all_reduce(loss, group=group)
        except RuntimeError as error:
            say(f"{type(error).__name__}: {str(error).split('] ')[-1]}")
    dist.barrier()  # of the default group, which is well
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
