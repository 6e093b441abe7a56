"""Distributed checkpoint: saved by 2 ranks, loaded by 4, by 1, and turned into one plain file.

torchrun --standalone --nproc-per-node 4 docs/examples/handbook/large_dcp.py
"""

import sys
import tempfile
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard


def build(seed: int, mesh: DeviceMesh | None) -> tuple[nn.Module, torch.optim.Optimizer]:
    """A model, cut up if there is a mesh, and its optimizer."""
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(6, 10), nn.Tanh(), nn.Linear(10, 2))
    if mesh is not None:
        fully_shard(model, mesh=mesh)
    return model, torch.optim.Adam(model.parameters(), lr=0.01)


def state_of(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict:
    """Under the same names, cut up or not."""
    model_state, optimizer_state = get_state_dict(model, optimizer)
    return {"model": model_state, "optimizer": optimizer_state}


def load(folder: Path, mesh: DeviceMesh | None) -> tuple[nn.Module, torch.optim.Optimizer]:
    """A new model with other weights, filled: each rank reads what its own shards need."""
    model, optimizer = build(seed=1, mesh=mesh)
    state = state_of(model, optimizer)
    dcp.load(state, checkpoint_id=folder, no_dist=mesh is None)  # in place
    names = {"model_state_dict": state["model"], "optim_state_dict": state["optimizer"]}
    set_state_dict(model, optimizer, **names)
    return model, optimizer


if __name__ == "__main__":
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    own = tempfile.TemporaryDirectory()
    shared = [own.name]
    dist.broadcast_object_list(shared)  # rank 0's, a folder that all can reach
    folder = Path(shared[0])
    two, four = DeviceMesh("cpu", [0, 1]), DeviceMesh("cpu", [0, 1, 2, 3])
    whole, step = build(seed=0, mesh=None)
    whole(torch.ones(3, 6)).sum().backward()
    step.step()
    if rank < 2:  # as if only two processes had been started
        model, optimizer = build(seed=0, mesh=two)
        model(torch.ones(3, 6)).sum().backward()
        optimizer.step()
        dcp.save(state_of(model, optimizer), checkpoint_id=folder, process_group=two.get_group())
    dist.barrier()
    model, _ = load(folder, four)
    here = model[0].weight.to_local().shape
    found = [p.full_tensor() for p in model.parameters()]
    torch.testing.assert_close(found, [p.detach() for p in whole.parameters()])
    sys.stdout.write(f"rank {rank} of 4 loaded {tuple(here)} of (10, 6), equal to what 2 saved\n")
    dist.barrier()
    if rank == 0:
        print("rank 0 files:", *sorted(path.name for path in folder.iterdir()))
        alone, optimizer = load(folder, mesh=None)  # plain tensors, no collective
        torch.testing.assert_close(alone.state_dict(), whole.state_dict())
        torch.testing.assert_close(optimizer.state_dict()["state"], step.state_dict()["state"])
        print("rank 0 alone loaded it too, optimizer included")
        dcp_to_torch_save(folder, folder / "plain.pt")
        plain = torch.load(folder / "plain.pt", weights_only=True)
        torch.testing.assert_close(plain["model"], dict(whole.state_dict()))
        print("rank 0 plain.pt:", *plain["model"])
    dist.barrier()
    own.cleanup()
    dist.destroy_process_group()
