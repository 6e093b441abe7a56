"""How a process ends."""

import faulthandler
import os
import sys
from collections.abc import Callable
from multiprocessing import util

from .figures import figures
from .notes import error_line, hook, notes

STATUS = []  # what sys.exit was called with


def watch(probe: str, register: Callable) -> None:
    """Of a process, and of those of multiprocessing, which do not run what atexit has."""
    hook(probe, sys, "exit", lambda status=None: STATUS.append(status))  # their failures
    register(at_exit)
    util.register_after_fork(notes, lambda _: util.Finalize(None, at_exit, exitpriority=0))


def at_exit() -> None:
    if notes.pid != os.getpid():
        return
    notes.call("figures", figures.drain, wait=True)
    status = STATUS[-1] if STATUS else None
    error = getattr(sys, "last_value", None) or status or None
    notes.event("exit", error=repr(error), at=error_line(error))
    if notes.pid == notes.first:
        faulthandler.cancel_dump_traceback_later()
