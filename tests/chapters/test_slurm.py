"""Chapter 06 and its sbatch files on a real Slurm: two nodes, each with a network of its own and
two pretended GPUs.

What trains is the tiny float64 model of test_equivalence.py, so that whatever happened to a job,
its parameters must be those of a plain loop. test_slurm_ranks.py has the cases that need no Slurm.
"""

import json
import os
import re
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from harness import (
    FSDP,
    PATIENCE,
    ROOT,
    SLURM,
    Result,
    events,
    finish,
    load_state,
    rows,
    run,
    start,
)
from plain_training import ARGV, HIGH_RATE, assert_one_run
from slurm import MiniSlurm, mini_slurm

pytestmark = pytest.mark.xdist_group("slurm")
HUB = "02_distributed"
PER_GPU, TORCHRUN = (
    ROOT / SLURM / name for name in ("srun_per_gpu.sbatch", "torchrun_per_node.sbatch")
)
SCRIPTS = pytest.mark.parametrize("script", [PER_GPU, TORCHRUN], ids=lambda path: path.stem)
A_RANK_ON_EACH_NODE = "--nodes 2 --ntasks-per-node 1 --gres gpu:1 --cpus-per-task 1"
TRAINING = [str(word) for word in [*ARGV, "--lr", HIGH_RATE, "--print-freq", 1]]
# A user's shell: the environment's python and torchrun.
PATH = f"PATH={Path(sys.executable).parent}:{os.environ['PATH']}"

# Stands for a chapter's main.py, with the tiny model. With "5 3" as WAITS in its environment the
# first start of a job waits after 5 steps, on all ranks, until it is told to stop; the next one
# after 3.
STAND_IN = """
import os, sys, time
from pathlib import Path

sys.path.insert(0, SUPPORT)
import torch
from harness import load_chapter
from with_tiny_model import tiny_float64

chapter, steps = load_chapter(CHAPTER), 0
chapter.build_model, batches = tiny_float64, chapter.batches
here = Path(__file__).absolute().parents[1]
number = os.environ.get("SLURM_RESTART_COUNT", "0")
waits = dict(zip("01", os.environ.get("WAITS", "").split())).get(number)


def counting(*given):
    global steps
    for batch in batches(*given):
        if torch.is_grad_enabled():
            rank = int(os.environ["RANK"])
            (here / f"host.{rank}").write_text(os.uname().nodename)
            if str(steps) == waits:
                (here / f"waits.{number}.{rank}").touch()
                deadline = time.monotonic() + 500
                while not chapter.ASKED_TO_STOP:
                    assert time.monotonic() < deadline, "nobody has asked this rank to stop"
                    time.sleep(0.02)
            steps += 1
        yield batch


chapter.batches = counting
if __name__ == "__main__":
    chapter.main()
"""


@pytest.fixture(scope="module")
def slurm() -> Iterator[MiniSlurm]:
    """Each node has a network, an address and a host name of its own."""
    with mini_slurm(netns=True) as cluster:
        yield cluster


@pytest.fixture
def folder(tmp_path: Path) -> Callable[[str], Path]:
    """Makes a folder as a user has it, with the stand-in in the place of the chapters."""

    def make(name: str) -> Path:
        here = tmp_path / name
        for chapter in (HUB, SLURM, FSDP):
            (here / chapter).mkdir(parents=True)
            script = STAND_IN.replace("SUPPORT", repr(str(ROOT / "tests/support")))
            (here / chapter / "main.py").write_text(script.replace("CHAPTER", repr(chapter)))
        return here

    return make


def until(
    condition: Callable[[], object], what: Callable[[], str], timeout: float = PATIENCE
) -> None:
    deadline = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < deadline, what()
        time.sleep(0.1)


class Job:
    """A submitted sbatch file, and the folder in which it runs."""

    def __init__(
        self, slurm: MiniSlurm, here: Path, script: Path, ask: str, *env: str, waits: str = "5"
    ) -> None:
        self.slurm, self.here = slurm, here
        # Without the mark of the test: the job lives longer than the sbatch that started it.
        user = ["env", "-u", "LAUNCHED_BY_TEST", PATH, f"WAITS={waits}", *env]
        sbatch = ["sbatch", "--parsable", *ask.split(), script, *TRAINING]
        self.id = slurm.checked(*user, *sbatch, cwd=here).strip()
        self.run_dir = here / f"runs/imagenet-{self.id}"

    def __str__(self) -> str:
        """All that it printed."""
        logs = [*self.here.glob("*.log"), *self.run_dir.glob("*.log")]
        texts = [f"--- {log}\n{log.read_text()[-3000:]}" for log in logs]
        return "\n".join([str(self.now()), *texts])

    def now(self) -> dict[str, str]:
        text = self.slurm.checked("scontrol", "show", "job", "--oneliner", self.id)
        return dict(re.findall(r"(\S+?)=(\S*)", text))

    def until_waiting(self, start: int = 0) -> None:
        """Until both ranks have come to where they wait."""

        def there() -> bool:
            assert self.now()["JobState"] not in ("FAILED", "COMPLETED"), str(self)
            return all((self.here / f"waits.{start}.{rank}").exists() for rank in (0, 1))

        until(there, lambda: f"a job did not come so far\n{self}")

    def assert_ended(self, state: str, restarts: int) -> None:
        """In this state, after so many restarts; and its log is that of all of its starts."""
        ends = ("COMPLETED", "FAILED", "CANCELLED")
        until(lambda: self.now()["JobState"] in ends, lambda: str(self))
        job = self.now()
        assert (job["JobState"], job["Restarts"]) == (state, str(restarts)), str(self)
        (log,) = self.here.glob("imagenet-*.log")
        starts = [line[:8] for line in log.read_text().splitlines() if line.startswith("start ")]
        assert starts == [f"start {number} " for number in range(restarts + 1)], str(self)


