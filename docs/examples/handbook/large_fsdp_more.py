"""FSDP2 with layers that are added, with an average of the weights, and with fp16.

torchrun --standalone --nproc-per-node 2 docs/examples/handbook/large_fsdp_more.py
"""

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.utils import clip_grad_norm_
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn


class WithLora(nn.Module):
    """A layer, and beside it two thin ones, which are trained."""

    def __init__(self, layer: nn.Linear) -> None:
        super().__init__()
        self.layer = layer.requires_grad_(False)
        self.lora = nn.Sequential(nn.Linear(8, 2, bias=False), nn.Linear(2, 8, bias=False))

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x) + self.lora(x)


def on_all_ranks(value: object) -> list:
    values = [None] * dist.get_world_size()
    dist.all_gather_object(values, value)
    return values


def lora(mesh: DeviceMesh, late: bool) -> bool:
    """Whether all ranks have the same gradient of the new layers."""
    torch.manual_seed(0)
    layer = nn.Linear(8, 8)
    if late:
        fully_shard(layer, mesh=mesh)
    model = WithLora(layer)
    if not late:
        fully_shard(model, mesh=mesh)
    torch.manual_seed(dist.get_rank())  # a batch of its own for each rank
    model(torch.randn(4, 8)).square().mean().backward()
    gradient = model.lora[0].weight.grad
    if isinstance(gradient, DTensor):
        gradient = gradient.full_tensor()
    first, *others = on_all_ranks(gradient)
    return all(torch.equal(first, other) for other in others)


def ema(mesh: DeviceMesh) -> None:
    """The average of the whole model, from shards."""
    torch.manual_seed(0)
    alone, model = nn.Linear(8, 8), nn.Linear(8, 8)
    model.load_state_dict(alone.state_dict())
    averages = [AveragedModel(m, multi_avg_fn=get_ema_multi_avg_fn(0.9)) for m in (alone, model)]
    for part in (model, averages[1].module):  # copied before it is cut up, and cut up alike
        fully_shard(part, mesh=mesh)
    for m, average in zip((alone, model), averages, strict=True):
        optimizer = torch.optim.SGD(m.parameters(), lr=0.1)
        for step in range(3):
            optimizer.zero_grad()
            m(torch.full((2, 8), 1.0 + step)).square().mean().backward()
            optimizer.step()
            average.update_parameters(m)
    expected, found = (list(average.module.parameters()) for average in averages)
    torch.testing.assert_close([p.full_tensor() for p in found], [p.detach() for p in expected])


def muon(mesh: DeviceMesh) -> None:
    """It changes a matrix as a whole, which a rank has no more: torch gathers it for the step."""
    torch.manual_seed(0)
    alone, model = nn.Linear(8, 8, bias=False), nn.Linear(8, 8, bias=False)
    model.load_state_dict(alone.state_dict())
    fully_shard(model, mesh=mesh)
    for m in (alone, model):
        optimizer = torch.optim.Muon(m.parameters(), lr=0.1)
        for step in range(3):
            optimizer.zero_grad()
            m(torch.full((2, 8), 1.0 + step)).square().mean().backward()
            optimizer.step()
    torch.testing.assert_close(model.weight.full_tensor(), alone.weight.detach())


def fp16(mesh: DeviceMesh) -> list:
    """On each rank: whether its weights move in each of three steps, and the scale at the end."""
    torch.manual_seed(0)
    model = nn.Linear(8, 8)
    types = {"param_dtype": torch.float16, "reduce_dtype": torch.float32}
    policy = MixedPrecisionPolicy(output_dtype=torch.float32, **types)
    fully_shard(model, mesh=mesh, mp_policy=policy)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler(mesh.device_type, init_scale=1024.0)
    moved = []
    for step in range(3):
        before = model.weight.to_local().clone()
        weights = torch.ones(8)
        weights[7] = float("inf") if step == 1 else 1.0  # the last row, which is rank 1's
        optimizer.zero_grad()
        scaler.scale((model(torch.ones(2, 8)) * weights).mean()).backward()
        scaler.unscale_(optimizer)
        clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        moved.append(not torch.equal(model.weight.to_local(), before))
    return on_all_ranks((*moved, scaler.get_scale()))


if __name__ == "__main__":
    dist.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    lines = [f"LoRA after fully_shard: equal gradients on all ranks: {lora(mesh, late=True)}"]
    lines += [f"LoRA before fully_shard: equal gradients on all ranks: {lora(mesh, late=False)}"]
    ema(mesh)
    lines += ["an EMA that is cut up as the model: that of the whole model"]
    try:
        model = nn.Linear(8, 8)
        fully_shard(model, mesh=mesh)
        AveragedModel(model)
    except AssertionError as error:
        lines += [f"an EMA made after fully_shard: {str(error).split('.')[0]}"]
    muon(mesh)
    lines += ["Muon on shards: the steps of the whole matrix"]
    for rank, (*moved, scale) in enumerate(fp16(mesh)):
        lines += [f"fp16, rank {rank}: weights move {moved}, scale 1024 -> {scale:.0f}"]
    if dist.get_rank() == 0:
        print(*lines, sep="\n")
    dist.barrier()
    dist.destroy_process_group()
