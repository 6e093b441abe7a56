"""Samples and targets in training."""

import re
from ast import literal_eval
from collections import Counter
from collections.abc import Sequence
from itertools import combinations, pairwise
from math import prod

from ..findings import NOTE, TRAINING, WRONG, check, finds
from ..ranks import Pass, Rank
from ..recorder.notes import INPUTS, LOADED
from ..report import Report, listed, short
from .reasons import CHOSEN, DRAWN, OVERLAP, SAME, meant

NEEDS = f"{TRAINING} indices"
UNSEEN = "loader indices together"  # without samples nothing is looked at
SHARED = "sliced given grouped"
RENUMBERED = 10  # samples with other targets: so many, and it is no chance


@check(between=True)
@finds("same_samples", WRONG, f"{NEEDS} collectives forward", silent=f"{UNSEEN} {SHARED} rows")
@finds("same_samples:exchange", NOTE)
@finds(
    "overlapping_samples",
    WRONG,
    f"{NEEDS} collectives forward",
    silent=f"{UNSEEN} {SHARED} iterable",
)
@finds("same_order", WRONG, f"{NEEDS} restore", alone=True, silent=f"{UNSEEN} epoch fixed grouped")
@finds("same_order:workers", NOTE)
@finds("unequal_targets", WRONG, NEEDS, silent=f"{UNSEEN} files")
def check_samples(ranks: list[Rank], report: Report) -> str | None:
    """Do ranks share training samples? Is an epoch's order that of the one before?"""
    trained = [rank.training() for rank in ranks]
    if not all(trained):
        return "loader" if any(trained) else check_rows(ranks, report)
    sharing = ""  # why ranks may have equal samples
    if report.teams.together:
        sharing = "together"
    else:
        sharing = other_parts(ranks)
    if any(one.unseen() for by in trained for passes in by.values() for one in passes):
        return "indices"

    for line in trained[0]:
        lists = [by.get(line, []) for by in trained]
        if all(lists):
            check_numbers([passes[0].loader for passes in lists], report)
            check_targets(lists, report)
        epochs = [] if sharing else list(zip(*lists, strict=False))
        for epoch, passes in enumerate(epochs, 1):
            check_shares(Shares(ranks, passes, epoch, report), report)
        check_whole([] if report.teams.exchange else epochs, report)

    again = [
        pair
        for rank, by in zip(ranks, trained, strict=True)
        for passes in by.values()
        for pair in pairwise(passes)
        if not begins_anew(rank, *pair)
    ]
    for before, now in again:
        check_order(before, now, report)
    endless = [one for by in trained for passes in by.values() for one in passes]
    for one in endless:
        check_endless(one, report)
    if not again and not any(has_epochs(one, len(ranks)) for one in endless):
        report.skip("same_order", "epoch")
    if sharing:
        skip_shares(report, sharing)
    return None


def check_rows(ranks: list[Rank], report: Report) -> str | None:
    """Without a loader, what models are given stands for the samples."""
    rows = [rank.figures["rows"] for rank in ranks]
    steps = sorted(set(rows[0]).intersection(*rows))
    least = min(*(len(rank.steps) for rank in ranks), INPUTS) - 1  # the first model may be unknown
    if report.teams.together or len(steps) < max(3, least):
        return "together" if report.teams.together else "loader"

    for m, n in combinations(range(len(ranks)), 2):
        mine, theirs = ([rows[k][step] for step in steps] for k in (m, n))
        if mine != theirs or any(a == b for a, b in pairwise(mine)):
            continue  # or the same in each step: all of a graph, say
        if any(ranks[m].steps[k]["drawn"] for k in (1, 2)):
            report.skip("same_samples", "rows")
            continue
        values = {"ranks": listed([ranks[m], ranks[n]]), "count": len(steps)}
        at = ranks[0].steps[0]["backward"]
        report.find("same_samples:rows", at, report.teams.exchange, **values)
    for name in ("overlapping_samples", "same_order", "unequal_targets"):
        report.skip(name, "loader")
    return None


def other_parts(ranks: list[Rank]) -> str:
    """Whether models are given other parts of the same samples: the reason why ranks may share
    these; not, where two models are given the same."""
    firsts = [[one for one in rank.trained()[:1]] for rank in ranks]
    begun = [[list(map(one.keys_of, one.batches[:LOADED])) for one in passes] for passes in firsts]
    rows = [rank.figures["rows"] for rank in ranks]
    if any(mine != begun[0] for mine in begun):
        rows = [{}]
    steps = set.intersection(*map(set, rows))
    for mine, theirs in combinations(rows if steps else [], 2):
        if all(mine[step] == theirs[step] for step in steps):
            return ""
    if steps and all(map(cuts, ranks)):
        return "given"
    return "sliced" if all(map(slices, ranks)) else ""


