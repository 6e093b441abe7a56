"""How many steps each rank makes."""

from types import SimpleNamespace

from ..findings import HANG, TRAINING, WRONG, check, finds
from ..ranks import Rank
from ..report import Report
from .reasons import STEPS, meant


@check(between=True)
@finds("unequal_steps", HANG, f"{TRAINING} join exit collectives", silent="join loader")
@finds("unequal_steps:skipped", WRONG)
def check_steps(ranks: list[Rank], report: Report) -> str | None:
    """Do all ranks make as many steps in an epoch, and as many epochs?"""
    if any(rank.events["join"] for rank in ranks):
        return "join"
    trained = [rank.training() for rank in ranks]
    if not all(trained):
        return "loader"
    for line in trained[0]:
        lists = [by.get(line, []) for by in trained]
        for epoch, passes in enumerate(zip(*lists, strict=False), 1):
            steps = [made(ranks[n], lists[n], epoch) for n in range(len(ranks))]
            few, many, values = extremes(ranks, [len(one.batches) for one in passes])
            if alone_in(ranks, passes):
                continue
            over = passes[few].ended or len(lists[few]) > epoch
            went_on = len(lists[many]) > epoch or ranks[many].ended.get("error") == "None"
            if over and few != many and not (went_on and len(set(steps)) == 1):
                left = not passes[few].ended  # by a break, say: its share may be as large
                name, at = "unequal_steps", passes[few].loader["at"]
                name, at = (f"{name}:left", passes[few].at) if left else (name, at)
                return report.find(name, at, epoch=epoch, **values)

            few, many, values = extremes(ranks, steps)
            if few != many and all(one.ended for one in passes):
                if why := meant(STEPS, SimpleNamespace(ranks=ranks)):
                    return why  # one may leave out a step of its own
                at = ranks[few].steps[-1]["at"]
                return report.find("unequal_steps:skipped", at, epoch=epoch, **values)

        few, many, values = extremes(ranks, list(map(len, lists)))
        waits = ranks[few].extra(ranks[many], ranks[few].group)  # and has not left
        if few != many and ranks[few].left() and lists[few] and lists[few][-1].ended and not waits:
            return report.find("unequal_steps:epochs", lists[few][-1].at, **values)
    return None


@check()
@finds("empty_epoch", WRONG, TRAINING, alone=True, silent="loader")
def check_empty(ranks: list[Rank], report: Report) -> str | None:
    """Has a loader of training that should have batches given none in an epoch?"""
    trained = [{one.loader["id"] for one in rank.trained()} for rank in ranks]
    for rank, loaders in zip(ranks, trained, strict=True):
        given = set()  # loaders that something was learned from before
        for one in rank.passes.values():
            loader = one.loader
            empty = one.ended and one.total and not one.batches
            # The length of an IterableDataset is a guess.
            if empty and loader["id"] in loaders and not loader["iterable"]:
                # The first one may be the end of an epoch that a run before had finished.
                mild = loader["id"] not in given
                report.find("empty_epoch", loader["at"], mild, total=one.total)
            if one.steps:
                given.add(loader["id"])
    return None if any(trained) else "loader"


def alone_in(ranks: list[Rank], passes: tuple) -> bool:
    """Nobody waits for another rank in this pass: weights are averaged after it, say."""
    for rank, one in zip(ranks, passes, strict=True):
        inside = range(one.place + 1, one.place + one.steps)
        called = any(event["place"] in inside for event in rank.events["collective"])
        if called or rank.model.get("wrappers") or rank.group == "horovod" or one.steps < 2:
            return False
    return True


def made(rank: Rank, passes: list, epoch: int) -> int:
    """Steps from the beginning of a pass to that of the next one."""
    after = passes[epoch].place if epoch < len(passes) else len(rank.steps)
    return after - passes[epoch - 1].place


def extremes(ranks: list[Rank], counts: list[int]) -> tuple[int, int, dict]:
    """Places of the smallest and of the largest count, equal if all are; and words for them."""
    few = counts.index(min(counts))
    many = counts.index(max(counts))
    values = {"one": ranks[few].rank, "few": counts[few]}
    return few, many, values | {"other": ranks[many].rank, "many": counts[many]}
