"""What only chapter 05 has: compression, passes, a launcher that must notice a dead rank. What it
shares with the others (equal training, exact evaluation, resume, errors) is in their tables."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

import pytest
from crew import Crew
from harness import (
    HOROVOD,
    ROOT,
    TINY,
    alive,
    clean_environment,
    command_for,
    finish,
    load_state,
    rows,
    run,
    start,
)
from plain_training import (
    HIGH_RATE,
    LOW_RATE,
    arguments,
    assert_is_plain_training,
    difference,
    train,
    train_plainly,
)
from with_tiny_model import tiny_float32, tiny_float64

pytest.importorskip("horovod", reason="needs Horovod: PYTHON=python bash 05_horovod/install.sh")
MAIN = ROOT / HOROVOD / "main.py"


@pytest.mark.parametrize(("passes", "world_size"), [(2, 1), (3, 2), (2, 3)])
def test_passes_add_up_to_the_batch(
    passes: int, world_size: int, crew: Crew, tmp_path: Path
) -> None:
    """Horovod sums the gradients of the passes: with the loss divided they are the batch's."""
    argv = [*arguments(tmp_path, HIGH_RATE), "--backward-passes-per-step", str(passes)]
    crew.run(train, HOROVOD, argv, tiny_float64, world_size=world_size)
    state = load_state(tmp_path / "checkpoint.pt")
    assert_is_plain_training(state, tiny_float64, HIGH_RATE, 1e-10, tmp_path)


def test_compression_rounds_and_no_more(crew: Crew, tmp_path: Path) -> None:
    """Gradients sent in 16 bits: close to those in 32, and not the same, on ranks that agree."""
    argv = [*arguments(tmp_path, LOW_RATE), "--fp16-allreduce"]
    answers = crew.run(train, HOROVOD, argv, tiny_float32, world_size=2)
    assert answers[0] == answers[1]
    state = load_state(tmp_path / "checkpoint.pt")
    far = difference(train_plainly(tiny_float32, LOW_RATE)[0], state)
    moved = difference(train_plainly(tiny_float32, LOW_RATE, epochs=0)[0], state)
    print(f"\nlargest difference with --fp16-allreduce: {far:.1e}, of weights moved by {moved:.1e}")
    assert 1e-6 < far < 1e-3 < 100 * far < moved


def test_a_killed_rank_ends_the_job(tmp_path: Path) -> None:
    """SIGKILL in mid-epoch: the other rank says so in one line, horovodrun ends non-zero, nothing
    is left behind, and the checkpoint of the epoch before is whole."""
    argv = ["--synthetic", "400", *TINY, "--epochs", "50", "--print-freq", "1"]
    job = start(command_for(HOROVOD, [*argv, "--output-dir", "run"], 2), tmp_path)
    log = tmp_path / "run/metrics.jsonl"
    deadline = time.monotonic() + 120
    while not (log.exists() and [r for r in rows(log.parent, "train") if r["epoch"] == 1]):
        assert time.monotonic() < deadline and job.poll() is None
        time.sleep(0.2)
    os.kill(process_of_rank(1, alive(job)), signal.SIGKILL)
    killed = time.monotonic()
    result = finish(job, 60)
    assert time.monotonic() - killed < 30
    assert result.returncode != 0
    assert "Process name: 1" in result.output and "137" in result.output, result.output
    (line,) = result.lines("05_horovod: error: another rank has ended")
    assert line.startswith("[0]<stderr>")
    assert not result.lines("[0]<stderr>:Traceback"), result.output
    assert load_state(tmp_path / "run/checkpoint.pt")["epoch"] >= 1


def process_of_rank(rank: int, pids: list[int]) -> int:
    """The Python process that horovodrun has made that rank."""
    wanted = f"HOROVOD_RANK={rank}".encode()
    for pid in pids:
        words = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        command = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        if wanted in words and b"python" in command[0] and str(MAIN).encode() in command:
            return pid
    raise AssertionError(f"no rank {rank} among {pids}")


def test_two_jobs_at_once(tmp_path: Path) -> None:
    """horovodrun finds its own ports: both jobs end well, with the same result."""
    argv = ["--synthetic", "40", *TINY, "--epochs", "1"]
    jobs = [
        start(command_for(HOROVOD, [*argv, "--output-dir", f"run{n}"], 2), tmp_path)
        for n in range(2)
    ]
    results = [finish(job, 240) for job in jobs]
    assert [result.returncode for result in results] == [0, 0], results[0].output
    first, second = (rows(tmp_path / f"run{n}", "eval")[0] for n in range(2))
    assert first["loss"] == second["loss"]


def test_not_started_by_horovodrun(tmp_path: Path) -> None:
    """One process where many were meant is no fallback: the line to type is given."""
    result = run([sys.executable, MAIN, "--synthetic"], tmp_path, 60)
    assert result.returncode == 1
    (line,) = result.stderr.splitlines()
    assert "start it by: horovodrun -np 2 -H localhost:2 --gloo python" in line


def test_horovod_missing(tmp_path: Path) -> None:
    """Not installed, or built for another torch, as far as the import can tell."""
    (tmp_path / "horovod").mkdir()
    (tmp_path / "horovod/__init__.py").write_text("raise ImportError('no such build')")
    env = {"PYTHONPATH": str(tmp_path)}
    result = run([sys.executable, MAIN, "--synthetic"], tmp_path, 60, env)
    assert result.returncode == 1
    (line,) = result.stderr.splitlines()
    assert "no such build" in line and "bash 05_horovod/install.sh" in line


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root: to give itself another host name")
def test_a_host_name_without_an_address(tmp_path: Path) -> None:
    """In Horovod's own code it would be a segmentation fault."""
    words = ["unshare", "--uts", "bash", "-c", 'hostname no-such-host; exec "$@"', "-"]
    env = {"HOROVOD_RANK": "0", **clean_environment()}
    result = run([*words, sys.executable, MAIN, "--synthetic"], tmp_path, 60, env)
    assert result.returncode == 1, result.output
    (line,) = result.stderr.splitlines()
    assert "no-such-host" in line and "/etc/hosts" in line
