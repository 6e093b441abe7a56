"""ZeroRedundancyOptimizer: each rank keeps Adam's state of some parameters, with DDP's results.

torchrun --standalone --nproc-per-node 2 docs/examples/handbook/large_zero.py
"""

import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel


def build() -> DistributedDataParallel:
    torch.manual_seed(0)
    layers = [nn.Linear(32, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 8)]
    return DistributedDataParallel(nn.Sequential(*layers).double())


def state_kib(optimizer: torch.optim.Optimizer) -> float:
    """KiB of the state that this process keeps, step counters left out."""
    tensors = [t for s in optimizer.state.values() for t in s.values() if t.dim()]
    return sum(t.nbytes for t in tensors) / 1024


if __name__ == "__main__":
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    plain, sharing = build(), build()
    adam = torch.optim.Adam(plain.parameters(), lr=0.01)
    zero = ZeroRedundancyOptimizer(sharing.parameters(), optimizer_class=torch.optim.Adam, lr=0.01)
    data = torch.Generator().manual_seed(rank)  # every rank has its own share of the data
    for _ in range(5):
        inputs = torch.randn(16, 32, dtype=torch.float64, generator=data)
        for model, optimizer in ((plain, adam), (sharing, zero)):
            optimizer.zero_grad()
            model(inputs).square().mean().backward()
            optimizer.step()  # zero: update my parameters, then broadcast them to the others
    torch.testing.assert_close(list(plain.parameters()), list(sharing.parameters()))
    for name, one in (("Adam", adam), ("ZeRO", zero.optim)):
        kept = f"state of {len(one.state)} tensors, {state_kib(one):.1f} KiB"
        sys.stdout.write(f"rank {rank} {name} keeps the {kept}\n")

    try:
        zero.state_dict()
    except RuntimeError as error:
        sys.stdout.write(f"rank {rank} RuntimeError: {str(error).split('.')[0]}\n")
    zero.consolidate_state_dict(to=0)  # a collective: every rank calls it
    if rank == 0:
        found, expected = zero.state_dict()["state"], adam.state_dict()["state"]
        torch.testing.assert_close(found, expected)
        print(f"rank 0 after consolidate_state_dict: all {len(found)}, equal to Adam's")
    dist.barrier()
    dist.destroy_process_group()
