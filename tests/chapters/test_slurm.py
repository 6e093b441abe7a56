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
from plain_training import ARGV, BATCH, EPOCHS, HIGH_RATE, IMAGES, assert_is_plain_training
from slurm import MiniSlurm, mini_slurm, needs_slurm
from with_tiny_model import tiny_float64

HUB = "02_distributed"
SCRIPTS = [ROOT / SLURM / name for name in ("srun_per_gpu.sbatch", "torchrun_per_node.sbatch")]
STEPS = IMAGES // BATCH  # of an epoch
TRAINING = [str(word) for word in [*ARGV, "--lr", HIGH_RATE, "--print-freq", 1]]
# A user's shell: the environment's python and torchrun; and no mark of the test, as a job lives
# longer than the sbatch that the test has started.
PATH = f"PATH={Path(sys.executable).parent}:{os.environ['PATH']}"

# Stands for a chapter's main.py. Each rank leaves a file that says where it is. WAITS may have some
# ranks, in one start of the job, wait after some steps until a signal has told them to stop, or
# until they are killed.
STAND_IN = """
import json, os, sys, time
from pathlib import Path

sys.path.insert(0, {tests!r})
import torch
from harness import load_chapter
from with_tiny_model import tiny_float64

HERE = Path(__file__).absolute().parents[2]
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
    waits = json.loads(os.environ.get("WAITS", "{{}}"))
    wait_after, ranks, deaf = waits.get(began, (None, (), ()))
    if steps == wait_after and rank in ranks:
        leave(f"waits.{{began}}.{{rank}}")
        deadline = time.monotonic() + 150
        while not chapter.ASKED_TO_STOP or rank in deaf:
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
            text = STAND_IN.format(tests=str(ROOT / "tests/support"), chapter=chapter)
            (here / chapter / "main.py").write_text(text)
        return here

    return make


def user(slurm: MiniSlurm, *command: str | Path, **more: str) -> list:
    """A command from a user's shell. Where both nodes are this machine it gets a free port: another
    test's Slurm has jobs of the same numbers, which would work out the same ports."""
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


def assert_whole(
    run_dir: Path, world_size: int, resumed: Sequence[int] = (0,), last: int = 0
) -> None:
    """The starts of a run, from these steps on, have trained each step and evaluated each epoch
    once, and the parameters are the plain loop's. Only what was done when a start was killed, up
    to step `last`, was done again, by the start after it."""
    assert [row["resumed_from_step"] for row in rows(run_dir, "start")] == list(resumed)
    assert {row["world_size"] for row in rows(run_dir, "start")} == {world_size}
    steps = [*range(1, last + 1), *range(resumed[-1] + 1 if last else 1, EPOCHS * STEPS + 1)]
    assert [row["step"] for row in rows(run_dir, "train")] == steps
    assert [row["epoch"] for row in rows(run_dir, "eval")] == list(range(EPOCHS))
    assert events(run_dir)[-1]["event"] == "end"
    state = load_state(run_dir / "checkpoint.pt")
    assert_is_plain_training(state, tiny_float64, HIGH_RATE, 1e-10, run_dir)


def until(condition: Callable[[], object], what: Callable[[], str], timeout: float = 150) -> None:
    deadline = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < deadline, what()
        time.sleep(0.1)


def assert_ended(process: subprocess.Popen, status: int = 0) -> Result:
    result = finish(process, 150)
    assert result.returncode == status, result.output
    return result


# ------------------------------------------------------------------------------------ srun alone


