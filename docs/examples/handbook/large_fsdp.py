"""FSDP2: parameters, gradients and Adam's state, each cut up among the ranks, trained as one.

torchrun --standalone --nproc-per-node 2 docs/examples/handbook/large_fsdp.py
"""

import sys

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.functional import cross_entropy
from torch.nn.utils import clip_grad_norm_

STEPS, BATCH = 4, 16  # the batch of all ranks together


def build() -> nn.Sequential:
    torch.manual_seed(0)
    layers = [nn.Linear(8, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 5)]
    return nn.Sequential(*layers).double()


def train(model: nn.Module, inputs: Tensor, targets: Tensor) -> tuple[Tensor, float]:
    """A plain loop; after it the norm, and the KiB that this process keeps."""
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)  # after fully_shard, on the shards
    for x, y in zip(inputs, targets, strict=True):
        optimizer.zero_grad()
        cross_entropy(model(x), y).backward()
        norm = clip_grad_norm_(model.parameters(), max_norm=0.1)
        optimizer.step()
    norm = norm.full_tensor() if isinstance(norm, DTensor) else norm
    kept = [t for p in model.parameters() for t in (p, p.grad, *optimizer.state[p].values())]
    here = [t.to_local() if isinstance(t, DTensor) else t for t in kept if t.dim()]
    return norm, sum(t.nbytes for t in here) / 1024  # step counters, of dimension 0, left out


if __name__ == "__main__":
    dist.init_process_group("gloo")
    rank, world_size = dist.get_rank(), dist.get_world_size()
    data = torch.Generator().manual_seed(1)
    inputs = torch.randn(STEPS, BATCH, 8, dtype=torch.float64, generator=data)
    targets = torch.randint(0, 5, (STEPS, BATCH), generator=data)
    whole = build()
    expected_norm, whole_kib = train(whole, inputs, targets)

    mesh = init_device_mesh("cpu", (world_size,))
    model = build()
    for layer in model:
        if isinstance(layer, nn.Linear):
            fully_shard(layer, mesh=mesh)  # one all-gather for each of these
    fully_shard(model, mesh=mesh)  # the root last: it takes what is left
    for name, parameter in model.named_parameters():
        if name.startswith("4"):
            shape, here = tuple(parameter.shape), tuple(parameter.to_local().shape)
            kind = type(parameter).__name__
            sys.stdout.write(f"rank {rank} {name} {kind} {shape}, here {here}\n")
    mine = slice(rank, None, world_size)  # this rank's share of each batch
    norm, kib = train(model, inputs[:, mine], targets[:, mine])

    torch.testing.assert_close(norm, expected_norm)
    found = [p.full_tensor() for p in model.parameters()]  # a collective: on every rank
    torch.testing.assert_close(found, [p.detach() for p in whole.parameters()])
    kept = f"{kib:.1f} KiB of {whole_kib:.1f} KiB"
    sys.stdout.write(f"rank {rank} {type(model).__name__}: {kept}, equal weights\n")
    dist.barrier()
    dist.destroy_process_group()
