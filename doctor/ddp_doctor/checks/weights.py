"""Gradients and weights of ranks that train one model."""

import math
from collections.abc import Iterator

from ..findings import NOTE, WRONG, check, finds
from ..ranks import Rank, failed
from ..recorder.notes import PADDING
from ..report import Report, listed
from .equal import averages_weights, differ, differences
from .teams import FEW, averages_nothing, exchanges

NEEDS = "gradients step collectives join exit horovod"
IDS = ("no_averaging", "unequal_gradients", "drifting_weights")
ALIKE = 1e-3  # by so little factors may differ where one number was multiplied into all


@check(between=True, unless="unequal_steps")
@finds("no_averaging", WRONG, NEEDS)
@finds("unequal_gradients", WRONG, f"{NEEDS} wrap")
@finds("drifting_weights", WRONG, NEEDS)
@finds("drifting_weights:average", NOTE)
@finds("drifting_weights:beside", NOTE)
@finds("drifting_weights:buffers", NOTE)
def check_weights(ranks: list[Rank], report: Report) -> str | None:
    """Gradients at each step, and weights after so many steps."""
    first = ranks[0]
    if first.apart > 1:
        report.find("no_averaging:apart", first.steps[0]["made"], count=first.apart)
        return None
    sizes = [rank.model.get("sizes") for rank in ranks]
    if not all(rank.figures["gradients"] for rank in ranks):
        return "optimizer"
    if any(rank.events["join"] for rank in ranks):
        return "join"
    shared_out = divided_by_hand(ranks)
    alike = bool(sizes[0]) and all(size == sizes[0] for size in sizes)
    teams = replicas(ranks) if alike and not shared_out else []
    sharded = shared_out or "sharded" in first.model.get("wrappers", ())
    if values := drift_of_whole(ranks) if sharded else None:
        teams = []
        if not own_norms(ranks):  # from which it would follow
            kind = "added" if first.model.get("together") else "whole"
            kind = "shared_out" if shared_out else kind
            report.find(f"drifting_weights:{kind}", first.model["at"], **values)
    found = [check_replicas(team, report) for team in teams]
    alike = alike or shared_out
    if alike and not (report.teams.exchange or report.teams.together or report.has(*IDS)):
        check_others(ranks, report)
    if shared_out and not exchanges(ranks, FEW):
        report.skip("no_averaging", "shared_out")  # each gradient may be that of its own rank alone
        report.skip("unequal_gradients", "shared_out")
        return None
    return next(filter(None, found), None) if teams else "sharded"


def divided_by_hand(ranks: list[Rank]) -> bool:
    """Whether ranks have one whole model, and the optimizer of each has a part of it, as in a ZeRO
    of one's own."""
    counts = {rank.model.get("all", 0) for rank in ranks}
    parts = [sum(rank.model.get("sizes", ())) for rank in ranks]
    count = max(counts)
    return len(counts) == 1 and max(parts) < count <= sum(parts) <= (1 + PADDING) * count


def replicas(ranks: list[Rank]) -> list[list[Rank]]:
    """Ranks that have the same of all tensors: each set of them. Empty if some have no like."""
    known = {str(rank.model.get("copies")) for rank in ranks}
    teams = [[rank for rank in ranks if str(rank.model.get("copies")) == one] for one in known]
    alone = min(map(len, teams)) == 1 < len(ranks)
    return [] if alone else sorted(teams, key=lambda team: team[0].rank)


