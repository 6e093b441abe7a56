"""How a process ends."""

import os
import sys
import time
from collections.abc import Callable
from multiprocessing import util

from .figures import figures
from .hooks import hook
from .notes import ENDED, error_line, notes

STATUS = []  # what sys.exit was called with, as event() tells it
MET = []  # processes that were in a group over gloo
TOLD = []  # processes whose end was noted: a fork inherits that of its parent


def watch(probe: str, register: Callable) -> None:
    """Of a process, and of those of multiprocessing, which do not run what atexit has."""
    hook(probe, sys, "exit", note_status)  # their failures
    hook(probe, os, "_exit", note_end)  # by whoever skips what atexit has
    register(at_exit)
    util.register_after_fork(notes, lambda _: util.Finalize(None, at_exit, exitpriority=0))
    own = sys.excepthook

    def excepthook(*error: object) -> None:
        if not os.path.exists(f"{notes.folder}/{ENDED}"):  # else it is none of the script's
            own(*error)

    sys.excepthook = excepthook


def note_status(status: object = None) -> None:
    """torch.multiprocessing's children exit with 1 where they handle an error, which is meant, and
    once more at their end."""
    error = sys.exc_info()[1]
    if error or not status or not STATUS:
        STATUS.append(told(status and (error or status)))


def told(error: object) -> dict:
    if isinstance(error, SystemExit):
        error = error.code
    text = repr(error or None)
    if isinstance(error, OSError) and error.filename is not None:  # which repr leaves out
        text = f"{type(error).__name__}({error.errno}, {error.strerror!r}, {error.filename!r})"
    return {"error": text, "at": error_line(error)}


def at_exit() -> None:
    if notes.pid != os.getpid():
        return
    notes.call("figures", figures.drain, wait=True)
    error = getattr(sys, "last_value", None) or sys.exc_info()[1]
    status = STATUS and isinstance(error, SystemExit | None)
    note_end(**(STATUS[-1] if status else told(error)))
    # gloo's threads may still free tensors of ours, and end Python by "terminate called without an
    # active exception": 6 of 16 runs with --against did (torch 2.13), and none of 30 that waited.
    if notes.pid in MET:
        time.sleep(0.1)


def note_end(status: int = 0, **known: object) -> None:
    if notes.pid == os.getpid() and notes.pid not in TOLD:
        TOLD.append(notes.pid)
        notes.event("exit", **(known or told(status)))
