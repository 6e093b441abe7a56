"""Files that several ranks write, and checkpoints whose names do not fit."""

import os
from collections import defaultdict

from ..findings import WRONG, check, finds
from ..ranks import Rank
from ..report import Report, listed


@check()
@finds("shared_file", WRONG, "files save", alone=True)
@finds("wrapped_keys", WRONG, "save load", alone=True)
def check_files(ranks: list[Rank], report: Report) -> None:
    """Is a file written by several ranks?"""
    writers = defaultdict(dict)
    locked = {event["path"] for rank in ranks for event in rank.events["locked"]}
    for rank in ranks:
        for event in rank.events["wrote"]:
            if event["path"] in locked or event["library"] or not event["whole"]:
                continue
            writers[rank.process.get("host"), event["path"]].setdefault(rank.rank, event)
    for (_, path), events in writers.items():
        empty = os.path.isfile(path) and os.path.getsize(path) == 0  # a lock, or a sign
        if len(events) > 1 and not empty:
            at = next(iter(events.values()))["at"]
            sizes = {str(rank.model.get("sizes")) for rank in ranks}
            beside = any(event["beside"] for rank in ranks for event in rank.events["unhooked"])
            divided = report.teams.exchange and beside  # classes or tables, say
            parts = len(sizes) > 1 or report.teams.together or divided
            name = "shared_file:parts" if parts else "shared_file"
            report.find(name, at, ranks=listed(list(events)), path=path)
    for rank in ranks:
        for event in rank.events["loaded"][:1]:
            return report.find("wrapped_keys:loaded", event["at"])
        for event in rank.events["saved"][:1]:
            report.find("wrapped_keys", event["at"], mild=True, prefix=event["prefix"])
    return None
