"""Which lines seed the random numbers of a library."""

import sys

from .notes import is_library

MOST = 8  # lines of a library, the latest
DEEP = 4  # frames of the user's: two calls of a helper that seeds differ in an outer one


class Seeds:
    def __init__(self) -> None:
        # A library -> lines that seed it, the latest last: seed, number of the call, lines.
        self.lines: dict[str, dict[tuple, list]] = {}
        self.calls = 0

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
