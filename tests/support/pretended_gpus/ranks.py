"""nccl, whose part gloo plays: it takes contiguous tensors of one GPU, which no other rank has."""

import os
import platform
from collections.abc import Callable
from functools import wraps
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from .machine import MACHINE, index_of
from .notes import note
from .placement import CPU, UNSEEN, place_of, tensors_in

COLLECTIVES = (
    "all_reduce", "broadcast", "reduce", "all_gather", "all_gather_into_tensor",
    "all_gather_single", "gather", "scatter", "reduce_scatter", "reduce_scatter_tensor",
    "all_to_all", "all_to_all_single", "send", "recv", "isend", "irecv",
)  # fmt: skip
# Of DistributedDataParallel, for parameters and buffers.
OF_DDP = ("_verify_params_across_processes", "_broadcast_coalesced")
GROUPS: dict[Any, str] = {}  # the backend that was asked for, by group; None is the default one
bound: torch.device | None = None  # the device_id of init_process_group
claimed: set[torch.device] = set()  # those on which this rank has met the others


def asked_backend(backend: str | None, device_id: Any) -> str:
    """As torch chooses where none is named."""
    if backend is None:
        return "nccl" if device_id is not None else "cpu:gloo,cuda:nccl"
    return backend.lower()


def replace_init(own: Callable) -> Callable:
    @wraps(own)
    def init_process_group(
        backend: str | None = None, *args: Any, device_id: Any = None, **kwargs: Any
    ) -> None:
        global bound
        if isinstance(device_id, int):
            device_id = torch.device("cuda", device_id)
        if device_id is not None and (device_id.type != "cuda" or device_id.index is None):
            raise ValueError(f"Please use a device_id with index: {device_id}")
        if device_id is not None:
            index_of(device_id)
        asked = asked_backend(backend, device_id)
        own("gloo", *args, **kwargs)
        note("init", backend=asked, device_id=device_id, current=MACHINE.current)
        GROUPS.clear()
        claimed.clear()
        GROUPS[None], bound = asked, device_id
        if device_id is not None and asked == "nccl":
            claim(device_id)

    return init_process_group


def replace_new_group(own: Callable) -> Callable:
    @wraps(own)
    def new_group(
        ranks: Any = None,
        timeout: Any = None,
        backend: str | None = None,
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        kwargs.pop("device_id", None)
        group = own(ranks, timeout, None, *args, **kwargs)
        GROUPS[group] = (backend or GROUPS[None]).lower()
        return group

    return new_group


def replace_get_backend(own: Callable) -> Callable:
    @wraps(own)
    def get_backend(group: Any = None) -> str:
        real = own(group)  # raises where there is no such group
        asked = GROUPS.get(group, GROUPS[None])
        return real if ":" in asked else asked

    return get_backend


def claim(place: torch.device) -> None:
    """nccl refuses two ranks on one GPU. The later one sees what the earlier one has written."""
    claimed.add(place)
    store = dist.distributed_c10d._get_default_store()
    machine = os.environ.get("PRETENDED_HOST", platform.node())
    gpu = f"{machine} {MACHINE.names[place.index]}"
    mine = f"pretended GPU of {dist.get_rank()}: {gpu}"
    store.set(mine, "")
    for rank in range(dist.get_world_size()):
        if rank != dist.get_rank() and store.check([f"pretended GPU of {rank}: {gpu}"]):
            raise dist.DistBackendError(
                f"Multiple Ranks are using the same GPU/Partition: rank {dist.get_rank()} and "
                f"rank {rank} both have GPU {gpu}"
            )


def check(name: str, group: Any, tensors: list[Tensor]) -> None:
    """What nccl would say to these tensors."""
    places = [place_of(tensor) for tensor in tensors]
    backend = GROUPS.get(group, GROUPS.get(None, ""))
    for place in set(places):
        note("collective", name=name, backend=backend, place=place)
    if backend != "nccl" or not tensors:
        return

    if CPU in places:
        raise RuntimeError("No backend type associated with device type cpu")
    if bound is not None and set(places) != {bound}:
        raise RuntimeError(f"Tensor found on {places} but backend constrained to {bound}")
    for place in set(places) - claimed:
        claim(place)
    with UNSEEN():
        dense = [t.is_contiguous() or t.is_contiguous(memory_format=torch.channels_last)
                 for t in tensors if t.dim() == 4]  # fmt: skip
        dense += [t.is_contiguous() for t in tensors if t.dim() != 4]
    if name not in OF_DDP and not all(dense):
        raise ValueError("Tensors must be contiguous")


def replace_collective(name: str, own: Callable) -> Callable:
    @wraps(own)
    def collective(*args: Any, **kwargs: Any) -> Any:
        groups = [a for a in (*args, *kwargs.values()) if isinstance(a, dist.ProcessGroup)]
        group = groups[0] if groups and groups[0] is not dist.group.WORLD else None
        check(name, group, tensors_in(args, kwargs))
        return own(*args, **kwargs)

    return collective


def replace_barrier(own: Callable) -> Callable:
    @wraps(own)
    def barrier(
        group: Any = None, async_op: bool = False, device_ids: Any = None, **kw: Any
    ) -> Any:
        return own(group, async_op, **kw)  # gloo takes no device_ids

    return barrier


def install() -> None:
    dist.init_process_group = replace_init(dist.init_process_group)
    dist.new_group = replace_new_group(dist.new_group)
    dist.get_backend = replace_get_backend(dist.get_backend)
    dist.barrier = replace_barrier(dist.barrier)
    dist.is_nccl_available = lambda: True
    for name in (*COLLECTIVES, *OF_DDP):
        if hasattr(dist, name):
            setattr(dist, name, replace_collective(name, getattr(dist, name)))
