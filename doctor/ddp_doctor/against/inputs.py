"""Without a loader, what models are given stands for the samples: have two runs the same rows?"""

from itertools import zip_longest

from ..recorder.notes import INPUTS
from ..report import listed
from .drawn import unmatched
from .runs import Run


def of_step(run: Run, n: int) -> list[list[float]]:
    """A number for each row that models of each rank were given, or nothing: not known."""
    loaded = run.together or any(rank.trained() for rank in run.ranks)
    rows = [rank.figures["rows"].get(run.begun + n) for rank in run.ranks]
    return [] if loaded or None in rows else rows


def difference(one: Run, two: Run, n: int, without: list[str]) -> tuple[str, str, dict] | None:
    """None: they are the same in step n. Else the kind of difference, its name, and values."""
    mine, theirs = of_step(one, n), of_step(two, n)
    a, b = sum(mine, []), sum(theirs, [])
    if bool(a) != bool(b) or n > INPUTS:
        return "skipped", "samples:unknown", {}
    values = {"mine": len(a), "theirs": len(b), "common": common(a, b)}
    if values["common"] == len(a) == len(b):
        return None
    if all(common(a, rows) == len(a) == len(rows) for rows in theirs) and fixed(one) and fixed(two):
        return None  # all ranks work on all of a graph, say, in each step

    kinds = kinds_of(one, n) ^ kinds_of(two, n)
    if kinds:
        return "skipped", "rows:kinds", {**values, "kinds": listed(sorted(kinds))}
    # Whose the rows of a draw are, was only taken for granted.
    call = unmatched((one, two), n - 1, n - 1, ordered=False)
    twice = len(b) - len(set(b))
    # Of numpy and random, --without draws gives all ranks the same numbers.
    whole = len(set(map(tuple, theirs))) < len(theirs)  # not a few of them, by chance
    whole = whole and not ("draws" in without and call in ("numpy", "random"))
    if twice > len(a) - len(set(a)) and (whole or not call):
        return "differs", "rows:twice", {**values, "twice": twice}
    if call:
        return "skipped", "rows:drawn", {**values, "call": call}
    if n == 1 and len(a) != len(b):
        return "differs", "batch", {**values, "factor": f"{len(b) / len(a):.3g}"}
    if n == 1 and values["common"] < len(a) / 2:
        return "skipped", "rows:order", values
    return "differs", "rows", values


def in_turn(run: Run, n: int) -> list[float]:
    """The first row of each rank in step n, the second of each, and so on."""
    turns = zip_longest(*of_step(run, n))
    return [row for turn in turns for row in turn if row is not None]


def same_turns(one: Run, two: Run, n: int) -> bool:
    """Whether each rank has every N-th row, as --without draws has taken for granted."""
    mine, theirs = in_turn(one, n), in_turn(two, n)
    least = 1e-6 * max(map(abs, mine), default=0)
    near = (abs(a - b) <= least for a, b in zip(mine, theirs, strict=False))
    return len(mine) == len(theirs) and all(near)


def kinds_of(run: Run, n: int) -> set[str]:
    return {kind for rank in run.ranks for kind in rank.steps[run.begun + n - 1]["kinds"]}


def common(mine: list[float], theirs: list[float]) -> int:
    """How many rows are in both, to rounding."""
    least = 1e-6 * max(map(abs, mine + theirs), default=0)
    mine, theirs = sorted(mine), sorted(theirs)
    count = 0
    while mine and theirs:
        last = mine[-1] - theirs[-1]
        count += abs(last) <= least
        if last >= -least:
            mine.pop()
        if last <= least:
            theirs.pop()
    return count


def fixed(run: Run) -> bool:
    """Whether each rank has the same rows in every step."""
    lists = [list(rank.figures["rows"].values()) for rank in run.ranks]
    return all(rows == steps[0] for steps in lists for rows in steps)
