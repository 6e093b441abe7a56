"""What each optimizer does, and its scheduler."""

import re
from itertools import pairwise

from ..findings import NOTE, TRAINING, WASTED, WRONG, check, finds
from ..ranks import Rank
from ..report import Report
from .weights import own_norms

ENDLESS = "Step|Exponential|Plateau|Cyclic|Restarts|Multiplicative"  # schedulers without an end
LOW = 0.1  # of the highest rate: a schedule that has come down to it is taken to be near its end


@check()
@finds("untrained", WRONG, "gradients step held", alone=True, silent="optimizer")
@finds("left_gradients", NOTE, f"{TRAINING} emptied", alone=True, silent="optimizer")
@finds("eval_mode", NOTE, TRAINING, alone=True, silent="optimizer")
@finds(
    "lost_gradient", WRONG, f"{TRAINING} lost collectives emptied held", silent="optimizer own_part"
)
@finds(
    "clipped",
    WRONG,
    "clip scale unscale collectives step emptied",
    alone=True,
    silent="optimizer clips sharded",
)
@finds("no_sync", WASTED, f"{TRAINING} wrap no_sync", alone=True, silent="optimizer")
def check_learning(ranks: list[Rank], report: Report) -> str | None:
    """Does each optimizer change the model, and are gradients lost or clipped wrongly?"""
    for rank in ranks:
        for event in rank.events["lost"]:
            if event["divided"]:  # what nobody averages once more is right
                if rank.model.get("wrappers"):
                    report.find("lost_gradient:divided", event["at"], count=rank.world)
            elif not event["own"]:
                report.find("lost_gradient", event["at"])
            elif not report.has("lost_gradient"):
                report.skip("lost_gradient", "own_part")  # the rest of the gradient may be lost
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
        check_accumulation(rank, len(ranks), report)
        for number in {step["optimizer"] for step in rank.steps}:
            steps = [step for step in rank.steps if step["optimizer"] == number]
            check_optimizer(rank, steps, report, len(bare(ranks, number)) < len(ranks))
        check_mode(rank, report)
    check_norms(ranks, report)
    if not any(rank.events["clip"] for rank in ranks):
        report.skip("clipped", "clips")
    return None if any(rank.steps for rank in ranks) else "optimizer"


def check_norms(ranks: list[Rank], report: Report) -> None:
    """Of parts of a model: does each rank clip by the norm of its own?"""
    if not any("sharded" in rank.model.get("wrappers", []) for rank in ranks):
        return
    if values := own_norms(ranks):
        clips = [event["at"] for rank in ranks for event in rank.events["clip"]]
        at = [*clips, ranks[0].steps[values["step"] - 1]["at"]][0]
        report.find("clipped:own", at, **values)
    elif not all(rank.figures["fresh"] for rank in ranks):
        report.skip("clipped", "sharded")  # whose norm is it?


def check_accumulation(rank: Rank, ranks: int, report: Report) -> None:
    """Does DDP or FSDP average after each micro-batch, and not only after the last of a step?"""
    averaged = [step["averaged"] for step in rank.steps]
    often = sum(times > 1 for times in averaged) >= max(2, len(averaged) / 2)
    batches = sum(len(one.batches) for one in rank.trained())
    if not often or ranks < 2:
        return
    rows = [count for step in rank.steps for count in step["rows"]]
    given = sum(len(one.keys()) for one in rank.trained())
    cut = len(rows) >= sum(averaged) and sum(rows) == given  # batches, into micro-batches
    if batches >= sum(averaged) or cut:  # else there are several losses of one batch
        times = max(averaged, key=averaged.count)
        name = "no_sync:sharded" if "sharded" in rank.model.get("wrappers", []) else "no_sync:never"
        report.find(name, rank.steps[0]["at"], times=times)


def check_mode(rank: Rank, report: Report) -> None:
    """Does the first evaluation leave the model in eval mode for the rest of the training?"""
    modes = [step["trains"] for step in rank.steps]
    before = modes.count(True)
    evaluated = any(one.place == before and not one.steps for one in rank.passes.values())
    if 0 < before < len(modes) - 1 and all(modes[:before]) and evaluated:
        at = rank.steps[before]["backward"]
        report.find("eval_mode", at, first=before + 1, last=len(modes))


