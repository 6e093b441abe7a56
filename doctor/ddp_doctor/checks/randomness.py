"""Random numbers in training."""

from collections import Counter

from ..findings import TRAINING, WASTED, check, finds
from ..ranks import Pass, Rank
from ..report import Report, short
from .data import again


@check(between=True)
@finds(
    "equal_randomness",
    WASTED,
    f"{TRAINING} items stream worker collectives forward",
    silent="together exchange optimizer batches shares loader workers fixed",
)
def check_randomness(ranks: list[Rank], report: Report) -> str | None:
    """Do ranks draw the same random numbers, and does anything draw?"""
    trained = [rank.trained() for rank in ranks]
    if report.teams.together or (report.teams.exchange and not own_samples(trained)):
        for rank, passes in zip(ranks, trained, strict=True):
            check_items([rank], [passes], report)  # its epochs and workers
        return "together" if report.teams.together else "exchange"
    # A new pass draws a seed for its workers, equal or not: only steps of one pass are asked.
    short = [passes for passes in trained if passes and passes[0].steps < 2]
    if not all(rank.steps for rank in ranks):
        return "optimizer"
    if short or any(len(rank.steps) < 2 for rank in ranks):
        return "batches"
    if stream := equal_stream([rank.steps for rank in ranks]):
        find_seed(stream, [rank.steps[0]["seeded"] for rank in ranks], report)
        if not any(trained):
            if takes_shares(ranks):
                return "shares"
            at = ranks[0].steps[0]["at"]
            return report.find("equal_randomness:drawn", at, mild=True, name=stream)
        at = trained[0][0].loader["at"]
        return report.find("equal_randomness", at, name=stream)
    if not all(trained):
        return "loader"
    if not all(any(one.drew for one in passes) for passes in trained):
        return "workers"
    return check_items(ranks, trained, report)


def own_samples(trained: list[list[Pass]]) -> bool:
    """Whether no sample of the first pass came to two ranks."""
    keys = [passes[0].keys() if passes and not passes[0].unseen() else [] for passes in trained]
    return all(keys) and len(set().union(*keys)) == sum(len(set(mine)) for mine in keys)


def equal_stream(events: list[list[dict]]) -> str:
    """The random numbers that two ranks have alike, and draw then: from the first forward pass to
    its step (batches of unlike shapes draw unlike many), or from that to this optimizer's next."""
    first = [steps[0] for steps in events]
    again = [
        next((s for s in steps[1:] if s["optimizer"] == steps[0]["optimizer"]), {"random": {}})
        for steps in events
    ]
    begun, made, later = (
        [event[key] for event in found]
        for key, found in (("begun", first), ("random", first), ("random", again))
    )
    for name in ("torch", "numpy", "random", "cuda"):
        for before, after in ((begun, made), (made, later)):
            states = [[one.get(name) for one in pair] for pair in zip(before, after, strict=True)]
            ranks = Counter(one for one, other in states if one and other)
            if any(ranks[one] > 1 and one != other for one, other in states if other):
                return name
    return ""


def takes_shares(ranks: list[Rank]) -> bool:
    """Without a loader: numbers are drawn before the forward pass, and no two models are given the
    same rows. All may draw one batch, of which each takes its share."""
    rows = [str(list(rank.figures["rows"].values())) for rank in ranks if rank.figures["rows"]]
    drawn = any(step["drawn"] for rank in ranks for step in rank.steps)
    return drawn and len(set(rows)) == len(ranks)


def check_items(ranks: list[Rank], trained: list[list[Pass]], report: Report) -> str | None:
    """Were two items made with the same random numbers, where they should not have been?"""
    seen = {}  # a state of random numbers -> who drew from it
    for rank, passes in zip(ranks, trained, strict=True):
        drew = [(n, event) for n, one in enumerate(passes) for event in one.drew]
        for epoch, event in drew:
            for name, state in event["states"].items():
                place = (rank.rank, event["worker"], epoch)
                before = seen.setdefault((name, state), place)
                if before != place:
                    kind = "workers" if before[2] == epoch else "epochs"
                    loader = passes[epoch].loader
                    if kind == "epochs" and not loader["shuffles"]:
                        return "fixed"  # the same samples again, which may be made of the numbers
                    find_seed(name, [of[epoch].seeded for of in trained if of[epoch:]], report)
                    if kind == "epochs":
                        two = [passes[n].seeded.get(name, []) for n in (before[2], epoch)]
                        if at := again(*two):
                            report.find("equal_randomness:again", at, name=name, line=short(at))
                    return report.find(f"equal_randomness:{kind}", loader["at"], name=name)
    return None


def find_seed(name: str, seeded: list[dict], report: Report) -> None:
    """Has a line seeded all ranks alike again?"""
    name = {"cuda": "torch"}.get(name, name)
    if lines := reseeded([one.get(name, []) for one in seeded]):
        values = {"line": short(lines[0]), "before": short(lines[1])}
        report.find("equal_randomness:seeded", lines[0], name=name, **values)


def reseeded(tables: list[list]) -> list[list]:
    """The line that seeded last, if it gave all ranks one seed, and the latest line before it that
    did not, if there is one. Of two calls of a helper, the frames where they part.

    tables: of each rank, lines that seed, the latest last: seed, number of the call, frames.
    """
    rows = [{str(frames): (seed, frames) for seed, _, frames in table} for table in tables]
    common = [line for line in rows[0] if all(line in row for row in rows)]
    if not common or any(list(row)[-1] != common[-1] for row in rows):
        return []
    seeds = {line: [row[line][0] for row in rows] for line in common}
    same = {line: None not in s and len(set(map(str, s))) == 1 for line, s in seeds.items()}
    latest = rows[0][common[-1]][1]
    before = [line for line in common if not same[line]]
    if same[common[-1]] and before:
        pairs = zip(latest, rows[0][before[-1]][1], strict=False)
        return next(([one, two] for one, two in pairs if one != two), [])
    return []
