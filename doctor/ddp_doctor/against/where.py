"""The place where two runs part: what a model is given, a module, the loss, or behind backward.

Both were started again, and recorder/modules.py has looked at the step in which they part. Its
moments (a module is given something, or returns it) are compared in their order, and gradients of
what was returned from the last one back. A moment has a call for each share of the samples: that of
a rank, or of one of its passes.
"""

import math
from collections import defaultdict
from operator import mul

from ..recorder.notes import GOLDEN
from ..report import listed, short
from .comparison import Comparison, Seen, few
from .inputs import common
from .runs import Run

PARTED = {"batchnorm", "dropout", "drawn", "drawn:still", "resumed:random", "counts"}
PARTED |= {"dropout:alone", "unknown:gradients"}
WHEN = (("enter", "given"), ("leave", "returned"))
SMALL = 1e-5  # of a gradient: it may be rounding of one operation in float32
EXACT = 1e-6  # factors that are further apart are others
Pairs = list[tuple[list, list]]  # of each share of B: rows of A, and those of B, in one order


def parting(comparison: Comparison) -> Seen | None:
    """What is said of the step in which gradients part."""
    seen = comparison.seen
    return next((s for s in seen if s.name.split(":")[0] == "gradients" or s.name in PARTED), None)


def tell_place(first: Comparison, again: Comparison | None) -> None:
    """first: gets the place, behind the difference. again: of the second pair of runs, or None if
    one of them has failed."""
    parted = parting(first)
    now = parting(again) if again else None
    if now and (now.name, now.step) == (parted.name, parted.step):
        runs = zip((first.one, first.two), (again.one, again.two), strict=True)
        name, values = Place(again, *(looked(run, one) for one, run in runs)).find(parted)
    elif again:
        others = [seen.text for seen in again.seen if seen.kind not in ("same", "note")]
        compiled = any(rank.events["compiled"] for run in again.runs for rank in run.everyone)
        name = "compiled" if compiled and not others else "other"
        values = {"said": (others or [first.report.say("against_nothing")])[0]}
    else:
        name, values = "failed", {}
    said = [(name, values)]
    said += [(f"more:{what}", {"names": few(names)}) for what, names in values.get("more", ())]
    place = first.seen.index(parted) + 1
    for name, known in reversed(said):
        first.say("where", f"where:{name}", parted.step, **known)
        first.seen.insert(place, first.seen.pop())


def looked(run: Run, known: Run) -> list[list[dict]]:
    """Calls on each rank that has samples of its own, which the first pair tells: it was longer.
    Without passes from which no gradient came, such as a first look, if others of the module have
    learned; the rest count anew."""
    found = []
    for rank in known.ranks:
        events = run.everyone[rank.rank].events["module"]
        passes = {(e["root"], e["pass"]) for e in events if came(e)}
        roots = {root for root, _ in passes}
        passes |= {(e["root"], e["pass"]) for e in events if e["root"] not in roots}
        turns = {one: sum(o[0] == one[0] and o <= one for o in passes) for one in passes}
        places = [(e, turns.get((e["root"], e["pass"]))) for e in events]
        found.append([{**e, "pass": turn} for e, turn in places if turn])
    return found


def passes_of(ranks: list[list[dict]], root: int) -> set[int]:
    """How many each rank has made of an outermost module."""
    return {len({e["pass"] for e in rank if e["root"] == root}) for rank in ranks}


def moments_of(ranks: list[list[dict]], merged: set[int]) -> dict[tuple, list[dict]]:
    """In their order: (outermost module, pass, name, its call, given or returned) -> calls.
    merged: outermost modules whose passes are shares of one batch."""
    found = defaultdict(list)
    for rank in ranks:
        moments = [(e[when], what, e) for e in rank for when, what in WHEN]
        for _, what, e in sorted(moments, key=lambda moment: moment[0]):
            number = 0 if e["root"] in merged else e["pass"]
            found[e["root"], number, e["name"], e["call"], what].append(e)
    return found


def came(event: dict) -> set[str]:
    """Places of what was returned whose gradient has come."""
    return {path for path, (_, shape) in event["gradients"].items() if shape is not None}


