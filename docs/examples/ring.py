"""Ring all-reduce by hand: torchrun --standalone --nproc-per-node 4 docs/examples/ring.py"""

import torch
import torch.distributed as dist


def ring_all_reduce(tensor: torch.Tensor) -> int:
    """Make the tensor the sum over all ranks, in place; returns how many elements were sent."""
    rank, n, sent = dist.get_rank(), dist.get_world_size(), 0
    pieces = list(tensor.chunk(n))  # views: what is written to a piece is in the tensor
    for step in range(2 * (n - 1)):
        outgoing = pieces[(rank - step) % n]
        incoming = pieces[(rank - step - 1) % n]
        received = torch.empty_like(incoming)
        sending = dist.isend(outgoing, (rank + 1) % n)
        dist.recv(received, (rank - 1) % n)
        sending.wait()
        if step < n - 1:  # the first half, reduce-scatter: add what comes
            incoming += received
        else:  # the second half, all-gather: what comes is a finished sum
            incoming.copy_(received)
        sent += outgoing.numel()
    return sent


if __name__ == "__main__":
    dist.init_process_group("gloo")
    torch.manual_seed(dist.get_rank())
    mine = torch.randn(dist.get_world_size() * 1000, dtype=torch.float64)
    expected = mine.clone()
    dist.all_reduce(expected)
    sent = ring_all_reduce(mine)
    torch.testing.assert_close(mine, expected)
    if dist.get_rank() == 0:
        print(f"equal; each rank sent {sent / len(mine):.2f} times the tensor")
    dist.destroy_process_group()
