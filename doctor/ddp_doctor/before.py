"""Files that lie in folders before a run and after it, whoever writes them: only looked at from
outside."""

import os
import re
import stat
import sys
import tempfile
import zipfile
import zlib
from collections import deque
from contextlib import suppress

MOST = 10_000  # files: a look at each costs a millisecond on a file server
EACH = 2_000  # of one folder: a data set has more
METADATA = ".metadata"  # of torch.distributed.checkpoint, in a folder: which piece lies where
LEFT_OUT = {".git", "__pycache__"}
SUFFIXES = "pt|pth|ckpt|bin|safetensors|distcp|pkl|npz|npy|h5|model"
LOOKS = re.compile(rf"\.({SUFFIXES})(\.|$)|(checkpoint|ckpt)(?!.*\.py$)", re.I)


class Before:
    """What lay in the current folder, and in what the command names; and is another file later."""

    def __init__(self, *commands: list[str]) -> None:
        self.files: dict[str, os.stat_result] = {}
        self.unseen: list[str] = []
        words = [word for command in commands for word in command]
        words += [part for word in words for part in re.split(r"[\s=]+", word)]
        try:
            here = os.getcwd()
        except OSError:  # it was deleted
            return
        paths = [os.path.abspath(word) for word in words if word]
        paths = [path for path in paths if os.path.commonpath([path, here]) != path]  # / or ..
        paths = [".", *(path.removeprefix(here + os.sep) for path in paths)]
        self.files, self.unseen = files_below(paths)

    def checkpoints(self) -> list[str]:
        """Files that look like some."""
        return [path for path in self.files if LOOKS.search(path)]

    def here(self, paths: list[str]) -> bool:
        """Whether all are in the current folder, and not behind a link: then a copy of it helps."""
        inside = os.getcwd() + os.sep
        return all(os.path.realpath(path).startswith(inside) for path in paths)

    def changed(self) -> list[str]:
        """Each is named once."""
        names = [path for path, was in self.files.items() if other(was, state(path))]
        for name in names:
            del self.files[name]
        return names


def changed_since(begun: float, below: list[str], folders: list[str]) -> dict[str, int]:
    """Path -> bytes, of files in and below these folders, and in the others; not what a shell has
    redirected our output to. Where all programs write (/tmp) nobody knows whose they are."""
    common = {"/", tempfile.gettempdir(), os.path.expanduser("~")}
    ours = set()
    for stream in filter(None, (sys.__stdout__, sys.__stderr__)):
        with suppress(OSError, ValueError):
            ours.add(os.fstat(stream.fileno()).st_ino)
    below, folders = (
        [path for path in dict.fromkeys(map(os.path.realpath, paths)) if path not in common]
        for paths in (below, folders)
    )
    found, _ = files_below(below, folders)
    return {
        os.path.realpath(path): now.st_size
        for path, now in found.items()
        if now.st_ctime >= begun and now.st_ino not in ours
    }


def files_below(roots: list[str], flat: list[str] = ()) -> tuple[dict, list[str]]:
    """Files, and folders of which not all could be looked at. Level by level: what lies deep is of
    data sets rather than saved.

    flat: of these folders, those in them alone.
    """
    files, unseen, known = {}, [], set()
    flat = [os.path.join(path, name) for path in flat for name in names_in(path)[:EACH]]
    waiting = deque((path, False) for path in flat)
    waiting += [(path, True) for path in roots]
    while waiting:
        path, deep = waiting.popleft()
        path = os.path.normpath(path)
        found = state(path)
        if found and stat.S_ISREG(found.st_mode) and found.st_size:
            files[path] = found
        if not (found and stat.S_ISDIR(found.st_mode) and deep):
            continue
        if (place := (found.st_dev, found.st_ino)) in known:  # a link leads back
            continue
        known.add(place)
        room = min(EACH, MOST - len(files) - len(waiting))
        names = names_in(path) if room > 0 else []
        if room <= 0 or len(names) > room:
            unseen.append(path)
        waiting += [(os.path.join(path, name), True) for name in names[:room]]
    return files, unseen


def names_in(folder: str) -> list[str]:
    """Those that look like checkpoints first. A virtual environment has none."""
    try:
        names = set(os.listdir(folder)) - LEFT_OUT
    except OSError:
        return []
    if "pyvenv.cfg" in names:
        return []
    return sorted(names, key=lambda name: (not LOOKS.search(name), name))


def is_text(path: str) -> bool:
    """Whether it holds no zero bytes at its beginning: a log, JSON, a table."""
    with suppress(OSError), open(path, "rb") as file:
        return b"\0" not in file.read(4096)
    return True


def is_bare(path: str) -> bool:
    """Whether it is of torch.save, and holds no tensor: settings, say."""
    with suppress(OSError, zipfile.BadZipFile), zipfile.ZipFile(path) as file:
        places = {name.split("/")[1] for name in file.namelist() if "/" in name}
        return "data.pkl" in places and "data" not in places
    return False


def digest(path: str) -> int:
    total = 0
    with suppress(OSError), open(path, "rb") as file:
        while part := file.read(2**22):
            total = zlib.crc32(part, total)
    return total


def state(path: str) -> os.stat_result | None:
    with suppress(OSError, ValueError):
        return os.stat(path)
    return None


def other(was: os.stat_result, now: os.stat_result | None) -> bool:
    """A file with the size and the time of the old one has another time of change, which a second
    name for it (a hard link) gives it, too. Some file servers number files anew at each look."""
    if not now or (was.st_size, was.st_mtime_ns) != (now.st_size, now.st_mtime_ns):
        return True
    return was.st_ctime_ns != now.st_ctime_ns and was.st_nlink == now.st_nlink
