"""What a run saves and prints, noted where two are compared."""

import os
import re
import sys

import torch

from .figures import figures_of
from .hooks import hook
from .named import MOST_TENSORS, plain
from .notes import compares, notes
from .training import training

LONGEST = 500  # of lists that are looked into: longer ones are states of random numbers, say
MOST_LINES = 500


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
    training.weigh_again()
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
                    training.weigh_again()
                notes.event("printed", text=line[:300])


def watch_output(probe: str, _: object) -> None:
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            hook(probe, stream, "write", Output().write)
