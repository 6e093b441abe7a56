"""Five ways for two processes to meet: env://, tcp://, file://, a TCPStore, a FileStore.

python docs/examples/handbook/group_init_methods.py
"""

import os
import socket
import tempfile
from collections.abc import Iterator

import torch
import torch.distributed as dist
import torch.multiprocessing as mp


def ways(rank: int, folder: str, ports: list[int]) -> Iterator[tuple[str, dict]]:
    """A name, and what init_process_group takes besides the backend."""
    me = {"rank": rank, "world_size": 2}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(ports[0])}
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": "2"}
    yield "env://", {}  # the default: all four come from the environment
    yield "tcp://", {"init_method": f"tcp://127.0.0.1:{ports[1]}", **me}  # rank 0 listens there
    yield "file://", {"init_method": f"file://{folder}/meeting", **me}  # a path all can write
    yield "TCPStore", {"store": dist.TCPStore("127.0.0.1", ports[2]), **me}  # a client of main's
    yield "FileStore", {"store": dist.FileStore(f"{folder}/store", 2), **me}


def work(rank: int, folder: str, ports: list[int]) -> None:
    """One of the two processes: for every way meet, add up the ranks, and leave."""
    for name, how in ways(rank, folder, ports):
        dist.init_process_group("gloo", **how)
        total = torch.tensor(rank + 1)
        dist.all_reduce(total)
        print(f"rank {rank} by {name}: the sum of 1 and 2 is {total.item()}", flush=True)
        dist.barrier()
        dist.destroy_process_group()


def free_port() -> int:
    """A port that nobody uses now. Somebody may take it before we do: see the page."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return probe.getsockname()[1]


def main() -> None:
    server = dist.TCPStore("127.0.0.1", 0, is_master=True)  # port 0: the system chooses, for good
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(work, (folder, [free_port(), free_port(), server.port]), nprocs=2)


if __name__ == "__main__":
    main()
