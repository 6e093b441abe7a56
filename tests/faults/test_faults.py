"""What becomes of a job when a rank dies, or is told to end.

Every job that meets a fault is really launched; the one that goes on after it is a warm one. In
`make test` a rank is killed in 01 and in 03, whose parent ends the others; other launchers do that
themselves: these, and each chapter and moment, are in `make proof`.
"""

import contextlib
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from crew import Crew, call_main
from fault_table import FaultTable
from harness import (
    HOROVOD,
    PATIENCE,
    ROOT,
    SLURM,
    TINY,
    Result,
    alive,
    assert_same,
    command_for,
    events,
    finish,
    kill_all,
    load_state,
    rows,
    run,
    start,
)
from refusals import ALONE, HUB, SPAWNS
from tiers import table

WITH_FAULT = ROOT / "tests/support/with_fault.py"
# Two epochs of 5 steps on every rank, and 2 batches of evaluation after each.
RUN = ["--synthetic", "40", *TINY[:-1], "1", "--epochs", "2", "--print-freq", "1", "--output-dir"]
# These are about processes and time: a GPU would only make their start slower.
NO_GPU = {"CUDA_VISIBLE_DEVICES": ""}


def fault(chapter: str, rank: int, at: str, folder: Path) -> dict[str, str]:
    """The environment in which tests/support/with_fault.py runs a chapter with this fault."""
    told = {"chapter": chapter, "rank": rank, "at": at, "struck": str(folder / "struck")}
    return NO_GPU | {"FAULT": json.dumps(told)}


def go(command: list, env: dict[str, str], folder: Path) -> tuple[Result, float]:
    """A launch with a fault, to its end; and the seconds from the one to the other."""
    result = run(command, folder, env=env)
    return result, time.time() - float((folder / "struck").read_text())


def go_well(crew: Crew, chapter: str, run_dir: Path, *more: str) -> dict[str, Any]:
    """The same without a fault, on two ranks that are warm (01 is one process): its checkpoint."""
    argv, ranks = [*RUN, str(run_dir), *more], 1 if chapter == ALONE else 2
    for answer in crew.run(call_main, chapter, argv, world_size=ranks):
        assert answer["exit"] is None, answer
    return load_state(run_dir / "checkpoint.pt")


@pytest.fixture(scope="session")
def undisturbed(crew: Crew, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], dict]:
    """What a run without a fault ends with, by chapter; made when first asked for."""
    return cache(lambda chapter: go_well(crew, chapter, tmp_path_factory.mktemp("good") / "run"))


# ----------------------------------------------------------------------------------- a rank dies

PHASES = {"start-up": "start", "mid-epoch": "step 8", "evaluation": "evaluation 3"}
# An epoch is saved before its evaluation and after it; in the first one so is the best.
PHASES |= {"first batch": "step 1", "saving": "save 4", "saving again": "save 5"}
SAVED = {"evaluation": 5, "saving again": 5}  # steps of the second epoch, else none
# How the launcher, or the parent, names the rank that was killed.
NAMES = {
    HUB: r"rank\s*: {rank} \(local_rank: {rank}\)\s+exitcode\s*: -9",
    SPAWNS: r"error: process {rank} ended with status -9",
    HOROVOD: r"Process name: {rank}\b|Process {rank} exit with status code (-9|137)",
    # Both: where the other did not end within Slurm's KillWait.
    SLURM: r"task {rank}: Killed|tasks 0-1: Killed",
}
DEATHS = [
    (ALONE, "saving", 0),
    *((chapter, "start-up", 0) for chapter in NAMES),
    *((chapter, "mid-epoch", 1) for chapter in NAMES),
    *((chapter, "evaluation", 1) for chapter in NAMES if chapter != SLURM),
    (SLURM, "evaluation", 0),  # the rank through which the others meet
    *((chapter, "saving", 0) for chapter in NAMES),
    *((chapter, "saving again", 0) for chapter in (ALONE, HUB)),
    (HUB, "first batch", 1),
]
CORE_DEATHS = [
    (ALONE, "saving", 0), (SPAWNS, "evaluation", 1),
]  # fmt: skip


