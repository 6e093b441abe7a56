"""What runs inside each process of the script: it notes what happens, and changes nothing.

No collective, no random number and no order is added. The job copies this folder to a
place of its own and puts it on PYTHONPATH, with sitecustomize.py, which calls attach.
"""

import atexit
import faulthandler
import os
import sys
from multiprocessing import util

from .notes import FOLDER, error_line, hook, notes


def attach(name: str) -> None:
    """Called when torch or horovod.torch has been imported."""
    from . import collectives, data, files, training

    if name == "torch":
        notes.begin(os.environ[FOLDER])
        notes.open_files()
        for part in (data, training, collectives, files):
            notes.call(part.attach)
        notes.call(attach_to_the_end)
    elif name == "horovod.torch":
        notes.call(collectives.attach_to_horovod)


STATUS = []  # what sys.exit was called with


def attach_to_the_end() -> None:
    """Of a process, and of those of multiprocessing, which do not run what atexit has."""
    hook(sys, "exit", lambda status=None: STATUS.append(status))  # multiprocessing's failures
    atexit.register(at_exit)
    util.register_after_fork(notes, lambda _: util.Finalize(None, at_exit, exitpriority=0))


def at_exit() -> None:
    from .figures import figures

    if notes.pid != os.getpid():
        return
    notes.call(figures.drain, wait=True)
    status = STATUS[-1] if STATUS else None
    error = getattr(sys, "last_value", None) or status or None
    notes.event("exit", error=repr(error), at=error_line(error))
    if notes.pid == notes.first:
        faulthandler.cancel_dump_traceback_later()
