"""What the ranks of a job did, read back from the events of its processes."""

import json
import math
import os
import re
import socket
from collections import defaultdict
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from .before import METADATA, changed_since, digest, is_bare, is_text

STILL = 60  # seconds without an event: then a rank counts as waiting for ever
WAITED = "[Tt]imed out|timeout|Connection (closed|reset)"  # errors of a rank that waited in vain


@dataclass(eq=False)
class Pass:
    """One iteration over a loader."""

    loader: dict
    place: int  # steps before it
    first: int  # the pass that started its workers
    batches: list[dict] = field(default_factory=list)
    stale: list[str] = field(default_factory=list)  # of the data set, changed behind its workers
    seeded: dict[str, list] = field(default_factory=dict)  # by which lines, before it
    ended: bool = False
    over: int = 0  # the row of its end, or of its last batch
    at: list | None = None  # the loop over it
    total: int | None = None  # batches that it should have
    steps: int = 0  # that learned from it
    learned: list[tuple] = field(default_factory=list)  # of each backward: its step, batches so far
    reduced: list[dict] = field(default_factory=list)  # collectives between a batch and a step
    drew: list[dict] = field(default_factory=list)  # random numbers that items were made with

    def size(self) -> int:
        """Items in a batch; batch samplers of one's own do not say it."""
        sizes = [len(batch.get("indices", [])) for batch in self.batches]
        return self.loader["batch_size"] or max(sizes, default=1)

    def begun(self) -> float:
        """The row of its first batch."""
        return self.batches[0]["row"] if self.batches else math.inf

    def whole(self) -> bool:
        """All batches came; not all programs ask for one more to see that there is none."""
        return bool(self.batches) and (self.ended or len(self.batches) == self.total)

    def planned(self) -> int:
        """How many indices it should have, were it not cut short; 0: nobody knows."""
        batches = (self.total or 0) * len(self.batches[0]["indices"]) if self.batches else 0
        return self.loader["draws"] or batches

    def unseen(self) -> bool:
        """Its samples have indices, which were not seen."""
        return not self.loader["iterable"] and any("indices" not in one for one in self.batches)

    def grouped(self) -> bool:
        """Its indices are lists or tuples, each of which may stand for several samples."""
        return any(str(key)[0] in "([" for key in self.column("indices"))

    def repeats(self) -> bool:
        """A sample came twice, and not in its last batch only, which samplers fill up."""
        keys = [key for batch in self.batches[:-1] for key in batch.get("indices") or []]
        return len(set(keys)) < len(keys)

    def keys(self) -> list:
        return [key for batch in self.batches for key in self.keys_of(batch)]

    def keys_of(self, batch: dict) -> list:
        """What tells samples apart: indices, or what an IterableDataset has made."""
        if not self.loader["iterable"]:
            return batch.get("indices") or []
        items = batch.get("items") or []
        targets = batch.get("targets") or [None] * len(items)
        return list(zip(targets, items, strict=False))

    def column(self, name: str) -> list:
        return [value for batch in self.batches for value in batch.get(name) or []]

    def given(self, batch: dict) -> list:
        """What its samples are: under --without shuffling, not those that the sampler drew."""
        return batch.get("given") or self.keys_of(batch)

    def by_key(self, name: str) -> dict:
        keys = [key for batch in self.batches for key in self.given(batch)]
        return dict(zip(keys, self.column(name), strict=False))

    def joins(self, other: "Pass") -> bool:
        """Whether both may be parts of one evaluation: of one set, and no sample is in both."""
        same_set = self.loader["fingerprint"] == other.loader["fingerprint"]
        return same_set and not set(self.keys()) & set(other.keys())


