"""What the second run is told of the first one."""

from ..ranks import Rank


def told(ranks: list[Rank]) -> dict:
    """Part of --without -> what that needs to know: plain JSON."""
    return {"drawn": ranks[0].events["drawn"]}
