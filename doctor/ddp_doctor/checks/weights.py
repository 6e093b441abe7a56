"""Gradients and weights of ranks that train one model."""

import math
from collections.abc import Iterator

from ..findings import NOTE, WRONG, check, finds
from ..ranks import Rank
from ..recorder.notes import PADDING
from ..report import Report, listed
from .equal import differ, differences
from .reasons import AVERAGED, BEGUN, GRADIENTS, RATES, WEIGHTS, averages_inside, meant
from .teams import FEW, averages_nothing, exchanges

NEEDS = "gradients step collectives join exit horovod"
IDS = ("no_averaging", "unequal_gradients", "drifting_weights")
PARTS = "optimizer join sharded local together error"  # whatever breaks
ALIKE = 1e-3  # by so little factors may differ where one number was multiplied into all


@check(between=True, unless="unequal_steps")
@finds("no_averaging", WRONG, NEEDS, silent=f"{PARTS} shared_out")
@finds("unequal_gradients", WRONG, f"{NEEDS} wrap", silent=f"{PARTS} shared_out")
@finds("drifting_weights", WRONG, NEEDS, silent=PARTS)
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


class Replicas:
    """Ranks that have the same of all tensors."""

    def __init__(self, ranks: list[Rank], report: Report) -> None:
        self.ranks, self.teams = ranks, report.teams
        self.parted = report.has("collective_order")
        first = self.first = ranks[0]
        self.wrappers = first.model["wrappers"]
        steps, size = len(first.steps), sum(first.model["sizes"])
        by_hand = first.summed(0, steps) >= size * steps / 2  # so many numbers, or nearly
        wrapped = bool(self.wrappers) and not averages_nothing(first)
        self.averages = wrapped or first.group == "horovod" or by_hand
        ends = [event["size"] for rank in ranks for event in rank.own_calls()[-1:]]
        self.stopped = any(size > 1 and size in first.model["sizes"] for size in ends)

        self.by_step = differences(ranks, "gradients")
        self.alike = [n for n, unequal in self.by_step.items() if not unequal]
        self.gradients = next(filter(None, self.by_step.values()), None)
        if self.gradients and averages_inside(self):
            self.gradients = None
        self.weights = first_difference(ranks, "weights")
        self.begun = self.weights if self.weights and self.weights["step"] == 0 else None
        unhooked = [event for rank in ranks for event in rank.events["unhooked"]]
        self.beside = max((event["beside"] for event in unhooked), default=0)
        self.unhooked = [event for event in unhooked if event["new"] or event["moved"]]

    # ---- relations: what breaks them. What follows from one is not asked ----

    def broken(self) -> tuple[str, dict] | None:
        """The first one that two ranks show, and which."""
        rows = (
            (AVERAGED, not self.averages and self.gradients),
            (BEGUN, self.begun),
            (GRADIENTS, self.gradients),
            (RATES, unequal_rates(self.ranks)),
            (WEIGHTS, self.weights),
        )
        return next((row for row in rows if row[1]), None)

    # ---- why: kind, line, values ----

    def why(self, relation: str, found: dict) -> tuple[str, list, dict]:
        made, latest = self.first.model["at"], self.first.steps[-1]
        if relation == AVERAGED:
            if self.alike and not self.wrappers:
                return "no_averaging:some", made, {**found, "alike": self.alike[0]}
            kind = ":mesh" if "FSDP" in self.wrappers else ":group" if self.wrappers else ""
            return f"no_averaging{kind}", made, found
        if relation == BEGUN:
            return "no_averaging:start", made, found
        if relation == GRADIENTS:
            if self.unhooked:
                values = {name: self.unhooked[0][name] for name in ("new", "moved")}
                return "unequal_gradients:unhooked", made, values
            if self.beside:
                return "unequal_gradients:beside", made, {**found, "count": self.beside}
            before = sum(n < found["step"] for n in self.alike)
            values = {**found, "count": before} if before else found
            return f"unequal_gradients{':later' * bool(before)}", latest["backward"], values
        if relation == RATES:
            kind = "schedulers" if "fewer" in found else "rates"
            kind = "loaded" if kind == "schedulers" and found["step"] == 1 else kind
            return f"drifting_weights:{kind}", self.first.sets_rate(latest), found
        return "drifting_weights", latest["made"], found


def check_replicas(ranks: list[Rank], report: Report) -> str | None:
    seen = Replicas(ranks, report)
    relation, found = seen.broken() or (WEIGHTS, None)
    why = meant(relation, seen)
    if why == "together" and seen.teams.together and all((seen.gradients, seen.weights)):
        if not seen.begun:
            # Parts of a model would have begun unequal: most likely each rank holds the whole.
            at = seen.first.model["at"]
            report.find("no_averaging:together", at, mild=True, **seen.gradients)
            return None
    if why == "steps":
        report.skip("drifting_weights", why)
    elif why or not found:
        return why or None
    else:
        name, at, values = seen.why(relation, found)
        report.find(name, at, **values)
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
        if event["left"]:
            report.find("half_loaded", event["at"], names=listed(event["left"]))
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
