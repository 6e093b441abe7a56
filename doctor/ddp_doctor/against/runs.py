"""What comparison.py compares: samples, numbers and printed lines of a run, of all its ranks."""

import math
import os
import re
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from itertools import accumulate, product, zip_longest
from os.path import commonprefix
from statistics import mode

from ..before import METADATA
from ..checks.data import most_padding, other_parts
from ..checks.equal import apart, differ
from ..checks.teams import Teams
from ..checks.weights import divided_by_hand
from ..printed import BAR, CLOCKS, NUMBER, of_evaluation, results, unit
from ..ranks import Pass, Rank


@dataclass
class Run:
    """ranks: those whose samples together are those of a step."""

    label: str
    everyone: list[Rank]
    ranks: list[Rank]
    team: int  # so many ranks have the same samples, and a part of the model each, or of the work
    together: bool  # ranks work on one sample, and nobody knows which are those of a step
    exchange: bool  # ranks tell each other something of their samples in each step
    sharded: bool
    given: bool = False  # the model of each rank is given its part of the same samples
    shared_out: bool = False  # the optimizer of each rank has tensors of its own
    names: dict[int, list] = field(default_factory=dict)  # optimizer (0: none) -> [name, its group]
    options: dict[int, list] = field(default_factory=dict)  # optimizer -> settings of each group
    parts: dict[int, list] = field(default_factory=dict)  # optimizer -> how many each tensor is in
    shapes: dict[int, list] = field(default_factory=dict)
    pending: set[str] = field(default_factory=set)  # whose gradients the optimizer adds up
    begun: int = 0  # steps before those that are compared: the other run begins from a checkpoint

    @property
    def first(self) -> Rank:
        return self.everyone[0]

    def steps(self) -> int:
        return min(len(rank.steps) for rank in self.everyone) - self.begun

    def step(self, n: int) -> dict:
        """The event of step n, as all that is compared is counted; or of the last one."""
        return self.first.steps[: self.begun + n][-1]

    def state(self, n: int = 1) -> dict[str, float] | None:
        """What the optimizer of step n has kept before it: norms, of all parameters."""
        before = self.begun + n - 1
        found = [e["norms"] for e in self.first.events["state"] if e["n"] == before]
        return found[-1] if found else None  # before it another one may have been looked at

    def rounded(self, steps: int) -> set[str]:
        """Tensors whose gradients were nothing but rounding in some of so many steps: taken as 0 by
        --without rounding."""
        events = self.first.events["rounded"]
        found = [e for e in events if self.begun < e["n"] <= self.begun + steps]
        return {self.names[e["optimizer"]][n][0] for e in found for n in e["places"]}

    def scheduled(self) -> int:
        """Steps of the schedulers at the first step."""
        return sum(count for _, count in self.step(1)["schedules"])

    def after(self, weights: dict[str, tuple], bound: float) -> int:
        """The steps after which it has these weights; 0: never after its first one. bound: other
        ones by rounding, where no step has nearly the same."""
        far = {}
        for n in range(self.steps()):  # one is to be left
            mine = self.figures("weights", n, n + 1)
            if mine.keys() == weights.keys():
                far[n] = max(apart(mine[name], row) for name, row in weights.items())
        best = min(far.values(), default=math.inf)
        sure = best == 0 or (best < bound and sum(10 * best > one for one in far.values()) == 1)
        return max(n for n, one in far.items() if one == best) if sure else 0

    def targets(self, n: int, ranks: list[Rank] | None = None) -> float:
        """That losses of step n count on these ranks together, or on those that have samples of
        their own; 0: nobody can tell."""
        every = [event for rank in ranks or self.ranks for event in rank.events["divisors"]]
        terms = [event["terms"] for event in every if event["n"] == self.begun + n]
        return 0.0 if None in terms else sum(counted for rows in terms for counted, *_ in rows)

    def ended(self) -> bool:
        return all(rank.ended.get("error") == "None" for rank in self.everyone)

    def epochs(self) -> list[int]:
        """Steps that learned from each whole pass of training."""
        return [one.steps for one in self.first.trained() if one.whole()]

    def of_model(self, name: str) -> list:
        """What the events of its model say: wrappers, sizes, norms, drops, types."""
        events = [self.first.model, *self.first.events["layers"]]
        return next((event[name] for event in events if event.get(name)), [])

    def optimizer(self, step: int) -> int:
        """That makes this step, which counts from 1; or that made the last one."""
        return self.step(step)["optimizer"]

    def named(self, step: int) -> list:
        return self.names.get(self.optimizer(step), [])

    def flat(self) -> bool:
        """Its parts cannot be put together: of ZeRO, and of FSDP's flattened parameters."""
        flat = any("_flat_param" in name for name, _ in self.named(1))
        known = "FSDP" in self.of_model("wrappers") or self.divides()
        return self.sharded and (flat or not known)

    def divides(self) -> bool:
        """Whether some tensor that it trains is a DTensor in parts."""
        return max(self.parts.get(self.optimizer(1), ()), default=1) > 1

    def sizes(self) -> dict[str, list]:
        """Name of a tensor -> its shape."""
        numbers = (self.optimizer(1), 0)
        pairs = (zip(self.names.get(n, ()), self.shapes.get(n, ()), strict=False) for n in numbers)
        return {name: shape for rows in pairs for (name, _), shape in rows}

    def clips_own(self, n: int) -> bool:
        """Whether ranks clip their own gradients in step n, which are averaged after it."""
        found = (rank.figures["unclipped"].get(self.begun + n) for rank in self.everyone)
        mine, *others = found
        return not self.sharded and any(mine and one and differ(mine, one) for one in others)

    def figures(self, what: str, n: int, step: int) -> dict[str, tuple]:
        """Name of a tensor -> its norm and its sample; of parts, the norm of all ranks together."""
        shared = self.shared_out and what != "fixed"
        number = 0 if what == "fixed" else self.optimizer(step)
        parts = self.renewed(number, n + (what == "weights"))  # which are those before step n + 1
        sharded = self.sharded or max(parts, default=1) > 1
        ranks = self.everyone if sharded or shared else [self.first]
        values = [rank.figures[what].get(self.begun + n, []) for rank in ranks]
        values = [sum(values, [])] if shared else values
        if what == "unclipped" and not any(values):
            return self.figures("gradients", n, step)
        names = [name for name, _ in self.names.get(number, [])]
        if any(len(value) != len(names) for value in values):
            return {}
        rows = [tuple(row) for row in values[0]]
        if sharded:
            rows = [
                (math.hypot(*(norm for norm, _ in row)) / math.sqrt(len(row) / count), None)
                if count > 1
                else tuple(row[0])
                for count, *row in zip(parts or self.parts[number], *values, strict=True)
            ]
        return dict(zip(names, rows, strict=True))

    def renewed(self, number: int, step: int) -> list:
        """Parts of this optimizer's tensors in this step, if another one has taken its place by
        then: that of a whole model may be followed by that of one in parts."""
        made = [e for e in self.first.events["optimizer"] if e["number"] == number]
        before = [e["parts"] for e in made if e["place"] < self.begun + step]
        return before[-1] if len(made) > 1 and before else []


