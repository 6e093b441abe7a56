"""all_to_all: rank r's piece t goes to rank t, as rows become columns in a transposed matrix.

torchrun --standalone --nproc-per-node 3 docs/examples/handbook/coll_all_to_all.py
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

    # "12" is what rank 1 has for rank 2.
    outgoing = [torch.tensor([10 * rank + to]) for to in range(world_size)]
    incoming = [torch.empty_like(part) for part in outgoing]
    dist.all_to_all(incoming, outgoing)
    say(f"list:   {[t.item() for t in outgoing]} -> {[t.item() for t in incoming]}")

    # The same in one tensor, cut along dimension 0.
    output = torch.empty(world_size, dtype=torch.int64)
    dist.all_to_all_single(output, torch.cat(outgoing))
    torch.testing.assert_close(output, torch.cat(incoming))

    # Unequal pieces, as when tokens go to the experts of a mixture: rank t gets t + 1 of everyone.
    # A receiver must know the sizes; if it does not, an all_to_all of the sizes comes first.
    send_sizes = torch.arange(1, world_size + 1)
    receive_sizes = torch.empty_like(send_sizes)
    dist.all_to_all_single(receive_sizes, send_sizes)
    tokens = torch.cat([torch.full((int(n),), 10 * rank + to) for to, n in enumerate(send_sizes)])
    routed = torch.empty(int(receive_sizes.sum()), dtype=torch.int64)
    dist.all_to_all_single(routed, tokens, receive_sizes.tolist(), send_sizes.tolist())
    say(f"uneven: {tokens.tolist()} -> {routed.tolist()}")

    # And back, with the sizes exchanged: everything is where it was.
    back = torch.empty_like(tokens)
    dist.all_to_all_single(back, routed, send_sizes.tolist(), receive_sizes.tolist())
    torch.testing.assert_close(back, tokens)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
