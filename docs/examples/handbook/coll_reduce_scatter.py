"""reduce_scatter: each rank gets its piece of the sum; with an all-gather it is an all-reduce.

torchrun --standalone --nproc-per-node 3 docs/examples/handbook/coll_reduce_scatter.py
"""

import sys

import torch
import torch.distributed as dist


def say(text: str) -> None:
    """One write a line, so that lines of several ranks do not mix."""
    sys.stdout.write(f"rank {dist.get_rank()} {text}\n")


def main() -> None:
    dist.init_process_group("gloo")
    rank, world_size = dist.get_rank(), dist.get_world_size()

    # Three pieces of two elements each; rank r has them times r + 1.
    whole = torch.arange(world_size * 2.0) * (rank + 1)
    piece = torch.empty(2)
    dist.reduce_scatter(piece, list(whole.chunk(world_size)))
    say(f"from a list:   {piece.tolist()}")
    dist.reduce_scatter_tensor(piece, whole)
    say(f"from a tensor: {piece.tolist()}")

    # The sum of a piece is that piece of the sum.
    total = whole.clone()
    dist.all_reduce(total)
    torch.testing.assert_close(piece, total.chunk(world_size)[rank])

    # reduce-scatter, then all-gather: the two halves of an all-reduce.
    again = torch.empty_like(whole)
    dist.all_gather_into_tensor(again, piece)
    torch.testing.assert_close(again, total)
    say(f"and gathered:  {again.tolist()}")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
