"""Random numbers between a batch and its step: have the samples the same ones in both runs?"""

from collections import Counter, defaultdict
from itertools import zip_longest

from ..report import short
from .runs import Run

NAME, AT, SHAPE, PER, SOURCE = range(5)  # of a call in an event
FEW = 3  # calls that are named


def unmatched(
    runs: tuple[Run, Run], first: int, last: int, ordered: bool, layers: bool = True
) -> str:
    """The first calls of training whose numbers are others in the second run, or may be; or "".

    first, last: how many steps had been made when it drew. ordered: a row of a batch is known to
    be of the same sample in both. layers: also those of dropout, which change no target.
    """
    groups = defaultdict(lambda: ([], []))  # steps, stream -> events of each run
    for number, run in enumerate(runs):
        for rank in run.everyone:
            passes = {one.loader["id"] for one in rank.trained()}
            for event in rank.events["drawn"]:
                one = rank.passes.get(event["pass"])
                learned = one is not None and one.loader["id"] in passes
                n = event["n"] - run.begun
                if first <= n <= last and (one is None or learned):
                    groups[n, event["stream"]][number].append(event)
    for _, (mine, theirs) in sorted(groups.items()):
        calls = other_calls(mine, theirs, ordered)
        if calls := [call for call in calls if layers or "dropout" not in call[NAME]]:
            names = [f"{c[NAME]}, {short(c[AT])}" if c[AT] else c[NAME] for c in calls]
            return "; ".join(list(dict.fromkeys(names))[:FEW])
    return ""


def other_calls(mine: list[dict], theirs: list[dict], ordered: bool) -> list[list]:
    """Of one step. An event is a part of it on a rank, or all of it."""
    known = mine[0]["calls"] if mine else []
    sizes = [Counter() for _ in range(2)]
    for counts, events in zip(sizes, (mine, theirs), strict=True):
        for number, call in ((n, c) for event in events for n, c in enumerate(event["calls"])):
            counts[number] += call[SHAPE][0] if call[PER] > 0 else 0
    parts = [max((event["part"] for event in events), default=0) for events in (mine, theirs)]
    found = []
    for event in mine + theirs:
        for number, (a, b) in enumerate(zip_longest(known, event["calls"])):
            rows = ordered and (event in mine or sizes[0][number] == sizes[1][number])
            if not (a and b and same_call(a, b, parts[0] == parts[1], rows)):
                # Where one run has drawn more, others stand side by side: any may be the reason.
                found += [(number, call) for call in (a, b) if call]
    return [call for _, call in sorted(found, key=lambda one: one[0])]


def same_call(a: list, b: list, parts: bool, rows: bool) -> bool:
    """parts: both runs have as many in this step. rows: they have as many of this draw in all, and
    these are known."""
    if a[NAME] != b[NAME] or a[SOURCE] != b[SOURCE] or min(a[PER], b[PER]) < 0:
        return False
    if a[PER] and b[PER]:
        return rows and a[SHAPE][1:] == b[SHAPE][1:]
    return a[SHAPE] == b[SHAPE] and (a[PER] == b[PER] or parts)
