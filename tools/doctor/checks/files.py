"""Files that several ranks write, and checkpoints whose names do not fit."""

from collections import defaultdict

from ..ranks import Rank
from ..report import Report, listed


def check_files(ranks: list[Rank], report: Report) -> None:
    """Is a file written by several ranks?"""
    writers = defaultdict(dict)
    for rank in ranks:
        for event in rank.events["wrote"]:
            writers[rank.process.get("host"), event["path"]].setdefault(rank.rank, event)
    for (_, path), events in writers.items():
        if len(events) > 1:
            at = next(iter(events.values()))["at"]
            return report.find("shared_file", at, ranks=listed(list(events)), path=path)
    for rank in ranks:
        for event in rank.events["loaded"][:1]:
            return report.find("wrapped_keys:loaded", event["at"])
        for event in rank.events["saved"][:1]:
            report.find("wrapped_keys", event["at"], mild=True, prefix=event["prefix"])
    return None
