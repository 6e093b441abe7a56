"""Chapter 06 without a Slurm: ranks from its variables.

test_slurm.py sees the same with a real one. Here the variables are those that real ones have set.
"""

import os
import signal
from pathlib import Path
from types import ModuleType, SimpleNamespace
from unittest import mock

import pytest
from crew import Crew, call_main
from harness import LAUNCHER_VARIABLES, SLURM, load_chapter
from plain_training import HIGH_RATE, arguments
from stops import assert_stopped
from with_tiny_model import tiny_float64


@pytest.fixture(scope="module")
def chapter() -> ModuleType:
    return load_chapter(SLURM)


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Of a fresh shell; what a test or the chapter sets in it goes with the test."""
    fresh = {k: v for k, v in os.environ.items() if not k.startswith(LAUNCHER_VARIABLES)}
    monkeypatch.setattr(os, "environ", fresh)
    return monkeypatch


# ------------------------------------------------------------------------------- ranks from srun


def task(number: int, local: int, tasks: int, nodes: int, gpus: int, **more: str) -> dict[str, str]:
    """What srun sets for a task: its number in the step and on its node; and of the step, how many
    tasks, nodes and GPUs of a node."""
    ids = {"SLURM_PROCID": number, "SLURM_LOCALID": local, "SLURM_JOB_ID": 4711}
    step = {"SLURM_STEP_ID": 0, "SLURM_STEP_NUM_TASKS": tasks, "SLURM_STEP_NUM_NODES": nodes}
    step |= {"SLURM_STEP_NODELIST": "n[1-9]"} | ({"SLURM_GPUS_ON_NODE": gpus} if gpus else {})
    # The step may be a part of its job: what belongs to the whole job must not matter.
    job = {"SLURM_NTASKS": 99, "SLURM_TASKS_PER_NODE": 99, "SLURM_JOB_NODELIST": "other"}
    return {name: str(value) for name, value in (ids | step | job).items()} | more


# A task, --procs-per-task (0: left out), how many GPUs it sees; and of each of its processes the
# rank, of how many, and the local rank. (With a real Slurm: tests/pretended/test_launches.py.)
REQUESTS = {
    "one task": (task(0, 0, 1, 1, 0), 0, 0, ["0/1 0"]),
    "a task per GPU": (task(5, 1, 8, 2, 4), 0, 4, ["5/8 1"]),
    "dealt out to the nodes in turn": (task(5, 2, 8, 2, 4), 0, 4, ["5/8 2"]),
    "CPUs, uneven": (task(8, 1, 9, 4, 0), 0, 0, ["8/9 1"]),
    "CPUs, processes in each task": (task(1, 0, 2, 2, 0), 3, 0, ["3/6 0", "4/6 1", "5/6 2"]),
    "a task per node": (task(2, 0, 3, 3, 2), 0, 2, ["4/6 0", "5/6 1"]),
    "2 tasks per node with 2 GPUs each": (task(3, 1, 4, 2, 4), 2, 4, ["6/8 2", "7/8 3"]),
    "not all GPUs, as was asked for": (task(1, 0, 2, 2, 4), 2, 4, ["2/4 0", "3/4 1"]),
    "--gpus-per-task 1, counted from 0": (task(1, 1, 2, 1, 2), 0, 1, ["1/2 0"]),
    "--gpus-per-task 2": (task(1, 1, 2, 1, 4), 2, 2, ["2/4 0", "3/4 1"]),
}


def place_of(
    chapter: ModuleType, env: dict, number: int = 0, procs: int = 1, visible: int = 0
) -> dict[str, str]:
    """What process `number` of a task finds in its environment, on a machine that shows GPUs. Slurm
    is asked for the first node only where one is needed and not given."""
    nodes = mock.patch("subprocess.check_output", return_value="n1\nn2\n")
    gpus = mock.patch("torch.cuda.device_count", return_value=visible)
    with mock.patch.dict(os.environ, env), nodes as asked, gpus:
        chapter.join_slurm(number, procs)
        words = [call.args[0] for call in asked.call_args_list]
        alone = env["SLURM_STEP_NUM_NODES"] == "1" or "MASTER_ADDR" in env
        assert words == ([] if alone else [["scontrol", "show", "hostnames", "n[1-9]"]])
        return dict(os.environ)


@pytest.mark.parametrize("request_", REQUESTS.values(), ids=REQUESTS)
def test_ranks(request_: tuple, chapter: ModuleType, environment: pytest.MonkeyPatch) -> None:
    env, asked, visible, expected = request_
    words = ["--synthetic", *(["--procs-per-task", str(asked)] if asked else [])]
    args, procs = chapter.build_parser().parse_args(words), len(expected)
    with mock.patch.dict(os.environ, env):
        assert chapter.procs_of_task(args) == procs
    places = [place_of(chapter, env, number, procs, visible) for number in range(procs)]
    assert ["{RANK}/{WORLD_SIZE} {LOCAL_RANK}".format(**place) for place in places] == expected
    address = "127.0.0.1" if env["SLURM_STEP_NUM_NODES"] == "1" else "n1"
    shared = {"LOCAL_WORLD_SIZE": str(procs), "MASTER_PORT": "11504", "MASTER_ADDR": address}
    assert all(shared.items() <= place.items() for place in places)


def test_the_meeting_place(chapter: ModuleType, environment: pytest.MonkeyPatch) -> None:
    """Where the user says."""
    given = {"MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "29400"}
    for env in (task(0, 0, 2, 2, 0, **given), task(0, 0, 2, 1, 0, **given)):
        assert given.items() <= place_of(chapter, env).items()


def test_ports(chapter: ModuleType, environment: pytest.MonkeyPatch) -> None:
    """None needs a right or is one that the kernel gives to clients; a job has one, again after a
    requeue; jobs and steps that run side by side have others."""

    def port(job: int, step: int = 0, **more: str) -> int:
        more |= {"SLURM_JOB_ID": str(job), "SLURM_STEP_ID": str(step)}
        return int(place_of(chapter, task(0, 0, 2, 1, 0, **more))["MASTER_PORT"])

    ports = [port(job) for job in (*range(1, 3000, 97), *range(19_990, 20_010), 2**31)]
    assert min(ports) >= 10_000 and max(ports) < 30_000
    assert port(77) == port(77, SLURM_RESTART_COUNT="3")
    side_by_side = [(job, step) for job in range(500, 540) for step in range(8)]
    assert len({port(job, step) for job, step in side_by_side}) == len(side_by_side)


def test_workers(chapter: ModuleType, environment: pytest.MonkeyPatch) -> None:
    """Their default is the rank's share of the task's CPUs, where those were asked for. (Elsewhere:
    test_flags.py.)"""
    for cpus, procs, workers in [("8", "4", 2), ("2", "4", 1), ("64", "1", 16)]:
        environment.setenv("SLURM_CPUS_PER_TASK", cpus)
        environment.setenv("LOCAL_WORLD_SIZE", procs)
        assert chapter.build_parser().parse_args(["--synthetic"]).workers == workers


def test_processes_share_the_cores(chapter: ModuleType, environment: pytest.MonkeyPatch) -> None:
    for name, value in task(0, 0, 1, 1, 0).items():
        environment.setenv(name, value)
    environment.delenv("OMP_NUM_THREADS", raising=False)
    environment.setattr("torch.get_num_threads", lambda: 6)
    environment.setattr(signal, "signal", lambda *_: None)
    ended = SimpleNamespace(join=lambda grace_period: True)
    environment.setattr("torch.multiprocessing.spawn", lambda *_, join: ended)
    chapter.main(["--synthetic", "8", "--procs-per-task", "3", "--output-dir", "nowhere"])
    assert os.environ["OMP_NUM_THREADS"] == "2"


def test_torchrun_knows_already(chapter: ModuleType, environment: pytest.MonkeyPatch) -> None:
    """Its processes have the variables of the task that torchrun is."""
    env = task(1, 0, 2, 2, 2, TORCHELASTIC_RUN_ID="none", RANK="3", WORLD_SIZE="4")
    env |= {"LOCAL_RANK": "1"}
    seen = []

    def look(args: object, world_size: int) -> None:
        seen.append(dict(os.environ))
        raise StopIteration

    environment.setattr(chapter, "check_flags", look)
    environment.setattr(signal, "signal", lambda *_: None)
    for name, value in env.items():
        environment.setenv(name, value)
    with pytest.raises(StopIteration):
        chapter.main(["--synthetic", "8", "--output-dir", "nowhere"])
    assert [(place["RANK"], place["WORLD_SIZE"]) for place in seen] == [("3", "4")]
    assert "MASTER_PORT" not in seen[0]


BY_HAND = r"start it with srun -K --ntasks 2 python \S+/06_slurm/main.py \.\.\."
BATCH_SHELL = {"SLURM_JOB_ID": "7", "SLURM_PROCID": "0", "SLURM_TASKS_PER_NODE": "2"}
MISTAKES = {
    "by hand": ({}, BY_HAND),
    "batch shell": (BATCH_SHELL, BY_HAND),
    "2 tasks, 4 GPUs": (task(0, 0, 2, 1, 4), "2 tasks, 1 nodes, 4 GPUs each: a task per .*"),
    # mp.spawn of no processes ends well, and Slurm would call the job completed.
    "no process": (task(0, 0, 1, 1, 0), "--procs-per-task 0 starts none: use 1 or more"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistakes(mistake: str, chapter: ModuleType, environment: pytest.MonkeyPatch) -> None:
    """One line, which names what does not fit or what to type."""
    env, words = MISTAKES[mistake]
    os.environ.update(env)
    more = ["--procs-per-task", "0"] if mistake == "no process" else []
    with pytest.raises(SystemExit, match=f"^error: {words}$"):
        chapter.main(["--synthetic", "8", "--output-dir", "nowhere", *more])
    assert not Path("nowhere").exists()


# -------------------------------------------------------------------------------- the meeting point


def test_meeting_in_a_file(
    chapter: ModuleType, environment: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """One of this job, step and start alone."""
    names = []
    for start in "7 0", "7 0 1", "7 0 2", "7 1", "8 0", "71 0", "7 10", "1 7 10", "17 1 0":
        ids = ("SLURM_JOB_ID", "SLURM_STEP_ID", "SLURM_RESTART_COUNT")
        environment.setattr(os, "environ", dict(zip(ids, start.split(), strict=False)))
        names.append(chapter.meeting_point(SimpleNamespace(dist_file=tmp_path)))
    assert len(set(names)) == len(names)
    assert all(name.startswith(f"file://{tmp_path}/") for name in names), names


# --------------------------------------------------------------- a signal before the first step


def signalled_before_it_starts(chapter: str, argv: list[str]) -> dict:
    """In a crew member: SIGUSR1 comes while the data set is made."""
    module = load_chapter(chapter)
    build = module.build_datasets

    def signals(args: object) -> tuple:
        os.kill(os.getpid(), signal.SIGUSR1)
        return build(args)

    return call_main(chapter, argv, {"build_datasets": signals, "build_model": tiny_float64})


def test_preempted_while_it_starts(crew: Crew, tmp_path: Path) -> None:
    """Slurm would call a job that ends by the signal failed, and not start it again: it trains one
    step, and stops as it would later."""
    argv = [*arguments(tmp_path, HIGH_RATE), "--resume"]
    answers = crew.run(signalled_before_it_starts, SLURM, argv, world_size=2)
    assert_stopped(answers, tmp_path, 0, 1)
