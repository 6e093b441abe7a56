"""Every rank sends to the next and receives from the one before: batch_isend_irecv, no deadlock.

torchrun --standalone --nproc-per-node 3 docs/examples/handbook/coll_exchange.py
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
    rank, world_size = dist.get_rank(), dist.get_world_size()
    after, before = (rank + 1) % world_size, (rank - 1) % world_size

    # In a batch the order of sends and receives does not matter: all are begun at once.
    outgoing, incoming = torch.full((2,), float(rank)), torch.empty(2)
    operations = [
        dist.P2POp(dist.irecv, incoming, before),
        dist.P2POp(dist.isend, outgoing, after),
    ]
    for work in dist.batch_isend_irecv(operations):
        work.wait()
    say(f"sent {outgoing.tolist()} to {after}, got {incoming.tolist()} from {before}")

    # world_size - 1 such steps, and each rank has seen the tensor of every other: an all-gather.
    seen = [float(rank)]
    for _ in range(world_size - 1):
        outgoing = torch.tensor([seen[-1]])
        incoming = torch.empty(1)
        operations = [
            dist.P2POp(dist.isend, outgoing, after),
            dist.P2POp(dist.irecv, incoming, before),
        ]
        for work in dist.batch_isend_irecv(operations):
            work.wait()
        seen.append(incoming.item())
    say(f"has seen {seen}")

    # All send first, without a batch: each waits for a receiver, nobody receives, time is up.
    group = dist.new_group(timeout=timedelta(seconds=3))
    try:
        dist.send(outgoing, after, group=group)
        dist.recv(incoming, before, group=group)
    except RuntimeError as error:
        say(f"all send first: {type(error).__name__}")
    dist.barrier()  # of the default group, which is well
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
