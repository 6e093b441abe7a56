"""Files that are written, and names of parameters in checkpoints."""

import fcntl
import functools
import os
import re
import sys
from collections.abc import Callable
from contextlib import suppress

from .notes import compares, is_library, notes, user_line
from .training import training

OPENED = set()  # by this process, to be written


def wrote(path: str, whole: bool = True) -> None:
    """Note a file that the user's code opens to write, itself or through a library.

    whole: it is emptied first. Else each rank may write a part of it. A library that was not given
    the path, or its folder, has files of its own, such as caches.
    """
    notes.quiet = True
    full = os.path.realpath(path)
    special = os.path.exists(full) and not os.path.isfile(full)
    notes.quiet = False
    if special or full.startswith((notes.folder, "/dev/", "/proc/")):
        return
    was_opened(full)
    if compares():
        training.weigh_again()
    foreign = False
    called = frame = sys._getframe(1)
    while frame and is_library(name := frame.f_code.co_filename):
        if "importlib" in name or "/torch/_" in name:
            return  # the cache of a module, or of torch.compile
        foreign = foreign or "-packages/" in name
        called, frame = frame, frame.f_back
    if not frame or any(opened(number) == locked for number, locked in LOCKED.items()):
        return
    library = foreign and not was_given(full, called.f_locals)
    at = [frame.f_code.co_filename, frame.f_lineno]
    notes.event("wrote", path=full, whole=whole, library=library, at=at)


def was_given(full: str, known: dict) -> bool:
    """Whether this file, or a folder above it, is among what the user's call has passed."""
    values = list(known.values())
    values += [one for part in values if type(part) is tuple for one in part]
    values += [one for part in values if type(part) is dict for one in part.values()]
    paths = [os.fspath(one) for one in values if isinstance(one, str | os.PathLike)]
    paths = {os.path.realpath(one) for one in paths if isinstance(one, str) and "\0" not in one}
    return full in paths or any(full.startswith(path + os.sep) for path in paths)


def was_opened(full: str, source: str = "") -> None:
    """source: what was renamed to it."""
    if (full, source) not in OPENED:
        OPENED.add((full, source))
        notes.event("opened", path=full, source=source)


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


def watch_safetensors(probe: str, package: object) -> None:
    """It writes outside Python; its modules, one for each framework, take this function from it."""
    own = package.serialize_file

    @functools.wraps(own)
    def telling(tensors: object, filename: object, *more: object, **named: object) -> object:
        notes.call(probe, wrote, os.fspath(filename))
        return own(tensors, filename, *more, **named)

    modules = [m for name, m in sys.modules.items() if name.partition(".")[0] == "safetensors"]
    for module in modules:
        if getattr(module, "serialize_file", None) is own:
            module.serialize_file = telling


def watch(probe: str, add_audit_hook: Callable) -> None:
    def audit(name: str, args: tuple) -> None:
        if notes.quiet:
            return
        if name == "open" and isinstance(args[0], str | bytes) and isinstance(args[2], int):
            if args[2] & (os.O_WRONLY | os.O_RDWR):
                path, whole = os.fsdecode(args[0]), bool(args[2] & os.O_TRUNC)
                if args[2] & (os.O_APPEND | os.O_EXCL):  # O_EXCL: one rank alone makes it
                    notes.call(probe, was_opened, os.path.abspath(path))
                else:
                    notes.call(probe, wrote, path, whole)
        elif name == "os.rename":
            source, path = (os.path.realpath(os.fsdecode(part)) for part in args[:2])
            notes.call(probe, was_opened, path, source)
        elif name in ("fcntl.flock", "fcntl.lockf"):
            number = args[0] if isinstance(args[0], int) else args[0].fileno()
            notes.call(probe, locked, number, args[1])

    add_audit_hook(audit)
