"""new_group that only its members call: it works, and the next group fails.

torchrun --standalone --nproc-per-node 3 docs/examples/handbook/group_new_group_missing.py
"""

from datetime import timedelta

import torch
import torch.distributed as dist


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    if rank < 2:  # wrong: rank 2 does not call new_group
        pair = dist.new_group([0, 1])
        tensor = torch.tensor(rank)
        dist.all_reduce(tensor, group=pair)
        print(f"rank {rank} the pair works: total {tensor.item()}")
    try:
        dist.new_group([0, 1, 2], timeout=timedelta(seconds=3))  # all call it, and in vain
    except RuntimeError as error:
        if rank < 2:  # what rank 2 meets is luck: it finds addresses that the pair left behind
            print(f"rank {rank} the next group: {type(error).__name__}: {error}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
