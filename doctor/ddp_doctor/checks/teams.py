"""Ranks that work on one sample together, on purpose: tensor, sequence or pipeline parallel."""

from collections import Counter
from collections.abc import Iterable

from ..ranks import Rank

FEW = 16  # numbers that ranks may add up for a log in each step
MOST = 0.9  # of the steps


class Teams:
    """Which ranks have samples of their own, and must agree on weights: the groups.

    Only what ranks did tells that, not a sampler's num_replicas, which may be the mistake.
    """

    def __init__(self, ranks: list[Rank]) -> None:
        self.together = False  # all ranks work on one sample, or nobody knows which do
        self.exchange = False  # ranks tell each other something of their samples in each step
        self.groups = [ranks]
        alone = all(map(averages_nothing, ranks))
        of_ddp = {tuple(rank.model.get("group") or ()) for rank in ranks if not alone}
        known = [[rank for rank in ranks if rank.rank in group] for group in of_ddp if group]
        wrapped = any(rank.model.get("wrappers") for rank in ranks) and not alone
        if sum(map(len, known)) == len(ranks) and set().union(*of_ddp) >= set_of(ranks):
            self.groups = sorted(known, key=lambda group: group[0].rank)
            teams = exchanges(ranks, 1)
            self.exchange = any(len(set(group) & team) > 1 for group in of_ddp for team in teams)
        elif any(rank.model.get("together") for rank in ranks):
            self.divide(ranks, joined(rank.model.get("together") or [rank.rank] for rank in ranks))
        elif wrapped:
            self.exchange = bool(exchanges(ranks, 1))
        elif found := exchanges(ranks, FEW):
            self.divide(ranks, found)

    def divide(self, ranks: list[Rank], teams: list[set]) -> None:
        """Ranks with the same place in their teams are data parallel to each other."""
        members = [[rank for rank in ranks if rank.rank in team] for team in teams]
        alike = len({len(team) for team in members}) == 1
        if len(teams) < 2 or not alike or sum(map(len, members)) != len(ranks):
            self.together = True
        else:
            self.groups = [list(group) for group in zip(*members, strict=True)]


def averages_nothing(rank: Rank) -> bool:
    """DDP in a group of one rank does no work: the group tells nothing of who shares samples."""
    return len(rank.model.get("group") or ()) == 1


def set_of(ranks: list[Rank]) -> set[int]:
    return {rank.rank for rank in ranks}


def exchanges(ranks: list[Rank], few: int) -> list[set]:
    """Ranks that send each other more than a few numbers before nearly each backward pass."""
    found = []
    for rank in ranks:
        times = Counter()
        for step in rank.steps:
            times.update(tuple(group) for size, group in step["exchanged"] if size > few)
        found += [group for group, n in times.items() if n >= max(2, MOST * len(rank.steps))]
    return joined(group for group in found if len(group) > 1)


def joined(groups: Iterable) -> list[set]:
    """Groups without a common rank: those with one are one."""
    teams: list[set] = []
    for group in map(set, groups):
        others = [team for team in teams if not team & group]
        teams = [*others, group.union(*(team for team in teams if team & group))]
    return sorted(teams, key=min)
