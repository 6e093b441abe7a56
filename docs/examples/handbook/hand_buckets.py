"""Gradients flattened into buckets: fewer all-reduces, and the same averages.

torchrun --standalone --nproc-per-node 2 docs/examples/handbook/hand_buckets.py
"""

import torch
import torch.distributed as dist
from torch import Tensor, nn

CAP = 4096  # bytes: a bucket is closed once it holds that much


def fill_buckets(parameters: list[nn.Parameter]) -> list[list[nn.Parameter]]:
    """In the order given. A parameter is never cut, so a bucket may exceed the cap."""
    buckets: list[list[nn.Parameter]] = [[]]
    for parameter in parameters:
        if sum(p.nbytes for p in buckets[-1]) >= CAP:
            buckets.append([])
        buckets[-1].append(parameter)
    return buckets


def average_bucket(bucket: list[nn.Parameter]) -> int:
    """One all-reduce for all gradients of a bucket; returns its bytes."""
    flat = torch.cat([p.grad.flatten() for p in bucket])
    dist.all_reduce(flat)
    flat /= dist.get_world_size()
    for parameter, piece in zip(bucket, flat.split([p.numel() for p in bucket]), strict=True):
        parameter.grad.copy_(piece.view_as(parameter))
    return flat.nbytes


def average_one_by_one(parameters: list[nn.Parameter]) -> list[Tensor]:
    """The plain way, into copies: one all-reduce for each parameter."""
    gradients = [p.grad.clone() for p in parameters]
    for gradient in gradients:
        dist.all_reduce(gradient)
        gradient /= dist.get_world_size()
    return gradients


if __name__ == "__main__":
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    layers = [layer for _ in range(8) for layer in (nn.Linear(16, 16), nn.Tanh())]
    model = nn.Sequential(*layers, nn.Linear(16, 100)).double()
    inputs = torch.randn(2, 4, 16, dtype=torch.float64)[dist.get_rank()]  # a share of its own
    model(inputs).square().mean().backward()

    parameters = list(model.parameters())[::-1]  # gradients come from the last layer first
    expected = average_one_by_one(parameters)
    sizes = [average_bucket(bucket) for bucket in fill_buckets(parameters)]
    for parameter, gradient in zip(parameters, expected, strict=True):
        torch.testing.assert_close(parameter.grad, gradient, rtol=0, atol=1e-15)
    if dist.get_rank() == 0:
        print(f"one by one: {len(expected)} all-reduces")
        print(f"in buckets: {len(sizes)} all-reduces, of {sizes} bytes")
        print("the averages are equal")
    dist.barrier()
    dist.destroy_process_group()
