"""Without a loader, what models are given stands for the samples: have two runs the same rows?"""

from ..ranks import Rank
from ..recorder.notes import INPUTS
from ..report import listed
from .runs import Run


def of_step(run: Run, n: int) -> list[list[float]]:
    """A number for each row that models of each rank were given, or nothing: not known."""
    loaded = run.together or any(rank.trained() for rank in run.ranks)
    rows = [rank.figures["rows"].get(n) for rank in run.ranks]
    return [] if loaded or None in rows else rows


def parted(one: Run, two: Run, n: int, without: list[str]) -> tuple[str, str, dict] | None:
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
    twice = len(b) - len(set(b))
    calls = [calls_of(rank, n) for run in (one, two) for rank in run.ranks]
    # Of numpy and random, --without draws gives all ranks the same.
    alike = "draws" in without and any(call[0] in ("numpy", "random") for call in sum(calls, []))
    if twice > len(a) - len(set(a)) and not alike:
        return "differs", "rows:twice", {**values, "twice": twice}
    if "draws" in without:
        sources = [{call[4] for call in found if call[4]} for found in calls]
        compiled = any(call[3] < 0 for call in sum(calls, []))
        drawn = alike or compiled or any(other != sources[0] for other in sources)
    else:
        drawn = any(step["drawn"] for run in (one, two) for step in run.first.steps[:3])
    if drawn:
        return "skipped", "rows:drawn", values
    if n == 1 and len(a) != len(b):
        return "differs", "batch", {**values, "factor": f"{len(b) / len(a):.3g}"}
    if n == 1 and values["common"] < len(a) / 2:
        return "skipped", "rows:order", values
    return "differs", "rows", values


def kinds_of(run: Run, n: int) -> set[str]:
    return {kind for rank in run.ranks for kind in rank.steps[n - 1]["kinds"]}


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


def calls_of(rank: Rank, n: int) -> list[list]:
    """That draw random numbers in step n."""
    events = [event for event in rank.events["drawn"] if event["n"] == n - 1]
    return [call for event in events for call in event["calls"]]
