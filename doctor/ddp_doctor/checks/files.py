"""Files that several ranks write, and checkpoints whose names do not fit."""

import os
from collections import defaultdict

from ..findings import WRONG, check, finds
from ..ranks import Rank
from ..report import Report, listed


@check()
@finds("shared_file", WRONG, "files save safetensors", alone=True, silent="writers")
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
    shared = {
        path: events
        for (_, path), events in writers.items()
        # An empty one is a lock, or a sign.
        if len(events) > 1 and not (os.path.isfile(path) and os.path.getsize(path) == 0)
    }
    if shared:
        first = next(iter(shared.values()))
        sizes = {str(rank.model.get("sizes")) for rank in ranks}
        beside = any(event["beside"] for rank in ranks for event in rank.events["unhooked"])
        divided = report.teams.exchange and beside  # classes or tables, say
        parts = len(sizes) > 1 or report.teams.together or divided
        name = "shared_file:parts" if parts else "shared_file"
        paths = [path for path, events in shared.items() if events.keys() == first.keys()]
        at = next(iter(first.values()))["at"]
        mild = all("worker" in event for event in first.values())  # of loaders: a cache, say
        report.find(name, at, mild, ranks=listed(list(first)), path=listed(paths))
    unseen = [e["path"] for e in ranks[0].events["left"] if not (e["seen"] or e["text"])]
    if unseen and len(ranks) > 1 and not report.has("shared_file"):
        files = listed(sorted(map(os.path.basename, unseen)))
        report.skip("shared_file", report.say("writers", files=files))
    for rank in ranks:
        for event in rank.events["loaded"][:1]:
            return report.find("wrapped_keys:loaded", event["at"])
        for event in rank.events["saved"][:1]:
            report.find("wrapped_keys", event["at"], mild=True, prefix=event["prefix"])
    return None