# ------------------------------------------------------------------------------------------- srun


@pytest.mark.proof
def test_a_task_that_starts_its_processes(slurm: MiniSlurm, folder: Callable[[str], Path]) -> None:
    """srun hands a signal on to its task and to the two processes that it has started."""
    here = folder("spawn")
    command = ["srun", "--ntasks", 1, "python", "06_slurm/main.py", *TRAINING, "--output-dir", here]
    user = ["env", PATH, "WAITS=5"]
    process = start(slurm.user(*user, *command, "--procs-per-task", 2), here)
    until(
        lambda: all((here / f"waits.0.{rank}").exists() for rank in (0, 1)) or process.poll(),
        lambda: "the ranks did not come so far",
    )
    process.send_signal(signal.SIGUSR1)
    result = finish(process)
    assert result.returncode == 75, result.output
    assert events(here)[-1]["event"] == "stopped"
    state = load_state(here / "checkpoint.pt")
    assert (state["epoch"], state["step"]) == (1, 2)


def test_torchrun_on_two_machines(slurm: MiniSlurm, folder: Callable[[str], Path]) -> None:
    """Chapter 02 without Slurm, as its docstring says: each machine is reached by its own address
    only."""
    here = folder("hub")
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nnodes", "2"]
    torchrun += ["--nproc-per-node", "1", "--rdzv-backend", "c10d", "--rdzv-endpoint", "n1:29400"]
    argv = [*torchrun, "02_distributed/main.py", *TRAINING, "--output-dir", "run"]
    for process in [start(slurm.on(node, *argv), here) for node in ("n1", "n2")]:
        result = finish(process)
        assert result.returncode == 0, result.output
    assert_one_run(here / "run", [2], [0])
    hosts = [(here / f"host.{rank}").read_text() for rank in (0, 1)]
    assert sorted(hosts) == ["n1", "n2"]  # torchrun numbers the nodes as they come


# ------------------------------------------------------------------------------------------ jobs


@pytest.mark.parametrize(
    "script",
    [
        pytest.param(PER_GPU, id="srun"),
        pytest.param(TORCHRUN, id="torchrun", marks=pytest.mark.proof),
    ],
)
def test_a_job_that_is_interrupted(
    script: Path, slurm: MiniSlurm, folder: Callable[[str], Path]
) -> None:
    """A rank on each of two machines, told to stop inside the second epoch: requeued, it goes on
    there and ends as if nothing had been. With srun each rank has a log of its own."""
    job = Job(slurm, folder("job"), script, A_RANK_ON_EACH_NODE)
    job.until_waiting()
    slurm.checked("scancel", "--signal=USR1", job.id)
    job.assert_ended("COMPLETED", restarts=1)
    said = [(row["event"], row.get("epoch"), row.get("step")) for row in events(job.run_dir)]
    assert said[7:10] == [("train", 1, 2), ("stopped", None, None), ("start", 1, 2)]
    assert_one_run(job.run_dir, [2, 2], [0, 6])
    hosts = [(job.here / f"host.{rank}").read_text() for rank in (0, 1)]
    assert sorted(hosts) == ["n1", "n2"]
    if script == PER_GPU:
        assert hosts == ["n1", "n2"]
        logs = [(job.run_dir / f"rank{rank}.log").read_text() for rank in (0, 1)]
        assert [log.count("start  epoch ") for log in logs] == [2, 0]


