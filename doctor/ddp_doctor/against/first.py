"""What the second run is told of the first one."""

from itertools import zip_longest

from ..checks.teams import Teams
from ..ranks import Rank


def for_second_run(ranks: list[Rank]) -> dict:
    """Part of --without -> what that needs to know: plain JSON."""
    teams = Teams(ranks)
    together = ranks[:1] if teams.together else teams.groups[0]
    return {"draws": ranks[0].events["drawn"], "shuffling": orders(together)}


def orders(ranks: list[Rank]) -> list[dict]:
    """Of each pass over a set whose samples have indices: these, as they came to all ranks. Empty
    where it was not trained on, or they were not seen."""
    together = zip(*(rank.trained() for rank in ranks), strict=False)
    trained = {id(passes[0]): passes for passes in together}
    found = []
    for one in ranks[0].passes.values():
        if one.loader["iterable"] or not one.batches:
            continue
        passes = trained.get(id(one), ())
        if any(each.unseen() for each in passes):
            passes = ()
        batches = zip_longest(*(each.batches for each in passes), fillvalue={})
        found.append(
            {
                "length": one.loader["length"],
                "fingerprint": one.loader["fingerprint"],
                "batches": list(map(of_all_ranks, batches)),
                "whole": all(each.whole() for each in passes),
                "draws": sum(each.planned() for each in passes),
            }
        )
    return found


def of_all_ranks(batches: tuple[dict, ...]) -> list:
    """The indices of a batch that each rank had, in turn: as a sampler shares an order out."""
    rows = zip_longest(*(batch.get("raw") or batch.get("indices", []) for batch in batches))
    return [key for row in rows for key in row if key is not None]
