"""Which lines seed the random numbers of a library, and which shuffle by them."""

import hashlib
import sys
from collections.abc import Callable, Sized
from functools import partial

import torch

from .hooks import hook
from .notes import is_library, notes
from .states import plain, state_of

MOST = 8  # lines of a library, the latest
DEEP = 4  # frames of the user's: two calls of a helper that seeds differ in an outer one
LOOKED = 100  # shuffled lists of a process: there may be one in each sample


class Seeds:
    def __init__(self) -> None:
        # A library -> lines that seed it, the latest last: seed, number of the call, lines.
        self.lines: dict[str, dict[tuple, list]] = {}
        self.calls = 0
        self.lists = 0

    def seeded(self, library: str, *args: object, **kwargs: object) -> None:
        lines = user_lines()
        self.calls += 1
        seed = next(iter((*args, *kwargs.values())), None)
        seed = seed if seed is None or type(seed) is int else repr(seed)[:100]
        known = self.lines.setdefault(library, {})
        known.pop(lines, None)  # the latest stands last
        known[lines] = [seed, self.calls, lines]
        if len(known) > MOST:
            del known[next(iter(known))]

    def told(self) -> dict[str, list]:
        return {library: list(known.values()) for library, known in self.lines.items()}

    def shuffled(self, library: str, state: Callable, values: object) -> None:
        """values: a list, or how many (numpy's permutation takes both)."""
        self.lists += 1
        if self.lists > LOOKED or torch.utils.data.get_worker_info():
            return
        lines = user_lines() or (None,)
        count = len(values) if hasattr(values, "__len__") else int(values)
        state = hashlib.md5(repr(state()).encode()).hexdigest()
        seeded = self.told().get(library, [])
        notes.event("shuffled", at=lines[0], count=count, state=state, seeded=seeded)

    # Parameters have the names of those of the functions, by which they may be given.

    def shuffles(self, generator: object, x: Sized, *_: object) -> None:
        library = "random" if generator is sys.modules["random"].shuffle.__self__ else ""
        self.shuffled(library, partial(state_of, generator), x)

    def splits(self, dataset: Sized, lengths: object, generator: object = None) -> None:
        library = "" if generator else "torch"
        self.shuffled(library, partial(state_of, generator or torch.default_generator), dataset)

    def of_numpy(self, x: object, *_: object, **__: object) -> None:
        self.shuffled("numpy", lambda: plain(sys.modules["numpy"].random.get_state()), x)


def user_lines() -> tuple:
    """Of the user's own frames, the innermost first."""
    found = []
    frame = sys._getframe(1)
    while frame and len(found) < DEEP:
        if not is_library(frame.f_code.co_filename):
            found.append((frame.f_code.co_filename, frame.f_lineno))
        frame = frame.f_back
    return tuple(found)


seeds = Seeds()


def watch_shuffles(probe: str, random: object) -> None:
    """Of the class: a list may be shuffled by a generator of its own."""
    hook(probe, random.Random, "shuffle", seeds.shuffles)
    random.shuffle = random.Random.shuffle.__get__(random.shuffle.__self__)
