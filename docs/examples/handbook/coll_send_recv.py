"""send and recv between two ranks, then isend and irecv, which return before the data has moved.

torchrun --standalone --nproc-per-node 2 docs/examples/handbook/coll_send_recv.py
"""

import sys

import torch
import torch.distributed as dist


def say(text: str) -> None:
    """One write a line, so that lines of several ranks do not mix."""
    sys.stdout.write(f"rank {dist.get_rank()} {text}\n")


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    peer = 1 - rank

    # Blocking: recv fills a tensor that is already there, of the right shape and dtype.
    tensor = torch.tensor([1.0, 2.0]) if rank == 0 else torch.zeros(2)
    if rank == 0:
        dist.send(tensor, dst=1)
    else:
        source = dist.recv(tensor, src=0)
        say(f"recv: {tensor.tolist()} from rank {source}")

    # Without src: from whoever sends first. Both ranks send and receive here, so one has to begin.
    message = torch.tensor([10 + rank])
    if rank == 0:
        dist.send(message, dst=1)
        dist.recv(message)
    else:
        received = torch.zeros_like(message)
        dist.recv(received)
        dist.send(message, dst=0)
        message = received
    say(f"exchanged: {message.tolist()}")

    # Not blocking: both are only begun. Neither tensor may be touched before wait() is back.
    outgoing, incoming = torch.full((3,), rank), torch.empty(3, dtype=torch.int64)
    works = [dist.isend(outgoing, peer), dist.irecv(incoming, peer)]
    for work in works:
        work.wait()
    say(f"irecv: {incoming.tolist()}, completed: {works[1].is_completed()}")

    # With tags a receiver can take messages in another order than they were sent in.
    if rank == 0:
        messages = {tag: torch.tensor([tag]) for tag in (5, 6)}  # kept until they are sent
        for work in [dist.isend(message, 1, tag=tag) for tag, message in messages.items()]:
            work.wait()
    else:
        for tag in (6, 5):
            dist.recv(tagged := torch.zeros(1, dtype=torch.int64), 0, tag=tag)
            say(f"tag {tag}: {tagged.tolist()}")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
