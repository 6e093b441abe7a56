"""What the numbers of one launch are."""

import math
from collections import Counter
from operator import truediv
from statistics import mean, median

from .interval import FEWEST, Three, interval

CLEAR = 1.25  # times as fast without it: what brings less is not named
APART = 1.3  # times as fast alone as the slowest: a rank that waits for it


def taken_of(one: dict) -> list[str]:
    """What can be taken out, by what a rank has told."""
    kinds = ["input"] if one["workers"] >= 0 else []
    if one["world"] > 1 and one["ddp"] and not one["sharded"]:
        kinds.append("communication")
    return kinds


class Speed:
    """For each kind of window its rounds, and in each of them a row of each rank."""

    def __init__(self, trial: object) -> None:
        self.ranks = [trial.ready[rank] for rank in sorted(trial.ready)]
        self.world = len(self.ranks)
        self.cpus = len({cpu for rank in self.ranks for cpu in rank["cpus"]})  # of all ranks
        self.taken = taken_of(self.ranks[0])
        rows = list(zip(*(trial.windows[rank] for rank in sorted(trial.ready)), strict=False))
        self.kinds = list(dict.fromkeys(each[0]["kind"] for each in rows))
        self.rounds = len(rows) // max(1, len(self.kinds))
        self.rows = {kind: {} for kind in ("plain", *self.taken, *self.kinds)}
        for n, each in enumerate(rows):
            if all(row["seconds"] > 0 for row in each):
                self.rows[each[0]["kind"]][n] = each
        plain = self.plain = list(self.rows["plain"].values())
        samples = [row["samples"] for each in plain for row in each]
        self.unit = "samples" if samples and all(samples) else "steps"
        # Of a step: seconds, bytes, collectives of the script.
        self.step = median([each[0]["seconds"] / each[0]["steps"] for each in plain] or [0.0])
        self.bytes = median([each[0]["bytes"] / each[0]["steps"] for each in plain] or [0.0])
        calls = [
            sum(row["collectives"] for row in own) / sum(row["steps"] for row in own)
            for own in zip(*plain, strict=True)
        ]  # a window with few steps may hold those of an evaluation that begins
        self.calls = max(calls, default=0)
        timed = [each for each in rows if each[0]["kind"] != "input"]  # without it they begin early
        self.passes = max((row["passes"] for each in timed for row in each), default=0)
        self.outside, self.spells, self.between = self.outside_of(rows)
        self.all_the_time = self.step + sum(self.outside.values())  # seconds for a step
        self.known: dict[str, Three] = {}

    def parts(self) -> list[str]:
        """All that may cost time: what was taken out, and what was timed."""
        timed = {"calls": self.world > 1 and self.calls >= 0.5, "loop": self.loop()}
        timed["outside"] = sum(self.outside.values())
        return self.taken + [part for part, there in timed.items() if there]

    def whole(self) -> bool:
        return all(self.rows[kind] for kind in ("plain", *self.taken))

    # ---- paces ----

    def together(self, kind: str, each: tuple) -> float:
        """Of all ranks together, in as many steps each as the slowest makes, as soon as they
        average. Where DDP does, a slower one has waited in a step, for an evaluation of another
        rank, say, whose clock stood still. A batch may be larger on one rank."""
        pace = max if self.ranks[0]["ddp"] and kind != "communication" else min
        batches = sum(row[self.unit] / row["steps"] for row in each)
        return pace(row["steps"] / row["seconds"] for row in each) * batches

    def all(self, kind: str) -> list[float]:
        return [self.together(kind, each) for each in self.rows[kind].values()]

    def own(self, rank: int, kind: str) -> list[float]:
        rows = [each[rank] for each in self.rows[kind].values()]
        return [row[self.unit] / row["seconds"] for row in rows]

    # ---- what a part costs ----

    def without(self, kind: str) -> list[float]:
        """Of each window without it, as a logarithm, how many times as fast it is as the plain ones
        before and after it would be at its time."""
        plain = {n: self.together("plain", each) for n, each in self.rows["plain"].items()}
        late = self.kinds.index(kind) if kind in self.kinds else 0
        found, part = [], late / len(self.kinds)
        for n, each in self.rows[kind].items():
            near = [n - late, n - late + len(self.kinds)]
            near = [math.log(plain[at]) for at in near if at in plain]
            if near:
                as_it_is = (1 - part) * near[0] + part * near[-1]
                found.append(math.log(self.together(kind, each)) - as_it_is)
        return found

    def factor(self, part: str) -> Three:
        """How many times as fast steps are without it."""
        if part not in self.known:
            timed = {"calls": self.waits, "loop": self.loop}
            self.known[part] = interval(timed[part]() if part in timed else self.without(part))
        return self.known[part]

    def gain(self, part: str) -> Three:
        """How many times as fast training is without it: at least, likely, at most. What is outside
        of steps stays as it is."""
        if part == "outside":
            gains = [self.step and 1 + seconds / self.step for seconds in self.spells]
            few = len(gains) < FEWEST
            return (min(gains), mean(gains), max(gains)) if few else interval(map(math.log, gains))
        steps = [self.step / max(one, 1e-9) - self.step for one in self.factor(part)]
        return tuple(self.all_the_time / max(self.all_the_time + one, 1e-9) for one in steps)

    def clear(self, part: str) -> bool | None:
        """Whether it costs something; None: the windows differ too much to tell, or are too few."""
        least, _, most = self.gain(part)
        return least >= CLEAR if least >= CLEAR or most < CLEAR else None

    def settled(self) -> bool:
        """No further round is needed."""
        return all(self.clear(part) is not None for part in self.parts())

    # ---- what was timed ----

    def waits(self) -> list[float]:
        """As logs, of the script's own collectives: of the rank that waits least in them."""
        shares = [min(row["waited"] / row["seconds"] for row in each) for each in self.plain]
        return [-math.log(max(0.01, 1 - share)) for share in shares]

    def loop(self) -> list[float]:
        """As logs, of what each rank does between a batch and its forward pass."""
        found = []
        for each in self.plain:
            seconds = max(row["seconds"] / row["steps"] for row in each)
            loops = [row["loop"] for row in each if row["loop"] is not None]
            found += [-math.log(max(0.01, 1 - min(loops) / seconds))] if loops else []
        return found

    def outside_of(self, rows: list[tuple]) -> tuple[dict[str, float], list[float], dict]:
        """Of the rank with most, seconds for a step that lie outside of steps: by what they are,
        and of each window that saw a pass over the data begin. Without input that is too early.
        And those of them that lie between two passes."""
        found = [({}, [0.0], {})]
        for own in zip(*rows, strict=True):
            own = [row for row in own if row["kind"] != "input"]
            sums = {name: Counter() for name in ("within", "between", "counts")}
            for row in own:
                sums["within"].update(row["within"])
                sums["between"].update(row["between"])
                names = ("made", "steps", "batches", "passes", "passed")
                sums["counts"].update({name: row[name] for name in names})
            made, steps, batches, passes, passed = sums["counts"].values()
            parts = Counter({what: seconds / made for what, seconds in sums["within"].items()})
            spells, between = [always := sum(parts.values())], {}
            if passed:
                long = passed / max(1, batches / max(1, steps)) / passes  # steps of a pass
                between = {k: v / passes / long for k, v in sums["between"].items()}
                parts.update(between)
                began = [row for row in own if row["passes"]]
                each = [sum(row["between"].values()) / row["passes"] for row in began]
                spells = [always + seconds / long for seconds in each]
            found.append((dict(parts), spells, between))
        return max(found, key=lambda one: sum(one[0].values()))

    def lengths(self) -> float:
        """How many numbers a step's batches have on the rank with most, by their mean."""
        steps = []
        for each in self.plain:
            works = [row["works"] for row in each]
            steps += zip(*works, strict=True) if len(set(map(len, works))) == 1 else []
        return sum(map(max, steps)) / sum(map(mean, steps)) if steps else 1.0

    def waits_for(self) -> tuple[int, int] | None:
        """The rank that is slower than others, and alone no faster than all together; and the
        fastest."""
        kind = "communication" if "communication" in self.taken else "plain"
        if self.world == 1 or (kind == "plain" and self.calls < 0.5) or not self.rows[kind]:
            return None
        order = sorted(range(self.world), key=lambda rank: median(self.alone(rank)))
        slow, fast = order[0], order[-1]
        logs = list(map(math.log, map(truediv, self.alone(fast), self.alone(slow))))
        held = median(self.alone(slow)) < 1.2 * median(self.own(slow, "plain"))
        return (slow, fast) if interval(logs)[0] > APART and held else None

    def alone(self, rank: int) -> list[float]:
        """Its pace where it waits for no other: in the script's own collectives the one that comes
        last waits least."""
        kind = "communication" if "communication" in self.taken else "plain"
        paces = []
        for each in self.rows[kind].values():
            waited = each[rank]["waited"] - min(row["waited"] for row in each)
            paces.append(each[rank][self.unit] / max(1e-9, each[rank]["seconds"] - waited))
        return paces

    def json(self) -> dict:
        ranks = range(self.world)
        found = {"ranks": self.world, "unit": self.unit, "rounds": self.rounds, "cpus": self.cpus}
        found |= {key: self.ranks[0][key] for key in ("workers", "ddp")}
        found |= {"bytes": self.bytes, "step": self.step, "outside": self.outside}
        found["a_second"] = {k: [self.own(rank, k) for rank in ranks] for k in self.rows}
        enough = self.rounds >= FEWEST
        return found | {"gains": {part: self.gain(part) for part in self.parts() if enough}}
