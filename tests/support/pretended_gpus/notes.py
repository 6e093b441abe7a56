"""What a program has asked of its pretended GPUs, in the order of each process.

Tests read it: whether nccl was asked for, in which type a layer was computed, where a step waits.
"""

import json
import os
import sys
from pathlib import Path

import torch.distributed as dist

FOLDER = "PRETENDED_NOTES"
# Parts of the paths of code that is not the program's own.
FOREIGN = ("/site-packages/", "/lib/python3", "/pretended_gpus/", "<frozen")

KEPT: list[dict] = []  # of this process
BACKWARDS = 0  # how many times this process has gone backward: what tells its steps apart


def user_line() -> str:
    """The innermost line of the program itself that is now at work, as "main.py:12"."""
    frame = sys._getframe(1)
    while frame and any(part in frame.f_code.co_filename for part in FOREIGN):
        frame = frame.f_back
    return f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}" if frame else "?"


def rank() -> int:
    names = ("RANK", "SLURM_PROCID", "HOROVOD_RANK")
    own = dist.get_rank() if dist.is_initialized() else 0  # mp.spawn sets no variable
    return int(next((os.environ[name] for name in names if name in os.environ), own))


def note(what: str, **fields: object) -> None:
    """Keep a note that is not yet kept, and write it where PRETENDED_NOTES says."""
    row = {"what": what, **{name: str(value) for name, value in fields.items()}}
    row |= {"rank": rank(), "line": user_line()}
    if what in ("wait", "collective"):
        row["backwards"] = BACKWARDS
    if row in KEPT:
        return
    KEPT.append(row)
    if folder := os.environ.get(FOLDER):
        with Path(folder, f"{os.getpid()}.jsonl").open("a") as file:
            file.write(json.dumps(row) + "\n")


def begin() -> None:
    """Forget what was noted, for the next program in this process."""
    global BACKWARDS
    KEPT.clear()
    BACKWARDS = 0


def read(folder: Path) -> list[dict]:
    """The notes of all processes of a launch. With mp.spawn a process learns its rank late."""
    found = []
    for path in sorted(Path(folder).glob("*.jsonl")):
        rows = [json.loads(line) for line in path.read_text().splitlines()]
        joined = [row["rank"] for row in rows if row["what"] == "init"]
        found += [row | {"rank": joined[0]} if joined else row for row in rows]
    return found
