"""Collectives: does every rank call the same, and do all arrive?"""

import re

from ..findings import HANG, check, finds
from ..ranks import STILL, Rank, failed
from ..report import Report, short


@check(unless="unequal_steps")
@finds("collective_order", HANG, "collectives join exit", silent="join error died")
def check_collectives(ranks: list[Rank], report: Report) -> str | None:
    """Do ranks call the same collectives in the same order, and do all arrive?"""
    if any(rank.events["join"] for rank in ranks):
        # A rank that has joined calls from Python what DDP calls from C++ on the others.
        check_waits(ranks, report)
        return None if report.has("collective_order") else "join"
    groups = dict.fromkeys(e["group"] for rank in ranks for e in rank.events["collective"])
    for group in [name for name in groups if name != "horovod"]:
        members = [rank for rank in ranks if rank.called(group) or rank.group == group]
        for other in members[1:]:
            check_pair(members[0], other, group, report)
    if not report.has("collective_order"):
        check_waits(ranks, report)
    if report.has("collective_order"):
        return None
    if any(map(failed, ranks)):
        return "error"
    return "died" if report.broken and not all(rank.ended for rank in ranks) else None


def check_waits(ranks: list[Rank], report: Report) -> None:
    """Do ranks wait at different places, or all of them for ever?"""
    if any(failed(rank) and not rank.stack for rank in ranks):
        return  # one crashed, and the others waited for it
    waits = [rank for rank in ranks if rank.stack]
    places = {short(rank.stack) for rank in waits}
    for_ever = all(rank.still >= STILL for rank in waits)
    if len(places) > 1:
        found = "; ".join(f"rank {rank.rank}: {short(rank.stack)}" for rank in waits)
        report.find("collective_order:waits", waits[0].stack, not for_ever, places=found)
    elif for_ever and len(waits) == len(ranks) > 1:
        report.find("collective_order:still", waits[0].stack)


def check_pair(one: Rank, other: Rank, group: str, report: Report) -> None:
    mine = one.called(group)
    theirs = other.called(group)
    for n, (a, b) in enumerate(zip(mine, theirs, strict=False), 1):
        sized = re.search(
            "^(allreduce|broadcast|reduce)$|(?<!to_all)(?<!toall)_(base|single)$", a["kind"]
        )
        if a["kind"] != b["kind"] or (sized and a["size"] != b["size"]):
            texts = [f"{e['kind']} ({e['size']}) {short(e['at'])}" for e in (a, b)]
            if one.extra(other, group) or other.extra(one, group):
                return tell_extra(one, other, group, report)
            values = {"n": n, "one": one.rank, "other": other.rank}
            values |= {"mine": texts[0], "theirs": texts[1]}
            return report.find("collective_order", a["at"], **values)

    if report.broken and (found := died_in(one, other, group) or died_in(other, one, group)):
        return report.find("collective_order", found["at"], **found["values"])
    more, fewer = (one, other) if len(mine) > len(theirs) else (other, one)
    waits = more.stack or more.ended.get("error") != "None"
    if len(mine) != len(theirs) and fewer.left() and waits:
        if more.extra(fewer, group):
            return tell_extra(more, fewer, group, report)
        event = more.called(group)[len(fewer.called(group))]
        values = {"one": more.rank, "kind": event["kind"], "other": fewer.rank}
        place = short(event["at"])
        at = fewer.stack or event["at"]
        report.find("collective_order:missing", at, **values, place=place)
    return None


def died_in(gone: Rank, other: Rank, group: str) -> dict | None:
    """One ended without a word, in what torch itself calls of DTensors, while the other was in
    another call: gloo ends a process that receives what it does not expect."""
    last = gone.events["dtensor"][-1:]
    calls = other.called(group)[len(gone.called(group)) :]
    if gone.ended or not last or last[0]["t"] < gone.last or not calls:
        return None
    texts = [f"{calls[0]['kind']} ({calls[0]['size']}) {short(calls[0]['at'])}"]
    texts += [f"{last[0]['kind']} {short(last[0]['at'])}"]
    values = {"n": len(gone.called(group)) + 1, "one": other.rank, "other": gone.rank}
    return {"at": calls[0]["at"], "values": values | {"mine": texts[0], "theirs": texts[1]}}


def tell_extra(one: Rank, other: Rank, group: str, report: Report) -> None:
    for more, fewer in ((one, other), (other, one)):
        if found := more.extra(fewer, group):
            here, there = found
            values = {"one": more.rank, "other": fewer.rank, "kind": here["kind"]}
            values |= {"place": short(here["at"]), "next": short(there["at"])}
            if here["at"] in [event["at"] for event in fewer.called(group)]:
                return report.find("collective_order:early", there["at"], **values)
            return report.find("collective_order:extra", here["at"], **values)
    return None
