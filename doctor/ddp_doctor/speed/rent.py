"""What more GPUs like these would bring: computed, from what was measured on the ones there are.

The formula is that of docs, performance.md#scaling; when gradients are there is timed.
"""

import math
from statistics import median

from .interval import FEWEST, interval
from .numbers import Speed

MIB = 2**20
# GB a second, least and most that anybody has reported, and seconds of a hop. The numbers behind
# are those of issues, of nccl-tests but for nccl's own; performance.md#networks has the links.
LINKS = {
    "NVLink": (230, 480, 3.4e-6),  # 175: 232 among A100; 212 and 272: 480 among H100
    "PCIe 5.0": (28, 35, 3.4e-6),  # nccl 1639: eight RTX 5090, and four
    "PCIe 4.0": (10, 24, 3.4e-6),  # 307: pairs on two sockets, and at most; 178: 20 among A100
    "100 GbE": (4, 12.2, 40e-6),  # nccl 450: 4 to 6 by TCP; 29: 12.2 without it
    "25 GbE": (1.4, 3.1, 40e-6),  # nccl 209: 45 to 98 % of a link by TCP; 83: 1.7
}
BETWEEN = ("100 GbE", "25 GbE")  # machines of one GPU each
GPUS = (4, 8, 16)
PAYS = 0.75  # of as many times as fast as there are times as many


def buckets_of(gradients: list) -> list[tuple[int, float]]:
    """Bytes of DDP's buckets, and what goes with the last gradient in each."""
    buckets, size, limit = [], 0, MIB
    for number, (each, when) in enumerate(gradients, start=1):
        size += each
        if size >= limit or number == len(gradients):
            buckets.append((size, when))
            size, limit = 0, 25 * MIB
    return buckets


