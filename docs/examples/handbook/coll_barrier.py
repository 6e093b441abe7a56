"""barrier: nobody goes on before all have come. Rank 0 writes a file, the others wait to read it.

torchrun --standalone --nproc-per-node 3 docs/examples/handbook/coll_barrier.py
"""

import sys
import tempfile
import time
from pathlib import Path

import torch.distributed as dist


def say(text: str) -> None:
    """One write a line, so that lines of several ranks do not mix."""
    sys.stdout.write(f"rank {dist.get_rank()} {text}\n")


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()

    # All ranks need the name of one folder.
    name = [tempfile.mkdtemp() if rank == 0 else None]
    dist.broadcast_object_list(name, src=0)
    file = Path(name[0], "data.txt")

    if rank == 0:
        time.sleep(0.2)  # a download, say
        file.write_text("42")
    dist.barrier()  # outside of the if: all ranks call it
    say(f"reads {file.read_text()}")

    dist.barrier()  # nobody may remove what another still reads
    if rank == 0:
        file.unlink()
        file.parent.rmdir()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
