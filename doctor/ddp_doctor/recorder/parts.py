"""What a rank has of the model: each parameter as a whole or a part of it, and who has the same."""

import math

import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

DATA_PARALLEL = ("DistributedDataParallel", "DataParallel")


class Parts:
    """At the first step."""

    def __init__(self, model: object, trained: list, zero: bool) -> None:
        """zero: the optimizer keeps its state in parts."""
        modules = list(model.modules())
        everything = [*trained, *model.parameters()]  # an optimizer may have a few of them
        meshes = [p.device_mesh for p in everything if hasattr(p, "to_local")]
        parts = [p for p in everything if divided(p)]
        ddp = [m for m in modules if isinstance(m, DistributedDataParallel)]
        flat = [m for m in modules if type(m).__name__ == "FullyShardedDataParallel"]
        cut = [m for m in flat if m.sharding_strategy.name != "NO_SHARD"]
        fsdp = any(map(is_fsdp, modules))
        # After a forward pass that has no gradient, parameters of fully_shard stay gathered.
        gathered = fsdp and not (flat or meshes)

        self.wrappers = ["FSDP"] if fsdp else []
        self.wrappers += ["sharded"] if zero or parts or cut or gathered else []
        self.wrappers += [n for n in (type(m).__name__ for m in modules) if n in DATA_PARALLEL]
        # Ranks whose gradients DDP averages, or FSDP where it divides nothing.
        group = next((m.process_group for m in ddp or ([] if cut else flat)), None)
        self.group = dist.get_process_group_ranks(group) if group else None
        if fsdp and meshes and not (parts or group):
            self.group = meshes[0].mesh.flatten().tolist()
        # Ids of those that every rank has as a whole, beside others of which all ranks have parts.
        all_have = bool(parts) and {p.device_mesh.size() for p in parts} == {dist.get_world_size()}
        whole = everything if all_have or gathered else []
        self.whole = {id(p) for p in whole if not divided(p)}
        # Ranks that have the same of all tensors as this one; None: all have.
        self.copies = None
        if "sharded" in self.wrappers:
            found = [set(same_part(p)) for p in parts]
            found += [set(dist.get_process_group_ranks(m._inter_node_pg)) for m in cut
                      if getattr(m, "_inter_node_pg", None)]  # fmt: skip
            known = found and not zero
            self.copies = sorted(set.intersection(*found)) if known else [dist.get_rank()]
        self.flat = dist.get_world_size() // len(self.copies) if cut else 1
        # Ranks that hold parts of these and share their samples, this one among them.
        self.together = [] if ddp else sharing(parts, fsdp)

    def of(self, parameter: object) -> int:
        """Into how many parts it is divided. FSDP1's are no DTensors."""
        if not hasattr(parameter, "placements"):
            return self.flat
        return math.prod(map(parameter.device_mesh.size, divided(parameter)))


def is_fsdp(module: object) -> bool:
    """Of FSDP1, or of fully_shard, which gives a module's class another base."""
    names = {kind.__name__ for kind in type(module).__mro__}
    return bool(names & {"FSDPModule", "FullyShardedDataParallel"})


def divided(parameter: object) -> list[int]:
    """The dimensions of its mesh over which ranks have parts of it: FSDP's, or those of tensor
    parallelism."""
    places = enumerate(getattr(parameter, "placements", ()))
    return [n for n, p in places if not p.is_replicate() and parameter.device_mesh.size(n) > 1]


def same_part(parameter: object) -> list[int]:
    """The ranks that have this part of it, as replicas of FSDP do."""
    mesh, over = parameter.device_mesh, divided(parameter)
    place = [own if n in over else slice(None) for n, own in enumerate(mesh.get_coordinate())]
    return mesh.mesh[tuple(place)].flatten().tolist()


def sharing(parts: list, fsdp: bool) -> list[int]:
    """FSDP's parts are for samples of one's own; beyond them, nobody can tell the dimensions of a
    mesh apart."""
    for p in parts:
        if len(divided(p)) > fsdp:
            mesh = p.device_mesh.mesh
            alone = mesh.dim() == 1 and not fsdp
            return mesh.flatten().tolist() if alone else list(range(dist.get_world_size()))
    return []