@needs_slurm
def test_srun(cluster: MiniSlurm, folder: Callable[[str], Path]) -> None:
    """Trains as one process would, with a task per GPU, whether each task sees all GPUs of its
    node or its own one; ranks and nodes in another order; meeting at an address or in a file."""
    cyclic, own, told = folder("cyclic"), folder("own"), folder("told")
    waits = {"WAITS": json.dumps({"0": [5, [0, 1], []]})}
    first = srun(cluster, told, "--ntasks 2", **waits)
    four = "--nodes 2 --ntasks-per-node 2 --gres gpu:2 --distribution cyclic"
    started = [srun(cluster, cyclic, four)]
    two = "--nodes 1 --ntasks 2 --gpus-per-task 1"
    started += [srun(cluster, own, two, "--dist-file", "meet")]

    # srun hands a signal on to its tasks.
    until(
        lambda: all((told / f"waits.0.{rank}").exists() for rank in (0, 1)) or first.poll(),
        lambda: "the ranks did not come so far",
    )
    first.send_signal(signal.SIGUSR1)
    assert_ended(first, 75)
    assert events(told / "run")[-1]["event"] == "stopped"
    started.append(srun(cluster, told, "--ntasks 2", "--resume", "auto"))

    for process in started:
        assert_ended(process)
    assert_whole(told / "run", 2, resumed=[0, 6])
    assert_whole(cyclic / "run", 4)
    places = [place(cyclic, rank) for rank in range(4)]
    assert [at["SLURMD_NODENAME"] for at in places] == ["n1", "n2", "n1", "n2"]
    assert {(at["MASTER_ADDR"], at["CUDA_VISIBLE_DEVICES"]) for at in places} == {("n1", "0,1")}
    assert_whole(own / "run", 2)
    places = [place(own, rank) for rank in range(2)]
    assert [at["CUDA_VISIBLE_DEVICES"] for at in places] == ["0", "1"]
    assert [len(at["meets"]) for at in places] == [1, 1]
    assert re.fullmatch(r"rendezvous-\d+-0-0", places[0]["meets"][0])


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
        return "\n".join([str(self.now()), *texts])

    def now(self) -> dict[str, str]:
        return self.slurm.job(int(self.id))

    def until_waiting(self, began: int, *ranks: int) -> None:
        """Until these ranks of a start have come to where they wait."""

        def there() -> bool:
            state = self.now()["JobState"]
            assert state not in ("FAILED", "COMPLETED", "CANCELLED", "TIMEOUT"), str(self)
            return all((self.here / f"waits.{began}.{rank}").exists() for rank in ranks)

        until(there, lambda: f"start {began} of a job did not come so far\n{self}")

    def until_ended(self) -> dict[str, str]:
        job = self.slurm.wait(int(self.id), timeout=150)
        assert job["JobState"] == "COMPLETED", str(self)
        return job


@needs_slurm
def test_jobs_that_are_interrupted(cluster: MiniSlurm, folder: Callable[[str], Path]) -> None:
    """Told to stop inside the second epoch, by SIGUSR1 to all ranks or to one; and once more in the
    third, by what Slurm does when it takes the nodes, or hit by a node that dies."""
    small = "--nodes 2 --ntasks-per-node 1 --gres gpu:1 --cpus-per-task 1"
    # After how many steps of which start which ranks wait, and which of them for ever.
    once = {"0": [5, [0, 1], []]}
    one, dies = {"0": [5, [1], []], "1": [3, [0, 1], []]}, {**once, "1": [3, [0, 1], [1]]}
    per_gpu, per_node = SCRIPTS
    srun_job = Job(
        cluster, folder("srun"), per_gpu, small, "--dist-file", "meet", WAITS=json.dumps(dies)
    )
    torchrun_job = Job(cluster, folder("torchrun"), per_node, small, WAITS=json.dumps(once))
    # A task that starts two processes itself, on the node that will not die.
    here = "--nodes 1 --ntasks-per-node 1 --gres none --cpus-per-task 2 --nodelist n1"
    spawn_job = Job(
        cluster, folder("spawn"), per_gpu, here, "--procs-per-task", "2", WAITS=json.dumps(one)
    )
    jobs = (srun_job, torchrun_job, spawn_job)

    for job in (srun_job, torchrun_job):
        job.until_waiting(0, 0, 1)
        cluster.checked("scancel", "--signal=USR1", job.id)
    spawn_job.until_waiting(0, 1)
    os.kill(place(spawn_job.here, 1)["pid"], signal.SIGUSR1)

    # All ranks stop, are requeued and go on.
    assert torchrun_job.until_ended()["Restarts"] == "1", str(torchrun_job)
    for job in (srun_job, spawn_job):
        job.until_waiting(1, 0, 1)
        assert job.now()["Restarts"] == "1", str(job)
    for job in jobs:
        said = [(row["event"], row["step"]) for row in events(job.run_dir)][7:10]
        assert said == [("train", 6), ("stopped", 6), ("start", 6)]

    cluster.checked("scontrol", "requeue", spawn_job.id)  # SIGTERM, and soon SIGKILL
    # From a dead node's rank nothing is heard: that hangs the other, which Slurm has to kill.
    cluster.checked("scontrol", "update", "NodeName=n2", "State=DOWN", "Reason=test")
    until(lambda: srun_job.now()["Restarts"] == "2", lambda: f"not requeued\n{srun_job}")
    cluster.checked("scontrol", "update", "NodeName=n2", "State=RESUME")
    for job in (srun_job, spawn_job):
        assert job.until_ended()["Restarts"] == "2", str(job)

    assert_whole(torchrun_job.run_dir, 2, resumed=[0, 6])
    assert_whole(spawn_job.run_dir, 2, resumed=[0, 6, 10])
    # Killed after step 9; the last checkpoint was that of the epoch, after step 8.
    assert_whole(srun_job.run_dir, 2, resumed=[0, 6, 8], last=9)
    # The killed start has left its file. Had the next one met there, it would have hung.
    met = [place(srun_job.here, 0, began)["meets"] for began in range(3)]
    names = [f"rendezvous-{srun_job.id}-0-{began}" for began in range(3)]
    assert all(name in there for name, there in zip(names, met, strict=True)), met
    assert names[1] in met[2]

    # Logs: the job's own, of all of its starts, and one of each rank or node.
    for job in jobs:
        (log,) = job.here.glob("imagenet-*.log")
        starts = [line[:8] for line in log.read_text().splitlines() if line.startswith("start ")]
        restarts = int(job.now()["Restarts"])
        assert starts == [f"start {number} " for number in range(restarts + 1)]
        assert log.read_text().count("stopped on request, requeued") == 1
    names = [{path.name for path in job.run_dir.glob("*.log")} for job in jobs]
    assert names == [{"rank0.log", "rank1.log"}, {"node0.log", "node1.log"}, {"rank0.log"}]
    assert " end " not in (srun_job.run_dir / "rank1.log").read_text()
    assert (srun_job.run_dir / "rank0.log").read_text().count("\nstart  ") == 2


