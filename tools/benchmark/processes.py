"""What starts a chapter's ranks on this machine; runs commands and leaves no process.

For Linux: it reads /proc.
"""

import os
import signal
import subprocess
import sys
import time
import uuid
from contextlib import suppress
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PYTHON = [sys.executable, "-u"]
HOROVODRUN = Path(sys.executable).with_name("horovodrun")
# What srun would set, for one task on one node.
SLURM = dict.fromkeys(("SLURM_STEP_ID", "SLURM_PROCID", "SLURM_LOCALID"), "0")
SLURM |= dict.fromkeys(("SLURM_STEP_NUM_TASKS", "SLURM_STEP_NUM_NODES"), "1")


def torchrun(ranks: int) -> list:
    return [*PYTHON, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", ranks]


def launcher(number: str, ranks: int) -> tuple[list, list, dict[str, str]]:
    """What starts a chapter: the words before its main.py, flags of its own, environment."""
    hosts = ["-np", ranks, "-H", f"localhost:{ranks}", "--gloo"]
    before = {"01": PYTHON, "03": PYTHON, "05": [HOROVODRUN, *hosts, *PYTHON], "06": PYTHON}
    flags = {"03": ["--nprocs", ranks], "06": ["--procs-per-task", ranks]}
    slurm = SLURM | {"SLURM_JOB_ID": str(os.getpid())} if number == "06" else {}
    return before.get(number) or torchrun(ranks), flags.get(number, []), slurm


def end_on_signals() -> None:
    """Ctrl-C and SIGTERM raise SystemExit, which an impatient second one cannot break off while
    what runs is being killed."""

    def stop(signum: int, _frame: object) -> None:
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_IGN)
        raise SystemExit(128 + signum)

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, stop)


def marked(mark: str) -> list[int]:
    """Living processes that have inherited this mark. Launchers put their children into groups
    and sessions of their own, where no signal to a group reaches them; the mark they keep."""
    found = []
    for entry in Path("/proc").glob("[0-9]*/environ"):
        with suppress(OSError):  # it has just ended, or is another user's
            if mark.encode() in entry.read_bytes():
                found.append(int(entry.parent.name))
    return found


def end_all(mark: str, patience: float) -> None:
    """Let what a run has started end by itself for so many seconds, then kill it."""
    deadline = time.monotonic() + patience
    while left := marked(mark):
        for pid in left if time.monotonic() >= deadline else []:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.05)


def run_bounded(words: list, environment: dict[str, str], timeout: float, log: Path) -> str | None:
    """Run a command to its end, its output into the log, and leave no process. Why it failed: its
    status and the first line that speaks of an error, or the last one. None if it did not."""
    mark, patience = uuid.uuid4().hex, 0.0
    env = {"GLOO_SOCKET_IFNAME": "lo"} | os.environ | environment | {"BENCHMARK_RUN": mark}
    try:
        with log.open("wb") as file:
            process = subprocess.Popen(
                list(map(str, words)), stdout=file, stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL, cwd=ROOT, env=env, start_new_session=True,
            )  # fmt: skip
            process.wait(timeout)
            patience = 5.0
    except subprocess.TimeoutExpired:
        return f"no end within {timeout:g} s"
    finally:
        end_all(mark, patience)
    if process.returncode == 0:
        return None
    lines = log.read_text(errors="replace").strip().split("\n")
    errors = [line for line in lines if "error" in line.lower()]
    return f"status {process.returncode}: {(errors or lines[-1:])[0].strip()[:200]}"