def cuts(rank: Rank) -> bool:
    """Whether the rows that its model is given are other things than the samples, or parts of them
    of which there is one for each rank. A random crop of each picture is none."""
    items, given = shapes_of(rank)
    if not items or not given or prod(max(given, key=prod)) in map(prod, items):
        return False
    whole, part = (max(shapes, key=prod) for shapes in (items, given))
    pairs = list(zip(whole, part, strict=False))
    picture = len(part) > 2 and whole[0] == part[0]
    if len(whole) != len(part) or not (picture or all(w >= p for w, p in pairs)):
        return True
    parts = prod(round(w / max(p, 1)) for w, p in pairs)
    return parts == rank.world or (parts > rank.world and sum(w > p for w, p in pairs) == 1)


def few_of(rank: Rank) -> bool:
    """Whether its model is given clearly fewer numbers than its samples have."""
    items, given = shapes_of(rank)
    rows = rank.figures["rows"].get(2) or []
    samples = min((one.size() for one in rank.trained()), default=0)
    few, all_of = (sum(map(prod, shapes)) for shapes in (given, items))
    return bool(items and given) and len(rows) * few < 0.75 * samples * all_of


def shapes_of(rank: Rank) -> tuple[list[list], list[list]]:
    """The shapes of the tensors of a sample, and of those of a row that its model is given."""
    batches = [batch for one in rank.trained()[:1] for batch in one.batches[:1]]
    kinds = {kind for step in rank.steps[:LOADED] for kind in step["kinds"]}
    items = [shape for batch in batches for shape in batch.get("shape") or []]
    return items, [literal_eval(kind.partition(" ")[2]) for kind in kinds]


def slices(rank: Rank) -> bool:
    """Whether it trains on a part of each batch that its loader gives: the others' parts are other
    ones."""
    size = min((one.size() for one in rank.trained()), default=0)
    rows = [sum(step["rows"]) for step in rank.steps[:3]]
    least = size / (2 * rank.world)  # fewer are a forward pass that only prepares DDP, say
    return all(least <= count < 0.75 * size for count in rows)


def check_numbers(loaders: list[dict], report: Report) -> None:
    """Do all ranks number the same names alike? A set() or a folder has no order."""
    first = loaders[0]
    for name, (count, names, numbers) in first["numbered"].items():
        for loader in loaders[1:]:
            theirs = loader["numbered"].get(name)
            if theirs and theirs[:2] == [count, names] and theirs[2] != numbers:
                values = {"name": name, "count": count}
                files = count == first["root"]
                kind = "overlapping_samples:files" if files else "unequal_targets:names"
                return report.find(kind, first["at"], **values)
    return None


def check_targets(lists: list[list[Pass]], report: Report) -> None:
    """Has each sample the same target on all ranks?"""
    targets, items = [{} for _ in lists], [{} for _ in lists]
    for n, passes in enumerate(lists):
        for one in passes:
            if not one.loader["iterable"]:
                targets[n].update(one.by_key("targets"))
                items[n].update(one.by_key("items"))

    for m, n in combinations(range(len(lists)), 2):
        mine, theirs = targets[m], targets[n]
        common = mine.keys() & theirs.keys()
        pairs = {(mine[key], theirs[key]) for key in common}
        others = {key for key in common if mine[key] != theirs[key]}
        # The same classes in another order; indices into other files give any pairs, and also such
        # ones, if their classes come in turn.
        classes = dict(pairs)
        reordered = len(classes) == len(pairs) and classes.keys() == set(classes.values())
        same = [key for key in others & items[m].keys() if items[m][key] == items[n].get(key)]
        known = len(same) >= RENUMBERED or same_names(lists[m][0].loader, lists[n][0].loader)
        if others and not known:
            report.skip("unequal_targets", "files")
        elif len(others) >= RENUMBERED and reordered:
            key = min(others)
            values = {"key": key, "one": mine[key], "other": theirs[key]}
            return report.find("unequal_targets", lists[0][0].loader["at"], **values)
    return None


def same_names(one: dict, other: dict) -> bool:
    """Whether both loaders' data sets list the same names, one for each sample, such as files."""
    lists = [entry for entry in one["numbered"].items() if entry[1][0] == one["root"]]
    return any(other["numbered"].get(name) == names for name, names in lists)


