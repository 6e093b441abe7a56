"""What is printed of the numbers."""

import math
from statistics import median

from ..report import Report
from .interval import FEWEST, Three
from .numbers import Speed
from .rent import Rent

UNLIKE = 1.1  # numbers on the rank with most, by their mean


def number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def share(gain: float) -> float:
    """Of the time, in percent, what is saved."""
    return 100 - 100 / max(1.0, gain)


def shares(gain: Three) -> dict[str, str]:
    return {n: f"{share(g):.0f}" for n, g in zip(("least", "share", "most"), gain, strict=True)}


def lines_of(speed: Speed, report: Report, wanted: int = 0) -> tuple[list[str], bool]:
    """The table and the sentences; and whether all of them could be decided. wanted: the steps
    that a rank makes in the fewest rounds."""
    sentences, decided = said_of(speed, report, wanted)
    more = more_of(Rent(speed), report)
    return [*table(speed, report), "", *sentences, *([""] * bool(more)), *more], decided


def table(speed: Speed, report: Report) -> list[str]:
    say, parts = report.say, speed.parts()
    lines = [say("speed_head", unit=say(f"speed_name_{speed.unit}"), rounds=speed.rounds)]
    for kind in ("plain", *speed.taken):
        values = speed.all(kind)
        shown = f"{number(median(values))} ({number(min(values))}–{number(max(values))})"
        ranks = range(min(speed.world, 8))
        paces = ", ".join(number(median(speed.own(rank, kind))) for rank in ranks)
        more = ", …" if speed.world > 8 else ""
        lines.append("  " + say(f"speed_{kind}", all=shown, ranks=paces + more))
        each, outside = speed.all_the_time, sorted(speed.outside.items(), key=lambda one: -one[1])
        if kind == "plain" and 1 - speed.step / each > 0.01:
            told = [say("speed_part", part=say(f"speed_name_{k}"), share=f"{100 * v / each:.0f}")
                    for k, v in outside]  # fmt: skip
            values = {"all": number(median(values) * speed.step / each), "parts": ", ".join(told)}
            lines.append(
                "  " + say("speed_outside", share=f"{share(each / speed.step):.0f}", **values)
            )
    if "loop" in parts and lost(speed, "loop") > 0.01 * speed.step:
        lines.append("  " + say("speed_loop", lost=number(1000 * lost(speed, "loop"))))
    if "calls" in parts:
        waits = [
            median(each[r]["waited"] / each[r]["steps"] for each in speed.plain) for r in ranks
        ]
        told = ", ".join(number(1000 * seconds) for seconds in waits)
        if max(waits) > 0.01 * speed.step:
            lines.append("  " + say("speed_calls", calls=number(speed.calls), waits=told))
    if speed.lengths() >= UNLIKE:
        lines.append("  " + say("speed_lengths", times=f"{speed.lengths():.3g}"))
    return lines


def lost(speed: Speed, part: str) -> float:
    """Seconds of a step."""
    return speed.all_the_time * share(speed.gain(part)[1]) / 100