def run_of(label: str, ranks: list[Rank]) -> Run:
    teams = Teams(ranks)
    model = ranks[0].model
    sharded = "sharded" in model.get("wrappers", [])
    run = Run(label, ranks, teams.groups[0], 1, False, teams.exchange, sharded)
    if teams.together or model.get("together"):
        share = [ranks] if teams.together else list(zip(*teams.groups, strict=True))
        run.team = len(share[0])
        run.together = not all(map(same_samples, share))
        run.ranks = run.ranks if run.together else [team[0] for team in share]
    elif other_parts(ranks) and same_samples(ranks):
        run.given, run.ranks = True, ranks[:1]
    run.shared_out = divided_by_hand(ranks)
    found = [ranks[0].events["fixed"][-1:]]
    for rank in ranks if run.shared_out else ranks[:1]:
        # One that is made anew has the number of the one before.
        found.append({event["number"]: event for event in rank.events["optimizer"]}.values())
    for event in (event for events in found for event in events):
        number = event.get("number", 0)
        for name in ("names", "parts", "shapes"):
            getattr(run, name).setdefault(number, []).extend(event[name])
        run.pending |= set(event.get("pending", ()))
        if number:
            run.options[number] = event["options"]
    return run


def same_samples(ranks: list[Rank]) -> bool:
    """Whether their loaders give them the same in each step."""
    keys = [[list(map(one.keys_of, one.batches)) for one in rank.trained()] for rank in ranks]
    return bool(keys[0]) and all(mine == keys[0] for mine in keys)


