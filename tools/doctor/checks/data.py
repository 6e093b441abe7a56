"""Samples, targets and random numbers in training."""

import re
from collections import Counter
from itertools import combinations, pairwise

from ..ranks import Pass, Rank
from ..report import Report, listed

DRAWN = "Weighted|RASampler|Repeat"  # samplers that may draw a sample twice, or never
CHOSEN = f"Subset|Random|{DRAWN}"
RENUMBERED = 10  # samples with other targets: so many, and it is no chance


def check_samples(ranks: list[Rank], report: Report) -> str | None:
    """Do ranks share training samples? Is an epoch's order that of the one before?"""
    trained = [rank.training() for rank in ranks]
    if not all(trained):
        return "loader"

    for line in trained[0]:
        lists = [by.get(line, []) for by in trained]
        if all(lists):
            check_numbers([passes[0].loader for passes in lists], report)
            check_targets(lists, report)
        for epoch, passes in enumerate(zip(*lists, strict=False)):
            check_shares(ranks, passes, epoch + 1, report)

    again = [pair for by in trained for passes in by.values() for pair in pairwise(passes)]
    for before, now in again:
        check_order(before, now, report)
    if not again:
        report.skip("same_order", "epoch")
    return None


def check_numbers(loaders: list[dict], report: Report) -> None:
    """Do all ranks number the same names alike? A set() or a folder has no order."""
    first = loaders[0]
    for name, (count, names, numbers) in first["numbered"].items():
        for loader in loaders[1:]:
            theirs = loader["numbered"].get(name)
            if theirs and theirs[:2] == [count, names] and theirs[2] != numbers:
                finding = "unequal_targets:names"
                if count == first["root"]:
                    finding = "overlapping_samples:files"
                return report.find(finding, first["at"], name=name, count=count)
    return None


def check_targets(lists: list[list[Pass]], report: Report) -> None:
    """Has each sample the same target on all ranks?"""
    targets = [{} for _ in lists]
    for found, passes in zip(targets, lists, strict=True):
        for one in passes:
            if not one.loader["iterable"]:
                found.update(one.by_key("targets"))

    for mine, theirs in combinations(targets, 2):
        common = mine.keys() & theirs.keys()
        pairs = {(mine[key], theirs[key]) for key in common}
        others = {key for key in common if mine[key] != theirs[key]}
        # The same classes in another order; indices into other files give any pairs.
        classes = dict(pairs)
        reordered = len(classes) == len(pairs) and classes.keys() == set(classes.values())
        if len(others) >= RENUMBERED and reordered:
            key = min(others)
            values = {"key": key, "one": mine[key], "other": theirs[key]}
            return report.find("unequal_targets", lists[0][0].loader["at"], **values)
    return None


def check_shares(ranks: list[Rank], passes: tuple[Pass, ...], epoch: int, report: Report) -> None:
    loader = passes[0].loader
    at = loader["at"]
    keys = [one.keys() for one in passes]
    for m, n in combinations(range(len(passes)), 2):
        count = min(len(keys[m]), len(keys[n]))
        part = keys[m][:count]
        if len(set(part)) > 1 and part == keys[n][:count]:
            if loader["iterable"] or comparable(passes[m], passes[n]):
                both = listed([ranks[m], ranks[n]])
                values = {"ranks": both, "epoch": epoch, "count": count}
                return report.find("same_samples", at, **values)
            return report.skip("same_samples", "files")
    if loader["iterable"]:
        return check_streams(keys, loader, epoch, report)

    own = sum(len(part) - len(set(part)) for part in keys)
    drawn = loader["replacement"] or re.search(DRAWN, loader["sampler"])
    if own > 1 or drawn or len(passes) < 2:
        return None  # samples may come twice
    if not all(comparable(passes[0], other) for other in passes[1:]):
        return report.skip("overlapping_samples", "files")

    count = sum(map(len, keys))
    union = set().union(*keys)
    twice = count - len(union)
    size = max(one.size() for one in passes)
    own_batches = loader["accelerate"] or not loader["batch_size"]
    padding = len(passes) * size if own_batches else len(passes) - 1
    if twice > padding:
        return report.find("overlapping_samples", at, epoch=epoch, twice=twice, count=count)

    unseen = (loader["length"] or 0) - len(union)
    dropped = len(passes) * (size + 1)  # by drop_last, of batches and of the share
    whole = report.all_ranks and all(one.whole() for one in passes)
    if whole and unseen > dropped and not re.search(CHOSEN, loader["sampler"]):
        values = {"epoch": epoch, "unseen": unseen, "count": loader["length"]}
        return report.find("overlapping_samples:skipped", at, **values)
    return None


