"""A collective on a view that is not contiguous: silently wrong with gloo. And what to do instead.

torchrun --standalone --nproc-per-node 2 docs/examples/handbook/tensor_contiguous.py
"""

import torch
import torch.distributed as dist


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()

    wrong = torch.ones(2, 3)
    dist.all_reduce(wrong[:, 0])  # a column: every third number in memory
    right = torch.ones(2, 3)
    column = right[:, 0].contiguous()  # a copy, so what comes back must be written back
    dist.all_reduce(column)
    right[:, 0] = column
    if rank == 0:
        print("all-reduce of a column:      ", wrong.tolist())
        print("of a contiguous copy of it:  ", right.tolist())

    # The shape is the same on both ranks, but rank 0 receives into transposed memory.
    sent = torch.arange(6).view(3, 2)
    turned = torch.zeros(2, 3, dtype=torch.int64).t() if rank == 0 else sent.clone()
    dist.broadcast(turned, src=1)
    received = torch.zeros(3, 2, dtype=torch.int64) if rank == 0 else sent.clone()
    dist.broadcast(received, src=1)
    if rank == 0:
        print("broadcast by rank 1:         ", sent.tolist())
        print("received in a transposed one:", turned.tolist())
        print("received in a contiguous one:", received.tolist())
    torch.testing.assert_close(received, sent)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
