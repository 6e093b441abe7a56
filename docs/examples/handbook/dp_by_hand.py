"""DataParallel by hand, on a CPU: replicas and threads, and the gradients of the whole batch.

python docs/examples/handbook/dp_by_hand.py
"""

import copy
import threading

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy


def replica(module: nn.Module, first: bool) -> nn.Module:
    """A module of the same kind that computes with copies, which autograd ties to the originals."""
    twin = copy.copy(module)  # shares everything; what is assigned to it stays with it
    twin._modules = {name: replica(m, first) for name, m in module._modules.items()}
    twin._parameters = {}
    for name, p in module._parameters.items():  # no parameters, but tensors computed from them
        setattr(twin, name, p if p is None else p.clone())
    twin._buffers = {n: b if first else b.clone() for n, b in module._buffers.items()}
    return twin


class ByHand(nn.Module):
    """nn.DataParallel, where each "GPU" is a thread."""

    def __init__(self, module: nn.Module, count: int) -> None:
        super().__init__()
        self.module, self.count = module, count

    def forward(self, inputs: Tensor) -> Tensor:
        shares = inputs.chunk(self.count)  # scatter
        replicas = [replica(self.module, first=i == 0) for i in range(len(shares))]  # replicate
        outputs: list[Tensor] = [inputs] * len(shares)

        def work(i: int) -> None:
            outputs[i] = replicas[i](shares[i])

        threads = [threading.Thread(target=work, args=(i,)) for i in range(len(shares))]
        for thread in threads:  # parallel_apply
            thread.start()
        for thread in threads:
            thread.join()
        return torch.cat(outputs)  # gather


if __name__ == "__main__":
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 3)).double()
    inputs, targets = torch.randn(10, 8, dtype=torch.float64), torch.randint(0, 3, (10,))
    cross_entropy(model(inputs), targets).backward()
    expected = [p.grad.clone() for p in model.parameters()]

    print(f"parameters() of a replica: {list(replica(model, first=True).parameters())}")
    for count in (2, 4):
        model.zero_grad()
        outputs = ByHand(model, count)(inputs)  # all 10, on the first "GPU"
        cross_entropy(outputs, targets).backward()  # one loss, of the whole batch
        torch.testing.assert_close([p.grad for p in model.parameters()], expected)
        shares = [len(x) for x in inputs.chunk(count)]
        print(f"{count} replicas, shares {shares}: the gradients of one batch of 10")

    shares = zip(inputs.chunk(2), targets.chunk(2), strict=True)
    parts = [torch.autograd.grad(cross_entropy(model(x), y), model.parameters()) for x, y in shares]
    summed = [sum(pair) for pair in zip(*parts, strict=True)]
    torch.testing.assert_close(summed, [2 * g for g in expected])
    print("a loss of its own for each half, and the gradients summed: twice as large")