# -------------------------------------------------------------------------------------- mistakes


@needs_slurm
def test_wrong_requests(cluster: MiniSlurm, folder: Callable[[str], Path]) -> None:
    """Each ends with one line of each task that says what to type. And a job that its user cancels
    is not told apart from one that shall stop, but it stays cancelled."""
    waits = json.dumps({"0": [1, [0], []]})
    small = "--nodes 1 --ntasks-per-node 1 --gres gpu:1 --cpus-per-task 1"
    cancelled = Job(cluster, folder("cancelled"), SCRIPTS[0], small, WAITS=waits)
    here = folder("wrong")
    job = here / "job.sh"
    job.write_text('#!/bin/bash\npython 06_slurm/main.py "$@"\n')
    batch = Job(cluster, here, job, "--ntasks 1 --gres gpu:1 --output job.log", "--epochs", "1")
    started = {
        r"2 task\(s\) of 1 process\(es\) on a node for 1 GPU\(s\)": srun(
            cluster, here, "--nodes 1 --ntasks 2 --gres gpu:1"
        ),
        "not started by srun": start(
            [sys.executable, "06_slurm/main.py", *TRAINING], here, {"SLURM_JOB_ID": "1"}
        ),
    }
    typed = (
        r": type srun -K --ntasks-per-node 2 --gres gpu:2 python 06_slurm/main.py --synthetic 50 .*"
    )
    for words, process in started.items():
        result = assert_ended(process, 1)
        lines = [line for line in result.stderr.splitlines() if not line.startswith("srun: ")]
        assert len(lines) == (1 if "by srun" in words else 2), result.output
        assert all(re.fullmatch(f"06_slurm: error: {words}{typed}", line) for line in lines), lines
        assert result.stdout == ""
    assert cluster.wait(int(batch.id), timeout=100)["JobState"] == "FAILED"
    (line,) = (here / "job.log").read_text().splitlines()
    assert re.fullmatch(f"06_slurm: error: not started by srun{typed}", line)
    assert not (here / "run").exists() and not (here / "runs").exists()

    cancelled.until_waiting(0, 0)
    cluster.checked("scancel", cancelled.id)
    assert cluster.wait(int(cancelled.id))["JobState"] == "CANCELLED"
    time.sleep(1)
    end = cancelled.now()
    assert (end["JobState"], end["Restarts"]) == ("CANCELLED", "0"), str(cancelled)


# What the run's log held before, what this start has added, srun's status, whether to requeue.
STOPPED = [{"event": "start"}, {"event": "train"}, {"event": "stopped"}]
ENDED = [{"event": "start"}, {"event": "train"}, {"event": "end"}]
FAILED = [{"event": "start"}, {"event": "train"}]
STARTS = {
    "has ended": ([], ENDED, 0, False),
    "has ended after a stop": (STOPPED, ENDED, 0, False),
    "was stopped": ([], STOPPED, 75, True),
    "was stopped again": (STOPPED, STOPPED, 75, True),
    "was stopped and others were killed": ([], STOPPED, 143, True),
    "has failed": ([], FAILED, 1, False),
    "has failed after a stop": (STOPPED, FAILED, 1, False),
    "has failed at once": ([], [], 1, False),
    "has failed at once after a stop": (STOPPED, [], 1, False),
}