def check_replicas(ranks: list[Rank], report: Report) -> str | None:
    first = ranks[0]
    wrappers = first.model["wrappers"]
    if averages_weights(ranks):
        return "local"

    at = first.model["at"]
    steps = len(first.steps)
    size = sum(first.model["sizes"])
    by_hand = first.summed(0, steps) >= size * steps / 2  # so many numbers, or nearly
    wrapped = bool(wrappers) and not averages_nothing(first)
    averaged = wrapped or first.group == "horovod" or by_hand

    by_step = differences(ranks, "gradients")
    alike = [n for n, unequal in by_step.items() if not unequal]
    gradients = next(filter(None, by_step.values()), None)
    weights = first_difference(ranks, "weights")
    seldom = len(alike) < len(by_step) / 4  # by chance
    if gradients and averages_inside(ranks, gradients["step"]) and seldom:
        gradients = None
    unhooked = [event for rank in ranks for event in rank.events["unhooked"]]
    apart = weights and weights["step"] == 0
    if report.teams.together and gradients and weights and not apart:
        # Parts of a model would have begun unequal: most likely each rank holds the whole.
        report.find("no_averaging:together", at, mild=True, **gradients)
        return None
    beside = max((event["beside"] for event in unhooked), default=0)
    unhooked = [event for event in unhooked if event["new"] or event["moved"]]
    if report.teams.together or (report.teams.exchange and (apart or beside)):
        return "together"
    if gradients and not averaged and alike and not wrappers:
        report.find("no_averaging:some", at, **gradients, alike=alike[0])
    elif gradients and not averaged:
        name = "no_averaging:group" if wrappers else "no_averaging"
        name = "no_averaging:mesh" if "FSDP" in wrappers else name
        report.find(name, at, **gradients)
    elif apart:
        report.find("no_averaging:start", at, **weights)
    elif gradients and unhooked:
        event = unhooked[0]
        values = {"new": event["new"], "moved": event["moved"]}
        report.find("unequal_gradients:unhooked", at, **values)
    elif gradients and beside:
        report.find("unequal_gradients:beside", at, count=beside, **gradients)
    elif gradients and any(map(failed, ranks)) and gradients["step"] == steps:
        return "error"  # right after it, by an error that says more
    elif gradients and (before := sum(n < gradients["step"] for n in alike)):
        at = first.steps[-1]["backward"]
        report.find("unequal_gradients:later", at, **gradients, count=before)
    elif gradients:
        report.find("unequal_gradients", first.steps[-1]["backward"], **gradients)
    elif (rates := unequal_rates(ranks)) and report.has("collective_order"):
        report.skip("drifting_weights", "steps")  # ranks have left a loop at different times
    elif rates:
        kind = "schedulers" if "fewer" in rates else "rates"
        if "fewer" in rates and rates["step"] == 1:
            kind = "loaded"
        report.find(f"drifting_weights:{kind}", first.sets_rate(first.steps[-1]), **rates)
    elif weights:
        report.find("drifting_weights", first.steps[-1]["made"], **weights)
    return None


def check_others(ranks: list[Rank], report: Report) -> None:
    """What no optimizer changes."""
    first = ranks[0]
    for what in ("frozen", "constant", "beside", "kept"):
        kind = {"constant": "buffers", "kept": "beside"}.get(what, what)
        found = compared(ranks, what) and first_difference(ranks, what)
        copy = what == "beside" and first.model["others"][what] == sorted(first.model["sizes"])
        if found and (copy or all(stay(rank, what) for rank in ranks)):
            at = first.model["at"]
            report.find(f"drifting_weights:{'average' if copy else kind}", at, **found)


@check()
@finds("half_loaded", WRONG, "to_empty gradients", alone=True)
def check_loaded(ranks: list[Rank], report: Report) -> None:
    """Is the model that to_empty and fully_shard have left whole? The others may have got it from
    the first rank."""
    for event in ranks[0].events["unset"]:
        if event["buffers"]:
            report.find("half_loaded", event["at"], names=listed(event["buffers"]))
        if event["untied"]:
            names = " = ".join(event["untied"][0])
            report.find("half_loaded:untied", event["at"], names=names, call=event["call"])


