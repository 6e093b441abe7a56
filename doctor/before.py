"""What lay there before a run, and is another file after it, whoever has written: only looked at
from outside, in the current folder and in what the command names."""

import os
import re
import stat
from collections import deque
from contextlib import suppress

MOST = 10_000  # files: a look at each costs a millisecond on a file server
EACH = 2_000  # of one folder: a data set has more
LEFT_OUT = {".git", "__pycache__"}
SUFFIXES = "pt|pth|ckpt|bin|safetensors|distcp|pkl|npz|npy|h5|model"
LOOKS = re.compile(rf"\.({SUFFIXES})(\.|$)|(checkpoint|ckpt)(?!.*\.py$)", re.I)


class Before:
    def __init__(self, *commands: list[str]) -> None:
        self.files: dict[str, os.stat_result] = {}
        self.unseen: list[str] = []  # folders, or parts of them
        words = [word for command in commands for word in command]
        words += [part for word in words for part in re.split(r"[\s=]+", word)]
        try:
            here = os.getcwd()
        except OSError:  # it was deleted
            return
        paths = [os.path.abspath(word) for word in words if word]
        paths = [path for path in paths if os.path.commonpath([path, here]) != path]  # / or ..
        self.look([".", *(path.removeprefix(here + os.sep) for path in paths)])

    def look(self, roots: list[str]) -> None:
        """Level by level: what lies deep is of data sets rather than saved."""
        waiting, known = deque(map(os.path.normpath, roots)), set()
        while waiting:
            path = waiting.popleft()
            found = state(path)
            if found and stat.S_ISREG(found.st_mode) and found.st_size:
                self.files[path] = found
            if not found or not stat.S_ISDIR(found.st_mode):
                continue
            if (place := (found.st_dev, found.st_ino)) in known:  # a link leads back
                continue
            known.add(place)
            room = min(EACH, MOST - len(self.files) - len(waiting))
            names = names_in(path) if room > 0 else []
            if room <= 0 or len(names) > room:
                self.unseen.append(path)
            waiting += [os.path.normpath(os.path.join(path, name)) for name in names[:room]]

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


def names_in(folder: str) -> list[str]:
    """Those that look like checkpoints first. A virtual environment has none."""
    try:
        names = set(os.listdir(folder)) - LEFT_OUT
    except OSError:
        return []
    if "pyvenv.cfg" in names:
        return []
    return sorted(names, key=lambda name: (not LOOKS.search(name), name))


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