@dataclass
class Rank:
    """What one process did."""

    rank: int = -1
    world: int = 1
    process: dict = field(default_factory=dict)
    model: dict = field(default_factory=dict)
    group: str = ""  # the name of the group of all ranks
    passes: dict[int, Pass] = field(default_factory=dict)
    steps: list[dict] = field(default_factory=list)
    figures: dict[str, dict] = field(default_factory=lambda: defaultdict(dict))
    # Events of one kind, in their order, each with "place", the steps before it, and "row".
    events: dict[str, list] = field(default_factory=lambda: defaultdict(list))
    ended: dict = field(default_factory=dict)
    last: float = 0.0  # when its last event was
    stack: list | None = None  # the user's line where it stood still
    inside: str = ""  # the function that this line called
    still: float = 0.0  # seconds from its last event until the doctor ended the job
    apart: int = 0  # processes of one launch that train, and have no group

    def left(self) -> bool:
        """It came to its end, or waits for ever: it will call nothing more."""
        return self.ended.get("error") == "None" or bool(self.stack and self.still >= STILL)

    def latest(self, row: int) -> Pass | None:
        """The pass that had begun last, by this row."""
        begun = [one for one in self.passes.values() if one.begun() <= row]
        return max(begun, key=Pass.begun, default=None)

    def called(self, group: str) -> list[dict]:
        return [event for event in self.events["collective"] if event["group"] == group]

    def extra(self, other: "Rank", group: str) -> tuple[dict, dict] | None:
        """A collective that the other has not called, and the next one, which both have."""
        mine, theirs = self.called(group), other.called(group)
        for here, after, there in zip(mine, mine[1:], theirs, strict=False):
            if here["at"] != there["at"] == after["at"]:
                return here, there
        return None

    def own_calls(self) -> list[dict]:
        """Collectives of the script: FSDP's are of weights and gradients."""
        return [event for event in self.events["collective"] if not event["fsdp"]]

    def summed(self, start: int, end: int) -> int:
        """Numbers that the script itself all-reduced after `start` and before `end` steps."""
        return sum(e["size"] for e in self.own_calls() if start <= e["place"] < end)

    def sets_rate(self, step: dict) -> list:
        """The line of the scheduler of this step's optimizer, or of the optimizer."""
        own = dict(step["schedules"])
        lines = [event["at"] for event in self.events["scheduler"] if event["id"] in own]
        return lines[0] if lines else step["made"]

    def trained(self) -> list[Pass]:
        return [one for passes in self.training().values() for one in passes]

    def training(self) -> dict[str, list[Pass]]:
        """Passes that steps learned from, by the line of their loader; the last may be begun."""
        passes = list(self.passes.values())
        trained = {one.loader["id"] for one in passes if one.steps}
        found = defaultdict(list)
        last = next((one for one in passes[::-1] if one.loader["id"] in trained), None)
        for one in passes:
            begun = one is last and one.batches and not one.ended
            if one.steps or (begun and one.loader["id"] in trained):
                found[str(one.loader["at"])].append(one)
        return found

    def evaluations(self) -> dict[tuple, list[Pass]]:
        """Passes that show a set once: by the steps before them, and their number there."""
        trained = {one.loader["id"] for one in self.trained()}
        found = defaultdict(list)
        for one in self.passes.values():
            early = self.steps and not one.place  # one that only looks at the data
            if one.loader["id"] in trained or early or not one.whole():
                continue

            number = 0
            while not all(other.joins(one) for other in found[one.place, number]):
                number += 1
            found[one.place, number].append(one)
        return found


def failed(rank: Rank) -> bool:
    """Whether it ended by an error of Python's."""
    return rank.ended.get("error", "None") != "None"


def read_events(path: Path) -> list[dict]:
    events = []
    for line in path.read_text(errors="replace").splitlines():
        with suppress(ValueError):  # cut off by a kill
            events.append(json.loads(line))
    return events


class Sums:
    """Which passes a collective may add up: those that gave a batch since the last step.

    training: passes that steps learned from. An evaluation may be followed by a batch of training,
    and that by a collective. Is this of the evaluation, or of the next step's loss?
    """

    def __init__(self, rank: Rank, training: set[int]) -> None:
        self.rank = rank
        self.training = training
        self.since_step: set[int] = set()
        self.followed: set[int] = set()  # of these, evaluations that a batch of training followed
        self.of_losses: set[str] = set()  # lines that reduce where nothing was evaluated
        self.undecided: list[tuple[int, dict]] = []

    def batch(self, n: int) -> None:
        self.since_step.add(n)
        self.followed = self.since_step - self.training if n in self.training else set()

    def step(self) -> None:
        self.since_step, self.followed = set(), set()

    def collective(self, event: dict) -> None:
        if self.since_step <= self.training:
            self.of_losses.add(str(event["at"]))
        for n in self.since_step - self.followed:
            self.rank.passes[n].reduced.append(event)
        self.undecided += [(n, event) for n in self.followed]

    def end(self) -> None:
        for n, event in self.undecided:
            if str(event["at"]) not in self.of_losses:
                self.rank.passes[n].reduced.append(event)


