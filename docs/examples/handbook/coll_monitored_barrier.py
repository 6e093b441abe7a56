"""monitored_barrier: a barrier that says who has not come. Rank 1 stays away, and rank 0 names it.

torchrun --standalone --nproc-per-node 3 docs/examples/handbook/coll_monitored_barrier.py
"""

import sys
import time
from datetime import timedelta

import torch.distributed as dist


def say(text: str) -> None:
    """One write a line, so that lines of several ranks do not mix."""
    sys.stdout.write(f"rank {dist.get_rank()} {text}\n")


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    dist.monitored_barrier(timeout=timedelta(seconds=60))
    say("passed the first")

    if rank == 1:
        time.sleep(5)  # "it hangs"
    else:
        try:
            # wait_all_ranks: name all that are missing, not only the first.
            dist.monitored_barrier(timeout=timedelta(seconds=2), wait_all_ranks=True)
        except RuntimeError as error:
            # Rank 0 asked everybody; the others know only that rank 0 did not let them pass.
            first_line = str(error).split("] ")[-1].splitlines()[0]
            say(first_line if rank == 0 else type(error).__name__)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
