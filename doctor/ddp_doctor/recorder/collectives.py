"""Collectives that the script calls, and gradients that get lost in them."""

import functools
import inspect
import itertools
import os
import re
import sys
import traceback
from collections.abc import Callable, Iterable, Mapping

import torch
import torch.distributed as dist
from torch.nn import SyncBatchNorm
from torch.overrides import TorchFunctionMode
from torch.utils.weak import WeakIdKeyDictionary

from .ending import MET
from .figures import capturing, figures
from .hooks import hook
from .notes import is_library, notes, user_line
from .window import window

# Below torch.distributed's functions: those, torch.compile may trace. A new one is found by its
# name, unless it has another word; those of CORE are there in any torch.
WORDS = "reduce|gather|scatter|broadcast|all_?to_?all|barrier|^send$|^recv"
CORE = ("allreduce", "broadcast", "allgather", "barrier", "send", "recv")
FUNCTIONAL = (
    "(all_reduce|broadcast|all_gather|reduce_scatter|all_to_all)(_tensor|_single)?(_autograd)?"
)
TORCH = os.path.dirname(torch.__file__) + os.sep
FSDP = os.path.join("torch", "distributed", "fsdp", "")
NUMBERS = itertools.count()
SYNC_BATCH_NORM = sys.modules[SyncBatchNorm.__module__].__file__


def collective(kind: str, group: object, *args: object, **_: object) -> None:
    if group is not None and group.size() == 1 < dist.get_world_size():
        return  # it tells nobody anything
    given = tensors_in(args[:1])
    fsdp = exchanged(kind, group, *args)
    if kind in ("send", "recv", "recv_anysource"):
        return
    note(kind, group, given, fsdp)
    notes.call("lost", trace.send, kind, args, given)


def note(kind: str, group: object, given: list, fsdp: bool = False) -> None:
    number = next(NUMBERS)
    values = few_values(given) if kind in ("allreduce", "reduce") else None
    notes.event(
        "collective",
        id=number,
        group=str(getattr(group, "group_name", "horovod")),
        kind=kind,
        size=sum(tensor.numel() for tensor in given),
        fsdp=fsdp,
        at=user_line(),
    )
    if values is not None:
        figures.write("reduced", number, values)


def few_values(tensors: list) -> object:
    """Sums and counts of an evaluation, say: (16,) at most, float64, on their device."""
    size = sum(tensor.numel() for tensor in tensors)
    devices = {tensor.device for tensor in tensors}
    known = {device.type for device in devices} <= {"cpu", "cuda"}
    if size > 10_000 or len(devices) != 1 or not known or capturing():
        return None
    if any(tensor.layout != torch.strided for tensor in tensors):  # gloo sums sparse ones, too
        return None
    with torch.no_grad():
        values = torch.cat([tensor.detach().flatten().double() for tensor in tensors])
        return values.sum()[None] if size > 16 else values  # counts for each class, say


def exchanged(kind: str, group: object, *args: object, followed: bool = False) -> bool:
    """Before backward: ranks may work on one sample together. followed: by autograd. Returns
    whether FSDP itself calls it."""
    if group is None or kind in ("barrier", "monitored_barrier", "broadcast"):
        return False
    own = tensors_in(args[1:2] if "gather" in kind else args[:1]) or tensors_in(args[:1])
    if window.wrapped and "gather" in kind:  # losses are gathered for a log
        own = [tensor for tensor in own if tensor.dim() > 1 or not tensor.requires_grad]
    size = sum(tensor.numel() for tensor in own if tensor.is_floating_point())
    norms = torch.nn.modules.batchnorm._NormBase
    frame = sys._getframe(1)
    while frame and size:
        name = frame.f_code.co_filename
        norm = isinstance(frame.f_locals.get("self"), norms)  # somebody's own SyncBatchNorm
        if FSDP in name and "reduce" in kind:
            window.scattered.add(window.backwards)
        if norm or name == SYNC_BATCH_NORM or FSDP in name:
            return FSDP in name  # statistics of other samples, or weights
        followed = followed or is_of_autograd(frame)
        frame = frame.f_back if is_library(name) else None
    if window.wrapped and "reduce" in kind and "scatter" not in kind and not followed:
        return False  # of losses too, or of statistics
    if size > 1:
        window.exchange(tuple(dist.get_process_group_ranks(group)), size)
    return False


