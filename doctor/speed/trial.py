"""One launch that is measured, and what its numbers say."""

import json
import math
import time
from operator import truediv
from pathlib import Path
from statistics import median

from ..job import Job
from ..report import Report
from . import KINDS, PLAN, SPEED

SECONDS = 2.0  # of a window, as the training is
ROUNDS = 3
LEAST, MOST = 5, 300  # steps of a window
PATIENCE = 100  # seconds that the other ranks may be late
CLEAR = 1.25  # times as fast without it: what brings less is not named
APART = 1.3  # times as fast alone as the slowest: a rank that waits for it
SLOWEST = 0.05  # GB a second: what takes longer is no link


class Trial(Job):
    """A job whose processes measure; each tells of its windows in its own file."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.ours[SPEED] = "1"
        self.ready: dict[int, dict] = {}  # rank -> what it told before the first window
        self.windows: dict[int, list[dict]] = {}
        self.torch = False

    def read(self) -> None:
        self.ready, self.windows = {}, {}
        for path in self.traces.glob("*.jsonl"):
            self.torch = True
            lines = path.read_text().splitlines()
            events = [json.loads(line) for line in lines if line.endswith("}")]
            names = ("ready", "window", "over")
            found = {name: [event for event in events if event["e"] == name] for name in names}
            for event in found["ready"]:
                self.ready[event["rank"]] = event | {"over": bool(found["over"])}
                self.windows[event["rank"]] = found["window"]

    def world(self) -> int:
        return max((event["world"] for event in self.ready.values()), default=0)

    def wait(self, steps: int, seconds: float, still: float) -> None:
        start = time.monotonic()
        first = 0.0
        while self.process.poll() is None:
            time.sleep(0.2)
            self.read()
            now = time.monotonic()
            first = first or (now if self.ready else 0.0)
            plan = self.traces / PLAN
            if self.ready and len(self.ready) == self.world() and not plan.exists():
                draft = self.traces / f"{PLAN}.new"
                draft.write_text(json.dumps(planned(list(self.ready.values()))))
                draft.rename(plan)
            if self.stopped():
                self.ended = "the recorder had to stop"
            elif self.ready and all(event["over"] for event in self.ready.values()):
                self.ended = "measured"
            elif seconds and now > start + seconds:
                self.ended = "seconds"
            elif first and not plan.exists() and now > first + PATIENCE:
                self.ended = "alone"
            if self.ended:
                return
        self.read()


def planned(ready: list[dict]) -> dict:
    """How many steps windows have, and how many before them are not measured."""
    each = max(event["seconds"] for event in ready)
    steps = min(MOST, max(LEAST, math.ceil(SECONDS / max(each, 1e-6))))
    return {"settle": max(e["settle"] for e in ready), "steps": steps, "rounds": ROUNDS}


class Speed:
    """The numbers of one launch: for each kind of window, each round's of each rank."""

    def __init__(self, trial: Trial) -> None:
        self.ranks = [trial.ready[rank] for rank in sorted(trial.ready)]
        self.world = len(self.ranks)
        self.cpus = len({cpu for rank in self.ranks for cpu in rank["cpus"]})  # of all ranks
        rows = [trial.windows[rank] for rank in sorted(trial.ready)]
        whole = min(map(len, rows), default=0)
        rows = [[row for row in own[:whole] if row["seconds"] > 0] for own in rows]
        known = whole and all(row["samples"] for own in rows for row in own)
        self.unit = "samples" if known else "steps"
        self.paces = {kind: self.of(rows, kind, self.unit) for kind in KINDS}
        self.steps = {kind: self.of(rows, kind, "steps") for kind in KINDS}
        plain = [row for row in rows[0] if row["kind"] == "plain"]
        self.step = median([row["seconds"] / row["steps"] for row in plain] or [0.0])  # seconds
        self.bytes = median([row["bytes"] / row["steps"] for row in plain] or [0.0])
        self.calls = max(
            (row["collectives"] / max(1, row["steps"]) for own in rows for row in own
             if row["kind"] == "communication"), default=0,
        )  # fmt: skip

    def of(self, rows: list, kind: str, unit: str) -> list[list[float]]:
        """Paces of each rank, a number for each round."""
        paces = [[row[unit] / row["seconds"] for row in own if row["kind"] == kind] for own in rows]
        least = min(map(len, paces), default=0)
        return [own[:least] for own in paces]

    def all(self, kind: str) -> list[float]:
        """Of all ranks together in each round, in as many steps each as the slowest makes, as soon
        as they average. Where DDP does, a slower one has waited in a step, for an evaluation of
        another rank, say, whose clock stood still. A batch may be larger on one rank."""
        pace = max if self.ranks[0]["ddp"] and kind != "communication" else min
        rounds = zip(
            zip(*self.paces[kind], strict=True), zip(*self.steps[kind], strict=True), strict=True
        )
        return [pace(steps) * sum(map(truediv, each, steps)) for each, steps in rounds]

    def own(self, rank: int, kind: str) -> float:
        return median(self.paces[kind][rank])

    def gain(self, kind: str) -> float:
        return median(self.all(kind)) / median(self.all("plain"))

    def spread(self, *kinds: str) -> float:
        """How much windows of one kind differ: the most by the least."""
        return max(max(self.all(kind)) / min(self.all(kind)) for kind in kinds)

    def clear(self, kind: str) -> bool | None:
        """Whether it costs something; None: the windows differ too much to tell, or are too few."""
        with_it, without = self.all("plain"), self.all(kind)
        gain, spread = self.gain(kind), self.spread("plain", kind)
        if min(len(with_it), len(without)) < 2:
            return None
        if min(without) > max(with_it) and gain >= max(CLEAR, min(spread, 3)):
            return True
        return False if max(without) < CLEAR * min(with_it) else None

    def taken(self) -> list[str]:
        """What could be taken out."""
        one = self.ranks[0]
        kinds = ["input"] if one["workers"] >= 0 else []
        if self.world > 1 and one["ddp"] and not one["sharded"]:
            kinds.append("communication")
        return kinds

    def json(self) -> dict:
        facts = {key: self.ranks[0][key] for key in ("workers", "ddp")}
        facts |= {"cpus": self.cpus, "bytes": self.bytes, "a_second": self.paces}
        return {"ranks": self.world, "unit": self.unit, **facts}

    def waits_for(self) -> int | None:
        """The rank that is slower than others, and alone no faster than all together."""
        if "communication" not in self.taken() or not self.all("communication"):
            return None
        paces = self.paces["communication"]
        order = sorted(range(self.world), key=lambda rank: median(paces[rank]))
        slow, fast = order[0], order[-1]
        apart = len(paces[slow]) > 1 and min(paces[fast]) > APART * max(paces[slow])
        held = min(paces[slow], default=0) < 1.2 * max(self.paces["plain"][slow], default=0)
        return slow if apart and held else None