def drift_of_whole(ranks: list[Rank]) -> dict | None:
    """Parameters that each rank has as a whole, beside parts of others: they begin equal on two
    ranks, and do not stay so. Experts may, whose ranks send each other what they are to work on."""
    mine = ranks[0].figures["whole"]
    begun = mine.get(0, [])
    for rank in ranks[1:] if not exchanges(ranks, FEW) else []:
        theirs = rank.figures["whole"]
        for n in sorted(mine.keys() & theirs.keys()):
            rows = zip(begun, theirs.get(0, []), mine[n], theirs[n], strict=False)
            apart = [c for a, b, c, d in rows if not differ([a], [b]) and differ([c], [d])]
            if apart:
                pair = {"one": ranks[0].rank, "other": rank.rank}
                return {"count": len(apart), "all": len(begun), "step": n, **pair}
    return None


def own_norms(ranks: list[Rank]) -> dict | None:
    """A step before which ranks have multiplied their gradients by numbers of their own."""
    factors = [dict(factors_of(rank)) for rank in ranks]
    for n in sorted(set.intersection(*map(set, factors))):
        values = [own[n] for own in factors]
        few, many = (values.index(one) for one in (min(values), max(values)))
        if values[many] - values[few] > ALIKE * values[many]:
            who = {"one": ranks[few].rank, "other": ranks[many].rank}
            return {"step": n, **who, "mine": values[few], "theirs": values[many]}
    return None


def factors_of(rank: Rank) -> Iterator[tuple[int, float]]:
    """What all gradients were multiplied by between backward and step."""
    for n, before in rank.figures["fresh"].items():
        pairs = zip(rank.figures["gradients"].get(n, []), before, strict=False)
        found = [one / other for (one, _), (other, _) in pairs if other > 0 and math.isfinite(one)]
        if found and max(found) - min(found) <= ALIKE * max(found):
            yield n, max(found)


def compared(ranks: list[Rank], what: str) -> bool:
    """Whether ranks have figures of the same tensors, among those that no optimizer changes."""
    sizes = [rank.model["others"][what] for rank in ranks if rank.model]
    return len(sizes) == len(ranks) and bool(sizes[0]) and all(one == sizes[0] for one in sizes)


def stay(rank: Rank, what: str) -> bool:
    values = list(rank.figures[what].values())
    return len(values) > 1 and all(one == values[0] for one in values)


def averages_inside(ranks: list[Rank], step: int) -> bool:
    """Whether the optimizer itself averages, as ZeRO may: gradients differ before each step, and
    weights move and stay equal after it."""
    mine = ranks[0].figures["weights"]
    later = {n: unequal for n, unequal in differences(ranks, "weights").items() if n >= step}
    return bool(later) and mine[max(later)] != mine[min(mine)] and not any(later.values())


def first_difference(ranks: list[Rank], what: str) -> dict | None:
    return next(filter(None, differences(ranks, what).values()), None)


def sweeps(ranks: list[Rank]) -> bool:
    """Whether each rank trains a model of its own on purpose: with other settings, and alone."""
    models = [rank.model.get("sizes") for rank in ranks]
    settings = [rank.steps[0]["settings"] for rank in ranks if rank.steps]
    wrapped = any(rank.model.get("wrappers") and not averages_nothing(rank) for rank in ranks)
    together = wrapped or any(rank.summed(0, 10**9) > 100 for rank in ranks)
    alike = all(model == models[0] for model in models) and len(set(settings)) < 2
    return not together and not alike and ranks[0].group != "horovod"


def unequal_rates(ranks: list[Rank]) -> dict | None:
    for steps in zip(*(rank.steps for rank in ranks), strict=False):
        for n, step in enumerate(steps):
            for mine, theirs in zip(steps[0]["rates"], step["rates"], strict=False):
                if mine != theirs:
                    values = {"step": step["n"], "one": ranks[0].rank, "other": ranks[n].rank}
                    made = [sum(count for _, count in s["schedules"]) for s in (steps[0], step)]
                    values |= {"mine": mine, "theirs": theirs}
                    counts = {"fewer": made[0], "more": made[1]} if made[0] != made[1] else {}
                    return values | counts
    return None