def check_streams(keys: list[list], loader: dict, epoch: int, report: Report) -> None:
    """IterableDatasets: what they made tells samples apart, unless it is augmented."""
    times = [Counter(part) for part in keys]
    repeated = [sum(n > 1 for n in counts.values()) / max(1, len(counts)) for counts in times]
    workers = loader["workers"]
    if workers > 1 and min(repeated) > 0.9:
        values = {"epoch": epoch, "workers": workers}
        return report.find("overlapping_samples:workers", loader["at"], **values)

    count = sum(map(len, times))
    twice = count - len(set().union(*times))
    padding = len(keys) * (loader["batch_size"] or 1)
    if max(repeated) < 0.1 and twice > max(0.1 * count, padding):
        values = {"epoch": epoch, "twice": twice, "count": count}
        return report.find("overlapping_samples", loader["at"], **values)
    return report.skip("overlapping_samples", "iterable")


def check_order(before: Pass, now: Pass, report: Report) -> None:
    if now.loader["iterable"] or before.place == now.place:
        return
    if before.loader["fingerprint"] != now.loader["fingerprint"]:
        return

    count = min(len(before.keys()), len(now.keys()))
    order = now.keys()[:count]
    if count > 5 and order != sorted(order) and order == before.keys()[:count]:
        report.find("same_order", now.loader["at"], count=count)


def comparable(one: Pass, other: Pass) -> bool:
    """Whether equal indices mean equal samples: the data sets, or what they gave, agree."""
    mine, theirs = (part.by_key("targets") for part in (one, other))
    targets = mine.keys() & theirs.keys()
    if any(mine[key] != theirs[key] for key in targets):
        return False

    mine, theirs = (part.by_key("items") for part in (one, other))
    items = mine.keys() & theirs.keys()
    same = [mine[key] == theirs[key] for key in items]
    if one.loader["fingerprint"] == other.loader["fingerprint"]:
        return bool(targets) or not same or any(same)  # augmented images differ, targets do not
    return bool(same) and all(same)


def check_randomness(ranks: list[Rank], report: Report) -> str | None:
    """Do ranks draw the same random numbers, and does anything draw?"""
    trained = [rank.trained() for rank in ranks]
    # A new pass draws a seed for its workers, equal or not: only steps of one pass are asked.
    short = [passes for passes in trained if passes and passes[0].steps < 2]
    if short or any(len(rank.steps) < 2 for rank in ranks):
        return "batches"
    if stream := equal_stream([rank.steps for rank in ranks]):
        if not any(trained):
            at = ranks[0].steps[0]["at"]
            return report.find("equal_randomness:drawn", at, mild=True, name=stream)
        return report.find("equal_randomness", trained[0][0].loader["at"], name=stream)
    return check_items(ranks, trained, report)


def equal_stream(events: list[list[dict]]) -> str:
    """The random numbers that two ranks have alike at the first event, and draw before the next."""
    for name in ("torch", "numpy", "random", "cuda"):
        states = [[event["random"].get(name) for event in two[:2]] for two in events]
        ranks = Counter(first for first, _ in states)
        if any(ranks[first] > 1 and first != second for first, second in states):
            return name
    return ""


def check_items(ranks: list[Rank], trained: list[list[Pass]], report: Report) -> None:
    """Were two items made with the same random numbers, where they should not have been?"""
    seen = {}  # a state of random numbers -> who drew from it
    for rank, passes in zip(ranks, trained, strict=True):
        drew = [(n, event) for n, one in enumerate(passes) for event in one.drew]
        for epoch, event in drew:
            for name, state in event["states"].items():
                place = (rank.rank, event["worker"], epoch)
                before = seen.setdefault((name, state), place)
                if before != place:
                    kind = "workers" if before[2] == epoch else "epochs"
                    at = passes[epoch].loader["at"]
                    return report.find(f"equal_randomness:{kind}", at, name=name)
    return None
