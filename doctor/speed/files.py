"""What was there before the run stays: its checkpoints are worth nothing."""

import functools
import os
import shutil
from collections.abc import Callable

import torch

from ..recorder.notes import FOLDER, WHOLE, notes


def was_there(path: object) -> bool:
    """Whether it is a file from before the run; what the run has written may be replaced."""
    try:
        begun = os.stat(os.path.join(os.environ[FOLDER], WHOLE)).st_mtime
        return os.path.isfile(path) and os.stat(path).st_mtime < begun
    except (OSError, TypeError, ValueError):  # it is an open file, say
        return False


def guard(probe: str, module: object) -> None:
    def keeping(own: Callable, place: int, instead: Callable) -> Callable:
        @functools.wraps(own)
        def call(*args: object, **kwargs: object) -> object:
            if len(args) > place and was_there(args[place]):
                notes.event("stays", path=os.fspath(args[place]))
                return instead(*args)
            return own(*args, **kwargs)

        return call

    torch.save = keeping(torch.save, 1, lambda *_: None)
    for name in ("replace", "rename"):
        setattr(os, name, keeping(getattr(os, name), 1, lambda new, *_: os.remove(new)))
    shutil.copyfile = keeping(shutil.copyfile, 1, lambda _, old, *__: old)
