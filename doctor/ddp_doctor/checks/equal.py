"""Numbers of ranks, beside each other: are they the same, and do they become it?"""

import math
from collections import Counter

from ..ranks import Rank

TOLERANCE = 1e-6  # relative: smaller differences come from the order of additions


def differ(one: list, other: list) -> bool:
    """Whether figures of two ranks are unequal, by more than sums taken otherwise are."""
    return any(apart(*rows) > TOLERANCE for rows in zip(one, other, strict=True))


def apart(mine: tuple, theirs: tuple, least: float = 0.0) -> float:
    """How far two tensors are apart, relative to their norm, so far as figures tell it. NaN and
    infinity are equal to themselves, and far from all else."""
    (norm, sample), (norm2, sample2) = mine, theirs
    if repr([norm, sample]) == repr([norm2, sample2]):
        return 0.0
    scale = max(norm, norm2, least, 1e-30)
    found = [abs(norm - norm2) / scale]
    if None not in (sample, sample2):
        found.append(abs(sample - sample2) / 64 / scale)
    return max(found) if all(map(math.isfinite, found)) else math.inf


def differences(ranks: list[Rank], what: str) -> dict[int, dict | None]:
    """For each step that has figures: two ranks whose are unequal, if any, for the words."""
    found = {}
    for n, mine in sorted(ranks[0].figures[what].items()):
        for rank in ranks[1:] if not of_another(ranks[0], what, n) else []:
            if n in rank.figures[what]:  # else nobody knows, as where rank 0 alone saves
                found.setdefault(n, None)
                if differ(mine, rank.figures[what][n]):
                    found[n] = {"step": n, "one": ranks[0].rank, "other": rank.rank}
    return found


def of_another(rank: Rank, what: str, n: int) -> bool:
    """Whether these are of a second model, of which ranks have parts and not of the first, or the
    other way round: weights are those of the optimizer that makes the next step."""
    if what not in ("gradients", "weights") or not rank.steps:
        return False
    steps = rank.steps[n - (what == "gradients") :][:1] or rank.steps[-1:]
    return steps[0]["divided"] != rank.steps[0]["divided"]


def averages_weights(ranks: list[Rank]) -> bool:
    """Local SGD: weights drift apart, until the script itself makes them equal again."""
    size = sum(ranks[0].model.get("sizes", ()))
    apart = None
    for n, unequal in differences(ranks, "weights").items():
        if unequal:
            apart = n if apart is None else apart
        elif apart is not None and ranks[0].summed(apart, n + 1) >= size / 2:
            return True
    # Or after unequal numbers of steps, as clients of federated learning make them.
    for met in zip(*(summed_after(rank, size / 2) for rank in ranks), strict=False):
        found = [rank.figures["weights"].get(n) for rank, n in zip(ranks, met, strict=True)]
        if len(set(met)) > 1 and apart is not None and all(found):
            if not any(differ(found[0], other) for other in found[1:]):
                return True
    return False


def summed_after(rank: Rank, least: float) -> list[int]:
    """The steps after which the script itself sent so many numbers."""
    counts = Counter()
    for event in rank.own_calls():
        counts[event["place"]] += event["size"]
    return sorted(place for place, count in counts.items() if count >= least)