def is_of_autograd(frame: object) -> bool:
    """Whether this is the forward() of an autograd.Function."""
    first = frame.f_code.co_varnames[:1] if frame.f_code.co_name == "forward" else ()
    return any(
        isinstance(frame.f_locals.get(n), torch.autograd.function.FunctionCtx) for n in first
    )


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
        # Tensors that hang on a result -> where that was; has it got a rank's own part back? For a
        # loss of one number, which keeps its gradient: how often was it divided by what all ranks
        # have together?
        self.lines = WeakIdKeyDictionary()
        self.totals = WeakIdKeyDictionary()  # a few numbers that were added up, without a gradient
        self.learning = WeakIdKeyDictionary()  # those that were sent, and required a gradient

    def send(self, kind: str, args: tuple, results: list) -> None:
        given = [t for t in tensors_in(args) if t.requires_grad]
        learning = [tensor for tensor in given if tensor.numel() > 1]
        if not self.left or not torch.is_grad_enabled():
            return
        if kind == "allreduce" and len(results) == 1 and results[0].numel() <= 16 and not learning:
            if given:
                self.add([], results, 0)
            else:
                self.totals[results[0]] = True
        elif learning:
            self.add(learning, results, None)

    def add(self, learning: list, results: list, divided: int | None) -> None:
        compiler = sys.modules.get("torch._dynamo")
        compiles = compiler and compiler.utils.counters["frames"]
        free = all(hasattr(mode, "of_doctor") for mode in MODES[0]())
        if free and not (self.on or compiles) and self.left:
            self.on = True
            self.left -= 1
            self.__enter__()
        if self.on:
            self.learning.update((tensor, True) for tensor in learning)
            self.lines.update((tensor, (user_line(), False, divided)) for tensor in results)

    def __torch_function__(
        self, func: object, types: object, args: tuple = (), kwargs: dict | None = None
    ) -> object:
        result = func(*args, **(kwargs or {}))
        notes.call("lost", self.follow, func, args, result)
        return result

    def follow(self, func: object, args: tuple, result: object) -> None:
        given = tensors_in(args)
        own = any(tensor in self.learning for tensor in given)
        hanging = [tensor for tensor in given if tensor in self.lines]
        if own and func is torch.Tensor.__setitem__ and args[0] in self.lines:
            self.lines[args[0]] = self.lines[args[0]][0], True, None
        elif hanging:
            back = own and func in JOINING or all(self.lines[tensor][1] for tensor in hanging)
            at, _, divided = self.lines[hanging[0]]
            divided = None if divided is None else divided + self.divides(func, args)
            self.lines.update((tensor, (at, back, divided)) for tensor in tensors_in(result))

    def divides(self, func: object, args: tuple) -> int:
        """1 if it divides by the number of ranks, or by a sum over them; -1 if it multiplies so."""
        name = func.__name__.strip("_")
        by = args[-1] if len(args) == 2 else None
        by = by.item() if isinstance(by, torch.Tensor) and by.numel() == 1 else by
        if not isinstance(by, int | float) or not by:
            return 0
        world = dist.get_world_size()
        if re.fullmatch("i?mul|multiply", name):
            return (by * world == 1) - (by == world)
        if not re.fullmatch("i?div|i?truediv|divide|true_divide", name):
            return 0
        return int(by == world or any(by in total.tolist() for total in flat(self.totals)))

    def backward(self, tensors: object, *_: object, **__: object) -> None:
        for tensor in tensors_in(tensors):
            if tensor in self.lines:
                at, own, divided = self.lines[tensor]
                if divided is None or divided > 0:  # else the gradient is that of its own part
                    notes.event("lost", at=at, own=own, divided=bool(divided))

    def end(self) -> None:
        modes = MODES[0]()
        if self not in modes:
            return
        # torch.distributed takes modes off while a collective runs, so that they lie above it then.
        above = modes[modes.index(self) + 1 :]
        for _ in above:
            torch.overrides._pop_mode()
        self.__exit__(None, None, None)
        for mode in above:
            torch.overrides._push_mode(mode)
        self.on = False
        self.lines.clear()


def flat(tensors: Iterable) -> list:
    return [tensor.detach().flatten() for tensor in tensors]


trace = Trace()


def note_rank(*_: object, **__: object) -> None:
    name = str(dist.group.WORLD.group_name)
    notes.event("rank", rank=dist.get_rank(), world=dist.get_world_size(), group=name)
    if "gloo" in dist.get_backend():
        MET.append(notes.pid)


def note_join(*_: object) -> None:
    notes.event("join")


def attach(probe: str, group: type) -> None:
    names = [
        name for name in dir(group) if re.search(WORDS, name) and callable(getattr(group, name))
    ]
    missing = [name for name in CORE if name not in names]
    if missing:
        raise AttributeError(f"ProcessGroup has no {', '.join(missing)}")
    for name in names:
        hook(probe, group, name, functools.partial(collective, name.strip("_")))


def attach_functional(probe: str, module: object) -> None:
    """Those of torch.distributed._functional_collectives, below which Python sees nothing."""

    def tell(kind: str, tensor: object, group: object) -> None:
        name = module._resolve_group_name(group)
        group = dist.distributed_c10d._resolve_process_group(name)
        followed = tensor.requires_grad and torch.is_grad_enabled()
        exchanged(kind, group, tensor, followed=followed)
        note(kind, group, [tensor])

    told = [None]

    def tell_own(kind: str) -> None:
        if (at := user_line()) != told[0]:
            told[0] = at
            notes.event("dtensor", kind=kind, at=at)

    def watched(kind: str, own: Callable) -> Callable:
        signature = inspect.signature(own)

        @functools.wraps(own)
        def call(*args: object, **kwargs: object) -> object:
            if torch.compiler.is_compiling():
                return own(*args, **kwargs)
            # torch's own calls, of DTensors say, are none of the script's.
            if not sys._getframe(1).f_code.co_filename.startswith(TORCH):
                given = signature.bind(*args, **kwargs).arguments
                notes.call(probe, tell, kind, given["self"], given["group"])
            else:
                notes.call(probe, tell_own, kind)
            return own(*args, **kwargs)

        return call

    for name in dir(module):
        if found := re.fullmatch(FUNCTIONAL, name):
            kind = found[1].replace("_", "")
            setattr(module, name, watched(kind, getattr(module, name)))


MODES: list[Callable] = []


def follow_losses(probe: str, modes: Callable) -> None:
    MODES[:] = [modes]
    hook(probe, torch.autograd, "backward", trace.backward)


def attach_to_horovod(probe: str, hvd: object) -> None:
    def ready(*_: object, **__: object) -> None:
        notes.event("rank", rank=hvd.rank(), world=hvd.size(), group="horovod")

    def called(tensor: object, *_: object, **__: object) -> None:
        names = {entry.name for entry in traceback.extract_stack(limit=30)}
        if not names & {"backward", "step", "synchronize"}:  # its own, of gradients
            collective("allreduce", None, tensor)

    hook(probe, hvd, "init", after=ready)
    for name in ("_allreduce_async", "_allgather_async"):
        hook(probe, hvd.mpi_ops, name, called)