def read_process(events: list[dict], stacks: Path) -> Rank:
    """A process from its events; world 0: it is none of the job's ranks."""
    rank = Rank()
    loaders = {}
    training = {n for event in events if event["e"] == "step" for n in event["passes"]}
    sums = Sums(rank, training)
    for row, event in enumerate(events):
        kind = event["e"]
        rank.last = event["t"]
        event["place"] = len(rank.steps)
        event["row"] = row  # times are too coarse for an order
        rank.events[kind].append(event)
        one = rank.passes.get(event.get("n"))
        if one is None and kind in ("batch", "end"):
            continue  # of a pass that began before a fork

        if kind in ("process", "model"):
            setattr(rank, kind, event)
        elif kind == "rank":
            for name in ("rank", "world", "group"):
                setattr(rank, name, event[name])
        elif kind == "loader":
            loaders[event["id"]] = event
        elif kind == "pass":
            one = Pass(loaders[event["loader"]], len(rank.steps), event["first"])
            for name in ("at", "total", "stale", "seeded"):
                setattr(one, name, event[name])
            rank.passes[event["n"]] = one
        elif kind == "batch":
            one.batches.append(event)
            one.over = row
            sums.batch(event["n"])
        elif kind == "end":
            one.ended, one.over = True, row
        elif kind == "step":
            rank.steps.append(event)
            sums.step()
            for n in event["passes"]:
                if n in rank.passes:
                    rank.passes[n].steps += 1
            for n, count in event["learned"]:
                if n in rank.passes:
                    one = rank.passes[n]
                    # Of a batch under no_grad the next one shows that it is trained on.
                    if len(rank.steps) == 2 and count > 1 and not rank.steps[0]["learned"]:
                        one.learned.append((event["n"] - 1, count - 1))
                        one.steps += 1
                    one.learned.append((event["n"], count))
        elif kind == "collective" and not event["fsdp"]:
            if event["kind"] not in ("barrier", "broadcast"):
                sums.collective(event)
        elif kind == "figures":
            rank.figures[event["what"]][event["n"]] = event["values"]
        elif kind == "exit":
            rank.ended = event

    sums.end()
    for event in rank.events["collective"]:
        event["values"] = rank.figures["reduced"].get(event["id"])
    rank.stack, rank.inside = read_stack(stacks, rank.last)
    if rank.rank < 0 and not rank.passes and not rank.steps:
        rank.world = 0
    return rank


def read_stack(path: Path, last: float = 0) -> tuple[list | None, str]:
    """The line where it stood still, and the function that this line called, unless the process
    went on after it."""
    rows = read_events(path) if path.is_file() else []
    for when, at, called in rows[-1:]:
        if when > last:
            return at, called
    return None, ""


def read_ranks(folder: Path, stopped: float = float("inf"), cut: bool = False) -> list[Rank]:
    """All ranks of the job, in order; a process alone is rank 0 of 1.

    stopped: when the doctor ended the job, in seconds since 1970. cut: the recorder had to stop.
    """
    files = {path: read_events(path) for path in folder.glob("*.jsonl")}
    found = left_by(files.values(), str(folder.resolve()))
    if cut:
        files = {path: to_last_step(events) for path, events in files.items()}
    ranks = ranks_of(files, stopped)
    for rank in ranks:
        rank.events["left"] = found
    return ranks