def name_alike(one: Run, two: Run) -> None:
    """The model of one run may be a part of another one, as in a LightningModule: what stands
    before all names is taken away."""
    for number in one.names.keys() & two.names.keys():
        mine, theirs = sorted([one.names[number], two.names[number]], key=lambda n: len(owner(n)))
        inner, outer = owner(mine), owner(theirs)
        shorter = [[name[len(outer) - len(inner) :], group] for name, group in theirs]
        ends = f".{outer}".endswith(f".{inner}")
        if ends and {name for name, _ in shorter} == {name for name, _ in mine}:
            theirs[:] = shorter


def owner(named: list) -> str:
    """Of all: "model.head." for model.head.weight and model.head.bias."""
    return "".join(commonprefix([name for name, _ in named]).rpartition(".")[:2])


class Samples:
    """What the loaders of training gave for each step."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.passes = [rank.trained() for rank in run.ranks]  # for each rank
        every = [one for passes in self.passes for one in passes]
        self.known = bool(every) and not run.together and all(map(keyed, every))
        self.shuffles = any(one.loader["shuffles"] for one in every)
        # Of these libraries random numbers made them.
        self.drawn = {name for one in every for event in one.drew for name in event["states"]}
        # Ways to tell the batches of a step, each: for each rank, step -> its batches.
        self.ways = [[batches_of(passes, *way) for passes in self.passes] for way in WAYS]
        self.way = self.ways[1 if fit(self.passes) else 0]

    def batches(self, n: int) -> list[list]:
        """Of step n, for each rank: pairs of a pass and a batch."""
        return [list(found.get(self.run.begun + n, {}).values()) for found in self.way]

    def keys(self, n: int) -> Counter:
        """The samples of step n, of all ranks together."""
        return sum(self.of_ranks(n), Counter())

    def of_ranks(self, n: int) -> list[Counter]:
        """The samples of step n, of each rank."""
        each = self.batches(n)
        return [Counter(str(k) for one, batch in rows for k in one.given(batch)) for rows in each]

    def earlier(self, samples: Counter) -> int:
        """The latest step with these samples before those that are compared, or 0."""
        own = range(1 - self.run.begun, 1)
        return max((n + self.run.begun for n in own if self.keys(n) == samples), default=0)

    def contents(self, n: int) -> list[tuple]:
        """Of step n: key, target, a number for the rest of each sample, and its shapes; none, where
        a batch was not looked at."""
        found = []
        for one, batch in (row for rows in self.batches(n) for row in rows):
            if "items" not in batch:
                return []
            keys = one.given(batch)
            columns = [batch.get(name) or [] for name in ("targets", "items")]
            columns = [c if len(c) == len(keys) else [0] * len(keys) for c in columns]
            shapes = [str(batch.get("shape"))] * len(keys)
            found += zip(map(str, keys), *columns, shapes, strict=True)
        return found

    def in_turn(self, n: int) -> list:
        """Samples of step n that have no indices: the first of each rank, the second, and so on."""
        rows = [
            [key for one, batch in rows if one.loader["iterable"] for key in one.keys_of(batch)]
            for rows in self.batches(n)
        ]
        return [key for each in zip_longest(*rows) for key in each if key is not None]

    def shares(self, n: int) -> list[int]:
        """How many samples of step n each rank has."""
        return [sum(len(one.keys_of(batch)) for one, batch in rows) for rows in self.batches(n)]

    def of_step(self, n: int) -> list[Pass]:
        """The passes that its batches are of."""
        passes = {id(one): one for rows in self.batches(n) for one, _ in rows}
        return list(passes.values())

    def repeats(self, n: int) -> int:
        """How many samples come again in an epoch of step n."""
        epochs = defaultdict(Counter)
        for passes, rows in zip(self.passes, self.batches(n), strict=True):
            for one in {id(one): one for one, _ in rows}.values():
                epochs[passes.index(one)].update(map(str, one.keys()))
        return sum(counts.total() - len(counts) for counts in epochs.values())

    def padding(self, n: int) -> int:
        """How many of them may come again because a sampler fills the shares up."""
        return most_padding(self.of_step(n))

    def of_own_order(self, n: int) -> dict | None:
        """The loader of a batch of step n which has not got the order of the first run."""
        rows = [row for rows in self.batches(n) for row in rows]
        return next((one.loader for one, batch in rows if not batch.get("given")), None)


# A backward pass is of the latest batch, and what was skipped before it is of none. Or a loop or a
# thread fetches ahead, in each pass or beyond its end: then backward passes take batches in turn.
OF_TRAINING = r"train\w*\W*(?:(?:loss|acc)\w*\W*)?$"  # what stands before its own numbers
WAYS = ((False, False), (True, False), (True, True))


def fit(ranks: list[list[Pass]]) -> bool:
    """Whether each batch of a pass has as many backward passes: then they take them in turn."""
    whole = [one for passes in ranks for one in passes[:-1] if one.whole()]
    counts = [(len(one.learned), len(one.batches)) for one in whole]
    if not counts:  # in its last pass a run may be stopped, with batches that have no backward pass
        last = [passes[-1].learned for passes in ranks if passes and passes[-1].learned]
        counts = [(len(learned), learned[-1][1]) for learned in last]
    return bool(counts) and not any(learned % given for learned, given in counts)


def batches_of(passes: list[Pass], ahead: bool, endless: bool) -> dict[int, dict]:
    """Step -> the batches that its backward passes learned from, as pairs with their pass."""
    lines = defaultdict(list)
    for one in passes:
        lines[str(one.loader["at"]) if endless else id(one)].append(one)
    found = defaultdict(dict)
    for these in lines.values():
        given = [(one, batch) for one in these for batch in one.batches]
        starts = accumulate([len(one.batches) for one in these], initial=0)
        learned = [
            (step, start + count)
            for one, start in zip(these, starts, strict=False)
            for step, count in one.learned
        ]
        # Several backward passes may be of one batch: its micro-batches, say, or losses.
        times = list(Counter(count for _, count in learned).values())
        whole = len(given) and len(learned) % len(given) == 0
        each = len(learned) // len(given) if whole else mode(times or [1])
        each = each if len(learned) > len(given) else 1
        for n, (step, count) in enumerate(learned):
            place = min(n // each, count - 1) if ahead else count - 1
            found[step][id(given[place][1])] = given[place]
    return dict(found)


def read_alike(one: Samples, two: Samples) -> None:
    """Batches that are skipped look like batches that are fetched ahead: of the ways to read both
    runs that one counts by which most steps have the same samples."""

    def agree(ways: tuple) -> int:
        one.way, two.way = ways
        last = min(one.run.steps(), two.run.steps())
        return next((n for n in range(1, last + 1) if one.keys(n) != two.keys(n)), last + 1)

    pairs = [(one.way, two.way), *product(one.ways, two.ways)]
    one.way, two.way = max(pairs, key=agree)


def keyed(one: Pass) -> bool:
    """Whether it is known which samples are in its batches."""
    ordered = all("items" in batch for batch in one.batches[:1])  # or workers overtake each other
    return ordered and not one.unseen() and not (one.loader["iterable"] and not one.column("items"))


def saved_files(run: Run) -> dict[tuple, dict]:
    """File and step -> what is in it, of the rank that wrote it; parts: other ranks have written
    files of this name, too, in folders of their own."""
    opened = [event for rank in run.everyone for event in rank.events["opened"]]
    moved = {event["source"]: event["path"] for event in opened}
    found = {}
    for event in (event for rank in run.everyone for event in rank.events["checkpoint"]):
        path = moved.get(event["path"], event["path"])
        if event["tensors"]:
            first = found.setdefault((os.path.basename(path), event["place"]), event)
            first["parts"] = first.get("parts") or first["path"] != event["path"]
    last = run.begun + run.steps() if run.ended() else None
    wrote = {e["path"]: e["place"] for rank in run.everyone for e in rank.events["wrote"]}
    for one in left_files(run):
        step = wrote.get(one["source"] or one["path"], last)
        if one["read"] and step is not None:
            found[one["name"], step] = {**one, "place": step, "parts": False}
    return {(name, step - run.begun): one for (name, step), one in found.items()}


def left_files(run: Run) -> list[dict]:
    """Other files that a run has left, each by as much of its path as tells it from the others; of
    a folder in pieces one file speaks for all."""
    found = run.first.events["left"]
    paths = [one["path"].removesuffix(os.sep + METADATA).split(os.sep) for one in found]
    for one, parts in zip(found, paths, strict=True):
        ends = [other for other in paths if other is not parts]
        sizes = range(1, len(parts))
        n = next((n for n in sizes if parts[-n:] not in [o[-n:] for o in ends]), len(parts))
        one["name"] = os.sep.join(parts[-n:])
    return found


def printed(run: Run, resumed: bool = False) -> dict[str, list]:
    """Lines of rank 0 after its first step, and before it those that name an evaluation, by their
    words; without times, speeds and names. What stands before a bar says what it is of: with its
    numbers."""
    found = {}
    for event in run.first.events["printed"]:
        bar = re.search(BAR, event["text"])
        if bar and bar[1] != "100":
            continue  # drawn when the clock said so
        head = event["text"][: bar.start()] if bar else ""
        event.setdefault("shown", re.sub(CLOCKS, "~", event["text"]))
        event["text"] = results(event["text"])
        event["after"] = event["place"] - run.begun
        late = event["after"] > 0 or (not resumed and of_evaluation(event["text"]))
        if late and re.search(NUMBER, event["text"]):
            words = head + re.sub(NUMBER, "\0", event["text"].removeprefix(head))
            found.setdefault(words, []).append(event)
    return found


def of_own_share(run: Run, line: dict, numbers: list[tuple[str, str]]) -> bool:
    """Whether rank 0 has computed these numbers of its own samples, and they are no result of an
    evaluation: nothing was told to other ranks since the step before, or each number is what rank 0
    itself has told, or the mean of that so far (the logger of DeiT and MAE).

    numbers: the words before each, and the number.
    """
    rank = run.first
    trained = {id(one) for one in rank.trained()}
    begun = [one for one in rank.passes.values() if one.begun() <= line["row"]]
    latest = rank.latest(line["row"])
    since = rank.steps[line["place"] - 2]["row"] if line["place"] > 1 else 0
    if latest and line["row"] < latest.over:  # while it gives batches
        since = max(since, latest.begun())
    elif any(one.place == line["place"] and id(one) not in trained for one in begun):
        return all(re.search(OF_TRAINING, before) for before, _ in numbers)
    # A broadcast tells what one rank has, as the weights of a ZeRO of one's own.
    called = [e for e in rank.own_calls() if e["size"] and e["kind"] != "broadcast"]
    called = [event for event in called if event["row"] <= line["row"]]
    if not any(event["row"] >= since for event in called):
        return True
    own = told_by(rank, called, latest.begun() if latest else 0)
    return all(any(abs(float(n) - x) <= unit(n) for x in own) for _, n in numbers)


def told_by(rank: Rank, called: list[dict], since: float) -> list[float]:
    """Numbers that a rank gave to collectives since a pass began, and of each line their mean."""
    by_line = defaultdict(list)
    for event in called:
        if event["values"] and event["row"] >= since:
            by_line[str(event["at"])].append(event["values"])
    rows = [row for values in by_line.values() for row in values]
    means = [sum(c) / len(c) for values in by_line.values() for c in zip(*values, strict=False)]
    return [value for row in rows for value in row] + means
