"""scatter hands out a list of rank 0's tensors, gather takes them back into one.

torchrun --standalone --nproc-per-node 3 docs/examples/handbook/coll_scatter_gather.py
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

    # Only the source has a list, as long as the group; all its tensors have one size.
    batch = torch.arange(6).reshape(3, 2)
    parts = list(batch.chunk(world_size)) if rank == 0 else None
    mine = torch.empty(1, 2, dtype=torch.int64)
    dist.scatter(mine, parts, src=0)
    say(f"scatter: {mine.tolist()}")

    mine *= 100
    results = [torch.empty_like(mine) for _ in range(world_size)] if rank == 0 else None
    dist.gather(mine, results, dst=0)
    say(f"gather:  {results and torch.cat(results).tolist()}")
    if rank == 0:
        torch.testing.assert_close(torch.cat(results), 100 * batch)

    # What a list on the wrong rank gets. It is refused before anything is sent, on this rank
    # alone, so no other rank may wait for it: here all ranks do the same wrong thing.
    try:
        dist.scatter(mine, [mine] * world_size, src=(rank + 1) % world_size)
    except ValueError as error:
        say(f"{type(error).__name__}: {error}")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
