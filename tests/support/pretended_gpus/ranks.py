"""nccl, whose part gloo plays: it takes contiguous tensors of a GPU."""

from collections.abc import Callable
from functools import wraps
from typing import Any

import torch.distributed as dist
from torch import Tensor

from .machine import MACHINE
from .notes import note
from .placement import CPU, UNSEEN, place_of, tensors_in

COLLECTIVES = (
    "all_reduce", "broadcast", "reduce", "all_gather", "all_gather_into_tensor",
    "all_gather_single", "gather", "scatter", "reduce_scatter", "reduce_scatter_tensor",
    "reduce_scatter_single", "all_to_all", "all_to_all_single", "send", "recv", "isend", "irecv",
)  # fmt: skip
# Of DistributedDataParallel, for parameters and buffers.
OF_DDP = ("_verify_params_across_processes", "_broadcast_coalesced")
asked = ""  # the backend that init_process_group was asked for


def replace_init(own: Callable) -> Callable:
    @wraps(own)
    def init_process_group(backend: str, *args: Any, device_id: Any = None, **kwargs: Any) -> None:
        global asked
        asked = backend
        own("gloo", *args, **kwargs)
        note("init", backend=backend, device_id=device_id, current=MACHINE.current)

    return init_process_group


def check(name: str, tensors: list[Tensor]) -> None:
    """What nccl would say to these tensors."""
    places = {place_of(tensor) for tensor in tensors}
    for place in places:
        note("collective", name=name, backend=asked, place=place)
    if asked != "nccl":
        return

    if CPU in places:
        raise RuntimeError("No backend type associated with device type cpu")
    with UNSEEN():
        contiguous = all(tensor.is_contiguous() for tensor in tensors)
    if name not in OF_DDP and not contiguous:
        raise ValueError("Tensors must be contiguous")


def replace_collective(name: str, own: Callable) -> Callable:
    @wraps(own)
    def collective(*args: Any, **kwargs: Any) -> Any:
        check(name, tensors_in(args, kwargs))
        return own(*args, **kwargs)

    return collective


def install() -> None:
    dist.init_process_group = replace_init(dist.init_process_group)
    for name in (*COLLECTIVES, *OF_DDP):
        if hasattr(dist, name):
            setattr(dist, name, replace_collective(name, getattr(dist, name)))
