"""FSDP2: what goes wrong, with its message or without one.

torchrun --standalone --nproc-per-node 2 docs/examples/handbook/large_fsdp_traps.py
"""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, set_model_state_dict
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard


def train_once(model: nn.Module, optimizer: torch.optim.Optimizer) -> bool:
    """Whether a step moves the weights."""
    before = model.weight.full_tensor()
    model(torch.ones(2, 8)).square().sum().backward()
    optimizer.step()
    return not torch.equal(model.weight.full_tensor(), before)


def sharded(mesh: DeviceMesh) -> nn.Linear:
    model = nn.Linear(8, 8)
    fully_shard(model, mesh=mesh)
    return model


if __name__ == "__main__":
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    lines = []

    model = nn.Linear(8, 8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)  # holds the uncut parameters
    fully_shard(model, mesh=mesh)
    lines.append(f"optimizer made before fully_shard: weights move: {train_once(model, optimizer)}")
    model = sharded(mesh)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    lines.append(f"optimizer made after fully_shard: weights move: {train_once(model, optimizer)}")

    try:
        nn.functional.linear(torch.ones(2, 8), sharded(mesh).weight)
    except RuntimeError as error:
        lines.append(f"weight used outside of forward: {str(error).split(',')[0]}")

    whole = nn.Linear(8, 8).state_dict()  # the same on every rank, as the seed is
    try:
        sharded(mesh).load_state_dict(whole)
    except RuntimeError as error:
        why = str(error).split("('")[1].split(",")[0]  # of the first tensor
        lines.append(f"load_state_dict of plain tensors: {why}")
    model = sharded(mesh)
    options = StateDictOptions(full_state_dict=True, broadcast_from_rank0=True)
    given = dict(whole) if dist.get_rank() == 0 else {}  # a copy: it is filled with DTensors
    set_model_state_dict(model, given, options=options)
    torch.testing.assert_close(model.weight.full_tensor(), whole["weight"])
    lines.append("set_model_state_dict of rank 0's plain tensors: loaded on all ranks")
    if dist.get_rank() == 0:
        print(*lines, sep="\n")
    dist.barrier()
    dist.destroy_process_group()
