"""What a training step keeps in memory, counted tensor by tensor.

python docs/examples/handbook/large_count.py
"""

from collections.abc import Iterable

import torch
from torch import Tensor, nn

WIDTH, LAYERS = 256, 4


def size(tensors: Iterable[Tensor]) -> int:
    """Bytes, each storage once: a tensor that is kept twice is there once."""
    storages = [t.untyped_storage() for t in tensors]
    return sum({s.data_ptr(): s.nbytes() for s in storages}.values())


def forward(model: nn.Module, inputs: Tensor) -> tuple[Tensor, list[Tensor]]:
    """The loss, and the tensors that autograd keeps until backward, parameters left out."""
    kept: list[Tensor] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t) or t, lambda t: t):
        loss = model(inputs).square().mean()
    own = {p.untyped_storage().data_ptr() for p in model.parameters()}
    return loss, [t for t in kept if t.untyped_storage().data_ptr() not in own]


def state(optimizer: torch.optim.Optimizer) -> list[Tensor]:
    """What an optimizer keeps for each parameter, its step counters left out."""
    return [t for s in optimizer.state.values() for t in s.values() if t is not None and t.dim()]


def line(what: str, found: int, formula: str, expected: int) -> None:
    torch.testing.assert_close(found, expected, rtol=0, atol=0)
    print(f"{what:<25} {found / 1024:7.1f} KiB  {formula}")


if __name__ == "__main__":
    torch.manual_seed(0)
    model = nn.Sequential(*[m for _ in range(LAYERS) for m in (nn.Linear(WIDTH, WIDTH), nn.ReLU())])
    P = sum(p.numel() for p in model.parameters())
    print(f"{LAYERS} x Linear({WIDTH}, {WIDTH}) and ReLU: P = {P:,} parameters, float32")
    line("parameters", size(model.parameters()), "4 P", 4 * P)
    loss, _ = forward(model, torch.randn(32, WIDTH))
    loss.backward()
    line("gradients", size(p.grad for p in model.parameters()), "4 P", 4 * P)
    sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    momentum = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    adam = torch.optim.Adam(model.parameters())
    for name, optimizer, words in (
        ("SGD", sgd, 0),
        ("SGD, momentum", momentum, 1),
        ("Adam", adam, 2),
    ):
        optimizer.step()  # the state is made in here, not before
        line(f"state of {name}", size(state(optimizer)), f"{4 * words} P", 4 * words * P)
    for batch in (32, 64, 4096):
        _, kept = forward(model, torch.randn(batch, WIDTH))
        outputs = 1 + LAYERS  # the input of the first layer, and what each ReLU returns
        expected = 4 * outputs * batch * WIDTH
        line(
            f"activations, batch {batch}", size(kept), f"4 x {outputs} x batch x {WIDTH}", expected
        )
