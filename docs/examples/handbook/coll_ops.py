"""Every ReduceOp on gloo: what rank 0's 6 and rank 1's 3 become, and which ones gloo refuses.

torchrun --standalone --nproc-per-node 2 docs/examples/handbook/coll_ops.py
"""

import sys

import torch
import torch.distributed as dist
from torch.distributed import ReduceOp


def say(text: str) -> None:
    """One write a line, so that lines of several ranks do not mix."""
    sys.stdout.write(f"rank {dist.get_rank()} {text}\n")


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    trials = [
        ("SUM", ReduceOp.SUM, torch.float32),
        ("PRODUCT", ReduceOp.PRODUCT, torch.float32),
        ("MIN", ReduceOp.MIN, torch.float32),
        ("MAX", ReduceOp.MAX, torch.float32),
        ("BAND", ReduceOp.BAND, torch.int32),  # 110 and 011 in binary
        ("BOR", ReduceOp.BOR, torch.int32),
        ("BXOR", ReduceOp.BXOR, torch.int32),
        ("AVG", ReduceOp.AVG, torch.float32),
        ("AVG", ReduceOp.AVG, torch.int32),
        ("BAND", ReduceOp.BAND, torch.float32),
        ("PREMUL_SUM", ReduceOp.PREMUL_SUM(0.5), torch.float32),
    ]
    # gloo's barrier may raise an error of its group again: the trials have a group of their own.
    group = dist.new_group()
    for name, op, dtype in trials:
        tensor = torch.tensor([6, 3][rank], dtype=dtype)
        try:
            dist.all_reduce(tensor, op, group)
            said = f"{tensor.item():g}"
        except RuntimeError as error:
            said = f"{type(error).__name__}: {error}".split("] ")[-1]
        if rank == 0:
            say(f"{name:10} {str(dtype).removeprefix('torch.'):7}  {said}")

    # "Has anybody found a NaN?": all ranks take the same way. gloo does this for bool too.
    found = torch.tensor(rank == 1)
    dist.all_reduce(found, ReduceOp.MAX)
    say(f"found by anybody: {found.item()}")

    # PREMUL_SUM on any backend: multiply first.
    tensor = torch.tensor([6.0, 3.0][rank])
    dist.all_reduce(tensor.mul_(0.5))
    say(f"halves added: {tensor.item():g}")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
