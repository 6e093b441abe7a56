"""What a run prints, and saves: the latter, and all lines, where two are compared."""

import os
import re
import sys

from .hooks import hook
from .named import MOST_TENSORS, collect, row_of
from .notes import compares, notes, user_line
from .training import training
from .window import window

MOST_LINES = 500
LONGEST = 1000  # characters of a line that are kept until its end comes


def note_autocast(_: object, autocast: object, *args: object) -> None:
    if compares() and autocast._enabled and autocast.fast_dtype not in TOLD:
        TOLD.add(autocast.fast_dtype)
        notes.event("autocast", type=str(autocast.fast_dtype).removeprefix("torch."))


TOLD = set()


def saved(obj: object, file: object, *_: object, **__: object) -> None:
    """What is written to a path, each time. What goes through memory is read from its file."""
    name = file if isinstance(file, str | os.PathLike) else getattr(file, "name", None)
    if not compares() or not isinstance(name, str | os.PathLike):
        return
    path = os.path.realpath(name)
    if path.endswith(".distcp"):  # torch.distributed.checkpoint (2.6) writes each tensor by itself
        return
    training.weigh_again()
    tensors, numbers = {}, {}
    collect(obj, "", tensors, numbers)
    rows = {key: row_of(tensor) for key, tensor in list(tensors.items())[:MOST_TENSORS]}
    notes.event("checkpoint", path=path, tensors=rows, numbers=numbers)


class Output:
    """Whole lines of what the process prints."""

    count = 0  # of all streams

    def __init__(self) -> None:
        self.begun = ""

    def write(self, text: object, *_: object) -> None:
        *lines, rest = str(text).split("\n")
        if lines:
            lines[0], self.begun = self.begun + lines[0], ""
        _, drawn_again, rest = rest.rpartition("\r")  # a bar is drawn again and again
        self.begun = (rest if drawn_again else self.begun + rest)[:LONGEST]
        for line in lines:
            line = line.rpartition("\r")[2].strip()
            # Of one run: what an evaluation prints.
            told = compares() or (window.given and re.search(r"\d\.\d", line))
            if told and line and Output.count < MOST_LINES:
                Output.count += 1
                if compares() and re.search(r"\d", line):
                    training.weigh_again()
                notes.event("printed", text=line[:300], at=user_line())


def watch_output(probe: str, _: object) -> None:
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            hook(probe, stream, "write", Output().write)
