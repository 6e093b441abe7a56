"""Where a timeout bites: rank 1 sleeps longer than rank 0 is willing to wait.

torchrun --standalone --nproc-per-node 2 docs/examples/handbook/group_timeout.py
"""

import re
import time
from datetime import timedelta

import torch
import torch.distributed as dist


def attempt(what: str, call) -> None:
    """Call it and print the error without the file and line of C++ that it begins with."""
    try:
        call()
        said = "fine"
    except RuntimeError as error:
        said = re.sub(r"^\[.*?\] ", "", str(error).splitlines()[0]).split(". ")[0]
    print(f"rank {dist.get_rank()} {what}: {said}", flush=True)


def main() -> None:
    dist.init_process_group("gloo")  # 30 minutes
    rank = dist.get_rank()
    hasty = dist.new_group(timeout=timedelta(seconds=3))
    tensor = torch.ones(1)
    attempt("hasty, both there", lambda: dist.all_reduce(tensor, group=hasty))
    if rank == 1:
        time.sleep(6)  # a download, an evaluation on one rank, a slow disk
    if rank == 0:
        attempt("hasty, rank 1 asleep", lambda: dist.all_reduce(tensor, group=hasty))
        attempt("hasty, at once again", lambda: dist.all_reduce(tensor, group=hasty))
    attempt("default group", lambda: dist.all_reduce(tensor))

    if rank == 1:
        time.sleep(6)
    soon = timedelta(seconds=3)
    if rank == 0:
        attempt("monitored_barrier", lambda: dist.monitored_barrier(timeout=soon))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
