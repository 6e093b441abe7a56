"""How long an all-reduce of float32 takes between ranks, by its size. Also on several machines:

    torchrun --nnodes 2 … --nproc-per-node gpu tools/benchmark/allreduce.py  # on each of them

Rank 0 prints the median milliseconds for each size as JSON. Of the largest it also prints GB/s:
what each link carries, whatever the number of ranks, as a ring sends 2 (n - 1) / n of the bytes.
"""

import json
import os
import sys
import time
from statistics import median

import torch
import torch.distributed as dist

SIZES = {"4 B": 4, "1 MiB": 1 << 20, "16 MiB": 1 << 24, "100 MiB": 100 << 20}


def milliseconds(size: int, device: torch.device) -> float:
    tensor, times = torch.zeros(size // 4, device=device), []
    for _ in range(5 + max(5, min(100, (1 << 28) // size))):
        dist.barrier()  # all begin together, as gradients of equal shares do
        if device.type == "cuda":
            torch.cuda.synchronize()
        begun = time.perf_counter()
        dist.all_reduce(tensor)
        if device.type == "cuda":
            torch.cuda.synchronize()
        times.append(1e3 * (time.perf_counter() - begun))
    return median(times[5:])  # the first ones connect and allocate


def main(backend: str) -> None:
    device = torch.device("cpu")
    if backend == "nccl":
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(device)
    dist.init_process_group(backend)
    n, found = dist.get_world_size(), {}
    for name, size in SIZES.items():
        found[f"{name} ms"] = milliseconds(size, device)
    found["100 MiB GB/s"] = size * 2 * (n - 1) / n / found[f"{name} ms"] / 1e6
    if dist.get_rank() == 0:
        print(json.dumps(found), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:] or ["nccl" if torch.cuda.is_available() else "gloo"])