def hops(gpus: int, machines: int) -> int:
    """Of a tree, as NCCL counts them (its tuning.cc): inside a machine a tree is a chain."""
    return 2 * (gpus // machines - 1 + math.ceil(math.log2(machines)))


def all_reduce(gpus: int, machines: int, size: float, bandwidth: float, hop: float) -> float:
    """Seconds. A ring sends the fewest bytes, a tree has the fewest hops."""
    if gpus == 1:
        return 0.0
    ring = 2 * (gpus - 1) * hop + 2 * (gpus - 1) / gpus * size / bandwidth
    return min(ring, hops(gpus, machines) * hop + 2 * size / bandwidth)


def waiting(gpus: int, machines: int, buckets: list, bandwidth: float, hop: float) -> float:
    """Seconds after the last gradient: each bucket is there so many seconds before it, and is sent
    when the one before is through."""
    sent = -math.inf
    for size, early in buckets:
        sent = max(sent, -early) + all_reduce(gpus, machines, size, bandwidth, hop)
    return max(0.0, sent)


class Rent:
    """Of all that was measured the bounds that are worst for more GPUs, and those that are best."""

    def __init__(self, speed: Speed) -> None:
        self.speed, self.one = speed, speed.ranks[0]
        self.buckets = self.one.get("gradients") or []
        self.size = sum(size for size, _ in self.buckets)
        # Backward passes of a step that average: one process may leave it to the last one, or not.
        averaged = speed.bytes / max(1, self.size)
        self.passes = (averaged,) * 2 if averaged else (self.one["backwards"], 1)
        self.seconds = interval(
            math.log(each[0]["seconds"] / each[0]["steps"]) for each in speed.plain
        )
        self.batch = median(
            row[speed.unit] / row["steps"] for each in speed.plain for row in each
        )  # of a rank, in a step
        self.links = dict(LINKS)
        if own := self.own_link():
            self.links["own"] = own
        self.more = [gpus for gpus in GPUS if gpus > speed.world]

    def told(self) -> bool:
        """Whether it can be: all that communicates is DDP, or there is one process."""
        alone = (self.speed.world == 1 and not self.one["sharded"]) or "own" in self.links
        return bool(self.buckets and self.more and alone and len(self.speed.plain) >= FEWEST)

    def own_link(self) -> tuple[float, float, float] | None:
        """Of the ranks that there are."""
        rows = [each for each in self.speed.plain if each[0].get("sent")]
        if len(rows) < FEWEST:
            return None
        rows = [max(each, key=lambda row: row["sent"]) for each in rows]
        ranks, sizes = self.speed.world, rows[0]["pieces"]
        hop = median(row["hop"] for row in rows) / hops(ranks, machines=1)
        sent = [max(row["sent"] - len(sizes) * row["hop"], 0.01 * row["sent"]) for row in rows]
        a_second = 2 * (ranks - 1) / ranks * sum(sizes) / 1e9
        least, _, most = interval(math.log(a_second / seconds) for seconds in sent)
        return least, most, hop

    def waits(self, gpus: int, name: str, best: bool, times: float = 1.0) -> float:
        """Seconds of a step, with so many times the batch."""
        *bandwidths, hop = self.links[name]
        # The first steps, of which buckets are timed, may have been slower than later ones.
        later = self.seconds[0] / self.one["seconds"] if self.one["seconds"] else 1.0
        times *= 1.0 if best else min(1.0, later)
        buckets = [(size, early * times) for size, early in self.buckets]
        machines = gpus if name in BETWEEN else 1
        return self.passes[best] * waiting(gpus, machines, buckets, 1e9 * bandwidths[best], hop)

    def step(self, gpus: int, name: str, best: bool, times: float = 1.0) -> float:
        """As a multiple of the step as it is, with so many times the batch."""
        speed, bound = self.speed, 2 * best
        seconds = self.seconds[bound]
        without = {kind: 1 / max(1.0, speed.factor(kind)[bound]) for kind in speed.taken}
        alone, inline = without.get("communication", 1.0), self.one["workers"] == 0
        later = self.waits(gpus, name, best, times) / seconds
        now = self.waits(speed.world, "own", not best) / seconds if speed.world > 1 else 0.0
        # At best all that goes without communication is waiting that the formula knows.
        computes = max(0.0, (1.0 if inline else without.get("input", 1.0)) - now)
        computes = times * (min(computes, alone) if best else computes)
        # Loader workers go on while ranks wait.
        return computes + later if inline else max(computes + later, alone * times)

    def times(self, gpus: int, name: str, times: float = 1.0) -> tuple[float, float]:
        """As fast as now: at least, at most. An epoch has fewer steps then, and begins as slowly;
        an evaluation may be divided among more ranks, or not."""
        more, found = gpus / self.speed.world, []
        whole = self.speed.all_the_time / self.speed.step
        for best in (False, True):
            outside = sum(self.speed.outside.values())
            grows = sum(self.speed.between.values())
            grows -= best * self.speed.between.get("evaluation", 0.0)
            outside = (outside + (more - 1) * grows) / self.speed.step
            each = self.step(gpus, name, best, times) / times + outside
            found.append(more * whole / each)
        return tuple(found)

    def alone(self) -> float | None:
        """Seconds that the gradients of a step take by themselves."""
        rows = [max(row["sent"] for row in each) for each in self.speed.plain if "sent" in each[0]]
        sent = sum(self.speed.plain[0][0].get("pieces", []))
        return median(rows) * self.speed.bytes / sent if rows and sent else None

    def pulled(self) -> tuple[float, float] | None:
        """Samples a second that the loader of a rank gives with nothing beside it: of the slowest,
        and of the fastest."""
        rows = [row for each in self.speed.plain for row in each if row.get("pulled") is not None]
        batches = [self.batch * row["steps"] / row["batches"] for row in rows]
        found = [b / max(row["pulled"], 1e-9) for b, row in zip(batches, rows, strict=True)]
        return (min(found), max(found)) if found else None

    def json(self) -> dict:
        if not self.told():
            return {}
        times = {name: {n: self.times(n, name) for n in self.more} for name in self.links}
        return {
            "gradients": self.buckets,
            "links": self.links,
            "times": times,
            "loader": self.pulled(),
        }

    def pays(self, gpus: int, name: str) -> float | None:
        """From how many times the batch on; 1 where it does so now."""

        def enough(times: float) -> bool:
            return sum(self.times(gpus, name, times)) / 2 >= PAYS * gpus / self.speed.world

        high = 1.0
        while not enough(high):
            high *= 2
            if high > 1024:
                return None
        low = high / 2
        for _ in range(12 if high > 1 else 0):
            middle = (low + high) / 2
            low, high = (low, middle) if enough(middle) else (middle, high)
        return high
