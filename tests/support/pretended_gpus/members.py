"""Pretended GPUs in warm processes: what a member of a Crew (see crew.py) is asked to do.

The crew must be one of its own: a process that once had pretended GPUs does not lose them.
"""

import importlib
import os
from collections.abc import Callable
from typing import Any, NamedTuple

from harness import HOROVOD

import pretended_gpus

began = False


class Seen(NamedTuple):
    """A function's answer, and the notes of its process about the GPUs."""

    answer: Any
    notes: list[dict]

    def of(self, what: str, **fields: object) -> list[dict]:
        """The notes of one kind, with these fields."""
        wanted = {"what": what, **{name: str(value) for name, value in fields.items()}}
        return [row for row in self.notes if wanted.items() <= row.items()]

    def values(self, what: str, name: str, **fields: object) -> set[str]:
        return {row[name] for row in self.of(what, **fields)}


def on_gpus(gpus: int, more: dict[str, str], function: Callable, *args: Any) -> Seen:
    """function(*args) in a process of a machine with so many GPUs. more: environment variables, in
    which {rank} stands for the rank, {local_rank} for its place on a machine with so many GPUs."""
    global began
    rank = int(os.environ["CREW_RANK"])
    place = {"rank": rank, "local_rank": rank % gpus}
    before = dict(os.environ)
    os.environ.pop("CUDA_VISIBLE_DEVICES", None)
    os.environ[pretended_gpus.GPUS] = str(gpus)
    os.environ.update({name: value.format(**place) for name, value in more.items()})
    try:
        if not began:
            pretended_gpus.begin()
            began = True
        from pretended_gpus import machine, notes

        machine.look()
        notes.begin()
        if HOROVOD in args:
            # As far as 05's own lines go: this Horovod joins CPUs.
            importlib.import_module("horovod.torch").nccl_built = lambda: True
        return Seen(function(*args), list(notes.KEPT))
    finally:
        os.environ.clear()
        os.environ.update(before)