def name_alike(*sides: list[list[dict]]) -> None:
    """The model of one run may be a part of the other's: its parts then have their names there."""
    events = [[e for rank in ranks for e in rank] for ranks in sides]
    for mine, theirs in (events, events[::-1]):
        names = {(e["root"], e["name"]) for e in mine}
        for root in {root for root, _ in names}:
            outer = {e["name"] for e in theirs if e["root"] == root}
            if all((root, name) in names for name in outer):
                continue
            fits = {one: sum((root, below(n, one)) in names for n in outer) for one in outer}
            best = max(sorted(fits), key=fits.get, default="")
            if best and fits[best] > fits.get("", 0):
                for event in (e for e in theirs if e["root"] == root):
                    event["name"] = below(event["name"], best)


def below(name: str, outer: str) -> str:
    """Of "0.head" below "0": "head"; names that are not below it stay apart."""
    inside = f".{name}.".startswith(f".{outer}." if outer else ".")
    return f".{name}"[len(outer) + bool(outer) + 1 :] if inside else f"({name})"


class Place:
    def __init__(self, again: Comparison, *sides: list[list[dict]]) -> None:
        self.again, self.sides = again, sides
        self.bound = again.bound()
        self.times = len(sides[1]) / len(sides[0])  # a right gradient by an output is, in B
        name_alike(*sides)
        roots = {e["root"] for ranks in sides for rank in ranks for e in rank}
        passes = {r: set().union(*(passes_of(ranks, r) for ranks in sides)) for r in roots}
        merged = {root for root in roots if len(passes[root]) > 1}
        self.one, self.two = (moments_of(ranks, merged) for ranks in sides)
        self.keys = [key for key in self.one if key in self.two]
        alone = {key[2] for key in self.one.keys() ^ self.two.keys()}
        alone -= {key[2] for key in self.keys}
        self.alone = sorted(name for name in alone if not name.startswith("("))
        self.order: list[int | None] = []  # of each sample of B, in turn: which one of A it is,
        self.samples = 0  # of so many
        self.unseen: list[str] = []  # modules whose rows are no samples
        self.left_out: list[str] = []  # arguments that one run does not give
        self.before = again.report.say("where_given")  # or the latest module that returns the same
        self.count = 0  # modules that do
        self.behind = ""  # the latest module with the same gradient, from the end

    def find(self, parted: Seen) -> tuple[str, dict]:
        """The name of what is said, and its values."""
        name, values = self.forward() or self.backward() or self.after(parted)
        more = {"unseen": list(dict.fromkeys(self.unseen)), "alone": self.alone}
        more |= {"left_out": self.left_out}
        values = {"before": self.before, "count": self.count, **values}
        return name, {**values, "more": [pair for pair in more.items() if pair[1]]}

    # ---- what modules are given, and return ----

    def forward(self) -> tuple[str, dict] | None:
        inside, passes, latest = [], set(), None
        lacking = {}  # calls that lack an argument in one run, which may not need it
        for key in self.keys:
            mine, theirs = self.one[key], self.two[key]
            what, name = key[4], shown(theirs[0])
            if key[:2] not in passes and (found := self.match(mine, theirs)):
                return "input", {"name": name, "at": short(theirs[0]["at"]), **found}
            passes.add(key[:2])
            size, argument = self.compare(mine, theirs, what)
            values = {"name": name, "at": short(theirs[0]["at"]), "size": size}
            if what == "given":
                if size > self.bound:
                    which = "between" if inside else "script" if self.count else "argument"
                    alone = math.isinf(size)
                    how = self.again.report.say("where_alone" if alone else "where_by", size=size)
                    values |= {"argument": argument, "how": how, "inside": listed(inside[-1:])}
                    values |= {"before": self.before, "size": None if alone else size}
                    if not alone:
                        return which, values
                    lacking[key[:4]] = which, values
                    self.left_out.append(f"{argument} of {name}")
                inside.append(name)
            else:
                inside.pop()
                if size > self.bound:
                    leaf = latest == (*key[:4], "given")
                    if key[:4] in lacking:
                        self.left_out.clear()
                        return next(iter(lacking.values()))  # on the way to this one
                    return ("module" if leaf else "own"), values
                if size < 0:
                    self.unseen.append(name)
                else:
                    self.before, self.count = name, self.count + 1
            latest = key
        return None if self.count else ("unseen", {})

    def match(self, mine: list[dict], theirs: list[dict]) -> dict | None:
        """Where a pass begins, samples of A and B are matched by what its model is given: by the
        tensor that tells most of them apart. Those of the pass before hold, where they fit."""
        if self.order and 0 <= self.compare(mine, theirs, "given")[0] <= self.bound:
            return None
        found, calls = [], [*mine, *theirs]
        for path in mine[0]["given"]:
            tensors = cut(of_path(calls, "given", path), calls)
            alike = len({str(shape[1:]) for _, shape in tensors}) == 1
            samples = [e["samples"] for e in calls]
            if alike and all(
                s and r and len(r) % s == 0 for (r, _), s in zip(tensors, samples, strict=True)
            ):
                rows = [of_samples(r, s) for (r, _), s in zip(tensors, samples, strict=True)]
                a, b = (sum(part, []) for part in (rows[: len(mine)], rows[len(mine) :]))
                found.append((len(set(a)), common(a, b), path, a, b))
        if not found:
            return None
        _, both, path, a, b = max(found)
        size = len(a)
        shares = [b] if len(b) == size else [b[n : n + size] for n in range(0, len(b), size)]
        if all(common(a, share) == size == len(share) for share in shares):
            self.order, self.samples = [], size
            for share in shares:  # several, where all ranks work on all samples
                turns = (sorted(range(size), key=rows.__getitem__) for rows in (a, share))
                turns = dict(zip(*turns, strict=True))
                # Of rows that are alike nobody knows which is which: noise may tell them apart.
                order = sorted(turns, key=turns.get)
                self.order += [n if a.count(a[n]) == 1 else None for n in order]
        elif not self.order and len({len(e["given"]) for e in calls}) == 1:
            return {"argument": path, "mine": size, "theirs": len(b), "common": both}
        return None

    def compare(self, mine: list[dict], theirs: list[dict], what: str) -> tuple[float, str]:
        """How far their tensors are apart, relative to their size, and which one is furthest; -1:
        nobody can tell."""
        paths = [list(calls[0][what]) for calls in (mine, theirs)]
        if len(paths[0]) != len(paths[1]):
            names = [{path.split(".")[0] for path in found} for found in paths]
            lost = sorted(names[0] ^ names[1])
            return (math.inf, lost[0]) if lost and what == "given" else (-1, "")
        found = [(-1, "")]
        for path, other in zip(*paths, strict=True):
            both = of_path(mine, what, path), of_path(theirs, what, other)
            if pairs := self.pairs(mine, theirs, *both):
                found.append((apart(pairs), path))
        return max(found)

    def pairs(self, mine: list, theirs: list, *tensors: list, sets: bool = True) -> Pairs | None:
        """tensors: [rows, shape] of each share of A, and of B. By samples, if the first sides go
        by them; as they are, if each run has one share; as a set, if both have as many rows."""
        calls = [*mine, *theirs]
        every = cut([*tensors[0], *tensors[1]], calls)
        a, b = every[: len(mine)], every[len(mine) :]
        if any(rows is None for rows, _ in every):
            return None
        if len({str(shape[1:] if shape else None) for _, shape in every}) > 1:
            return None
        sides = [shape[0] if shape else 0 for _, shape in every]
        counts = [len(rows) for rows, _ in every]
        flat = [row for rows, _ in a for row in rows]
        per = {(side / (e["samples"] or 1), count / (e["samples"] or 1))
               for side, count, e in zip(sides, counts, calls, strict=True)}  # fmt: skip
        width = int(min(per)[1])
        known = (len(flat), sum(counts) - len(flat))
        if len(per) == 1 and width and known == (self.samples * width, len(self.order) * width):
            turn, found = iter(self.order), []
            for rows, _ in b:
                pair = [], []
                for begin in range(0, len(rows), width):
                    if (n := next(turn)) is not None:
                        pair[0].extend(flat[n * width : (n + 1) * width])
                        pair[1].extend(rows[begin : begin + width])
                found.append(pair)
            return found if any(mine for mine, _ in found) else None
        if len(calls) == 2 and sides[0] == sides[1]:
            return [(flat, b[0][0])]
        if sets and counts == sides and sum(counts) == 2 * len(flat):
            return [(sorted(flat), sorted(row for rows, _ in b for row in rows))]
        return None

    # ---- gradients of what they return, from the last one back ----

    def backward(self) -> tuple[str, dict] | None:
        found = None
        for key in [key for key in reversed(self.keys) if key[4] == "returned"]:
            mine, theirs = self.one[key], self.two[key]
            values = {"name": shown(theirs[0]), "at": short(theirs[0]["at"])}
            values["behind"] = first = self.behind
            outermost = not (first and key[2])  # what the script makes of it comes next
            paths = [set().union(*map(came, calls)) for calls in (mine, theirs)]
            for n, (run, calls) in enumerate((("B", theirs), ("A", mine))):
                lost = paths[n] - paths[1 - n]
                # A checkpoint (use_reentrant=True) computes without gradients at first.
                if lost & calls[0]["returned"].keys() and not any(e["again"] for e in calls):
                    missing = ("lost" if first else "loss:lost"), {**values, "run": run}
                    if lost & calls[0]["gradients"].keys():  # not detached before, too
                        return missing
                    found = found or missing
            if found:
                continue
            for path in sorted(paths[0] & paths[1]):
                both = (of_path(calls, "gradients", path) for calls in (mine, theirs))
                pairs = self.pairs(mine, theirs, *both, sets=False) or []
                pairs = [pair for pair in pairs if any(pair[0]) or any(pair[1])]
                if not pairs:
                    continue
                factors = [factor(*pair) for pair in pairs]
                right = factors if outermost else [self.times] * len(pairs)
                size = max(map(unlike, pairs, right))
                values |= {"factors": listed([f"{one:.4g}" for one in factors]), "size": size}
                values |= {"ranks": self.times, "each": factors[0] / self.times}
                # A factor beside which the rest is nothing.
                by = max(abs(one / self.times - 1) for one in factors)
                if size > self.bound and not (outermost and size < min(by / 100, SMALL)):
                    return ("backward" if first else "loss:other"), values
                if not all(self.near(one, self.times) for one in factors):
                    return f"loss:{self.loss(key, factors)}", values
                self.behind = values["name"]
        return found or (None if self.behind else ("unseen:gradients", {}))

    def near(self, one: float, other: float) -> bool:
        return math.isclose(one, other, rel_tol=max(EXACT, self.bound))

    def loss(self, key: tuple, factors: list[float]) -> str:
        """What such factors of the gradient by an output mean."""
        a, b = (max(passes_of(ranks, key[0])) for ranks in self.sides)
        each = factors[0] / self.times
        if not all(self.near(one, factors[0]) for one in factors):
            whole = sum(1 / one for one in factors) if all(factors) else 0
            return "counts" if self.near(whole, 1) or self.near(whole, b) else "ranks"
        samples = sum(e["samples"] for e in self.one[key])
        meanings = {"once": 1.0, "parts": self.times * b / a, "processes": self.times**2}
        meanings |= {"sum": samples}
        fit = [name for name, one in meanings.items() if self.near(factors[0], one)]
        return fit[0] if fit and not self.near(each, 1) else "factor"

    def after(self, parted: Seen) -> tuple[str, dict]:
        """Between backward and the optimizer."""
        if "factor" not in parted.values:
            return "nothing", {}
        known = {name: parted.values[name] for name in ("low", "high", "names", "all")}
        return "after", {**known, "tensors": parted.values["count"], "ranks": self.times}


