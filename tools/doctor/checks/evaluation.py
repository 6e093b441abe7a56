"""Which samples are evaluated, with which statistics, and what is reported."""

import linecache
import re
from collections import Counter

from ..ranks import Pass, Rank
from ..report import Report, listed
from .data import CHOSEN, comparable
from .training import differ

RANKS = "world|n_?procs|num_(gpus|replicas)|get_world_size"  # what their number is called


def check_evaluation(ranks: list[Rank], report: Report) -> str | None:
    """Is each sample evaluated once, and is the sum of all ranks reported?"""
    if not report.all_ranks:
        return "machines"
    phases = [rank.evaluations() for rank in ranks]
    by_ranks = Counter(key for phase in phases for key in phase)
    if not by_ranks:
        return "evaluation"
    [(first, _)] = by_ranks.most_common(1)  # of several, the one that came first
    phase = [phase[first] for phase in phases if first in phase]
    check_coverage(phase, report)
    check_average(phase, report)
    return None


def check_coverage(phase: list[list[Pass]], report: Report) -> None:
    """phase: for each rank that evaluates, its passes over the set."""
    loaders = [one.loader for passes in phase for one in passes]
    if any(loader["iterable"] or loader["root"] is None for loader in loaders):
        return report.skip("wrong_evaluation", "iterable")
    if not all(comparable(passes[0], phase[0][0]) for passes in phase):
        return report.skip("wrong_evaluation", "files")

    counts = Counter()
    parts = {}
    everyone = True
    for passes in zip(*phase, strict=False):
        keys = [one.keys() for one in passes]
        same = all(part == keys[0] for part in keys)
        everyone = everyone and same
        for part in keys[:1] if same else keys:
            counts.update(part)
        parts.update((one.loader["subset"], one.loader["length"]) for one in passes)

    # The name "" is no Subset: any other is a part of it.
    size = parts.get("") or sum(parts.values())
    twice = sum(counts.values()) - len(counts)
    missing = size - len(counts)
    at = loaders[0]["at"]
    kinds = {event["kind"] for passes in phase for one in passes for event in one.reduced}
    # What was gathered may have been cut: accelerate's gather_for_metrics does so.
    accelerate = loaders[0]["accelerate"]
    cut = accelerate or any("gather" in kind for kind in kinds)

    chosen = any(re.search(CHOSEN, loader["sampler"]) for loader in loaders)
    if missing > 0 and not chosen:
        return report.find("wrong_evaluation:part", at, accelerate, missing=missing, count=size)
    if twice > 0 and not chosen:
        return report.find("wrong_evaluation", at, cut, twice=twice, count=size)
    if everyone and len(phase) > 1:
        return report.find("wrong_evaluation:everyone", at, count=size)
    if len(phase) > 1 and not kinds:
        share = len(phase[0][0].keys())
        return report.find("wrong_evaluation:share", at, accelerate, share=share, count=size)
    return None


def check_average(phase: list[list[Pass]], report: Report) -> None:
    """Is a mean of means taken over ranks with unequal numbers of samples?"""
    counts = [sum(len(one.keys()) for one in passes) for passes in phase]
    few = [event for one in phase[0] for event in one.reduced if event["size"] <= 16]
    for event in few if len(set(counts)) > 1 else []:
        if event["kind"] == "allreduce" and (event["average"] or divides_by_ranks(event["at"])):
            values = {"few": min(counts), "many": max(counts)}
            return report.find("mean_of_means", event["at"], **values)
    return None


def divides_by_ranks(at: list) -> bool:
    """Whether there is a division by the number of ranks in the lines below."""
    file, line = at
    near = linecache.getlines(file)[line - 1 : line + 5]
    return any(re.search(rf"/[^/#]*({RANKS})", text) for text in near)


def check_buffers(ranks: list[Rank], report: Report) -> str | None:
    """Are BatchNorm's statistics equal where ranks evaluate?"""
    if report.has("unequal_steps"):
        return "steps"
    found = [rank for rank in ranks if rank.figures["buffers"]]
    if len(found) < 2:
        return "buffers"
    first = found[0]
    by_place = {first.passes[n].place: values for n, values in first.figures["buffers"].items()}
    for rank in found[1:]:
        for n, values in rank.figures["buffers"].items():
            one = rank.passes[n]
            if differ(values, by_place.get(one.place, values)):
                who = listed([first, rank])
                return report.find("unequal_buffers", one.loader["at"], ranks=who)
    return None