@pytest.mark.proof
@pytest.mark.parametrize("chapter", [HUB, FSDP])
@SCRIPTS
def test_one_job_from_end_to_end(
    script: Path, chapter: str, slurm: MiniSlurm, folder: Callable[[str], Path]
) -> None:
    """Another chapter by the same files: stopped and requeued, cancelled while it goes on, resumed
    by another job on one rank, evaluated. No step is trained twice, and none is lost."""
    main = f"{chapter}/main.py"
    job = Job(slurm, folder("job"), script, A_RANK_ON_EACH_NODE, f"MAIN={main}", waits="5 3")
    job.until_waiting()
    slurm.checked("scancel", "--signal=USR1", job.id)
    job.until_waiting(start=1)
    slurm.checked("scancel", job.id)  # SIGTERM to all, and 30 seconds
    job.assert_ended("CANCELLED", restarts=1)
    assert events(job.run_dir)[-1]["event"] == "stopped", str(job)

    one = A_RANK_ON_EACH_NODE.replace("--nodes 2", "--nodes 1")
    run_dir = f"RUN_DIR={job.run_dir.relative_to(job.here)}"
    (job.here / f"imagenet-{job.id}.log").unlink()
    last = Job(slurm, job.here, script, one, f"MAIN={main}", run_dir, waits="")
    last.assert_ended("COMPLETED", restarts=0)
    assert_one_run(job.run_dir, [2, 2, 1], [0, 6, 10])

    evaluate = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "1", main]
    evaluate += [*TRAINING, "--evaluate", "--resume", job.run_dir / "checkpoint.pt"]
    result = run([*evaluate, "--output-dir", "evaluated"], job.here)
    assert result.returncode == 0, result.output
    (found,) = rows(job.here / "evaluated", "eval", "evaluate.jsonl")
    logged = rows(job.run_dir, "eval")[-1]
    assert [found[name] for name in ("acc1", "images")] == [logged["acc1"], logged["images"]]
    assert found["loss"] == pytest.approx(logged["loss"], rel=1e-12)


# -------------------------------------------------------------------------------------- the files

# Events of the run's log before, those of this start, srun's status, whether to requeue.
STARTS = {
    "has ended after a stop": ("stopped", "start end", 0, False),
    "was stopped": ("", "start stopped", 75, True),
    "was stopped again, others were killed": ("stopped", "start stopped", 143, True),
    "has failed after a stop": ("stopped", "start train", 1, False),
    "has failed at once after a stop": ("stopped", "", 1, False),
}


@pytest.mark.parametrize("began", STARTS)
@SCRIPTS
def test_when_to_requeue(script: Path, began: str, tmp_path: Path) -> None:
    """After each start that was stopped, and after no other: a run that fails whenever it is
    started would be requeued for ever. Without a Slurm: its commands are stand-ins."""
    before, written, status, requeued = STARTS[began]
    (tmp_path / SLURM).mkdir()
    (tmp_path / SLURM / "main.py").touch()
    log = tmp_path / "runs/imagenet-7/metrics.jsonl"
    log.parent.mkdir(parents=True)

    def lines(words: str) -> str:  # as log writes them
        return "".join(json.dumps({"event": word}) + "\n" for word in words.split())

    log.write_text(lines(before))
    (tmp_path / "added").write_text(lines(written))
    for name, text in {
        "srun": f"cat added >>{log}\nexit {status}",
        "scontrol": '[[ $1 == show ]] && echo n1 || echo "$@" >>added',
    }.items():
        (tmp_path / name).write_text(f"#!/bin/bash\n{text}\n")
        (tmp_path / name).chmod(0o755)
    result = as_job(script, tmp_path, PATH=f"{tmp_path}:{os.environ['PATH']}")
    assert result.returncode == status, result.output
    asked = (tmp_path / "added").read_text().removeprefix(lines(written))
    assert asked == ("requeue 7\n" if requeued else ""), result.output


@SCRIPTS
def test_goes_on_with_the_run_of_another_job(script: Path, tmp_path: Path) -> None:
    (tmp_path / SLURM).mkdir()
    (tmp_path / SLURM / "main.py").touch()
    for name, text in {"srun": 'echo "$@" >asked', "scontrol": "echo n1"}.items():
        (tmp_path / name).write_text(f"#!/bin/bash\n{text}\n")
        (tmp_path / name).chmod(0o755)
    run_dir = "runs/imagenet-6"
    path = f"{tmp_path}:{os.environ['PATH']}"
    result = as_job(script, tmp_path, PATH=path, RUN_DIR=run_dir)
    assert result.returncode == 0 and (tmp_path / run_dir).is_dir(), result.output
    assert f"--resume --output-dir {run_dir}\n" in (tmp_path / "asked").read_text()


def as_job(script: Path, folder: Path, **env: str) -> Result:
    """An sbatch file as Slurm runs it on the first node."""
    env |= {"SLURM_JOB_ID": "7", "SLURM_JOB_NAME": "imagenet", "SLURM_NNODES": "2"}
    return run(["bash", script], folder, env=env | {"SLURM_JOB_NODELIST": "n[1-2]"})


@SCRIPTS
def test_not_where_the_chapter_is(script: Path, tmp_path: Path) -> None:
    result = as_job(script, tmp_path)
    line = f"no 06_slurm/main.py in {tmp_path}: call sbatch where it is\n"
    assert (result.returncode, result.stderr) == (1, line), result.output
    assert list(tmp_path.iterdir()) == []
