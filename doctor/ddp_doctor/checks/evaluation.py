"""Which samples are evaluated, with which statistics, and what is reported."""

import math
import re
from collections import Counter, defaultdict

from ..findings import NOTE, TRAINING, WASTED, WRONG, check, finds
from ..printed import numbers_in, results, unit
from ..ranks import Pass, Rank
from ..report import Report, listed
from .data import CHOSEN, comparable
from .equal import differ, differences
from .weights import compared, stay

NEEDS = f"{TRAINING} indices collectives files save printed"

FEW = 16  # numbers of a collective: of more the recorder tells their sum
OTHER = r"(?i)train|lr$|.*rate$"  # words before numbers that are no evaluation's


@check(between=True)
@finds("wrong_evaluation", WRONG, NEEDS, alone=True)
@finds("wrong_evaluation:flag", NOTE)
@finds("wrong_evaluation:everyone", WASTED)
def check_evaluation(ranks: list[Rank], report: Report) -> str | None:
    """Is each sample evaluated once, and is the sum of all ranks reported?"""
    if not report.all_ranks:
        return "machines"
    if report.teams.together:
        return "together"
    phases = [rank.evaluations() for rank in ranks]
    by_ranks = Counter(key for phase in phases for key in phase)
    if not by_ranks:
        return "evaluation"
    [(key, _)] = by_ranks.most_common(1)  # of several, the one that came first
    first, _ = key
    phase = [phase[key] for phase in phases if key in phase]
    if any(one.unseen() for passes in phase for one in passes):
        return "indices"
    return check_coverage(phase, joins_files(ranks, first), ranks, report)


def joins_files(ranks: list[Rank], place: int) -> bool:
    """Whether each rank has written a part of a file, or one of its own at that time, from which
    somebody may make one result. A library that does so numbers them: it has other files, too."""
    own = [[e for e in rank.events["wrote"] if not e["library"]] for rank in ranks]
    if all(any(not event["whole"] for event in events) for events in own):
        return True
    wrote = [{e["path"] for e in events if e["place"] == place} for events in own]
    if all(wrote) and not set.intersection(*wrote):
        return True
    numbered = []
    for rank in ranks:
        events = [e for e in rank.events["wrote"] if e["library"] and e["place"] == place]
        numbered.append({(re.sub(r"\d+", "", e["path"]), e["path"]) for e in events})
    names = [{name for name, _ in files} for files in numbered]
    return bool(set.intersection(*names)) and not set.intersection(*numbered)


def check_coverage(
    phase: list[list[Pass]], joined: bool, ranks: list[Rank], report: Report
) -> str | None:
    """phase: for each rank that evaluates, its passes over the set. joined: what joins_files
    says."""
    loaders = [one.loader for passes in phase for one in passes]
    if any(loader["iterable"] or loader["root"] is None for loader in loaders):
        return "iterable"
    if not all(comparable(passes[0], phase[0][0]) for passes in phase):
        return "files"
    if any(one.grouped() for passes in phase for one in passes):
        return "grouped"
    if any(one.repeats() for passes in phase for one in passes):
        return "repeats"

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

    # The name "" is no Subset: any other is a part of it, and parts may be filled up.
    size = parts.get("") or min(sum(parts.values()), loaders[0]["root"])
    twice = sum(counts.values()) - len(counts)
    missing = size - len(counts)
    at = loaders[0]["at"]
    reduced = [event for passes in phase for one in passes for event in one.reduced]
    accelerate = loaders[0]["accelerate"]
    gathered = any("gather" in event["kind"] for event in reduced)
    largest = max((event["size"] for event in reduced), default=0)

    chosen = any(re.search(CHOSEN, loader["sampler"]) for loader in loaders)
    # What nobody adds up is the score of one rank, whatever else is wrong with it.
    share = {"share": len(phase[0][0].keys()), "count": size}
    if len(phase) > 1 and not everyone and not reduced and not joined:
        return report.find("wrong_evaluation:share", at, accelerate, **share)
    if missing > 0 and not chosen:
        return report.find("wrong_evaluation:part", at, accelerate, missing=missing, count=size)
    if twice > 0 and not chosen:
        if joined:
            return "joined"
        if accelerate:
            return "gathered"  # its gather_for_metrics leaves repeats out
        if size in counted(phase, twice):
            return None  # each rank has left out what its sampler repeats
        name = "wrong_evaluation:gathered" if gathered else "wrong_evaluation"
        return report.find(name, at, gathered, twice=twice, count=size)
    if everyone and len(phase) > 1:
        if largest >= size:
            return "views"
        mild = report.teams.exchange
        return report.find("wrong_evaluation:everyone", at, mild, count=size)
    if len(phase) > 1 and all(map(is_flag, reduced)):
        return "joined" if joined else report.find("wrong_evaluation:flag", at, accelerate, **share)
    if missing > 0 or twice:
        return "chosen"
    if len(phase) == 1 or gathered or joined or everyone:
        return None
    if size in counted(phase, 0):
        if numbers := own_scores(ranks, phase[0][0]):
            report.skip("wrong_evaluation", report.say("own_score", numbers=listed(numbers)))
        return None
    unread = [e for e in reduced if e["kind"] in ("allreduce", "reduce") and e["values"] is None]
    return "unread" if unread else "unproven"


