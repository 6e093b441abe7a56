"""Runs commands for benchmark.py: counts the CPU time of all their processes, and leaves none.

For Linux: it reads /proc and adopts orphans by prctl.
"""

import ctypes
import os
import signal
import subprocess
import time
import uuid
from contextlib import suppress
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PR_SET_CHILD_SUBREAPER = 36  # of prctl(2)


def end_on_signals() -> None:
    """Call it once, before anything is run. Orphans then come to this process, so that their CPU
    seconds count; Ctrl-C and SIGTERM raise SystemExit, which an impatient second one cannot break
    off while what runs is being killed."""

    def stop(signum: int, _frame: object) -> None:
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_IGN)
        raise SystemExit(128 + signum)

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, stop)
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def busy_seconds() -> float:
    """CPU seconds that this machine has worked since it was started, taken by other guests too."""
    words = Path("/proc/stat").read_text().splitlines()[0].split()[1:9]
    user, nice, system, _idle, _waiting, irq, softirq, steal = map(int, words)
    return (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK")


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
    """Let what a run has started end by itself for so many seconds, then kill it; bury it all."""
    deadline = time.monotonic() + patience
    while left := marked(mark):
        for pid in left if time.monotonic() >= deadline else []:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.05)
    with suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def why_failed(statuses: list[int], log: Path) -> str | None:
    """The first status that is not 0, and the first line that speaks of an error, or the last."""
    bad = [status for status in statuses if status]
    if not bad:
        return None
    lines = log.read_text(errors="replace").strip().split("\n")
    errors = [line for line in lines if "error" in line.lower()]
    return f"status {bad[0]}: {(errors or lines[-1:])[0].strip()[:200]}"


def run_timed(commands: list[list], environment: dict[str, str], timeout: float, log: Path) -> dict:
    """Run the commands at once to their end, their output into the log, and leave no process.

    Returns begun (Unix time), wall and cpu (seconds), foreign (CPUs that others kept busy) and
    failed: why, or None.
    """
    mark = uuid.uuid4().hex
    env = {"GLOO_SOCKET_IFNAME": "lo"} | os.environ | environment | {"BENCHMARK_RUN": mark}
    row = {"begun": time.time(), "failed": f"no end within {timeout:g} s"}
    clock, busy, before = time.monotonic(), busy_seconds(), os.times()
    processes, patience = [], 0.0
    try:
        with log.open("wb") as file, suppress(subprocess.TimeoutExpired):
            for command in commands:
                words = [str(word) for word in command]
                output = {"stdout": file, "stderr": subprocess.STDOUT}
                quiet = {"stdin": subprocess.DEVNULL, "start_new_session": True}
                processes.append(subprocess.Popen(words, cwd=ROOT, env=env, **output, **quiet))
            statuses = [p.wait(max(0, clock + timeout - time.monotonic())) for p in processes]
            row["failed"], patience = why_failed(statuses, log), 5.0
        row["wall"] = round(time.monotonic() - clock, 3)
    finally:
        end_all(mark, patience)
    # Of this process and of its ended descendants, orphans included: user and system seconds.
    user, system, *descendants = (now - then for now, then in zip(os.times(), before, strict=True))
    cpu = sum(descendants[:2])
    others = (busy_seconds() - busy - user - system - cpu) / (time.monotonic() - clock)
    return row | {"cpu": round(cpu, 2), "foreign": round(max(0.0, others), 2)}