def number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def lines_of(speed: Speed, report: Report) -> tuple[list[str], bool]:
    """The table and the sentences; and whether all of them could be decided."""
    say = report.say
    unit = say(f"speed_name_{speed.unit}")
    lines = [say("speed_head", unit=unit, rounds=len(speed.all("plain")))]
    taken = speed.taken()
    for kind in ("plain", *taken):
        values = speed.all(kind)
        shown = f"{number(median(values))} ({number(min(values))}–{number(max(values))})"
        paces = ", ".join(number(speed.own(rank, kind)) for rank in range(min(speed.world, 8)))
        more = ", …" if speed.world > 8 else ""
        lines.append("  " + say(f"speed_{kind}", all=shown, ranks=paces + more))
    lines.append("")
    sentences, decided = said_of(speed, report, taken)
    return lines + sentences, decided


def said_of(speed: Speed, report: Report, taken: list[str]) -> tuple[list[str], bool]:
    lines, one = [], speed.ranks[0]

    def add(name: str, **values: object) -> None:
        lines.append(report.say(name, **values))
        advice = report.advice(name, **values)
        lines.extend([f"  -> {advice}"] if advice else [])

    found = {kind: speed.clear(kind) for kind in taken}
    slow = speed.waits_for()
    if slow is not None:
        fast = max(range(speed.world), key=lambda rank: speed.own(rank, "communication"))
        paces = {"slow": number(speed.own(slow, "communication"))}
        paces["fast"] = number(speed.own(fast, "communication"))
        paces["gain"] = f"{speed.gain('input'):.3g}" if "input" in taken else ""
        names = {True: "speed_waits_input", False: "speed_waits", None: "speed_waits_somehow"}
        add(names[found.get("input")], rank=slow, **paces)
    elif found.get("input"):
        gain = speed.gain("input")
        values = {"share": f"{100 - 100 / gain:.0f}", "gain": f"{gain:.3g}"}
        values |= {"workers": one["workers"], "cpus": speed.cpus, "ranks": speed.world}
        add("speed_input_costs", **values)
    if found.get("communication"):
        values = link(speed)
        slower = float(values["rate"]) < SLOWEST
        add("speed_communication_waits" if slower else "speed_communication_costs", **values)
    unsure = [kind for kind in taken if found[kind] is None]
    if unsure and slow is None:
        names = ", ".join(report.say(f"speed_name_{kind}") for kind in unsure)
        add("speed_undecided", kinds=names, gains=", ".join(f"{speed.gain(k):.3g}" for k in unsure))
    if taken and not any(found.values()) and not unsure and slow is None:
        most = max(max(speed.all(kind)) for kind in taken) / min(speed.all("plain"))
        parts = 1 + (speed.world > 1)  # one process has nothing to communicate
        whole = len(taken) == parts and speed.calls < 0.5
        names = ", ".join(report.say(f"speed_name_{kind}") for kind in taken)
        values = {"share": f"{100 / max(1.0, most):.0f}", "kinds": names}
        add("speed_step" if whole else "speed_rest", **values)
    for name, holds in (
        ("speed_no_loader", "input" not in taken),
        ("speed_sharded", one["sharded"] and speed.world > 1),
        ("speed_no_ddp", speed.world > 1 and not one["ddp"] and not one["sharded"]),
        ("speed_own_calls", "communication" in taken and speed.calls >= 0.5),
    ):
        if holds:
            add(name, calls=f"{speed.calls:.3g}")
    return lines, not unsure or slow is not None


def link(speed: Speed) -> dict:
    """What communication costs in a step, and by arithmetic what would help."""
    gain = speed.gain("communication")
    alone = speed.step / gain
    lost = speed.step - alone
    sent = 2 * (speed.world - 1) / speed.world * speed.bytes
    return {
        "share": f"{100 - 100 / gain:.0f}",
        "gain": f"{gain:.3g}",
        "size": number(speed.bytes / 1e6),
        "lost": number(1000 * lost),
        "rate": f"{sent / lost / 1e9:.2g}",
        "four": f"{4 * speed.step / (4 * alone + lost):.2g}",
        "half": f"{speed.step / (alone + lost / 2):.2g}",
    }


def compared(one: Speed, two: Speed, report: Report) -> str:
    """The second launch with the first."""
    if "steps" in (one.unit, two.unit):
        return report.say("speed_no_samples")
    a, b = one.all("plain"), two.all("plain")
    values = {"times": f"{median(b) / median(a):.3g}", "ranks": two.world, "alone": one.world}
    values |= {"a": number(median(a)), "b": number(median(b))}
    return report.say("speed_compared", **values)
