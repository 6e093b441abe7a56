"""Two processes that meet and add up, started by torch.multiprocessing alone, joined by hand.

python docs/examples/handbook/hand_processes.py
"""

import socket
from multiprocessing.connection import wait

import torch
import torch.distributed as dist
import torch.multiprocessing as mp


def worker(rank: int, world_size: int, port: int, failing_rank: int) -> None:
    """All that a process runs. At the top level of the module: a child imports it by name."""
    store = dist.TCPStore("127.0.0.1", port, is_master=False)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world_size)
    if rank == failing_rank:
        raise SystemExit(7)
    total = torch.tensor([rank + 1.0])
    dist.all_reduce(total)
    print(f"rank {rank} of {world_size}: the sum of all is {total.item():.0f}")
    dist.barrier()  # all have read the sum before anybody leaves
    dist.destroy_process_group()


def run(world_size: int, failing_rank: int = -1) -> list[int]:
    """Start the processes, wait for all of them, return their exit codes."""
    # Port 0: the system takes a free one. The socket stays open and becomes the meeting point.
    listener = socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    store = dist.TCPStore(
        "127.0.0.1",
        port,
        is_master=True,
        wait_for_workers=False,
        master_listen_fd=listener.detach(),
    )
    context = mp.get_context("spawn")
    processes = [
        context.Process(target=worker, args=(rank, world_size, port, failing_rank))
        for rank in range(world_size)
    ]
    for process in processes:
        process.start()
    running = {process.sentinel: process for process in processes}
    while running:
        for sentinel in wait(list(running)):  # whoever ends first, not rank 0 first
            ended = running.pop(sentinel)
            ended.join()
            if ended.exitcode != 0:  # the others would wait for it
                for process in running.values():
                    process.terminate()
    del store  # not before the last child is gone
    return [process.exitcode for process in processes]


if __name__ == "__main__":
    print("exit codes:", run(2))
    print("exit code of the rank that fails:", run(2, failing_rank=1)[1])