def shown(event: dict) -> str:
    name, kind = event["name"], event["kind"]
    return kind if name in ("", f"({kind})") else f"{name} ({kind})"


def of_path(calls: list[dict], what: str, path: str) -> list:
    return [e[what].get(path, [None, []]) for e in calls]


def cut(tensors: list, calls: list[dict]) -> list:
    """Of texts that are padded to unlike lengths: the places that all have."""
    least = min(e["places"] for e in calls)
    found = []
    for (rows, shape), e in zip(tensors, calls, strict=True):
        if not (least and rows) or shape[:2] != [e["samples"], e["places"]]:
            return tensors
        rows = [row for n, row in enumerate(rows) if n % e["places"] < least]
        found.append([rows, [shape[0], least, *shape[2:]]])
    return found


def of_samples(rows: list[float], samples: int) -> list[float]:
    """A number for each of them; it hangs on the order of its rows."""
    width = len(rows) // samples
    weights = [n * GOLDEN % 1 + 0.5 for n in range(1, width + 1)]
    parts = (rows[n * width : (n + 1) * width] for n in range(samples))
    return [sum(map(mul, part, weights)) for part in parts]


def apart(pairs: Pairs) -> float:
    """The norm of the difference, relative to the larger one's."""
    size = max(math.hypot(*(n for pair in pairs for n in pair[side])) for side in (0, 1))
    other = math.hypot(*(a - b for pair in pairs for a, b in zip(*pair, strict=True)))
    return other / size if other else 0.0


def factor(mine: list[float], theirs: list[float]) -> float:
    """By which one is multiplied to come nearest to the other."""
    size = sum(a * a for a in mine)
    return sum(a * b for a, b in zip(mine, theirs, strict=True)) / size if size else 0.0


def unlike(pair: tuple[list, list], by: float) -> float:
    """How far the other one is from that, relative to its size."""
    return apart([([by * a for a in pair[0]], pair[1])])
