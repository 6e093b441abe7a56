"""A pipeline by hand: micro-batches through two stages or more, in two orders.

torchrun --standalone --nproc-per-node 2 docs/examples/handbook/large_micro.py
"""

import sys

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.functional import mse_loss

PARTS, SIZE, WIDTH = 4, 4, 16  # micro-batches, inputs in each, width of all layers


def all_forward_first(rank: int, world_size: int) -> list[str]:
    """GPipe: every rank does all forward passes, then all backward passes."""
    return [f"F{m}" for m in range(PARTS)] + [f"B{m}" for m in range(PARTS)]


def one_forward_one_backward(rank: int, world_size: int) -> list[str]:
    """1F1B: run ahead by as many micro-batches as stages are left, then take turns."""
    ahead = min(world_size - rank, PARTS)
    words = [f"F{m}" for m in range(ahead)]
    for m in range(PARTS):
        words += [f"B{m}"] + [f"F{m + ahead}"] * (m + ahead < PARTS)
    return words


def run(words: list[str], stage: nn.Module, inputs: Tensor, targets: Tensor) -> int:
    """Do what the list says; returns how many micro-batches were held at most."""
    rank, last = dist.get_rank(), dist.get_world_size() - 1
    held, sending, most = {}, [], 0
    for word in words:
        m = int(word[1:])
        part = slice(m * SIZE, (m + 1) * SIZE)
        if word[0] == "F":
            x = inputs[part] if rank == 0 else torch.empty(SIZE, WIDTH, dtype=torch.float64)
            if rank > 0:
                dist.recv(x, rank - 1)
                x.requires_grad_()
            y = stage(x)
            if rank == last:
                y = mse_loss(y, targets[part]) / PARTS  # the mean of means of equal parts
            else:
                sending.append(dist.isend(y.detach(), rank + 1))  # does not wait for the other
            held[m] = x, y  # and with y all activations in between
            most = max(most, len(held))
        else:
            x, y = held.pop(m)
            gradient = None if rank == last else torch.empty_like(y)
            if rank != last:
                dist.recv(gradient, rank + 1)
            y.backward(gradient)  # gradients of the micro-batches add up
            if rank > 0:
                sending.append(dist.isend(x.grad, rank - 1))
    for work in sending:
        work.wait()
    return most


if __name__ == "__main__":
    dist.init_process_group("gloo")
    rank, world_size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    layer = [nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()) for _ in range(world_size)]
    whole = nn.Sequential(*layer).double()
    inputs, targets = torch.randn(2, PARTS * SIZE, WIDTH, dtype=torch.float64)
    mse_loss(whole(inputs), targets).backward()
    expected = [p.grad for p in whole[rank].parameters()]
    for order in (all_forward_first, one_forward_one_backward):
        whole.zero_grad()
        words = order(rank, world_size)
        most = run(words, whole[rank], inputs, targets)
        torch.testing.assert_close([p.grad for p in whole[rank].parameters()], expected)
        sys.stdout.write(f"rank {rank} {' '.join(words)}  holds {most}, gradients equal\n")
    dist.barrier()
    dist.destroy_process_group()
