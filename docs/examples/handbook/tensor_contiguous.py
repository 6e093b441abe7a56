"""A collective on a view that is not contiguous: with gloo silently wrong. What to do instead.

torchrun --standalone --nproc-per-node 2 docs/examples/handbook/tensor_contiguous.py
"""

import torch
import torch.distributed as dist


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()

    matrix = torch.ones(2, 3)
    dist.all_reduce(matrix[:, 0])  # a column: every third number in memory
    column = matrix[:, 0].contiguous()
    dist.all_reduce(column)
    if rank == 0:
        print("the column, added up in place:", matrix[:, 0].tolist())
        print("a contiguous copy, added up:  ", column.tolist())
    matrix[:, 0] = column  # the copy does not write itself back

    # The same shape on both ranks, but rank 0 receives into transposed memory.
    there = torch.arange(6).view(3, 2)
    here = torch.zeros(2, 3, dtype=torch.int64).t() if rank == 0 else there.clone()
    dist.broadcast(here, src=1)
    fresh = here.contiguous() if rank == 0 else there
    dist.broadcast(fresh, src=1)
    if rank == 0:
        print("sent by rank 1:               ", there.tolist())
        print("arrived in transposed memory: ", here.tolist())
        print("arrived in a contiguous one:  ", fresh.tolist())
    torch.testing.assert_close(fresh, there)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
