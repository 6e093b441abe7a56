"""What is recorded besides where two runs are compared."""

import math
import os
import re
import sys
import weakref

import torch

from ..recorder.figures import GROUPS, figures_of
from ..recorder.hooks import Probe, hook
from ..recorder.notes import NAMELESS, compares, notes
from ..without import without
from ..without.layers import frozen

MOST_TENSORS = 4000  # of an optimizer, and of a checkpoint: a figure for each
LONGEST = 500  # of lists that are looked into: longer ones are states of random numbers, say
MOST_LINES = 500
# Names that wrappers put before those of a module.
WRAPPERS = r"\b(module|_orig_mod|_fsdp_wrapped_module|_checkpoint_wrapped_module|_forward_module)\."
# Settings of an optimizer that change no result, or are compared in each step.
NO_SETTING = ("params", "lr", "initial_lr", "foreach", "fused", "capturable", "differentiable")


def groups_of(count: int) -> int:
    """Figures for so many tensors: one for each, where two runs are compared."""
    return count if compares() and count <= MOST_TENSORS else GROUPS


def plain(name: str) -> str:
    return re.sub(WRAPPERS, "", name)


def names_of(parameters: list, model: object) -> list[str]:
    names = dict(model.named_parameters() if model is not None else ())
    names = {id(p): plain(name) for name, p in names.items()}
    return [names.get(id(p), f"{NAMELESS}{n}") for n, p in enumerate(parameters)]


def note_optimizer(number: int, optimizer: object, model: object, whole: set) -> None:
    """At its first step: names and groups of its parameters, and the settings of each group."""
    members = [(n, p) for n, group in enumerate(optimizer.param_groups) for p in group["params"]]
    names = names_of([p for _, p in members], model)
    settings = []
    for group in optimizer.param_groups:
        values = {k: v for k, v in group.items() if k not in NO_SETTING}
        # 0 is 0.0.
        values = {k: str(float(v) if type(v) is int else v)[:60] for k, v in values.items()}
        settings.append({"class": type(optimizer).__name__, **values})  # Horovod keeps the name
    names = [[name, n] for name, (n, _) in zip(names, members, strict=True)]
    whole = [id(p) in whole for _, p in members]
    notes.event("optimizer", number=number, names=names, options=settings, whole=whole)


def note_fixed(model: object, made: list, whole: set) -> list:
    """Parameters of the model that none of these optimizers has: frozen ones, or an average."""
    optimizers = [one for one in made if isinstance(one, torch.optim.Optimizer)]
    groups = [group for one in optimizers for group in one.param_groups]
    trained = {id(p) for group in groups for p in group["params"]}
    found = {plain(n): p for n, p in model.named_parameters() if id(p) not in trained}
    found = dict(list(found.items())[:MOST_TENSORS])
    names = [[name, 0] for name in found]
    notes.event("fixed", names=names, whole=[id(p) in whole for p in found.values()])
    return list(map(weakref.ref, found.values()))


def note_layers(model: object, parameters: list) -> None:
    """What makes two right runs differ: statistics of a part of the batch, random numbers in
    forward, and how exact the numbers are."""
    batch_norm = torch.nn.modules.batchnorm._BatchNorm
    dropout = torch.nn.modules.dropout._DropoutNd
    synced = torch.nn.SyncBatchNorm
    several = torch.distributed.is_initialized() and torch.distributed.get_world_size() > 1
    norms, drops = [], []
    for name, module in model.named_modules():
        if isinstance(module, batch_norm) and module.training and not frozen(module):
            norms += [] if several and isinstance(module, synced) else [plain(name)]
        if isinstance(module, dropout) and module.training and module.p:
            drops += [] if without("dropout") else [plain(name)]
    types = {str(p.dtype).removeprefix("torch.") for p in parameters}
    single = any(p.is_cuda and p.dtype == torch.float32 for p in parameters)
    if single and torch.get_float32_matmul_precision() != "highest":
        types.add("tf32")
    copies = 1  # of a part, where FSDP also replicates
    for p in [p for p in parameters if any(map(is_part, getattr(p, "placements", ())))][:1]:
        sizes = zip(p.placements, p.device_mesh.mesh.shape, strict=True)
        copies = math.prod(size for place, size in sizes if place.is_replicate())
    notes.event("layers", norms=norms, drops=drops, types=sorted(types), copies=copies)


def is_part(place: object) -> bool:
    return not place.is_replicate()


def note_autocast(_: object, autocast: object, *args: object) -> None:
    if compares() and autocast._enabled and autocast.fast_dtype not in TOLD:
        TOLD.add(autocast.fast_dtype)
        notes.event("autocast", type=str(autocast.fast_dtype).removeprefix("torch."))


TOLD = set()


def saved(obj: object, file: object, *_: object, **__: object) -> None:
    if not compares():
        return
    if is_folder(file):
        notes.event("folder")
        return
    if not isinstance(file, str | os.PathLike) and not hasattr(file, "name"):
        return  # into memory, on its way to another place
    weigh()
    tensors, numbers = {}, {}
    collect(obj, "", tensors, numbers)
    name = os.path.basename(os.fspath(file)) if isinstance(file, str | os.PathLike) else ""
    name = name.removesuffix(".tmp")  # it is renamed when it is whole
    found = list(tensors.items())[:MOST_TENSORS]
    rows = {key: figures_of([tensor]).sum(0).tolist() for key, tensor in found}
    notes.event("checkpoint", file=name, tensors=rows, numbers=numbers)


def is_folder(file: object) -> bool:
    """Whether torch.distributed.checkpoint writes: into its stream each tensor comes by itself."""
    ours = type(file).__module__.startswith("torch.distributed.checkpoint.")
    return ours or str(getattr(file, "name", "")).endswith(".distcp")  # the latter: torch 2.6


def weigh() -> None:
    """The weights of which something is saved or printed, in the process that trains them."""
    from ..recorder.training import training  # which imports this file

    if notes.first == os.getpid():
        training.weigh_again()


def collect(obj: object, name: str, tensors: dict, numbers: dict, depth: int = 0) -> None:
    if isinstance(obj, torch.Tensor) and obj.is_floating_point():
        tensors[plain(name)] = obj
    elif isinstance(obj, int | float) and abs(obj) < 2**63:
        numbers[plain(name)] = obj
    elif isinstance(obj, dict | list | tuple) and depth < 4 and len(obj) <= LONGEST:
        pairs = obj.items() if isinstance(obj, dict) else enumerate(obj)
        for key, value in pairs:
            inner = f"{name}.{key}" if name else str(key)
            collect(value, inner, tensors, numbers, depth + 1)


class Output:
    """Whole lines of what the process prints."""

    count = 0  # of all streams

    def __init__(self) -> None:
        self.begun = ""

    def write(self, text: object, *_: object) -> None:
        *lines, self.begun = (self.begun + str(text)).split("\n")
        for line in lines:
            line = line.rpartition("\r")[2].strip()  # before it: a bar, which is drawn again
            if compares() and line and Output.count < MOST_LINES:
                Output.count += 1
                if re.search(r"\d", line):
                    weigh()
                notes.event("printed", text=line[:300])


def watch_output(probe: str, _: object) -> None:
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            hook(probe, stream, "write", Output().write)


PROBES = (
    Probe("printed", "sys.stdout", attach=watch_output),
    Probe("checkpoint", "torch.serialization.save", saved, also="torch.save"),
    Probe("autocast", "torch.amp.autocast_mode.autocast.__enter__", after=note_autocast),
)
