"""Run a chapter in which one rank meets with a fault, once.

    FAULT='{"chapter": ..., "rank": 1, "at": "step 8", "struck": FILE}' \\
        torchrun --standalone --nproc-per-node 2 tests/support/with_fault.py --synthetic ...

at: "start" (before the ranks meet), "step N" or "evaluation N" (the N-th batch of the whole run,
from 1), "save N" (in the middle of the N-th file). The fault is SIGKILL.
struck: written with the time of the fault; where it stands already, all goes well.
"""

import json
import multiprocessing
import os
import signal
import sys
import time
from collections import Counter
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from harness import load_chapter

FAULT = json.loads(os.environ["FAULT"])
COUNTS: Counter = Counter()


def due(at: str) -> bool:
    """Whether this is the place of the fault, its rank and the first time."""
    rank = 0
    for name in ("SLURM_PROCID", "HOROVOD_RANK", "RANK"):
        rank = int(os.environ.get(name, rank))
    return at == FAULT["at"] and rank == FAULT["rank"] and not Path(FAULT["struck"]).exists()


def strike(at: str) -> None:
    if due(at):
        Path(FAULT["struck"]).write_text(repr(time.time()))
        os.kill(os.getpid(), signal.SIGKILL)


def counted(kind: str) -> str:
    COUNTS[kind] += 1
    return f"{kind} {COUNTS[kind]}"


def install(chapter: ModuleType) -> None:
    """Put the fault into the chapter's functions."""
    names = ("build_datasets", "batches")
    if hasattr(chapter, "micro_batches"):  # 09
        names = ("build_data", "micro_batches")
    build, batches = (getattr(chapter, name) for name in names)
    fsync = os.fsync

    def first(*args: Any) -> Any:
        if chapter.__name__.endswith("03_multiprocessing"):  # no launcher has set it
            os.environ["RANK"] = str(multiprocessing.current_process()._identity[-1] - 1)
        strike("start")
        return build(*args)

    def counting(*args: Any) -> Any:
        for batch in batches(*args):
            strike(counted("evaluation" if torch.is_inference_mode_enabled() else "step"))
            yield batch

    def half_saved(file: int) -> None:
        at = counted("save")
        if due(at):
            os.truncate(file, os.fstat(file).st_size // 2)
            strike(at)
        fsync(file)

    for name, replaced in zip(names, (first, counting), strict=True):
        setattr(chapter, name, replaced)
    os.fsync = half_saved


# Not only when started: a child of mp.spawn imports this file as __mp_main__, with the parent's
# sys.argv, and then looks for `worker` in the module of the chapter, by that module's name.
if __name__ in ("__main__", "__mp_main__"):
    running = load_chapter(FAULT["chapter"])
    install(running)
if __name__ == "__main__":
    running.main(sys.argv[1:])