def left_by(processes: Iterable[list[dict]], folder: str) -> list[dict]:
    """Files that were changed on this machine, of two runs without those that torch.save was seen
    to write: path, bytes, text, seen (a process was seen to open it), source (what was renamed to
    it); of two runs also tensors, numbers, whether it could be read, and digest."""
    events = [event for process in processes for event in process]
    mine = [e for e in events if e["e"] == "process" and e["host"] == socket.gethostname()]
    sources = {e["path"]: e["source"] for e in events if e["e"] == "opened"}
    below = [e["cwd"] for e in mine]
    folders = [os.path.dirname(path) for path in sources]
    for process in mine:
        for word in process["argv"][1:]:
            if word.endswith(".py"):
                continue  # torchrun's script, beside which other jobs may write
            path = os.path.join(process["cwd"], word.rpartition("=")[2])
            parent = os.path.dirname(path) if word.count(os.sep) else path
            below += [path if os.path.isdir(path) else parent]
    begun = min((e["t"] for e in mine), default=math.inf)
    known = {e["path"] for e in events if e["e"] == "checkpoint" and e["tensors"]}
    found = []
    paths = changed_since(begun, below, folders)
    for path, size in paths.items():
        whole = os.path.join(os.path.dirname(path), METADATA)
        pieces = path.endswith(".distcp") and whole in paths
        if path.startswith(folder) or pieces or known & {path, sources.get(path)}:
            continue
        one = {"path": path, "bytes": size, "text": is_text(path)}
        one |= {"seen": path in sources, "source": sources.get(path, "")}
        if any(process["compared"] for process in mine):
            one["tensors"], one["numbers"] = tensors_in(path)
            one["read"] = bool(one["tensors"] or one["numbers"] or is_bare(path))
            one["digest"] = digest(path)
        found.append(one)
    return found


def tensors_in(path: str) -> tuple[dict, dict]:
    """None where this Python has no torch."""
    try:
        from .tensors import read
    except ImportError:
        return {}, {}
    return read(path)


def to_last_step(events: list[dict]) -> list[dict]:
    """After it, only a part may have been recorded: an evaluation, and not what adds it up."""
    steps = [n for n, event in enumerate(events, 1) if event["e"] == "step"]
    return events[: steps[-1] if steps else 0]


def ranks_of(files: dict[Path, list[dict]], stopped: float = float("inf")) -> list[Rank]:
    processes = [read_process(found, path.with_suffix(".stacks")) for path, found in files.items()]
    processes.sort(key=lambda one: one.process.get("t", 0))
    for one in processes:
        # By our signal, or by one to all processes, of which the doctor may hear last.
        since = stopped - (one.ended.get("error") != "None")
        if one.ended.get("t", 0) > since:
            one.ended = {}
        if stopped < float("inf"):
            one.still = stopped - one.last
        if re.search(WAITED, one.ended.get("error", "")):
            one.stack, one.still = one.ended["at"], STILL

    # The largest job, and of restarts the last: no program of one rank that a rank starts.
    world = max((one.world for one in processes), default=0)
    ranks = {one.rank: one for one in processes if one.rank >= 0 and one.world == world}
    if not ranks:
        alone = [one for one in processes if one.world]
        ranks = {0: max(alone, key=lambda one: len(one.steps))} if alone else {}
        launched = [one for one in alone if one.process.get("launched", "") not in ("", "1")]
        for one in ranks.values():
            one.apart = sum(bool(other.steps) for other in launched)

    trouble = [event for one in processes for event in one.events["trouble"]]
    for number, rank in ranks.items():
        rank.rank = number
        rank.events["trouble"] = trouble  # that of workers, too
        for one in processes:
            if one.process.get("host") == rank.process.get("host"):
                give_drawn(one.events["drew"], rank)
                if one is not rank and one.process.get("parent") == rank.process.get("pid"):
                    rank.events["wrote"] += [e | {"worker": True} for e in one.events["wrote"]]
    return [ranks[number] for number in sorted(ranks)]


def give_drawn(events: list[dict], rank: Rank) -> None:
    """To each pass the random numbers that its items were made with, in whatever process."""
    for event in events:
        if event["of"] == rank.process.get("pid"):
            same = [one for one in rank.passes.values() if one.first == event["n"]]
            if event["worker"] is None:
                same = [rank.passes[event["n"]]] if event["n"] in rank.passes else []
            for one in same[event["again"] :][:1]:
                one.drew.append(event)
