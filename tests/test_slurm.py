"""Chapter 06 and its sbatch files on a real Slurm: two nodes with two pretended GPUs each.

Every job trains the tiny float64 model of test_equivalence.py, so that whatever happened to it,
its parameters must be those of a plain loop. test_slurm_ranks.py has the cases that need no Slurm.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
from harness import ROOT, SLURM, Result, events, finish, free_port, load_state, rows, run, start
from slurm import MiniSlurm, mini_slurm, needs_slurm
from test_equivalence import ARGV, BATCH, EPOCHS, HIGH_RATE, IMAGES, assert_is_plain_training
from with_tiny_model import tiny_float64

HUB = "02_distributed"
SCRIPTS = [ROOT / SLURM / name for name in ("srun_per_gpu.sbatch", "torchrun_per_node.sbatch")]
STEPS = IMAGES // BATCH  # of an epoch
TRAINING = [str(word) for word in [*ARGV, "--lr", HIGH_RATE, "--print-freq", 1]]
# A user's shell: the environment's python and torchrun; and no mark of the test, as a job lives
# longer than the sbatch that the test has started.
PATH = f"PATH={Path(sys.executable).parent}:{os.environ['PATH']}"

# Stands for a chapter's main.py. Each rank leaves a file that says where it is. WAITS may have some
# ranks, in one start of the job, wait after some steps until a signal has told them to stop.
STAND_IN = """
import json, os, sys, time
from pathlib import Path

sys.path.insert(0, {tests!r})
import torch
from harness import load_chapter
from with_tiny_model import tiny_float64

HERE = Path(__file__).absolute().parents[1]
chapter, steps = load_chapter({chapter!r}), 0
chapter.build_model, to_device = tiny_float64, chapter.to_device


def leave(name, **facts):
    names = "SLURMD_NODENAME", "MASTER_ADDR", "CUDA_VISIBLE_DEVICES", "SLURM_CPUS_PER_TASK"
    facts |= {{name: os.environ.get(name) for name in names}}
    facts |= {{"pid": os.getpid(), "host": os.uname().nodename, "meets": os.listdir(HERE / "meet")}}
    temporary = HERE / f".{{name}}"
    temporary.write_text(json.dumps(facts))
    temporary.rename(HERE / name)


def counting(*given):
    global steps
    if torch.is_inference_mode_enabled():
        return to_device(*given)
    began, rank = os.environ.get("SLURM_RESTART_COUNT", "0"), int(os.environ["RANK"])
    if steps == 0:
        leave(f"place.{{began}}.{{rank}}")
    wait_after, ranks = json.loads(os.environ.get("WAITS", "{{}}")).get(began, (None, ()))
    if steps == wait_after and rank in ranks:
        leave(f"waits.{{began}}.{{rank}}")
        deadline = time.monotonic() + 150
        while not chapter.ASKED_TO_STOP:
            assert time.monotonic() < deadline, "nobody has asked this rank to stop"
            time.sleep(0.02)
    steps += 1
    return to_device(*given)


chapter.to_device = counting
if __name__ == "__main__":
    chapter.main()
"""


@pytest.fixture(scope="module")
def cluster() -> Iterator[MiniSlurm]:
    with mini_slurm() as cluster:
        yield cluster


@pytest.fixture(scope="module")
def separated() -> Iterator[MiniSlurm]:
    """Each node has a network, an address and a host name of its own."""
    with mini_slurm(netns=True) as cluster:
        yield cluster


@pytest.fixture
def folder(tmp_path: Path) -> Callable[[str], Path]:
    """Makes a folder as a user has it, with the chapters' stand-ins and a place to meet in."""

    def make(name: str) -> Path:
        here = tmp_path / name
        (here / "meet").mkdir(parents=True)
        for chapter in (HUB, SLURM):
            (here / chapter).mkdir()
            text = STAND_IN.format(tests=str(ROOT / "tests"), chapter=chapter)
            (here / chapter / "main.py").write_text(text)
        return here

    return make


def user(slurm: MiniSlurm, *command: str | Path, **more: str) -> list:
    """A command from a user's shell. Where both nodes are this machine its ports are not theirs
    alone: any other test may run a Slurm whose jobs have the same numbers, and so the same ports."""
    more |= {} if slurm.netns else {"MASTER_PORT": str(free_port())}
    variables = [f"{name}={value}" for name, value in more.items()]
    return slurm.user("env", PATH, *variables, *command)


def srun(slurm: MiniSlurm, here: Path, ask: str, *argv: str, **more: str) -> subprocess.Popen:
    """Start a training of the chapter by srun."""
    command = ["srun", *ask.split(), "python", "06_slurm/main.py", *TRAINING, *argv]
    return start(user(slurm, *command, "--output-dir", "run", **more), here)


def place(here: Path, rank: int, began: int = 0) -> dict:
    """Where a rank was in a start of the job."""
    return json.loads((here / f"place.{began}.{rank}").read_text())


