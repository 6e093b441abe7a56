"""What torch does in C++ or behind rules.py: DataParallel's copies, groups of tensors by their
device, torch.compile, and what a checkpoint says of where its tensors were."""

import importlib
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from .notes import note
from .placement import DEVICES, full, place_of, put_storage


def grouped(lists: Sequence, with_indices: bool = False) -> dict:
    """The columns of these lists (a parameter, its gradient, its momentum) by device and type."""
    groups: dict = {}
    rows = [row or [None] * len(lists[0]) for row in lists]
    for index, column in enumerate(zip(*rows, strict=True)):
        key = place_of(column[0]), column[0].dtype
        found, indices = groups.setdefault(key, ([[] for _ in lists], []))
        for tensors, tensor in zip(found, column, strict=True):
            tensors.append(tensor)
        indices.append(index)
    return groups


# ---- DataParallel ----
def copies(tensors: Sequence[Tensor], gpus: Sequence, detach: bool = False) -> list[list[Tensor]]:
    """On each GPU. The first one keeps its buffers themselves, whose statistics it updates."""
    found = []
    for gpu in gpus:
        here = [t if detach and place_of(t) == full(gpu) else t.to(full(gpu), copy=not detach)
                for t in tensors]  # fmt: skip
        found.append(here)
    return found


class Scatter:
    @staticmethod
    def apply(gpus: Sequence, sizes: None, dim: int, batch: Tensor) -> tuple[Tensor, ...]:
        parts = batch.chunk(len(gpus), dim)
        return tuple(part.to(full(gpu)) for part, gpu in zip(parts, gpus, strict=False))


class Gather:
    @staticmethod
    def apply(gpu: Any, dim: int, *parts: Tensor) -> Tensor:
        return torch.cat([part.to(full(gpu)) for part in parts], dim)


# ---- checkpoints ----
def tag(storage: Any) -> str | None:
    """What torch.save writes down of a tensor on a GPU."""
    place = DEVICES.get(storage)
    return str(place) if place else None


def restore(storage: Any, location: str) -> Any:
    """Where torch.load puts it, if map_location does not say another place."""
    if not location.startswith("cuda"):
        return None
    note("load")
    put_storage(storage, full(location))
    return storage


def install() -> None:
    torch.compile = nn.Sequential  # which gives weights longer names as well
    torch._C._group_tensors_by_device_and_dtype = grouped
    torch.serialization.register_package(5, tag, restore)
    replicate = importlib.import_module("torch.nn.parallel.replicate")
    scatter_gather = importlib.import_module("torch.nn.parallel.scatter_gather")
    replicate._broadcast_coalesced_reshape = copies
    scatter_gather.Scatter, scatter_gather.Gather = Scatter, Gather
