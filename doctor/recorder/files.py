"""Files that are written, and names of parameters in checkpoints."""

import fcntl
import os
import re
import sys
from collections.abc import Callable
from contextlib import suppress

from .notes import is_library, notes, user_line

WRITERS = ("numpy", "torch", "pandas", "PIL")  # they write files for whoever calls them


def wrote(path: str, whole: bool = True) -> None:
    """Note a file that the user's code opens to write, itself or through a library.

    whole: it is emptied first. Else each rank may write a part of it. A library that is no WRITER
    has files of its own, such as caches.
    """
    library = False
    frame = sys._getframe(1)
    while frame and is_library(name := frame.f_code.co_filename):
        if "importlib" in name or "/torch/_" in name:
            return  # the cache of a module, or of torch.compile
        library = library or (
            "-packages/" in name and not any(f"/{writer}/" in name for writer in WRITERS)
        )
        frame = frame.f_back
    if not frame or path.startswith(("/dev/", "/proc/")):
        return
    if any(opened(number) == locked for number, locked in LOCKED.items()):
        return

    notes.quiet = True
    full = os.path.realpath(path)
    special = os.path.exists(full) and not os.path.isfile(full)
    notes.quiet = False
    if not special and not full.startswith(notes.folder):
        at = [frame.f_code.co_filename, frame.f_lineno]
        notes.event("wrote", path=full, whole=whole, library=library, at=at)


def saved(obj: object, file: object, *_: object, **__: object) -> None:
    if isinstance(file, str | os.PathLike):
        wrote(os.fspath(file))
    if prefix := prefix_of(obj):
        notes.event("saved", prefix=prefix, at=user_line())


def loaded(_: object, module: object, state_dict: dict, *__: object, **___: object) -> None:
    mine = {name for name, _ in module.named_parameters()}
    plain = {plain_key(key) for key in mine}
    if not mine & set(state_dict) and plain & set(map(plain_key, state_dict)):
        notes.event("loaded", at=user_line())  # strict=False: and no error


def plain_key(key: object) -> str:
    return re.sub(r"^(module\.|_orig_mod\.)+", "", str(key))


def prefix_of(obj: object) -> str | None:
    """module. or _orig_mod., if the keys of a state dict in it begin so."""
    parts = [obj, *obj.values()] if isinstance(obj, dict) else []
    for part in parts:
        keys = [str(key) for key in part] if isinstance(part, dict) else []
        prefix = re.match(r"module\.|_orig_mod\.", os.path.commonprefix(keys))
        if prefix:
            return prefix[0]
    return None


LOCKED = {}  # a file's number -> the file of which this process took a lock


def locked(number: int, operation: int) -> None:
    """fcntl's locks: ranks write what they guard one after the other."""
    if operation & fcntl.LOCK_UN:
        LOCKED.pop(number, None)
    else:
        LOCKED[number] = opened(number)
        notes.event("locked", path=LOCKED[number])


def opened(number: int) -> str | None:
    """The file of this number, if it is still open: closing it gives its locks back."""
    with suppress(OSError):
        return os.readlink(f"/proc/self/fd/{number}")
    return None


def watch(probe: str, add_audit_hook: Callable) -> None:
    def audit(name: str, args: tuple) -> None:
        if notes.quiet:
            return
        if name == "open" and isinstance(args[0], str | bytes) and isinstance(args[2], int):
            ignored = os.O_APPEND | os.O_EXCL  # O_EXCL: one rank alone makes it
            if args[2] & (os.O_WRONLY | os.O_RDWR) and not args[2] & ignored:
                whole = bool(args[2] & os.O_TRUNC)
                notes.call(probe, wrote, os.fsdecode(args[0]), whole)
        elif name in ("fcntl.flock", "fcntl.lockf"):
            number = args[0] if isinstance(args[0], int) else args[0].fileno()
            notes.call(probe, locked, number, args[1])

    add_audit_hook(audit)
