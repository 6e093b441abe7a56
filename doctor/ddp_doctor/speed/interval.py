"""How sure the middle of a few values is."""

import math
from collections.abc import Iterable
from functools import cache
from statistics import median

FEWEST = 8  # values, before which nothing is said
SURE = 0.995  # who looks after each round errs in one of ten runs at 0.98, here in two of a hundred
Three = tuple[float, float, float]  # at least, likely, at most


def interval(logs: Iterable[float]) -> Three:
    """Factors whose logarithms these are: their middle by Hodges and Lehmann, between the bounds of
    its interval by signed ranks. No eight values have one that is surer than 0.992."""
    logs = list(logs)
    if len(logs) < FEWEST:
        return 0.0, math.exp(median(logs or [0.0])), math.inf
    means = sorted((a + b) / 2 for at, a in enumerate(logs) for b in logs[at:])
    drop = dropped(len(logs))
    return math.exp(means[drop]), math.exp(median(means)), math.exp(means[-1 - drop])


@cache
def dropped(count: int) -> int:
    """How many means of pairs lie outside of the interval, at each end."""
    ways = [1]  # in how many ways ranks, each with one sign of two, have a sum
    for rank in range(1, count + 1):
        longer = ways + [0] * rank
        for total, number in enumerate(ways):
            longer[total + rank] += number
        ways = longer
    drop = 0
    while 2 * sum(ways[: drop + 2]) <= (1 - SURE) * 2**count:
        drop += 1
    return drop
