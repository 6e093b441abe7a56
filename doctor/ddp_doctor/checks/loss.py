"""What ranks divide their losses by."""

from collections import defaultdict
from math import prod
from statistics import median

from ..findings import NOTE, check, finds
from ..ranks import Rank
from ..report import Report

# In half of the steps a target of one rank must weigh so much more than one of another. Counts of
# some hundred targets differ by less by chance, and nobody tunes a learning rate as finely.
LEAST = 1.1


@check(between=True, unless="unequal_steps")
@finds(
    "unequal_counts",
    NOTE,
    "divisors gradients step backward wrap collectives",
    silent="unseen_loss",
)
def check_counts(ranks: list[Rank], report: Report) -> str | None:
    """Does each rank divide by its own number of targets, where gradients are averaged?"""
    known = [terms_of(rank) for rank in ranks]
    steps = set.intersection(*map(set, known))
    found = [(*furthest([own[n] for own in known]), n) for n in steps]
    if not found:
        return "unseen_loss"
    most, counts, n = max(found)
    ratio = median(one for one, *_ in found)
    if ratio >= LEAST:
        few, many = (counts.index(count) for count in (min(counts), max(counts)))
        values = {"few": counts[few], "many": counts[many], "steps": len(found), "step": n}
        values |= {"one": ranks[few].rank, "other": ranks[many].rank, "most": most, "ratio": ratio}
        report.find("unequal_counts", ranks[0].steps[n - 1]["backward"], **values)
    return None


def terms_of(rank: Rank) -> dict[int, list[list]]:
    """Step -> terms of the losses of its backward passes, where it is known what divides each, and
    DDP or FSDP averages the gradients: by hand, ranks may weigh them by their counts."""
    found = defaultdict(list)
    for event in rank.events["divisors"]:
        found[event["n"]].append(event["terms"])
    averaged = {step["n"] for step in rank.steps if step["averaged"]}
    return {n: sum(rows, []) for n, rows in found.items() if n in averaged and None not in rows}


def furthest(rows: list[list[list]]) -> tuple[float, list[float]]:
    """Of the terms of a step, the one that ranks divide most unlike: how many times as much one
    divides by as another, and by what each, without what all divide by. rows: a rank's terms."""
    found = [(1.0, [1.0])]
    for terms in zip(*rows, strict=False):
        _, *columns = zip(*terms, strict=True)
        unlike = [column for column in columns if max(column) > min(column)]
        # Without a count among them, ranks weigh their losses by something else.
        if columns[0] in unlike or any(all(map(whole, column)) for column in unlike):
            by = list(map(prod, zip(*unlike, strict=True)))
            found += [(max(by) / min(by), by)] if min(by) > 0 else []
    return max(found)


def whole(by: float) -> bool:
    return abs(by - round(by)) < 1e-3