def said_of(speed: Speed, report: Report, wanted: int) -> tuple[list[str], bool]:
    lines, one, parts = [], speed.ranks[0], speed.parts()

    def add(name: str, **values: object) -> None:
        lines.append(report.say(name, **values))
        advice = report.advice(name, **values)
        lines.extend([f"  -> {advice}"] if advice else [])

    found = {part: speed.clear(part) for part in parts}
    waits = speed.waits_for()
    if waits:
        slow, fast = (number(median(speed.alone(rank))) for rank in waits)
        names = {True: "speed_waits_input", False: "speed_waits", None: "speed_waits_somehow"}
        gain = f"{speed.gain('input')[1]:.3g}" if "input" in parts else ""
        add(names[found.get("input")], rank=waits[0], slow=slow, fast=fast, gain=gain)
    for part in parts:
        if not found[part] or (part == "input" and waits):
            continue
        gain = speed.gain(part)
        values = shares(gain) | {"gain": f"{gain[1]:.3g}", "calls": number(speed.calls)}
        values |= {"workers": one["workers"], "cpus": speed.cpus, "ranks": speed.world}
        values |= {"lost": number(1000 * lost(speed, part))}
        kind = "costs"
        if part == "communication":
            values |= link(speed)
            alone = Rent(speed).alone()
            if alone is not None and lost(speed, part) > 2 * alone:
                kind = "lengths" if speed.lengths() >= UNLIKE else "waits"
        if part == "outside":
            kind = "costs" if len(speed.spells) > 1 else "seen"
            values["what"] = report.say(f"speed_less_{max(speed.outside, key=speed.outside.get)}")
        add(f"speed_{part}_{kind}", **values)
    unsure = [part for part in parts if found[part] is None]
    if unsure and not waits:
        told = []
        for part in unsure:
            bounds = "{least}–{most}".format(**shares(speed.gain(part)))
            told.append(
                report.say("speed_part", part=report.say(f"speed_name_{part}"), share=bounds)
            )
        values = {"parts": ", ".join(told), "rounds": speed.rounds}
        few = speed.rounds < FEWEST
        add("speed_few" if few else "speed_undecided", fewest=FEWEST, wanted=wanted, **values)
    if parts and not any(found.values()) and not unsure and not waits:
        rest = 100 - sum(share(speed.gain(part)[2]) for part in parts)
        out = speed.world == 1 or "communication" in parts
        out = out or ("calls" in parts and not one["sharded"])
        names = ", ".join(report.say(f"speed_name_{part}") for part in parts)
        name = "speed_step" if out and "input" in parts else "speed_rest"
        add(name, share=f"{max(0, rest):.0f}", kinds=names)
    for name, holds in (
        ("speed_no_loader", "input" not in parts),
        ("speed_sharded", one["sharded"] and speed.world > 1),
        ("speed_no_ddp", speed.world > 1 and not one["ddp"] and not one["sharded"]),
        ("speed_no_pass", one["ends"] and not speed.passes),
        ("speed_no_pass", "input" not in parts and not speed.outside),
    ):
        if holds:
            add(name)
    return lines, not unsure or bool(waits)


def link(speed: Speed) -> dict:
    """What communication costs in a step, and by arithmetic what would help."""
    each, cost = speed.all_the_time, lost(speed, "communication")
    alone = max(1e-9, cost if (alone := Rent(speed).alone()) is None else alone)
    sent = 2 * (speed.world - 1) / speed.world * speed.bytes
    return {
        "alone": number(1000 * alone),
        "times": f"{speed.lengths():.3g}",
        "size": number(speed.bytes / 1e6),
        "rate": f"{sent / alone / 1e9:.2g}",
        "four": f"{4 * each / (4 * (each - cost) + cost):.2g}",
        "half": f"{each / (each - cost / 2):.2g}",
    }


def more_of(rent: Rent, report: Report) -> list[str]:
    """What more ranks would bring, on links that have a name, and on the one that there is."""
    if not rent.told():
        return []
    say, speed, many = report.say, rent.speed, rent.more[:2][-1]
    lines = [say("speed_more", ranks=speed.world, many=many, times=f"{many / speed.world:.3g}")]
    heads = [f"N = {gpus}" for gpus in rent.more]
    lines.append("  " + "".join(f"{head:<12}" for head in heads) + say("speed_pays", many=many))
    rows = {}  # links that are as good as one another share one
    for name, (least, most, _) in rent.links.items():
        cells = ["{}–{}".format(*map(number, rent.times(gpus, name))) for gpus in rent.more]
        pays = rent.pays(many, name)
        batch = math.ceil((pays or 0) * rent.batch - 1e-9)
        cells.append("–" if pays is None else f"{'≤ ' * (pays == 1)}{batch:,}")
        shown = say("speed_name_own") if name == "own" else name
        shown += f" ({number(least)}–{number(most)} GB/s)"
        rows.setdefault("".join(f"{cell:<12}" for cell in cells), []).append(shown)
    lines += [f"  {cells}{', '.join(names)}" for cells, names in rows.items()]
    wanted = many * median(speed.own(0, "input" if "input" in speed.taken else "plain"))
    if found := rent.pulled():
        alone = "–".join(dict.fromkeys(map(number, found)))
        values = {"many": many, "wanted": number(wanted), "each": number(wanted / many)}
        values |= {"alone": alone, "workers": rent.one["workers"]}
        lines.append(
            "  -> " + say("speed_more_input", cpus=speed.cpus, ranks=speed.world, **values)
        )
    lines.append(say("speed_more_cpu" if rent.one["device"] == "cpu" else "speed_more_unknown"))
    return lines


def compared(one: Speed, two: Speed, report: Report) -> str:
    """The second launch with the first, of all the time."""
    if "steps" in (one.unit, two.unit):
        return report.say("speed_no_samples")
    a, b = (median(run.all("plain")) * run.step / run.all_the_time for run in (one, two))
    values = {"times": f"{b / a:.3g}", "ranks": two.world, "alone": one.world}
    return report.say("speed_compared", **values, a=number(a), b=number(b))
