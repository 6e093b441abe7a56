"""Collectives of Python objects: pickled into byte tensors, whose sizes are exchanged first.

torchrun --standalone --nproc-per-node 3 docs/examples/handbook/coll_objects.py
"""

import sys

import torch.distributed as dist


def say(text: str) -> None:
    """One write a line, so that lines of several ranks do not mix."""
    sys.stdout.write(f"rank {dist.get_rank()} {text}\n")


def main() -> None:
    dist.init_process_group("gloo")
    rank, world_size = dist.get_rank(), dist.get_world_size()

    # A list of the same length on every rank; the source's replaces it, item by item.
    settings = [{"lr": 0.1}, "run-7"] if rank == 0 else [None, None]
    dist.broadcast_object_list(settings, src=0)
    say(f"broadcast_object_list: {settings}")

    # Of any size: rank r has a text of r letters.
    mine = {"rank": rank, "wrong": "x" * rank}
    everything = [None] * world_size
    dist.all_gather_object(everything, mine)
    say(f"all_gather_object: {[item['wrong'] for item in everything]}")

    on_one = [None] * world_size if rank == 0 else None
    dist.gather_object(mine, on_one, dst=0)
    say(f"gather_object: {on_one and [item['rank'] for item in on_one]}")

    # The output is a list of one.
    output = [None]
    shards = [["a", "b"], ["c"], []] if rank == 0 else None
    dist.scatter_object_list(output, shards, src=0)
    say(f"scatter_object_list: {output[0]}")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
