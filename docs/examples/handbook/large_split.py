"""A model cut in two: half on rank 0, half on rank 1, and it trains like the whole.

torchrun --standalone --nproc-per-node 2 docs/examples/handbook/large_split.py
"""

import sys

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

STEPS, BATCH, WIDTH = 5, 16, 32


def build() -> nn.Sequential:
    """The whole model; a real program would build its own half only."""
    torch.manual_seed(0)
    layers = [nn.Linear(8, WIDTH), nn.Tanh(), nn.Linear(WIDTH, WIDTH), nn.Tanh()]
    layers += [nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, 4)]
    return nn.Sequential(*layers).double()


def first_half(half: nn.Module, inputs: Tensor) -> None:
    """Rank 0: activations go out, their gradient comes back, and backward goes on from there."""
    hidden = half(inputs)
    dist.send(hidden.detach(), dst=1)
    gradient = torch.empty_like(hidden)
    dist.recv(gradient, src=1)
    hidden.backward(gradient)


def second_half(half: nn.Module, targets: Tensor) -> Tensor:
    """Rank 1: what arrives is an input whose gradient is wanted."""
    hidden = torch.empty(BATCH, WIDTH, dtype=torch.float64)
    dist.recv(hidden, src=0)
    hidden.requires_grad_()
    loss = cross_entropy(half(hidden), targets)
    loss.backward()
    dist.send(hidden.grad, dst=0)
    return loss.detach()


if __name__ == "__main__":
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    whole, model = build(), build()
    half = model[:4] if rank == 0 else model[4:]  # slices share their layers with the model
    optimizer = torch.optim.SGD(half.parameters(), lr=0.1, momentum=0.9)  # of this half alone
    reference = torch.optim.SGD(whole.parameters(), lr=0.1, momentum=0.9)
    data = torch.Generator().manual_seed(1)
    for step in range(STEPS):
        inputs = torch.randn(BATCH, 8, dtype=torch.float64, generator=data)
        targets = torch.randint(0, 4, (BATCH,), generator=data)
        optimizer.zero_grad()
        if rank == 0:
            first_half(half, inputs)
        else:
            loss = second_half(half, targets)
        optimizer.step()

        reference.zero_grad()
        expected = cross_entropy(whole(inputs), targets)
        expected.backward()
        reference.step()
        if rank == 1:
            torch.testing.assert_close(loss, expected.detach())
            sys.stdout.write(f"rank 1 step {step} loss {loss.item():.6f}\n")
    whole_half = whole[:4] if rank == 0 else whole[4:]
    torch.testing.assert_close(list(half.parameters()), list(whole_half.parameters()))
    mine, total = (sum(p.numel() for p in m.parameters()) for m in (half, whole))
    sys.stdout.write(f"rank {rank} trained {mine} of {total} parameters, as in one process\n")
    dist.barrier()
    dist.destroy_process_group()