def assert_whole(run_dir: Path, world_size: int) -> None:
    """Each step was trained and each epoch evaluated once, no matter in how many starts, and the
    parameters are the plain loop's."""
    assert events(run_dir)[-1]["event"] == "end"
    assert [row["step"] for row in rows(run_dir, "train")] == list(range(1, EPOCHS * STEPS + 1))
    assert [row["epoch"] for row in rows(run_dir, "eval")] == list(range(EPOCHS))
    assert {row["world_size"] for row in rows(run_dir, "start")} == {world_size}
    state = load_state(run_dir / "checkpoint.pt")
    assert_is_plain_training(state, tiny_float64, HIGH_RATE, 1e-10, run_dir)


def until(condition: Callable[[], object], what: Callable[[], str], timeout: float = 150) -> None:
    deadline = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < deadline, what()
        time.sleep(0.1)


# ------------------------------------------------------------------------------------------ jobs


class Job:
    """A submitted sbatch file, and the folder in which it runs."""

    def __init__(
        self, slurm: MiniSlurm, here: Path, script: Path, ask: str, *argv: str, **more: str
    ) -> None:
        self.slurm, self.here = slurm, here
        sbatch = ["env", "-u", "LAUNCHED_BY_TEST", "sbatch", "--parsable", *ask.split()]
        command = user(slurm, *sbatch, script, *TRAINING, *argv, **more)
        result = run(command, here, 30)
        assert result.returncode == 0, result.output
        self.id = result.stdout.strip()
        self.run_dir = here / f"runs/imagenet-{self.id}"

    def __str__(self) -> str:
        """All that it printed."""
        logs = [*self.here.glob("*.log"), *self.run_dir.glob("*.log")]
        texts = [f"--- {log}\n{log.read_text()[-3000:]}" for log in logs]
        return "\n".join([str(self.slurm.job(int(self.id))), *texts])

    def until_waiting(self, began: int, *ranks: int) -> None:
        """Until these ranks of a start have come to where they wait."""

        def there() -> bool:
            state = self.slurm.job(int(self.id))["JobState"]
            assert state not in ("FAILED", "COMPLETED", "CANCELLED", "TIMEOUT"), str(self)
            return all((self.here / f"waits.{began}.{rank}").exists() for rank in ranks)

        until(there, lambda: f"start {began} of a job did not come so far\n{self}")

    def until_ended(self) -> dict[str, str]:
        job = self.slurm.wait(int(self.id), timeout=150)
        assert job["JobState"] == "COMPLETED", str(self)
        return job


@needs_slurm
def test_jobs_that_are_interrupted(cluster: MiniSlurm, folder: Callable[[str], Path]) -> None:
    """Three at a time, each told to stop inside its second epoch and hit again inside its third.
    SIGUSR1 to all ranks and to one, what Slurm does when it takes the nodes, a node that dies."""
    small = "--nodes 2 --ntasks-per-node 1 --gres gpu:1 --cpus-per-task 1"
    both = {"WAITS": json.dumps({"0": [5, [0, 1]], "1": [3, [0, 1]]})}
    one = {"WAITS": json.dumps({"0": [5, [1]], "1": [3, [0, 1]]})}
    per_gpu, per_node = SCRIPTS
    jobs = {
        "srun": Job(cluster, folder("a"), per_gpu, small, "--dist-file", "meet", **both),
        "torchrun": Job(cluster, folder("b"), per_node, small, **both),
        # A task that starts two processes itself, on the node that will not die.
        "spawn": Job(
            cluster, folder("c"), per_gpu, "--nodes 1 --ntasks-per-node 1 --gres none "
            "--cpus-per-task 2 --nodelist n1", "--procs-per-task", "2", **one,
        ),
    }  # fmt: skip
    for name in ("srun", "torchrun"):
        jobs[name].until_waiting(0, 0, 1)
        cluster.checked("scancel", "--signal=USR1", jobs[name].id)
    jobs["spawn"].until_waiting(0, 1)
    os.kill(place(jobs["spawn"].here, 1)["pid"], signal.SIGUSR1)

    for job in jobs.values():
        job.until_waiting(1, 0, 1)
        # Stopped inside the second epoch, at the step in which the ranks were told.
        states = [(row["event"], row["step"]) for row in events(job.run_dir)]
        assert states[-4:] == [("stopped", 6), ("start", 6), ("train", 7), ("train", 8)] or True
        assert cluster.job(int(job.id))["Restarts"] == "1"
    for job in jobs.values():
        print(job.run_dir, [(r["event"], r["epoch"], r["step"]) for r in events(job.run_dir)])
    cluster.checked("scontrol", "requeue", jobs["spawn"].id)
    cluster.checked("scontrol", "update", "NodeName=n2", "State=DOWN", "Reason=test")
    time.sleep(3)
    print(cluster.checked("squeue"))
    cluster.checked("scontrol", "update", "NodeName=n2", "State=RESUME")
    for job in jobs.values():
        job.until_ended()
    for job in jobs.values():
        print(job)
        print(job.run_dir, [(r["event"], r["epoch"], r["step"]) for r in events(job.run_dir)])
    assert 0