@pytest.mark.parametrize("began", STARTS)
@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_when_to_requeue(script: Path, began: str, tmp_path: Path) -> None:
    """After each start that was stopped, and after no other: a run that fails whenever it is
    started would be requeued for ever. Without a Slurm: its commands are stand-ins."""
    before, written, status, requeued = STARTS[began]
    (tmp_path / SLURM).mkdir()
    (tmp_path / SLURM / "main.py").touch()
    log = tmp_path / "runs/imagenet-7/metrics.jsonl"

    def lines(events_: list[dict], time: float) -> str:  # as RunLog writes them
        return "".join(json.dumps({**event, "time": time}) + "\n" for event in events_)

    if before:
        log.parent.mkdir(parents=True)
        log.write_text(lines(before, 1.5))
    (tmp_path / "added").write_text(lines(written, 2.5))
    write = f"cat added >>{log}" if written else ""
    for name, text in {
        "srun": f"{write}\nexit {status}",
        "scontrol": '[[ $1 == show ]] && echo n1 || echo "$@" >>requeued',
    }.items():
        (tmp_path / name).write_text(f"#!/bin/bash\n{text}\n")
        (tmp_path / name).chmod(0o755)
    env = {"SLURM_JOB_ID": "7", "SLURM_JOB_NAME": "imagenet", "SLURM_JOB_NODELIST": "n[1-2]"}
    env |= {"SLURM_NNODES": "2", "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    result = run(["bash", script, "--synthetic"], tmp_path, 30, env)
    assert result.returncode == status, result.output
    asked = (tmp_path / "requeued").read_text() if (tmp_path / "requeued").exists() else ""
    assert asked == ("requeue 7\n" if requeued else ""), result.output


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_not_where_the_chapter_is(script: Path, tmp_path: Path) -> None:
    env = {"SLURM_JOB_ID": "7", "SLURM_JOB_NAME": "imagenet"}
    result = run(["bash", script], tmp_path, 30, env)
    line = f"no 06_slurm/main.py in {tmp_path}: call sbatch where it is\n"
    assert (result.returncode, result.stderr) == (1, line), result.output
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_bash(script: Path, tmp_path: Path) -> None:
    result = run(["bash", "-n", script], tmp_path, 30)
    assert (result.returncode, result.output.count("\n")) == (0, 3), result.output


@pytest.mark.skipif(
    not shutil.which("shellcheck"), reason="needs shellcheck: apt-get install shellcheck"
)
def test_shellcheck(tmp_path: Path) -> None:
    result = run(["shellcheck", *SCRIPTS], tmp_path, 60)
    assert result.returncode == 0, result.output


# ------------------------------------------------------------------------------ separate machines


@needs_slurm
def test_separate_nodes(separated: MiniSlurm, folder: Callable[[str], Path]) -> None:
    """Across two hosts, each reached by its own address only, which is worked out from the job:
    srun in both ways, torchrun as a job, and plain torchrun of chapter 02 as its docstring says."""
    names = ("per_gpu", "torchrun", "per_node", "hub")
    here = {name: folder(name) for name in names}
    small = "--nodes 2 --ntasks-per-node 1 --gres gpu:1 --cpus-per-task 1"
    job = Job(separated, here["torchrun"], SCRIPTS[1], small)
    per_gpu = srun(separated, here["per_gpu"], small)
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nnodes", "2"]
    torchrun += ["--nproc-per-node", "1", "--rdzv-backend", "c10d", "--rdzv-endpoint", "n1:29400"]
    argv = [*torchrun, "02_distributed/main.py", *TRAINING, "--output-dir", "run"]
    hub = [start(separated.on(node, *argv), here["hub"]) for node in ("n1", "n2")]
    for process in (per_gpu, *hub):
        assert_ended(process)
    assert job.until_ended()["Restarts"] == "0"
    # A task on each node, which starts a process for each of the two GPUs there.
    per_node = "--nodes 2 --ntasks-per-node 1 --gres gpu:2 --cpus-per-task 2"
    assert_ended(srun(separated, here["per_node"], per_node))

    (run_of_job,) = (here["torchrun"] / "runs").iterdir()
    runs = {name: (here[name] / "run", 2) for name in ("per_gpu", "hub")}
    runs |= {"torchrun": (run_of_job, 2), "per_node": (here["per_node"] / "run", 4)}
    for name, (run_dir, world_size) in runs.items():
        assert_whole(run_dir, world_size)
        # torchrun numbers the nodes as they come.
        hosts = [place(here[name], rank)["host"] for rank in range(world_size)]
        expected = sorted(["n1", "n2"] * (world_size // 2))
        assert (hosts if "per" in name else sorted(hosts)) == expected
        assert rows(run_dir, "start")[0]["host"] == hosts[0]
    assert {place(here["per_node"], rank)["MASTER_ADDR"] for rank in range(4)} == {"n1"}
