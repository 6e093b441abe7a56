"""Which line undoes what a script does about its seeds."""

from ..ranks import Rank
from ..report import short


def reseeded(tables: list[list], alike: bool) -> list[list]:
    """The line that seeded last, if it gave all ranks one seed (alike) or each another one, and the
    latest line before it that did not, if there is one. Of two calls of a helper, the frames where
    they part.

    tables: of each rank, lines that seed, the latest last: seed, number of the call, frames.
    """
    rows = [{str(frames): (seed, frames) for seed, _, frames in table} for table in tables]
    common = [line for line in rows[0] if all(line in row for row in rows)]
    if not common or any(list(row)[-1] != common[-1] for row in rows):
        return []
    seeds = {line: [row[line][0] for row in rows] for line in common}
    same = {line: None not in s and len(set(map(str, s))) == 1 for line, s in seeds.items()}
    latest = rows[0][common[-1]][1]
    if same[common[-1]] != alike or not latest:
        return []
    for line in common[::-1]:
        if same[line] != alike:
            pairs = zip(latest, rows[0][line][1], strict=False)
            return next(([one, two] for one, two in pairs if one != two), [])
    return [latest[0]]


def again(before: list, now: list) -> list:
    """The line that seeded last before each of two passes of a rank, with the same seed."""
    if before and now and before[-1][1] < now[-1][1]:
        (seed, _, frames), (other, _, others) = before[-1], now[-1]
        if seed == other is not None and frames == others:
            return frames[0]
    return []


def shuffled(ranks: list[Rank], least: int) -> tuple[str, dict]:
    """Of lists of so many, or more, that all ranks have shuffled in one line: the last one of which
    they have drawn other orders ("shuffled"), else the last one at all ("sorted")."""
    found = ("", {})
    tables = [{f"{e['at']} {e['count']}": e for e in rank.events["shuffled"]} for rank in ranks]
    for key, event in tables[0].items():
        events = [table[key] for table in tables if key in table]
        if len(events) < len(ranks) or event["count"] < least:
            continue
        values = {"line": short(event["at"]), "number": event["count"]}
        if any(one["state"] != event["state"] for one in events):
            by = reseeded([one["seeded"] for one in events], alike=False) or [event["at"]]
            found = "shuffled", {**values, "by": short(by[0])}
        elif found[0] != "shuffled":
            found = "sorted", values
    return found
