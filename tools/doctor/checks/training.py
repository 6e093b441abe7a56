"""Gradients, weights, learning rates."""

import linecache
import re
from itertools import pairwise

from ..ranks import Rank
from ..report import Report

NUMBER = r"(?<![\w.])\d*\.?\d+(?:[eE][+-]?\d+)?"  # as somebody types it
TOLERANCE = 1e-6  # relative: smaller differences come from the order of additions


def check_weights(ranks: list[Rank], report: Report) -> str | None:
    """Gradients at each step, and weights after so many steps."""
    first = ranks[0]
    wrappers = {name for rank in ranks for name in rank.model.get("wrappers", [])}
    sizes = [rank.model.get("sizes") for rank in ranks]
    if not all(rank.figures["gradients"] for rank in ranks):
        return "optimizer"
    if any(rank.events["join"] for rank in ranks):
        return "join"
    if "sharded" in wrappers or not sizes[0] or any(size != sizes[0] for size in sizes):
        return "sharded"
    if report.has("unequal_steps"):
        return "steps"
    if averages_weights(ranks):
        return "local"

    at = first.steps[-1]["at"]
    steps = len(first.steps)
    by_hand = first.summed(0, steps) >= sum(sizes[0]) * steps / 2  # so many numbers, or nearly
    averaged = bool(wrappers) or first.group == "horovod" or by_hand

    gradients = first_difference(ranks, "gradients")
    weights = first_difference(ranks, "weights")
    unhooked = [event for rank in ranks for event in rank.events["unhooked"]]
    if gradients and not averaged:
        report.find("no_averaging", at, **gradients)
    elif weights and weights["step"] == 0:
        report.find("no_averaging:start", at, **weights)
    elif gradients and unhooked:
        event = unhooked[0]
        values = {"new": event["new"], "moved": event["moved"]}
        report.find("unequal_gradients:unhooked", event["at"] or at, **values)
    elif gradients:
        report.find("unequal_gradients", at, **gradients)
    elif rates := unequal_rates(ranks):
        report.find("drifting_weights:rates", at, **rates)
    elif weights:
        report.find("drifting_weights", at, **weights)
    return None


def differ(one: list, other: list) -> bool:
    """Whether figures of two ranks are unequal, by more than sums taken otherwise are."""
    for (norm, sample), (norm2, sample2) in zip(one, other, strict=True):
        if repr([norm, sample]) == repr([norm2, sample2]):
            continue  # NaN and infinity are equal to themselves here

        scale = max(norm, norm2) + 1e-30
        near = abs(norm - norm2) <= TOLERANCE * scale
        if not near or not abs(sample - sample2) <= 64 * TOLERANCE * scale:
            return True
    return False


def differences(ranks: list[Rank], what: str) -> dict[int, dict | None]:
    """For each step that has figures: two ranks whose are unequal, if any, for the words."""
    found = {}
    for n, mine in sorted(ranks[0].figures[what].items()):
        found[n] = None
        for rank in ranks[1:]:
            if n in rank.figures[what] and differ(mine, rank.figures[what][n]):
                found[n] = {"step": n, "one": ranks[0].rank, "other": rank.rank}
    return found


def first_difference(ranks: list[Rank], what: str) -> dict | None:
    return next(filter(None, differences(ranks, what).values()), None)


def averages_weights(ranks: list[Rank]) -> bool:
    """Local SGD: weights drift apart, until the script itself makes them equal again."""
    size = sum(ranks[0].model["sizes"])
    apart = None
    for n, unequal in differences(ranks, "weights").items():
        if unequal:
            apart = n if apart is None else apart
        elif apart is not None and ranks[0].summed(apart, n + 1) >= size / 2:
            return True
    return False


def sweeps(ranks: list[Rank]) -> bool:
    """Whether each rank trains a model of its own on purpose: with other settings, and alone."""
    models = [rank.model.get("sizes") for rank in ranks]
    settings = [rank.steps[0]["settings"] for rank in ranks if rank.steps]
    together = any(rank.model.get("wrappers") or rank.summed(0, 10**9) > 100 for rank in ranks)
    alike = all(model == models[0] for model in models) and len(set(settings)) < 2
    return not together and not alike and ranks[0].group != "horovod"


def unequal_rates(ranks: list[Rank]) -> dict | None:
    for steps in zip(*(rank.steps for rank in ranks), strict=False):
        for n, step in enumerate(steps):
            for mine, theirs in zip(steps[0]["rates"], step["rates"], strict=False):
                if mine != theirs:
                    values = {"step": step["n"], "one": ranks[0].rank, "other": ranks[n].rank}
                    return {**values, "mine": mine, "theirs": theirs}
    return None


def check_steps(ranks: list[Rank], report: Report) -> str | None:
    """Do all ranks make as many steps in an epoch, and as many epochs?"""
    if any(rank.events["join"] for rank in ranks):
        return "join"
    trained = [rank.training() for rank in ranks]
    if not all(trained):
        return "loader"
    for line in trained[0]:
        lists = [by.get(line, []) for by in trained]
        for epoch, passes in enumerate(zip(*lists, strict=False), 1):
            steps = [made(ranks[n], lists[n], epoch) for n in range(len(ranks))]
            few, many, values = extremes(ranks, [len(one.batches) for one in passes])
            over = passes[few].ended or len(lists[few]) > epoch
            went_on = len(lists[many]) > epoch or ranks[many].ended.get("error") == "None"
            if over and few != many and not (went_on and len(set(steps)) == 1):
                at = passes[few].loader["at"]
                return report.find("unequal_steps", at, epoch=epoch, **values)

            few, many, values = extremes(ranks, steps)
            if few != many and all(one.ended for one in passes):
                at = ranks[few].steps[-1]["at"]
                return report.find("unequal_steps:skipped", at, epoch=epoch, **values)

        few, many, values = extremes(ranks, list(map(len, lists)))
        if few != many and ranks[few].left() and lists[few] and lists[few][-1].ended:
            return report.find("unequal_steps:epochs", lists[few][-1].loader["at"], **values)
    return None


