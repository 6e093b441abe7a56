"""Run a script of which one rank is ended by SIGKILL, or gets another signal.

    python tests/support/killed.py 1 "step 19" script.py ...
    python tests/support/killed.py 1 "step 19 SIGUSR1" script.py ...

"step N": after its N-th optimizer step. "save N": in the middle of the N-th file that it saves.
"part N": as torch.distributed.checkpoint writes its N-th tensor into a folder.
"""

import os
import runpy
import signal
import sys
from collections import Counter
from collections.abc import Callable
from io import BytesIO
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

COUNTS: Counter = Counter()


def killed_at(rank: str, at: str) -> Callable:
    when, number = at, signal.SIGKILL
    if at.count(" ") > 1:
        when, _, name = at.rpartition(" ")
        number = signal.Signals[name]

    def strike(kind: str, file: str = "") -> None:
        COUNTS[kind] += 1
        if when == f"{kind} {COUNTS[kind]}" and os.environ.get("RANK", "0") == rank:
            if file:
                os.truncate(file, os.path.getsize(file) // 2)
            os.kill(os.getpid(), number)

    return strike


def main() -> None:
    strike, save = killed_at(*sys.argv[1:3]), torch.save

    def striking(obj: Any, file: Any, **options: Any) -> None:
        save(obj, file, **options)
        if isinstance(file, str):  # objects that ranks gather go through memory
            strike("save", file)
        elif not isinstance(file, BytesIO):
            file.flush()
            strike("part")

    torch.save = striking
    register_optimizer_step_post_hook(lambda *_: strike("step"))
    sys.argv = sys.argv[3:]
    runpy.run_path(sys.argv[0], run_name="__main__")


if __name__ == "__main__":
    main()
