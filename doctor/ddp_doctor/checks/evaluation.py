"""Which samples are evaluated, with which statistics, and what is reported."""

import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterator
from itertools import product

from ..findings import NOTE, TRAINING, WASTED, WRONG, check, finds
from ..printed import numbers_in, results, unit
from ..ranks import Pass, Rank
from ..report import Report, listed
from .data import comparable
from .equal import differ, differences
from .reasons import ADDED, DIVIDED, LOOKED, ONCE, SCORES, WHOLE, meant
from .weights import compared, stay

NEEDS = f"{TRAINING} indices collectives files save printed"

FEW = 16  # numbers of a collective: of more the recorder tells their sum
OTHER = r"(?i)train|lr$|.*rate$"  # words before numbers that are no evaluation's


@check(between=True)
@finds(
    "wrong_evaluation",
    WRONG,
    NEEDS,
    alone=True,
    silent="machines together evaluation indices own_score unread unproven",
)
@finds("wrong_evaluation:flag", NOTE)
@finds("wrong_evaluation:means", NOTE)
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
    return check_coverage(Coverage(phase, joins_files(ranks, first)), ranks, report)


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


class Coverage:
    """What the ranks that evaluate a set were given of it, and what they told each other then."""

    def __init__(self, phase: list[list[Pass]], joined: bool) -> None:
        """phase: for each of these ranks, its passes over the set. joined: what joins_files
        says."""
        self.phase, self.joined = phase, joined
        self.passes = [one for passes in phase for one in passes]
        self.at, self.loop = self.passes[0].loader["at"], self.passes[0].at
        self.accelerate = self.passes[0].loader["accelerate"]
        self.several = len(phase) > 1
        self.reduced = [event for one in self.passes for event in one.reduced]
        self.gathered = any("gather" in event["kind"] for event in self.reduced)
        self.largest = max((event["size"] for event in self.reduced), default=0)

    def comparable(self) -> bool:
        return all(comparable(passes[0], self.phase[0][0]) for passes in self.phase)

    def repeats(self) -> bool:
        return any(map(Pass.repeats, self.passes))

    def look(self) -> None:
        counts = Counter()
        parts = {}
        self.everyone = True  # each rank has seen all
        for passes in zip(*self.phase, strict=False):
            keys = [one.keys() for one in passes]
            same = all(part == keys[0] for part in keys)
            self.everyone = self.everyone and same
            for part in keys[:1] if same else keys:
                counts.update(part)
            parts.update((one.loader["subset"], one.loader["length"]) for one in passes)
        # The name "" is no Subset: any other is a part of it, and parts may be filled up.
        root = self.passes[0].loader["root"]
        self.size = parts.get("") or min(sum(parts.values()), root)
        self.twice = sum(counts.values()) - len(counts)
        self.missing = self.size - len(counts)

    # ---- relations: what breaks them. The first one says what is wrong ----

    def broken(self) -> Iterator[tuple[str, tuple]]:
        """Each with its kind, the line that one has to change, whether that is a note alone, and
        values. Where nothing is added up, it is one between the loop and the first print."""
        share = {"share": len(self.phase[0][0].keys()), "count": self.size}
        # What nobody adds up is the score of one rank, whatever else is wrong with it.
        if self.several and not self.everyone and not self.reduced:
            yield ADDED, ("wrong_evaluation:share", self.told, self.accelerate, share)
        if self.missing > 0:
            values = {"missing": self.missing, "count": self.size}
            yield WHOLE, ("wrong_evaluation:part", self.at, self.accelerate, values)
        if self.twice > 0 and self.size not in counted(self.phase, self.twice):
            values = {"twice": self.twice, "count": self.size}
            name = f"wrong_evaluation{':gathered' * self.gathered}"
            yield ONCE, (name, self.at, self.gathered, values)
        if self.several and self.everyone:
            values = {"count": self.size}
            yield DIVIDED, ("wrong_evaluation:everyone", self.at, self.exchange, values)
        elif self.several and all(map(is_flag, self.reduced)):
            yield SCORES, ("wrong_evaluation:flag", self.told, self.accelerate, share)