def own_scores(ranks: list[Rank], one: Pass) -> list[str]:
    """Numbers that rank 0 prints between this pass and the next step, and that nobody can make of
    what ranks add up there; none, if not all of that is known."""
    sums = Counter()
    for rank in ranks:
        events = [e for e in rank.own_calls() if e["place"] == one.place]
        for n, event in enumerate(e for e in events if e["kind"] not in ("barrier", "broadcast")):
            if event["values"] is None or event["size"] > FEW:
                return []
            for place, value in enumerate(event["values"]):
                sums[n, place] += value
                sums[str(event["at"]), place] += value
    parts = [a / b for a in sums.values() for b in (*sums.values(), 1, len(ranks)) if b]
    known = [x for p in parts for x in (p, 100 * p, 1 - p, 100 - 100 * p, abs(p) ** 0.5)]
    known += [math.exp(p) for p in parts if p < 99]
    found = []
    for event in ranks[0].events["printed"]:
        if event["place"] == one.place and event["row"] > one.over:
            text = results(event["text"])
            for word, number in numbers_in(text):
                far = min((abs(float(number) - x) for x in known), default=0)
                if "." in number and far > unit(number) and not re.match(OTHER, word):
                    found.append(f"{word} {number}".strip())
    return found


def is_flag(event: dict) -> bool:
    """One number, 0 or 1, such as a vote for an early stop; but an accuracy may be one, too."""
    return event["size"] == 1 and event["values"] in ([0.0], [1.0])


def counted(phase: list[list[Pass]], twice: int) -> set[float]:
    """Sums that the ranks may have got by all_reduce of samples that each has counted: all of its
    share, or all but some of those that come twice."""
    sums = set()
    shares = [sum(len(one.keys()) for one in passes) for passes in phase]
    numbers = [added(passes) for passes in phase]
    for key in set.intersection(*map(set, numbers)):
        own = [mine[key] for mine in numbers]
        left = [share - count for share, count in zip(shares, own, strict=True)]
        sums |= {sum(own)} if 0 <= min(left) and max(left) <= twice else set()
    return sums


def added(passes: list[Pass]) -> dict[tuple, float]:
    """The numbers of a rank that it has reduced: each that came after the last batch, and for each
    line the sum over all batches. A number of one batch may be as large as a share by chance."""
    last = max(batch["t"] for one in passes for batch in one.batches)
    events = {id(e): e for one in passes for e in one.reduced}.values()
    sums = Counter()
    for n, event in enumerate(events):
        for place, value in enumerate(event["values"] or []):
            sums[str(event["at"]), place] += value
            if event["t"] >= last:
                sums[n, place] = value
    return sums


@check(between=True, unless="unequal_steps")
@finds("unequal_buffers", WRONG, f"{TRAINING} collectives")
@finds("unequal_buffers:statistics", NOTE)
def check_buffers(ranks: list[Rank], report: Report) -> str | None:
    """Are BatchNorm's statistics equal where ranks evaluate?"""
    if report.teams.together:
        return "together"
    check_statistics(ranks, report)
    found = [rank for rank in ranks if rank.figures["buffers"]]
    if len(found) < 2:
        return None if report.has("unequal_buffers") else "buffers"
    first = found[0]
    by_place = {first.passes[n].place: values for n, values in first.figures["buffers"].items()}
    for rank in found[1:]:
        for n, values in rank.figures["buffers"].items():
            one = rank.passes[n]
            if differ(values, by_place.get(one.place, values)):
                who = listed([first, rank])
                return report.find("unequal_buffers", one.loader["at"], ranks=who)
    return None


def check_statistics(ranks: list[Rank], report: Report) -> None:
    """Running statistics of another kind, of observations say: does each rank keep its own?"""
    unequal = differences(ranks, "statistics") if compared(ranks, "statistics") else {}
    last = unequal.get(max(unequal, default=None))
    if last and not any(stay(rank, "statistics") for rank in ranks) and not merges(ranks[0]):
        report.find("unequal_buffers:statistics", ranks[0].model["at"], **last)


def merges(rank: Rank) -> bool:
    """Whether the script tells other ranks so many numbers, but not in each step: after an epoch,
    say, they may become those of all."""
    count = sum(rank.model["others"]["statistics"])
    places = defaultdict(set)
    sizes = Counter()
    for event in rank.own_calls():
        if event["place"]:
            places[str(event["at"])].add(event["place"])
            sizes[event["place"], str(event["at"])] += event["size"]
    seldom = [at for at, steps in places.items() if len(steps) < 0.9 * len(rank.steps)]
    return any(size >= count / 2 for (_, at), size in sizes.items() if at in seldom)
