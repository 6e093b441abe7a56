"""What three ways to all-reduce really send, by the kernel's count of TCP bytes (Linux).

torchrun --standalone --nproc-per-node 4 docs/examples/handbook/hand_ring_cost.py
"""

import os
import socket
import struct
import sys
import time
from collections.abc import Callable

import torch
import torch.distributed as dist

BYTES_SENT = 200  # where tcp_info has tcpi_bytes_sent and _retrans, 8 bytes each (linux/tcp.h)


def bytes_sent() -> int:
    """What this process has sent through all of its TCP sockets so far, repetitions aside."""
    total = 0
    for number in os.listdir("/proc/self/fd"):
        try:
            with socket.socket(fileno=os.dup(int(number))) as copy:
                info = copy.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)
                sent, sent_again = struct.unpack_from("QQ", info, BYTES_SENT)
                total += sent - sent_again
        except (OSError, struct.error):
            continue  # no socket, or no TCP
    return total


def through_rank_0(tensor: torch.Tensor) -> None:
    """Rank 0 receives all tensors, adds them, and sends the sum to each of the others."""
    if dist.get_rank() > 0:
        dist.send(tensor, 0)
        dist.recv(tensor, 0)
        return
    received = torch.empty_like(tensor)
    for other in range(1, dist.get_world_size()):
        dist.recv(received, other)
        tensor += received
    for other in range(1, dist.get_world_size()):
        dist.send(tensor, other)


def ring(tensor: torch.Tensor) -> None:
    """Reduce-scatter, then all-gather: explained in docs/examples/ring.py."""
    rank, n = dist.get_rank(), dist.get_world_size()
    pieces = tensor.chunk(n)
    for step in range(2 * (n - 1)):
        incoming = pieces[(rank - step - 1) % n]
        received = torch.empty_like(incoming)
        sending = dist.isend(pieces[(rank - step) % n], (rank + 1) % n)
        dist.recv(received, (rank - 1) % n)
        sending.wait()
        incoming.copy_(incoming + received if step < n - 1 else received)


if __name__ == "__main__":
    dist.init_process_group("gloo")
    rank, n = dist.get_rank(), dist.get_world_size()
    ways: dict[str, Callable] = {"via 0": through_rank_0, "ring": ring, "library": dist.all_reduce}
    counts = []
    for name, all_reduce in ways.items():
        tensor = torch.full((1 << 20,), rank + 1.0)  # 4 MiB
        dist.barrier()
        before, begin = bytes_sent(), time.perf_counter()
        all_reduce(tensor)
        seconds = time.perf_counter() - begin
        dist.barrier()
        counts.append((bytes_sent() - before) / tensor.nbytes)
        assert torch.equal(tensor, torch.full_like(tensor, n * (n + 1) / 2))
        print(f"{name}: {seconds:.3f} s on rank {rank}", file=sys.stderr)
    # The rest, less than a thousandth, are gloo's headers of 48 bytes each.
    assert all(abs(count - 2 * (n - 1) / n) < 1e-3 for count in counts[1:])
    print(f"rank {rank} sent, in tensors:", *map("{} {:.2f}".format, ways, counts), sep="  ")
    dist.barrier()
    dist.destroy_process_group()
