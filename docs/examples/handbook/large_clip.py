"""Clipping a model of which tensor parallelism cuts a part: some parameters are DTensors.

torchrun --standalone --nproc-per-node 2 docs/examples/handbook/large_clip.py
"""

import copy
from collections.abc import Iterable

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.utils import clip_grad_norm_, clip_grads_with_norm_, get_total_norm


def whole(tensor: Tensor) -> Tensor:
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def clip(parameters: Iterable[nn.Parameter], limit: float) -> Tensor:
    """clip_grad_norm_, where parameters are DTensors of one mesh or several, or none."""
    kinds: dict = {}
    for parameter in parameters:
        kinds.setdefault(getattr(parameter, "device_mesh", None), []).append(parameter)
    norms = [whole(get_total_norm([p.grad for p in kind])) for kind in kinds.values()]
    norm = get_total_norm(norms)
    for kind in kinds.values():
        clip_grads_with_norm_(kind, limit, norm)
    return norm


if __name__ == "__main__":
    dist.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    torch.manual_seed(0)
    alone = nn.Sequential(nn.LayerNorm(8), nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 8))
    model = copy.deepcopy(alone)
    parallelize_module(model, mesh, {"1": ColwiseParallel(), "3": RowwiseParallel()})
    inputs = torch.randn(4, 8)
    for m in (alone, model):
        m(inputs).square().sum().backward()
    expected = clip_grad_norm_(alone.parameters(), 1.0)
    lines = []
    try:
        clip_grad_norm_(model.parameters(), 1.0)
    except RuntimeError as error:
        lines.append(f"clip_grad_norm_: {str(error).split(',')[0]}")
    norm = clip(model.parameters(), 1.0)
    torch.testing.assert_close(norm, expected)
    found = [whole(p.grad) for p in model.parameters()]
    torch.testing.assert_close(found, [p.grad for p in alone.parameters()])
    lines.append(f"clip: norm {norm:.4f}, of the whole model {expected:.4f}, and equal gradients")
    if dist.get_rank() == 0:
        print(*lines, sep="\n")
    dist.barrier()
    dist.destroy_process_group()
