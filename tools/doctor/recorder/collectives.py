"""Collectives that the script calls, and gradients that get lost in them."""

import functools
import sys
import traceback
from collections.abc import Mapping

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d
from torch.distributed.algorithms.join import Join
from torch.overrides import TorchFunctionMode, _get_current_function_mode
from torch.utils.weak import WeakIdKeyDictionary

from .notes import hook, notes, user_line

# Below torch.distributed's functions: those, torch.compile may trace.
COLLECTIVES = """
    allreduce allreduce_coalesced broadcast reduce allgather _allgather_base all_gather_single
    allgather_coalesced gather gather_single scatter reduce_scatter _reduce_scatter_base
    reduce_scatter_single alltoall alltoall_base all_to_all_single barrier monitored_barrier
""".split()


def collective(kind: str, group: object, *args: object, **_: object) -> None:
    given = tensors_in(args[:1])
    notes.event(
        "collective",
        group=str(getattr(group, "group_name", "horovod")),
        kind=kind,
        size=sum(tensor.numel() for tensor in given),
        average=any("AVG" in str(getattr(arg, "reduceOp", "")) for arg in args),
        at=user_line(),
    )
    learning = [t for t in tensors_in(args) if t.requires_grad and t.numel() > 1]
    if learning and torch.is_grad_enabled():
        trace.add(learning, given)


def tensors_in(value: object) -> list:
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, list | tuple):
        return [tensor for part in value for tensor in tensors_in(part)]
    return []


JOINING = {torch.cat, torch.concat, torch.concatenate, torch.stack, torch.vstack}


class Trace(TorchFunctionMode):
    """From a collective that autograd does not see to backward(): is its result in the loss?

    It sees each operation of torch, and so is on in this part of a few steps only.
    """

    def __init__(self) -> None:
        super().__init__()
        self.on = False
        self.left = 3  # so many times it is put on
        self.lines = WeakIdKeyDictionary()  # tensors that hang on a result -> where that was
        self.learning = WeakIdKeyDictionary()  # those that were sent, and required a gradient

    def add(self, learning: list, results: list) -> None:
        compiler = sys.modules.get("torch._dynamo")
        compiles = compiler and compiler.utils.counters["frames"]
        if not (self.on or compiles or _get_current_function_mode()) and self.left:
            self.on = True
            self.left -= 1
            self.__enter__()
        if self.on:
            self.learning.update((tensor, True) for tensor in learning)
            self.lines.update((tensor, user_line()) for tensor in results)

    def __torch_function__(
        self, func: object, types: object, args: tuple = (), kwargs: dict | None = None
    ) -> object:
        result = func(*args, **(kwargs or {}))
        notes.call(self.follow, func, args, result)
        return result

    def follow(self, func: object, args: tuple, result: object) -> None:
        given = tensors_in(args)
        own = any(tensor in self.learning for tensor in given)
        hanging = [tensor for tensor in given if tensor in self.lines]
        if own and func is torch.Tensor.__setitem__:
            self.lines.pop(args[0], None)  # a rank's own part is put back
        elif hanging and not (own and func in JOINING):
            self.lines.update((t, self.lines[hanging[0]]) for t in tensors_in(result))

    def backward(self, tensors: object) -> None:
        for tensor in tensors_in(tensors):
            if tensor in self.lines:
                notes.event("lost", at=self.lines[tensor])

    def end(self) -> None:
        if self.on and _get_current_function_mode() is self:
            self.__exit__(None, None, None)
            self.on = False
            self.lines.clear()


trace = Trace()


def note_rank(*_: object, **__: object) -> None:
    name = str(dist.group.WORLD.group_name)
    notes.event("rank", rank=dist.get_rank(), world=dist.get_world_size(), group=name)


def attach() -> None:
    for name in COLLECTIVES:
        if hasattr(dist.ProcessGroup, name):
            hook(dist.ProcessGroup, name, functools.partial(collective, name.strip("_")))
    hook(distributed_c10d, "init_process_group", after=note_rank)
    dist.init_process_group = distributed_c10d.init_process_group
    hook(Join, "__enter__", lambda _: notes.event("join"))


def attach_to_horovod() -> None:
    hvd = sys.modules["horovod.torch"]

    def ready(*_: object, **__: object) -> None:
        notes.event("rank", rank=hvd.rank(), world=hvd.size(), group="horovod")

    def called(tensor: object, *_: object, **__: object) -> None:
        names = {entry.name for entry in traceback.extract_stack(limit=30)}
        if not names & {"backward", "step", "synchronize"}:  # its own, of gradients
            collective("allreduce", None, tensor)

    hook(hvd, "init", after=ready)
    for name in ("_allreduce_async", "_allgather_async"):
        hook(hvd.mpi_ops, name, called)
