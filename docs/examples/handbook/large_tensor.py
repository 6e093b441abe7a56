"""Tensor parallel: one layer cut by columns, the next by rows, one all-reduce for both.

torchrun --standalone --nproc-per-node 2 docs/examples/handbook/large_tensor.py
"""

import sys

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.debug import CommDebugMode
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module


class Block(nn.Module):
    """The pair of layers inside of a transformer: wide in between."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(8, 32)
        self.down = nn.Linear(32, 8)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(torch.relu(self.up(x)))


def names(mode: CommDebugMode) -> str:
    counts = {str(op).split(".")[-1]: n for op, n in mode.get_comm_counts().items() if n}
    return ", ".join(f"{n} {op}" for op, n in counts.items()) or "none"


if __name__ == "__main__":
    dist.init_process_group("gloo")
    rank, world_size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)  # the same input on every rank: the model is cut, not the batch
    whole, model = Block().double(), Block().double()
    model.load_state_dict(whole.state_dict())
    inputs = torch.randn(4, 8, dtype=torch.float64, requires_grad=True)  # as from another layer

    mesh = init_device_mesh("cpu", (world_size,))
    parallelize_module(model, mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})
    for name, parameter in model.named_parameters():
        shape, here = tuple(parameter.shape), tuple(parameter.to_local().shape)
        cut = parameter.placements[0]
        sys.stdout.write(f"rank {rank} {name} {shape}, here {here}, {cut}\n")

    expected = whole(inputs)
    expected.square().mean().backward()
    expected_gradient, inputs.grad = inputs.grad, None
    with CommDebugMode() as forward:
        outputs = model(inputs)
    with CommDebugMode() as backward:
        outputs.square().mean().backward()
    torch.testing.assert_close((outputs, inputs.grad), (expected, expected_gradient))
    for (name, found), parameter in zip(model.named_parameters(), whole.parameters(), strict=True):
        torch.testing.assert_close(found.grad.full_tensor(), parameter.grad, msg=name)
    sys.stdout.write(f"rank {rank} forward: {names(forward)}; backward: {names(backward)}; equal\n")
    dist.barrier()
    dist.destroy_process_group()