class Shares:
    """What ranks were given in one epoch of training, by the loaders of one line."""

    def __init__(
        self, ranks: list[Rank], passes: tuple[Pass, ...], epoch: int, report: Report
    ) -> None:
        self.ranks, self.passes, self.epoch = ranks, passes, epoch
        self.exchange = report.teams.exchange
        self.loader = passes[0].loader
        self.keys = [one.keys() for one in passes]
        self.union = set().union(*self.keys)
        self.twice = sum(map(len, self.keys)) - len(self.union)
        self.pair = next(filter(self.alike, combinations(range(len(passes)), 2)), None)

    def alike(self, pair: tuple[int, int]) -> bool:
        mine, theirs = (self.keys[n][: self.count(pair)] for n in pair)
        return len(set(mine)) > 1 and mine == theirs

    def count(self, pair: tuple[int, int]) -> int:
        return min(len(self.keys[n]) for n in pair)

    def comparable(self) -> bool:
        """Whether equal indices mean equal samples, on those ranks that are compared."""
        first, *others = [self.passes[n] for n in self.pair or range(len(self.passes))]
        return self.loader["iterable"] or all(comparable(first, other) for other in others)

    def repeats(self) -> bool:
        own = sum(len(part) - len(set(part)) for part in self.keys)
        drawn = self.loader["replacement"] or re.search(DRAWN, self.loader["sampler"])
        return bool(drawn) or own > most_padding(self.passes) or any(map(Pass.repeats, self.passes))

    # ---- why ----

    def why_same(self) -> tuple[str, dict]:
        values = {"epoch": self.epoch, "count": self.count(self.pair)}
        values |= {"ranks": listed([self.ranks[n] for n in self.pair])}
        values["sampler"] = self.loader["sampler"]
        if self.exchange:
            return "same_samples:exchange", values
        if self.loader["iterable"]:
            return "same_samples:stream", values
        if self.loader["replacement"] or re.search(DRAWN, self.loader["sampler"]):
            return "same_samples:drawn", values
        mine, theirs = (self.ranks[n].figures["rows"] for n in self.pair)
        steps = mine.keys() & theirs.keys()
        given = all(map(few_of, self.ranks)) and all(mine[n] == theirs[n] for n in steps)
        return f"same_samples{':given' * (given and bool(steps))}", values

    def why_overlap(self) -> tuple[str, dict]:
        size = self.loader["length"]
        values = {"epoch": self.epoch, "twice": self.twice, "count": sum(map(len, self.keys))}
        values["all"] = size
        # No Subset, which may be a share, and no sampler that leaves more out than drop_last does.
        whole = self.loader["sampler"] == "RandomSampler" and size == self.loader["root"]
        rows = zip(self.keys, self.passes, strict=True)
        if whole and all(len(keys) + one.size() > size for keys, one in rows):
            return "overlapping_samples:whole", values
        return "overlapping_samples", values


def check_shares(shares: Shares, report: Report) -> None:
    at, passes = shares.loader["at"], shares.passes
    if shares.pair:
        if why := meant(SAME, shares):
            return skip_shares(report, why)
        name, values = shares.why_same()
        return report.find(name, at, **values)
    if shares.loader["iterable"]:
        return check_streams(shares.keys, shares.loader, shares.epoch, report)
    if len(passes) < 2:
        return None

    why = meant(OVERLAP, shares)
    if why == "files":
        skip_shares(report, why)
    elif why:
        report.skip("overlapping_samples", why)
    elif shares.twice > most_padding(passes):
        name, values = shares.why_overlap()
        report.find(name, at, shares.exchange, **values)
    elif any(one.grouped() for one in passes):
        skip_shares(report, "grouped")  # nobody can tell whether it holds
    return None


def most_padding(passes: Sequence[Pass]) -> int:
    """Samples that may come again where a sampler fills the shares of these ranks up."""
    size = max((one.size() for one in passes), default=0)
    own_batches = any(one.loader["accelerate"] or not one.loader["batch_size"] for one in passes)
    return len(passes) * size if own_batches else len(passes) - 1


def skip_shares(report: Report, why: str) -> None:
    report.skip("same_samples", why)
    report.skip("overlapping_samples", why)


def check_whole(epochs: list[tuple[Pass, ...]], report: Report) -> None:
    """Does every epoch skip samples? One may be the rest of an epoch, after a restart."""
    skipped = []
    for epoch, passes in enumerate(epochs, 1):
        loader = passes[0].loader
        seen = [set(one.keys()) for one in passes]
        own = own_shares(passes)
        unseen = (own or loader["length"] or 0) - len(set().union(*seen))
        dropped = len(passes) * (max(one.size() for one in passes) + 1)  # batch and share cut off
        if loader["iterable"] or re.search(CHOSEN, loader["sampler"]) or unseen <= dropped:
            return
        if not all(comparable(passes[0], other) for other in passes[1:]):
            return
        if any(one.grouped() or one.repeats() for one in passes):
            return
        if own and any(
            abs(len(part) * len(passes) - one.loader["length"]) > dropped
            for part, one in zip(seen, passes, strict=True)
        ):
            return  # no second division: a sampler that leaves some out on purpose
        if all(one.whole() for one in passes):
            values = {"epoch": epoch, "unseen": unseen, "count": own or loader["length"]}
            skipped.append((loader["at"], values))
    if skipped and report.all_ranks and len(epochs[0]) > 1:
        at, values = skipped[0]
        name = "overlapping_samples:again" if own else "overlapping_samples:skipped"
        report.find(name, at, **values)