def without_rates(state: dict) -> dict:
    """A start that has only to evaluate sets no rate; the next one would set its own."""
    for group in state["optimizer"]["param_groups"]:
        group.pop("lr", None)
        group.pop("initial_lr", None)
    return state


@pytest.mark.parametrize(("chapter", "phase", "rank"), table(DEATHS, CORE_DEATHS))
def test_death_of_a_rank(
    chapter: str,
    phase: str,
    rank: int,
    crew: Crew,
    tmp_path: Path,
    undisturbed: Callable,
    fault_table: FaultTable,
) -> None:
    """The whole job ends non-zero, nobody is left, the rank is named, the checkpoint is whole; and
    the next start goes on to what an undisturbed run ends with, bit for bit."""
    env = fault(chapter, rank, PHASES[phase], tmp_path)
    argv = [*RUN, "run"]
    if (chapter, phase) == (SPAWNS, "evaluation"):  # its workers import torch anew: test_smoke.py
        argv += ["--workers", "0"]
    result, seconds = go(command_for(chapter, argv, 2, WITH_FAULT), env, tmp_path)
    assert result.returncode != 0, result.output  # by itself: before `run` would have killed it
    # torchrun can fail itself: it stops a rank that is just writing why it fails, and cannot read
    # that file (seen once, torch 2.15). Then it names nobody.
    unread = chapter == HUB and "Failed to parse reply file" in result.stderr
    if chapter in NAMES and not unread:
        pattern = NAMES[chapter].format(rank=rank)
        assert re.search(pattern, result.stderr + result.stdout), result.output
    elif chapter == ALONE:
        assert result.returncode == -signal.SIGKILL
    run_dir, done = tmp_path / "run", 0
    if phase not in ("start-up", "first batch"):
        state = load_state(run_dir / "checkpoint.pt")
        assert (state["epoch"], state["step"]) == (1, SAVED.get(phase, 0))
        assert load_state(run_dir / "best.pt")["epoch"] == 1
        assert len(events(run_dir)) > 5  # each line is JSON
        done = 1
    assert bool(list(run_dir.glob("*.tmp"))) == phase.startswith("saving")

    ended = go_well(crew, chapter, run_dir, "--resume")
    place = rows(run_dir, "start")[-1]
    assert (place["epoch"], place["step"]) == (done, SAVED.get(phase, 0))
    assert_same(without_rates(ended), without_rates(undisturbed(chapter)))
    assert not list(run_dir.glob("*.tmp"))
    named = "the launcher names it, " if chapter in NAMES and not unread else ""
    outcome = f"job ends with status {result.returncode}, {named}--resume ends exactly alike"
    fault_table(f"rank {rank} killed, {phase}", chapter, outcome, seconds)


