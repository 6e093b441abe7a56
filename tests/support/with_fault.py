"""Run a chapter in which one rank meets with a fault, once.

    FAULT='{"chapter": ..., "rank": 1, "at": "step 8", "do": "kill", "struck": FILE}' \\
        torchrun --standalone --nproc-per-node 2 tests/support/with_fault.py --synthetic ...

at: "start" (before the ranks meet), "step N" or "evaluation N" (the N-th batch of the whole run,
from 1), "save N" (in the middle of the N-th file). do: "kill" is SIGKILL, "sleep" is to be absent.
struck: written with the time of the fault; where it stands already, all goes well.
"""

import io
import json
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


def strike(at: str) -> None:
    """The fault, if this is its place, its rank and the first time."""
    struck, rank = Path(FAULT["struck"]), 0
    for name in ("SLURM_PROCID", "HOROVOD_RANK", "RANK"):
        rank = int(os.environ.get(name, rank))
    if at != FAULT["at"] or rank != FAULT["rank"] or struck.exists():
        return
    struck.write_text(repr(time.time()))
    if FAULT["do"] == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(600)


def counted(kind: str) -> str:
    COUNTS[kind] += 1
    return f"{kind} {COUNTS[kind]}"


def install(chapter: ModuleType) -> None:
    """Put the fault into the chapter's functions."""
    build_datasets, to_device, save = chapter.build_datasets, chapter.to_device, torch.save

    def first(*args: Any) -> Any:
        strike("start")
        return build_datasets(*args)

    def batch(*args: Any) -> Any:
        strike(counted("evaluation" if torch.is_inference_mode_enabled() else "step"))
        return to_device(*args)

    def half_saved(state: dict, file: Any) -> None:
        whole, at = io.BytesIO(), counted("save")
        save(state, whole)
        file.write(whole.getvalue()[: whole.tell() // 2])
        file.flush()
        strike(at)
        file.write(whole.getvalue()[whole.tell() // 2 :])

    chapter.build_datasets, chapter.to_device, torch.save = first, batch, half_saved


# Not only when started: a child of mp.spawn imports this file as __mp_main__, with the parent's
# sys.argv, and then looks for `worker` in the module of the chapter, by that module's name.
if __name__ in ("__main__", "__mp_main__"):
    running = load_chapter(FAULT["chapter"])
    install(running)
if __name__ == "__main__":
    running.main(sys.argv[1:])