def own_shares(passes: tuple[Pass, ...]) -> int:
    """If each rank has another Subset, and they may be parts of the whole: their samples."""
    parts = {one.loader["subset"]: one.loader["length"] for one in passes}
    if "" in parts or len(parts) < max(2, len(passes)):
        return 0
    count = sum(parts.values())
    return count if count <= passes[0].loader["root"] else 0


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
        return report.find("overlapping_samples", loader["at"], report.teams.exchange, **values)
    return report.skip("overlapping_samples", "iterable")


def begins_anew(rank: Rank, before: Pass, now: Pass) -> bool:
    """Whether the training has gone back between two passes, to where a checkpoint was made: it has
    a new optimizer, or the state of the old one was restored. Then an epoch may come again."""
    steps, later = ([rank.steps[n - 1] for n, _ in one.learned] for one in (before, now))
    if not steps:
        return False
    over = later[0]["row"] if later else now.over
    restored = any(steps[-1]["row"] < event["row"] < over for event in rank.events["restored"])
    mine, theirs = ({step["optimizer"] for step in found} for found in (steps, later))
    return restored or bool(theirs and not mine & theirs)


def check_order(before: Pass, now: Pass, report: Report) -> None:
    mine, theirs = before.by_key("items"), now.by_key("items")
    common = mine.keys() & theirs.keys()
    if now.stale and len(common) > 1 and all(mine[key] == theirs[key] for key in common):
        report.find("same_order:workers", now.loader["at"], names=listed(now.stale))
    if now.loader["iterable"] or before.place == now.place:
        return
    if not now.loader["shuffles"]:
        report.skip("same_order", "fixed")
        return
    if before.loader["fingerprint"] != now.loader["fingerprint"]:
        return

    count = min(len(before.keys()), len(now.keys()))
    order = now.keys()[:count]
    if count > 5 and order != sorted(order) and order == before.keys()[:count]:
        at = again(*(one.seeded.get("torch", []) for one in (before, now)))
        if at and now.loader["drawing"] == "RandomSampler":
            report.find("same_order:seeded", at, count=count, line=short(at))
        report.find("same_order", now.loader["at"], count=count)
    elif now.grouped():
        report.skip("same_order", "grouped")


def again(before: list, now: list) -> list:
    """The line that seeded last before each of two passes of a rank, with the same seed."""
    if before and now and before[-1][1] < now[-1][1]:
        (seed, _, frames), (other, _, others) = before[-1], now[-1]
        if seed == other is not None and frames == others:
            return frames[0]
    return []


def check_endless(one: Pass, report: Report) -> None:
    """A pass that goes on for several epochs: is the second one like the first?"""
    keys = one.keys()
    if one.loader["iterable"] or keys.count((keys or [None])[0]) < 2:
        return
    if not one.loader["shuffles"]:
        report.skip("same_order", "fixed")
        return
    count = keys.index(keys[0], 1)  # where the first sample comes again
    epoch = keys[:count]
    if count < 6 or len(set(epoch)) < count:
        return
    if epoch != sorted(epoch) and epoch == keys[count : 2 * count]:
        report.find("same_order:endless", one.loader["at"], count=count)


def has_epochs(one: Pass, ranks: int) -> bool:
    """Whether a pass goes on for two epochs, if the ranks divide the samples."""
    length = one.loader["length"]
    return bool(length) and len(one.keys()) >= 2 * length / ranks


def comparable(one: Pass, other: Pass) -> bool:
    """Whether equal indices mean equal samples: the data sets, or what they gave, agree."""
    if one is other:
        return True
    mine, theirs = (part.by_key("targets") for part in (one, other))
    targets = mine.keys() & theirs.keys()
    if any(mine[key] != theirs[key] for key in targets):
        return False

    mine, theirs = (part.by_key("items") for part in (one, other))
    items = mine.keys() & theirs.keys()
    same = [mine[key] == theirs[key] for key in items]
    if one.loader["fingerprint"] == other.loader["fingerprint"]:
        if targets or any(same):
            return True  # augmented images differ, targets do not
        if same and not any(event["states"] for event in one.drew + other.drew):
            return False
        common = set(one.keys()) & set(other.keys())  # of which nobody saw what they gave
        return not common or one.loader["described"]
    return bool(same) and all(same)
