"""What was there before the run stays: what it saves itself is worth nothing."""

import functools
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import torch

from ..recorder.notes import FOLDER, WHOLE, notes

CHECKPOINTS = (".pt", ".pth", ".ckpt", ".bin", ".safetensors", ".tar", ".pkl", ".npz", ".npy")


@functools.cache
def begun() -> float:
    """When the job began, by the clock of files."""
    return os.stat(os.path.join(os.environ[FOLDER], WHOLE)).st_mtime


def was_there(path: object) -> bool:
    """Whether it is a file from before the run; what the run has written may be replaced."""
    try:
        return os.path.isfile(path) and os.stat(path).st_mtime < begun()
    except (OSError, TypeError, ValueError):  # it is an open file, say
        return False


def checkpoint_was_there(path: object) -> bool:
    """Whether it is one, or a folder of some: other files are deleted as ever."""
    try:
        files = Path(path).rglob("*") if os.path.isdir(path) else [Path(path)]
        return any(file.suffix in CHECKPOINTS and was_there(file) for file in files)
    except (OSError, TypeError):  # it is a number of an open file, say
        return False


def guard(probe: str, module: object) -> None:
    remove = os.remove
    begun()  # that file is gone as soon as a recorder has to stop

    def keeping(own: Callable, place: int, word: str) -> Callable:
        stays = was_there if place else checkpoint_was_there

        @functools.wraps(own)
        def call(*args: object, **kwargs: object) -> object:
            path = args[place] if len(args) > place else kwargs.get(word)
            if not stays(path):
                return own(*args, **kwargs)
            notes.event("stays", path=os.fspath(path))
            if word in ("dst", "target") and own is not copy and not was_there(args[0]):
                remove(args[0])  # what was to take its place
            return path

        return call

    copy = shutil.copyfile
    for owner, name, place, word in (
        (torch, "save", 1, "f"),
        (shutil, "copyfile", 1, "dst"),
        (os, "replace", 1, "dst"),
        (os, "rename", 1, "dst"),
        (Path, "replace", 1, "target"),  # Python 3.10 has bound os's functions there
        (Path, "rename", 1, "target"),
        (os, "remove", 0, "path"),
        (os, "unlink", 0, "path"),
        (Path, "unlink", 0, "self"),
        (shutil, "rmtree", 0, "path"),
    ):
        own = getattr(owner, name)
        changed = keeping(own, place, word)
        if name == "rmtree":
            changed.avoids_symlink_attacks = own.avoids_symlink_attacks
        setattr(owner, name, changed)