def check_coverage(seen: Coverage, ranks: list[Rank], report: Report) -> str | None:
    if why := meant(LOOKED, seen):
        return why
    seen.look()
    seen.exchange = report.teams.exchange
    silent = ""
    printed = [event for event, _, _ in scores_after(ranks[0], seen.phase[0][0])]
    seen.told = printed[0]["at"] if printed else seen.loop
    for relation, (name, at, mild, values) in seen.broken():
        why = meant(relation, seen)
        if not why:
            return report.find(name, at, mild, **values)
        silent = why

    known = not seen.several or seen.gathered or seen.joined or seen.everyone
    if silent or known or seen.twice > 0:
        return silent or None
    if seen.size in counted(seen.phase, 0):
        if numbers := own_scores(ranks, seen.phase[0][0]):
            report.skip("wrong_evaluation", report.say("own_score", numbers=listed(numbers)))
        return None
    if values := mean_of_means(ranks, seen):
        return report.find("wrong_evaluation:means", values.pop("at"), **values)
    kinds = ("allreduce", "reduce")
    unread = [e for e in seen.reduced if e["kind"] in kinds and e["values"] is None]
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
            side = math.isqrt(len(event["values"]))
            if 1 < side**2 == len(event["values"]):  # what is right, of a confusion matrix; and all
                sums[n, "right"] += sum(event["values"][:: side + 1])
                sums[n, "all"] += sum(event["values"])
            for place, value in enumerate(event["values"]):
                sums[n, place] += value
                sums[str(event["at"]), place] += value
    steps = len(one.batches)
    counts = {1, len(ranks), steps, steps * len(ranks), len(one.keys())}
    parts = [a / b for a in sums.values() for b in (*sums.values(), *counts) if b]
    known = [x for p in parts for x in (p, 100 * p, 1 - p, 100 - 100 * p, abs(p) ** 0.5)]
    known += [math.exp(p) for p in parts if p < 99]
    found = []
    for _, word, number in scores_after(ranks[0], one):
        far = min((abs(float(number) - x) for x in known), default=0)
        if far > unit(number):
            found.append(f"{word} {number}".strip())
    return found


def scores_after(rank: Rank, one: Pass) -> Iterator[tuple[dict, str, str]]:
    """Numbers that it prints between this pass and the next step: the event, word, and number."""
    for event in rank.events["printed"]:
        if event["place"] == one.place and event["row"] > one.over:
            for word, number in numbers_in(results(event["text"])):
                if "." in number and not re.match(OTHER, word):
                    yield event, word, number


def mean_of_means(ranks: list[Rank], seen: Coverage) -> dict:
    """A number that rank 0 prints, and that is the sum of what a line adds up, divided by how many
    ranks there are, or batches, of unlike sizes: then each sample of a small one counts more."""
    shares = [sum(len(one.keys()) for one in passes) for passes in seen.phase]
    batches = [len(one.keys_of(batch)) for one in seen.passes for batch in one.batches]
    sums = Counter()
    for event in {id(e): e for e in seen.reduced}.values():
        for place, value in enumerate(event["values"] or []):
            sums[str(event["at"]), place] += value
    lines = {str(event["at"]): event["at"] for event in seen.reduced}
    unlike = [sizes for sizes in (shares, batches) if len({*sizes}) > 1]
    scores = [one for one in scores_after(ranks[0], seen.phase[0][0]) if is_exact(one[2])]
    for (_, word, number), sizes, ((at, _), total) in product(scores, unlike, sums.items()):
        mean = total / len(sizes)
        if any(abs(float(number) - x) <= unit(number) for x in (mean, 100 * mean)):
            values = {"number": f"{word} {number}".strip(), "parts": len(sizes)}
            return values | {"least": min(sizes), "most": max(sizes), "at": lines[at]}
    return {}


def is_exact(number: str) -> bool:
    """Whether it has digits enough to be no other number by chance."""
    return unit(number) < 0.01 * abs(float(number))


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
@finds("unequal_buffers", WRONG, f"{TRAINING} collectives", silent="together buffers")
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