@pytest.mark.proof
def test_torchrun_restarts(tmp_path: Path, undisturbed: Callable, fault_table: FaultTable) -> None:
    """`torchrun --max-restarts 2` and `--resume` finish the training by themselves. Without
    the variable the ranks of a new attempt sometimes find the addresses of the old one in the
    store that they share with torchrun, and fail or wait (pytorch/pytorch#135712, torch 2.15)."""
    env = fault(HUB, 1, "step 8", tmp_path)
    env |= {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    torchrun += ["--nproc-per-node", "2", "--max-restarts", "2", WITH_FAULT]
    result, seconds = go([*torchrun, *RUN, "run", "--resume"], env, tmp_path)
    assert result.returncode == 0, result.output
    run_dir = tmp_path / "run"
    assert [row["epoch"] for row in rows(run_dir, "start")] == [0, 1]
    ended = load_state(run_dir / "checkpoint.pt")
    assert_same(without_rates(ended), without_rates(undisturbed(HUB)))
    outcome = "restarted and finished by itself, ends exactly alike"
    fault_table("rank 1 killed under torchrun --max-restarts 2", HUB, outcome, seconds)


# --------------------------------------------------------------------------------- told to end

LONG = ["--synthetic", "40", *TINY[:-1], "1", "--epochs", "500", "--print-freq", "1"]
ORDERS = [(chapter, how) for chapter in (ALONE, *NAMES) for how in ("SIGTERM", "Ctrl-C")]
ORDERS += [(HUB, "SIGTERM to all"), (HOROVOD, "SIGTERM to a rank")]
# srun: test_slurm.py.
CORE_ORDERS = [(SPAWNS, "SIGTERM")]


def running(chapter: str, folder: Path) -> subprocess.Popen:
    """A job that has saved its first epoch, with its loader's workers at work."""
    process = start(command_for(chapter, [*LONG, "--output-dir", "run"], 2), folder, NO_GPU)
    log, deadline = folder / "run/metrics.jsonl", time.monotonic() + PATIENCE
    while time.monotonic() < deadline and process.poll() is None:
        if log.exists() and log.read_text().count('"train"') > 6:
            return process
        time.sleep(0.1)
    kill_all(process)
    raise AssertionError(process.communicate())


def a_rank_of(process: subprocess.Popen) -> int:
    """The process of rank 1 under horovodrun: the oldest one that knows it is."""
    for pid in sorted(alive(process)):
        with contextlib.suppress(OSError):
            words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
            known = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
            if b"HOROVOD_RANK=1" in known and any(word.endswith(b"main.py") for word in words[:3]):
                return pid
    raise AssertionError("no rank 1")


@pytest.mark.parametrize(("chapter", "how"), table(ORDERS, CORE_ORDERS))
def test_told_to_end(chapter: str, how: str, tmp_path: Path, fault_table: FaultTable) -> None:
    """SIGTERM to what was typed, to a rank or to all processes at once, or Ctrl-C in its terminal:
    every process ends, loader workers too, without being killed, and the last checkpoint is whole.
    After a SIGTERM it is that of the last step."""
    process, began = running(chapter, tmp_path), time.monotonic()
    if how == "SIGTERM":
        process.send_signal(signal.SIGTERM)
    elif how == "SIGTERM to all":
        os.killpg(process.pid, signal.SIGTERM)
    elif how == "SIGTERM to a rank":
        os.kill(a_rank_of(process), signal.SIGTERM)
    else:
        os.killpg(process.pid, signal.SIGINT)  # a terminal's signal reaches all in its group
        if "srun" in map(str, process.args):
            time.sleep(0.2)  # srun asks once more: "interrupt (one more within 1 sec to abort)"
            os.killpg(process.pid, signal.SIGINT)
    while alive(process) and time.monotonic() < began + PATIENCE:
        process.poll()
        time.sleep(0.1)
    seconds = time.monotonic() - began
    result = finish(process)
    assert result.returncode != 0, result.output
    assert "SIGKILL" not in result.output  # as torchrun says when a signal alone did not help
    state, log = load_state(tmp_path / "run/checkpoint.pt"), events(tmp_path / "run")
    outcome = f"all processes end, status {result.returncode}; checkpoint whole"
    # horovodrun ends its ranks 5 seconds after it was told to, which may be too soon; srun at once.
    if how != "Ctrl-C" and (chapter, how) not in ((HOROVOD, "SIGTERM"), (SLURM, "SIGTERM")):
        last = [row for row in log if row["event"] == "train"][-1]
        assert log[-1]["event"] == "stopped", result.output
        assert (state["epoch"], state["step"]) == (last["epoch"], last["step"])
        assert result.returncode == (75 if chapter in (ALONE, SPAWNS) else 1), result.output
        outcome = f"saved at its step, status {result.returncode}; all processes end"
    assert state["epoch"] >= 1
    fault_table(f"{how} to the launcher", chapter, outcome, seconds)


# ------------------------------------------------------------------- two launches in one folder


def words_of(chapter: str, *more: str) -> list:
    return command_for(chapter, [*LONG, "--output-dir", "run", *more], 2)


def seconds_since(began: float) -> float:
    return time.monotonic() - began


@pytest.mark.proof
def test_second_start(crew: Crew, tmp_path: Path, fault_table: FaultTable) -> None:
    """While a run is at work another start is refused, also with --resume: both would save over
    each other. So it is after a death of torchrun alone, whose ranks train on: who has the folder
    is named, and when that process is ended the other ranks end, and --resume goes on."""
    first = running(HUB, tmp_path)
    refused = r"error: another run is at work in run: `fuser run/metrics.jsonl` names it"
    began = time.monotonic()
    second = run(words_of(HUB, "--resume"), tmp_path, env=NO_GPU)
    assert second.returncode != 0 and refused in second.output, second.output
    fault_table("--resume while a run is at work", HUB, refused, seconds_since(began))

    (agent,) = [pid for pid in alive(first) if pid == first.pid]
    os.kill(agent, signal.SIGKILL)
    first.wait()
    third = run(words_of(HUB, "--resume"), tmp_path, env=NO_GPU)
    assert third.returncode != 0 and refused in third.output, third.output

    if shutil.which("fuser") is None:
        kill_all(first)
        pytest.skip("needs fuser, of the package psmisc")
    named = run(["fuser", "run/metrics.jsonl"], tmp_path).stdout.split()
    assert named and {int(pid) for pid in named} <= set(alive(first))
    began = time.monotonic()
    for pid in named:
        os.kill(int(pid), signal.SIGKILL)
    while alive(first) and seconds_since(began) < PATIENCE:
        time.sleep(0.1)
    assert not alive(first)
    outcome = "its ranks train on; a start names them; ended by hand, --resume goes on"
    fault_table("SIGKILL to torchrun", HUB, outcome, seconds_since(began))

    log = tmp_path / "run/metrics.jsonl"
    starts = log.read_text().count('"start"')
    done = load_state(tmp_path / "run/checkpoint.pt")["epoch"]
    argv = [*LONG, "--epochs", str(done + 1), "--output-dir", str(tmp_path / "run"), "--resume"]
    for answer in crew.run(call_main, HUB, argv, world_size=2):
        assert answer["exit"] is None, answer
    assert log.read_text().count('"start"') == starts + 1 == 2
    assert load_state(tmp_path / "run/checkpoint.pt")["epoch"] == done + 1


def importing(process: subprocess.Popen) -> bool:
    """Whether 03's parent has started both ranks."""
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    ranks = 0
    for pid in children:
        with contextlib.suppress(OSError):
            ranks += b"spawn_main" in Path(f"/proc/{pid}/cmdline").read_bytes()
    return ranks == 2


@pytest.mark.proof
def test_parent_ends_too_early(tmp_path: Path, fault_table: FaultTable) -> None:
    """03's parent is told to end while its ranks still import torch, when nothing yet ends them
    with it: they end by themselves, and do not train without it."""
    process = start(words_of(SPAWNS), tmp_path, NO_GPU)
    began = time.monotonic()
    while not importing(process) and seconds_since(began) < PATIENCE:
        time.sleep(0.01)
    process.send_signal(signal.SIGTERM)
    process.wait()
    began = time.monotonic()
    while alive(process) and seconds_since(began) < PATIENCE:
        log = tmp_path / "run/metrics.jsonl"
        if log.exists() and log.read_text():
            kill_all(process)
            raise AssertionError("its ranks train on")
        time.sleep(0.1)
    assert not alive(process)
    seconds = seconds_since(began)
    fault_table(
        "SIGTERM while ranks import torch", SPAWNS, "all processes end, status -15", seconds
    )


@pytest.mark.proof
def test_stdout_without_a_reader(tmp_path: Path, fault_table: FaultTable) -> None:
    """As after `| head` or the death of a `tee`: the line says that it may have been stdout."""
    words = shlex.join(map(str, words_of(HUB)))
    pipe = f"{words} | head -1; exit ${{PIPESTATUS[0]}}"
    result = run(["bash", "-c", pipe], tmp_path, env=NO_GPU)
    line = "error: cannot write run/metrics.jsonl or stdout: [Errno 32] Broken pipe"
    assert result.returncode == 1 and line in result.output, result.output
    fault_table("stdout whose reader has gone (head -1)", HUB, line, None)
