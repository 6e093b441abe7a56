"""Do links between GPUs lose data, and how fast are they? Known numbers go round all ranks and all
pairs, twice, and are compared bit by bit.

    torchrun --standalone --nproc-per-node gpu tools/links.py FILE

Rank 0 writes FILE (JSON). tools/gpu_check.py calls it. Without a GPU: two CPU processes, gloo.
"""

import json
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor

SIZES = [1 << 10, 1 << 15, 1 << 20, 1 << 25, 1 << 30]  # bytes
SHARE = 8  # a size is tried if so many of it fit into the memory that is free on each GPU
MOST_ON_CPU = 1 << 25
ROUNDS = 2


def numbers(size: int, rank: int, round_: int, device: torch.device) -> Tensor:
    """(size // 4,) float32 of whole numbers below 1024: sums of them are exact for 8,192 ranks."""
    places = torch.arange(size // 4, dtype=torch.int32, device=device)
    return places.mul_(73).add_(1009 * rank + 31 * round_).remainder_(1024).float()


def sizes(device: torch.device) -> list[int]:
    """The same ones on all ranks, whoever else is on a GPU."""
    most = torch.tensor(MOST_ON_CPU, device=device)
    if device.type == "cuda":
        most.fill_(torch.cuda.mem_get_info()[0] // SHARE)
    dist.all_reduce(most, dist.ReduceOp.MIN)
    return [size for size in SIZES if size <= most]


def ways(world_size: int) -> Iterator[tuple[str, list[int]]]:
    yield "all_reduce", list(range(world_size))
    for rank in range(world_size):
        yield "broadcast", [rank, *(other for other in range(world_size) if other != rank)]
    for one in range(world_size):
        for other in range(world_size):
            if one != other:
                yield "send", [one, other]


def go(what: str, ranks: list[int], buffer: Tensor) -> None:
    rank = dist.get_rank()
    if what == "all_reduce":
        dist.all_reduce(buffer)
    elif what == "broadcast":
        dist.broadcast(buffer, ranks[0])
    elif rank == ranks[0]:
        dist.send(buffer, ranks[1])
    elif rank == ranks[1]:
        dist.recv(buffer, ranks[0])


def wait(device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


def tried(what: str, ranks: list[int], size: int, round_: int, device: torch.device) -> dict:
    """What this rank has got that is wrong, and the seconds that it took."""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    buffer = numbers(size, rank, round_, device)
    dist.barrier()
    begun = wait(device)
    go(what, ranks, buffer)
    seconds = wait(device) - begun
    if what == "all_reduce":
        wanted = sum(numbers(size, other, round_, device) for other in range(world_size))
    elif what == "broadcast" or rank == ranks[1]:
        wanted = numbers(size, ranks[0], round_, device)
    else:
        wanted = buffer
    wrong = (buffer != wanted).nonzero().flatten()
    row = {"what": what, "ranks": ranks, "size": size, "round": round_, "seconds": seconds}
    first = wrong[0].item() if len(wrong) else None
    return row | {"rank": rank, "wrong": len(wrong), "first": first}


def main(file: str) -> None:
    device = torch.device("cpu")
    if torch.cuda.is_available():
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    rows, some = [], sizes(device)
    for what, ranks in ways(dist.get_world_size()):
        if dist.get_rank() == 0:
            print(what, *ranks, flush=True)  # or it would seem to hang
        for size in some:
            rows += [tried(what, ranks, size, round_, device) for round_ in range(ROUNDS)]
    parts = [None] * dist.get_world_size()
    dist.all_gather_object(parts, rows)
    if dist.get_rank() == 0:
        count = torch.cuda.device_count()
        peers = [
            [one, other]
            for one in range(count)
            for other in range(one + 1, count)
            if torch.cuda.can_device_access_peer(one, other)
        ]
        found = {"rows": sum(parts, []), "device": device.type, "peers": peers}
        Path(file).write_text(json.dumps(found))
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1])
