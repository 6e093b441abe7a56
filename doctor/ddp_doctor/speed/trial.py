"""One launch that is measured: how long its windows are, and when there are enough of them."""

import json
import math
import time
from collections.abc import Callable
from pathlib import Path

from ..job import Job
from . import KINDS, PLAN, SPEED, WARM
from .interval import FEWEST
from .numbers import Speed, taken_of
from .rent import MIB

SECONDS = 1.0  # of a window, as the training is
ROUNDS = 24  # at most
LONGEST = 180  # seconds, after which FEWEST rounds are enough
LEAST, MOST = 2, 300  # steps of a window
ALONE = 3  # seconds of steps, as long as a loader is timed alone
SENT = 64 * MIB  # of the gradients, at most, in an all-reduce that is timed alone
PATIENCE = 100  # seconds that the other ranks may be late


class Trial(Job):
    """A job whose processes measure; each tells of its windows in its own file."""

    def __init__(self, folder: Path, say: Callable) -> None:
        super().__init__(folder)
        self.ours[SPEED] = "1"
        self.say = say
        self.plan = {}
        self.rounds = 0
        self.read()

    def read(self) -> None:
        self.torch, self.made = False, 0  # the most steps of a rank that has come to its end
        self.ready: dict[int, dict] = {}  # rank -> what it told before the first window
        self.windows: dict[int, list[dict]] = {}
        for path in self.traces.glob("*.jsonl"):
            self.torch = True
            lines = path.read_text().splitlines()
            events = [json.loads(line) for line in lines if line.endswith("}")]
            names = ("ready", "window", "over", "made")
            found = {name: [event for event in events if event["e"] == name] for name in names}
            self.made = max(self.made, *(event["steps"] for event in found["made"]), 0)
            for event in found["ready"]:
                self.ready[event["rank"]] = event | {"over": bool(found["over"])}
                self.windows[event["rank"]] = found["window"]

    def world(self) -> int:
        return max((event["world"] for event in self.ready.values()), default=0)

    def wait(self, steps: int, seconds: float, still: float) -> None:
        start = time.monotonic()
        first = began = 0.0
        while self.process.poll() is None:
            time.sleep(0.2)
            self.read()
            now = time.monotonic()
            first = first or (now if self.ready else 0.0)
            if self.ready and len(self.ready) == self.world() and not began:
                began = now
                self.begin()
            if self.stopped():
                self.ended = "the recorder had to stop"
            elif self.ready and all(event["over"] for event in self.ready.values()):
                self.ended = "measured"
            elif began and self.enough(now > began + LONGEST):
                self.ended = "measured"
            elif seconds and now > start + seconds:
                self.ended = "seconds"
            elif first and not began and now > first + PATIENCE:
                self.ended = "alone"
            if self.ended:
                return
        self.read()

    def begin(self) -> None:
        """All ranks wait for the plan."""
        self.plan = planned(list(self.ready.values()))
        draft = self.traces / f"{PLAN}.new"
        draft.write_text(json.dumps(self.plan))
        draft.rename(self.traces / PLAN)
        each = max(event["seconds"] for event in self.ready.values())
        wanted = {"least": self.steps(FEWEST), "most": self.steps(ROUNDS)}
        wanted["seconds"] = f"{each * wanted['least']:.0f}"
        print("\ndoctor: " + self.say("speed_wants", **wanted), flush=True)

    def steps(self, rounds: int) -> int:
        """How many of them a rank makes for so many rounds."""
        each = sum(self.plan["settle"][kind] + self.plan["steps"] for kind in self.plan["kinds"])
        return WARM + rounds * each + sum(self.plan["pull"]) // self.plan["each"]

    def enough(self, late: bool) -> bool:
        rounds = min(map(len, self.windows.values())) // len(self.plan["kinds"])
        if rounds < FEWEST or (rounds == self.rounds and not late):
            return False
        self.rounds = rounds
        speed = Speed(self)
        return late or not speed.whole() or speed.settled()  # later ones will not be, either


def planned(ready: list[dict]) -> dict:
    """Kinds of windows, their steps, and how many before them are not measured."""
    seconds, queued = (max(event[name] for event in ready) for name in ("seconds", "queued"))
    steps = min(MOST, max(LEAST, math.ceil(SECONDS / (seconds or SECONDS))))
    # Workers that began together give their batches together: a window has whole turns of theirs.
    turn = max(max(1, event["workers"]) // event["each"] for event in ready) or 1
    kinds = [KINDS[0], *taken_of(ready[0])]
    # Without input the queue has filled, and without communication it may be emptied faster.
    waste = {"plain": 0 if kinds[-1] == "communication" else queued, "communication": queued}
    alone = ready[0]["world"] == 1 or kinds[-1] == "communication"  # or nobody is in between
    pieces = pieces_of(ready[0]["gradients"]) if alone else []
    steps = -(-steps // turn) * turn
    drains = bool(pieces) and ready[0]["loaders"] == 1  # a queue that has filled is taken away
    if drains:
        waste = {"input": max(0, queued - steps)}
    settle = {kind: 1 + waste.get(kind, 0) for kind in kinds}
    plan = {"kinds": kinds, "settle": settle, "steps": steps, "rounds": ROUNDS, "pieces": pieces}
    plan |= {"seconds": seconds, "each": (each := ready[0]["each"]), "queued": queued * each}
    turns = min(8, max(1, int(ALONE / (seconds or ALONE) / turn)))
    return plan | {"drains": drains, "pull": (drains * queued * each, drains * turns * turn * each)}


def pieces_of(buckets: list) -> list[int]:
    """Bytes of the all-reduces that stand for those of DDP: the same on all ranks."""
    pieces, left = [], SENT
    for size, _ in buckets:
        while size >= 4 and left >= 4:
            pieces.append(min(size, left, 25 * MIB) // 4 * 4)
            size, left = size - pieces[-1], left - pieces[-1]
    return pieces