def bare(ranks: list[Rank], number: int) -> list[Rank]:
    """Those on which no parameter of this optimizer ever had a gradient."""

    def learns(rank: Rank) -> bool:
        steps = [step for step in rank.steps if step["optimizer"] == number]
        return any(step["without"] < step["parameters"] for step in steps)

    return [rank for rank in ranks if not learns(rank)]


def check_optimizer(rank: Rank, steps: list[dict], report: Report, alone: bool) -> None:
    """alone: on other ranks it has gradients."""
    thrown = [step["thrown"] for step in steps]
    if len(steps) > 3 and all(thrown[1:]):  # in some alone, steps may be skipped
        values = {"count": sum(thrown), "steps": len(steps)}
        report.find("lost_gradient:thrown", steps[-1]["backward"], **values)
    left = sum(step["left"] for step in steps)
    # Not in the first step, nor in the second, for which DDP may make its buckets anew.
    if len(steps) > 4 and all(step["left"] for step in steps[2:]):
        report.find("left_gradients", steps[-1]["backward"], count=left, steps=len(steps))
    learning = [step for step in steps if any(rate > 0 for rate in step["rates"])]
    if len(learning) < 3:
        return
    held = [step["held"] for step in learning if step["held"]]
    if all(step["without"] == step["parameters"] for step in learning):
        values = {"count": len(steps), "parameters": steps[0]["parameters"]}
        kind = "held" if len(held) == len(learning) else "rank" if alone else "other"
        at = (held or [steps[-1]["made"]])[0]
        values |= {"rank": rank.rank} if kind == "rank" else {}
        return report.find(f"untrained:{kind}", at, **values)
    if len(held) > len(learning) / 2:
        report.find("lost_gradient:held", held[0], count=len(held), steps=len(learning))

    weights = [rank.figures["weights"].get(step["n"] - 1) for step in learning]
    weights = [figures for figures in weights if figures]
    gradients = rank.figures["gradients"].get(learning[0]["n"], [])
    if len(weights) > 2 and any(norm > 0 for norm, _ in gradients):
        if all(figures == weights[0] for figures in weights):
            report.find("untrained", steps[-1]["made"], count=len(weights))
    return None


@check()
@finds("schedule", WRONG, "scheduler step exit", alone=True, silent="rates length optimizer")
def check_schedule(ranks: list[Rank], report: Report) -> str | None:
    """Does the learning rate follow the length of the run?"""
    rank = ranks[0]
    if not rank.steps:
        return "optimizer"
    rates = [max(step["rates"], default=0) for step in rank.steps]
    moving = max((n for n, rate in enumerate(rates, 1) if rate > 0), default=0)
    optimizers = [step["optimizer"] for step in rank.steps]
    # All that moves a rate was seen.
    told = len(set(zip(optimizers, rates, strict=True))) == len(set(optimizers))
    over = moving and len(rates) - moving > max(2, 0.2 * len(rates))
    for scheduler in rank.events["scheduler"]:
        places = [dict(step["schedules"]).get(scheduler["id"]) for step in rank.steps]
        places = [place for place in places if place is not None]
        turns = [after - before for before, after in pairwise(places)]
        told = told or any(turns)
        ends = scheduler["length"] is not None or re.search(ENDLESS, scheduler["kind"])
        if any(turns) and not ends and rates[-1] > LOW * max(rates):
            report.skip("schedule", "length")  # its end was not seen
        fed = [turn for turn in turns if turn]
        if scheduler["kind"] == "ReduceLROnPlateau" and fed and 1 < min(fed) < max(3, len(turns)):
            report.find("schedule:fed", scheduler["at"], mild=True, times=min(fed))
        if len(turns) < 3:
            continue
        at = scheduler["at"]
        length = scheduler["length"] or 0
        # Its length may count them all, as accelerate means it: then it ends with the run.
        if min(turns) > 1 and (over or 0 < length < 0.9 * places[-1]):
            report.find("schedule", at, times=min(turns))
        elif scheduler["kind"] == "CosineAnnealingLR" and places[-1] > length:
            report.find("schedule:again", at, mild=True, length=length, place=places[-1])
        elif set(turns) == {1} and len(ranks) > 1 and rank.ended.get("error") == "None":
            if (
                abs(len(places) * len(ranks) - length) <= len(ranks) and places[0] < 2
            ):  # not resumed
                report.find("schedule:slow", at, mild=True, length=length, steps=len(places))

    if over:
        at = rank.sets_rate(rank.steps[moving])
        report.find("schedule:over", at, step=moving, steps=len(rates))
    return None if told or over else "rates"
