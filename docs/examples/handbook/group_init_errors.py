"""What each way of meeting says when it is used wrongly.

python docs/examples/handbook/group_init_errors.py
"""

import os
import re
import socket
import tempfile
from datetime import timedelta

import torch.distributed as dist
import torch.multiprocessing as mp

SOON = timedelta(seconds=3)


def attempt(what: str, **how) -> None:
    """Print the first line of the error, without the parts that differ from run to run."""
    try:
        dist.init_process_group("gloo", timeout=SOON, **how)
        said = "no error"
        dist.destroy_process_group()
    except (ValueError, AssertionError, RuntimeError) as error:
        first = str(error).splitlines()[0].removeprefix("Error initializing torch.distributed ")
        first = re.split(r", remote|\. port|(?<=failed) with", re.sub(r"\[.*?\] ", "", first))[0]
        said = f"{type(error).__name__}: {first}"
    print(f"{what}: {said}")


def crash(rank: int, url: str) -> None:
    """A job that ends without a goodbye, as after kill -9 or a power cut."""
    dist.init_process_group("gloo", init_method=url, rank=rank, world_size=2)
    dist.barrier()
    os._exit(0)


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        url = f"file://{folder}/meeting"
        mp.spawn(crash, (url,), nprocs=2)
        attempt("file:// stale, rank 1 not there", init_method=url, rank=0, world_size=2)
        url = f"file://{folder}/fresh"
        attempt("file:// fresh, rank 1 not there", init_method=url, rank=0, world_size=2)
    attempt("env:// without a launcher")
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0", "RANK": "0"}
    attempt("env:// half set")
    attempt("tcp:// without a port", init_method="tcp://127.0.0.1", rank=0, world_size=1)
    with socket.create_server(("", 0)) as other:
        url = f"tcp://127.0.0.1:{other.getsockname()[1]}"
        attempt("tcp:// on a taken port", init_method=url, rank=0, world_size=1)
    attempt("tcp:// without a rank", init_method="tcp://127.0.0.1:0", world_size=1)
    attempt("file:// relative", init_method="file://meeting", rank=0, world_size=1)
    both = {"store": dist.HashStore(), "init_method": "env://"}
    attempt("a store and a URL", rank=0, world_size=1, **both)
    attempt("a store alone", store=dist.HashStore(), rank=0)
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    except ValueError as error:
        print(f"twice: {type(error).__name__}: {error}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