def made(rank: Rank, passes: list, epoch: int) -> int:
    """Steps from the beginning of a pass to that of the next one."""
    after = passes[epoch].place if epoch < len(passes) else len(rank.steps)
    return after - passes[epoch - 1].place


def extremes(ranks: list[Rank], counts: list[int]) -> tuple[int, int, dict]:
    """Places of the smallest and of the largest count, equal if all are; and words for them."""
    few = counts.index(min(counts))
    many = counts.index(max(counts))
    values = {"one": ranks[few].rank, "few": counts[few]}
    return few, many, values | {"other": ranks[many].rank, "many": counts[many]}


def check_learning(ranks: list[Rank], report: Report) -> str | None:
    """Does each optimizer change the model, and are gradients lost or clipped wrongly?"""
    for rank in ranks:
        for event in rank.events["lost"]:
            report.find("lost_gradient", event["at"])
        for event in rank.events["no_sync"]:
            report.find("no_sync", event["at"])
        for event in rank.events["clip"]:
            size = sum(rank.model.get("sizes") or [])
            later = [e for e in rank.events["collective"] if e["t"] > event["t"]]
            summed = sum(e["size"] for e in later if e["place"] == event["place"])
            if event["scaled"]:
                report.find("clipped", event["at"])
            elif size and summed >= size / 2:
                report.find("clipped:averaged", event["at"])
        for number in {step["optimizer"] for step in rank.steps}:
            steps = [step for step in rank.steps if step["optimizer"] == number]
            check_optimizer(rank, steps, report)
    return None if any(rank.steps for rank in ranks) else "optimizer"


def check_optimizer(rank: Rank, steps: list[dict], report: Report) -> None:
    learning = [step for step in steps if any(rate > 0 for rate in step["rates"])]
    if len(learning) < 3:
        return
    if all(step["without"] == step["parameters"] for step in learning):
        values = {"count": len(steps), "parameters": steps[0]["parameters"]}
        return report.find("untrained:other", steps[-1]["at"], **values)

    weights = [rank.figures["weights"].get(step["n"] - 1) for step in learning]
    weights = [figures for figures in weights if figures]
    gradients = rank.figures["gradients"].get(learning[0]["n"], [])
    if len(weights) > 2 and any(norm > 0 for norm, _ in gradients):
        if all(figures == weights[0] for figures in weights):
            report.find("untrained", steps[-1]["at"], count=len(weights))
    return None


def check_schedule(ranks: list[Rank], report: Report) -> str | None:
    """Does the learning rate follow the length of the run?"""
    rank = ranks[0]
    if not rank.steps:
        return "optimizer"
    for scheduler in rank.events["scheduler"]:
        places = [dict(step["schedules"]).get(scheduler["id"]) for step in rank.steps]
        places = [place for place in places if place is not None]
        turns = [after - before for before, after in pairwise(places)]
        if len(turns) < 3:
            continue
        at = scheduler["at"]
        length = scheduler["length"] or 0
        if min(turns) > 1:
            accelerate = any(one.loader["accelerate"] for one in rank.passes.values())
            report.find("schedule", at, mild=accelerate, times=min(turns))
        elif scheduler["kind"] == "CosineAnnealingLR" and places[-1] > length:
            report.find("schedule:again", at, mild=True, length=length, place=places[-1])
        elif set(turns) == {1} and len(ranks) > 1 and rank.ended.get("error") == "None":
            if abs(len(places) * len(ranks) - length) <= len(ranks):
                report.find("schedule:slow", at, mild=True, length=length, steps=len(places))

    rates = [max(step["rates"], default=0) for step in rank.steps]
    moving = max((n for n, rate in enumerate(rates, 1) if rate > 0), default=0)
    if moving and len(rates) - moving > max(2, 0.2 * len(rates)):
        at = rank.steps[moving]["at"]
        report.find("schedule:over", at, step=moving, steps=len(rates))
    return None


def check_rate(ranks: list[Rank], report: Report) -> str | None:
    """Are both batch size and learning rate what somebody typed for one GPU?"""
    rank = ranks[0]
    passes = rank.trained()
    if not passes or not rank.steps[0]["rates"] or not rank.steps[0]["at"]:
        return "loader"
    script = linecache.getlines(rank.steps[0]["at"][0])
    text = "\n".join([*rank.process["argv"], *script])
    if re.search(r"batch_?size[^#\n]*/", text):
        return None  # by the number of ranks, most likely

    typed = set(map(float, re.findall(NUMBER, text)))
    size = passes[0].loader["batch_size"]
    rate = max(rank.steps[0]["rates"])
    if rate > 0 and {size, rate} <= typed and len(ranks) > 1:
        total = size * len(ranks)
        report.find("learning_rate", passes[0].loader["at"], size=size, total=total, rate=rate)
    return None
