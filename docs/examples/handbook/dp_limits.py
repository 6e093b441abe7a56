"""What gets lost or is different in replicas and threads, shown with the means of a CPU.

python docs/examples/handbook/dp_limits.py
"""

import copy
import threading
from collections.abc import Callable

import torch
from torch import Tensor, nn


class Counting(nn.Module):
    """A model that changes itself in forward, in two ways."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0
        self.register_buffer("seen", torch.zeros((), dtype=torch.long))

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1  # assigns a new number to an attribute
        self.seen += len(x)  # changes a tensor in place
        return x


def replica(module: nn.Module, first: bool) -> nn.Module:
    """As DataParallel makes them: only the first one shares its buffers with the original."""
    return copy.copy(module) if first else copy.deepcopy(module)


def in_thread(function: Callable[[], object]) -> object:
    """The result of a function that ran in a thread of its own."""
    found: list[object] = []
    thread = threading.Thread(target=lambda: found.append(function()))
    thread.start()
    thread.join()
    return found[0]


if __name__ == "__main__":
    torch.manual_seed(0)
    images = torch.randn(12, 3)
    halves = images.chunk(2)

    model = Counting()
    for i, half in enumerate(halves):
        replica(model, first=i == 0)(half)
    print(f"attribute: {model.calls} calls counted of 2; buffer: {model.seen} images of 12")

    norm, half_norm = nn.BatchNorm1d(3, momentum=1.0), nn.BatchNorm1d(3, momentum=1.0)
    for i, half in enumerate(halves):
        replica(norm, first=i == 0)(half)
    half_norm(halves[0])
    torch.testing.assert_close(norm.running_mean, half_norm.running_mean)
    assert not torch.allclose(norm.running_mean, images.mean(dim=0))
    print("BatchNorm: the running mean is that of the first half alone")

    linear = nn.Linear(3, 3)
    with torch.autocast("cpu", torch.bfloat16), torch.no_grad():
        here, there = linear(images).dtype, in_thread(lambda: linear(images).dtype)
        enabled = in_thread(lambda: torch.is_autocast_enabled("cpu"))
        grad = in_thread(torch.is_grad_enabled)
    print(
        f"autocast and no_grad: {here} here; in a thread {there}, autocast {enabled}, grad {grad}"
    )

    losses = torch.stack([half.square().mean() for half in images.split([8, 4])])
    torch.testing.assert_close((losses * torch.tensor([8, 4])).sum() / 12, images.square().mean())
    assert not torch.isclose(losses.mean(), images.square().mean())
    print("mean of the losses of 8 and 4 images: not the loss of the 12")
