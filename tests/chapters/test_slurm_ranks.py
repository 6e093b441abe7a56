"""Chapter 06 without a Slurm: ranks from its variables, and a stop in the middle of an epoch.

test_slurm.py sees the same with a real one. Here the variables are those that real ones have set.
"""

import multiprocessing
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest import mock

import pytest
import torch
from crew import Crew, call_main
from harness import LAUNCHER_VARIABLES, ROOT, SLURM, events, load_chapter, load_state, rows
from plain_training import (
    EPOCHS,
    HIGH_RATE,
    IMAGES,
    arguments,
    assert_is_plain_training,
    assert_one_run,
)
from torch import Tensor
from warm import run_warm
from with_tiny_model import tiny_float64

USR1, TERM = signal.SIGUSR1, signal.SIGTERM


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
    seen = []
    environment.setattr(chapter, "run_rank", lambda *_: seen.append(dict(os.environ)))
    environment.setattr(signal, "signal", lambda *_: None)
    for name, value in env.items():
        environment.setenv(name, value)
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


# --------------------------------------------------------------------- the stop inside an epoch


def leg(chapter: str, argv: list[str], ask: dict[str, Any]) -> dict:
    """In a crew member: one start of a run that may be asked to stop. ask: who, after which step or
    in which evaluation of this start, by which signal."""
    module, at, seeds, workers = load_chapter(chapter), {"step": 0, "evaluation": 0}, set(), []
    batches, evaluate = module.batches, module.evaluate
    for number in (USR1, TERM):  # an evaluation may inherit that they are ignored
        signal.signal(number, signal.SIG_IGN if "--evaluate" in argv else signal.SIG_DFL)
    mine = int(os.environ["CREW_RANK"]) == ask.get("rank")

    def maybe_ask(**now: int) -> None:
        if not mine or not now.items() <= ask.items():
            return
        if "workers" not in ask:
            return os.kill(os.getpid(), ask["signal"])
        workers[:] = multiprocessing.active_children()
        for number in ask["workers"]:
            for worker in workers:
                os.kill(worker.pid, number)
            time.sleep(0.3)
            assert all(worker.is_alive() for worker in workers), f"{number} ended a worker"

    def counting(*given: Any) -> Iterator[tuple[Tensor, Tensor]]:
        for batch in batches(*given):
            if not torch.is_inference_mode_enabled():
                at["step"] += 1
                seeds.add(torch.initial_seed())
                maybe_ask(step=at["step"])
            yield batch

    def evaluating(*given: Any) -> dict:
        at["evaluation"] += 1
        maybe_ask(evaluation=at["evaluation"])
        return evaluate(*given)

    patches = {"batches": counting, "evaluate": evaluating, "build_model": tiny_float64}
    if chapter == SLURM:
        patches["STOP_EVERY"] = ask.get("every", 1)
    answer = call_main(chapter, argv, patches)
    handles = [signal.getsignal(number) is not signal.SIG_DFL for number in (USR1, TERM)]
    return answer | at | {"handles": handles, "workers": len(workers), "seeds": list(seeds)}


def one_start(crew: Crew, folder: Path, world_size: int, *more: Any, **ask: Any) -> list[dict]:
    """Another start of the run in a folder; the answers of its ranks, which have all ended alike
    and at the same step."""
    argv = [*arguments(folder, HIGH_RATE), "--print-freq", "1", "--resume"]
    argv += [str(word) for word in more]
    ask = {"rank": world_size - 1, "signal": USR1} | ask
    answers = crew.run(leg, SLURM, argv, ask, world_size=world_size)
    for name in ("exit", "step", "evaluation", "handles"):
        assert all(answer[name] == answers[0][name] for answer in answers), answers
    return answers


def assert_stopped(answers: list[dict], folder: Path, epoch: int, done: int) -> None:
    """By request, with the last word in the log, and a checkpoint of that very step."""
    assert answers[0]["exit"] == 75, answers
    assert events(folder)[-1]["event"] == "stopped"
    state = load_state(folder / "checkpoint.pt")
    assert (state["epoch"], state.get("step", 0)) == (epoch, done)
    assert ("inside an epoch" in state["model_name"]) == (done > 0)
    assert not (folder / "checkpoint.tmp").exists()


def assert_whole(answers: list[list[dict]], folder: Path) -> None:
    """All starts together are the uninterrupted run."""
    assert answers[-1][0]["exit"] is None, answers[-1]
    steps = [answer[0]["step"] for answer in answers]
    done = [sum(steps[:number]) for number in range(len(steps))]
    assert_one_run(folder, [len(answer) for answer in answers], done)


def assert_plain(folder: Path) -> None:
    state = load_state(folder / "checkpoint.pt")
    assert_is_plain_training(state, tiny_float64, HIGH_RATE, 1e-10, folder)


@pytest.mark.parametrize(
    ("sizes", "ask", "stops"),
    [
        # The step of a start at which one rank is asked; the epoch, and the steps of it done.
        ((2, 2), [dict(step=6)], [(1, 2)]),
        # Twice, and at three sizes; the second inside the epoch that the first one stopped.
        ((1, 2, 3), [dict(step=1), dict(step=2, signal=TERM)], [(0, 1), (0, 3)]),
        # The last step of the last epoch, and of others: only the evaluation is left.
        ((1, 2), [dict(step=12)], [(2, 4)]),
        ((2, 2, 2), [dict(step=4), dict(step=1)], [(0, 4), (1, 1)]),
        ((2, 1), [dict(evaluation=1)], [(1, 0)]),
    ],
)
def test_stop(
    sizes: tuple, ask: list[dict], stops: list[tuple], crew: Crew, tmp_path: Path
) -> None:
    """One rank is asked. All stop at the same step, and together the starts are one whole run."""
    answers = []
    for world_size, asked, stop in zip(sizes, ask, stops, strict=False):
        answers.append(one_start(crew, tmp_path, world_size, **asked))
        assert_stopped(answers[-1], tmp_path, *stop)
    answers.append(one_start(crew, tmp_path, sizes[-1]))
    assert_whole(answers, tmp_path)


def test_stop_between_two_looks(crew: Crew, tmp_path: Path) -> None:
    """The ranks look every STOP_EVERY steps of an epoch and after its last, whatever --print-freq
    says. What loader workers have fetched beyond the stop is not lost."""
    freq = ["--print-freq", 2, "--workers"]
    first = one_start(crew, tmp_path, 2, *freq, 2, step=6, every=3)
    assert_stopped(first, tmp_path, 1, 3)
    last = one_start(crew, tmp_path, 2, *freq, 1, every=3)
    assert last[0]["exit"] is None
    places = [(row["epoch"], row["step"]) for row in rows(tmp_path, "train")]
    assert places == [(0, 2), (0, 4), (1, 2), (1, 4), (2, 2), (2, 4)]
    assert [answers[0]["step"] for answers in (first, last)] == [7, 5]
    # Two epochs of each start: dropout in what is left of one is not as at its beginning.
    seeds = [seed for answer in (*first, *last) for seed in answer["seeds"]]
    assert len(set(seeds)) == len(seeds) == 8
    assert_plain(tmp_path)


def test_asked_when_nothing_is_left(crew: Crew, tmp_path: Path) -> None:
    """In the last evaluation, or as a finished run begins again: no requeue."""
    first = one_start(crew, tmp_path, 2, evaluation=EPOCHS)
    assert_whole([first], tmp_path)
    again = one_start(crew, tmp_path, 1, step=1)
    assert (again[0]["exit"], again[0]["step"]) == (None, 0)
    assert [row["event"] for row in events(tmp_path)][-2:] == ["start", "end"]


def test_loader_workers_survive(crew: Crew, tmp_path: Path) -> None:
    """Slurm signals every process of a step, and the workers have none of their ranks' handlers.
    By the second step both workers of the rank have delivered, and so begun."""
    answers = one_start(crew, tmp_path, 2, "--workers", 2, step=2, workers=[USR1, TERM])
    assert [answer["workers"] for answer in answers] == [0, 4]  # two of each loader
    assert answers[0]["exit"] is None, answers
    assert_plain(tmp_path)


def test_its_checkpoint_can_be_evaluated(crew: Crew, tmp_path: Path) -> None:
    """With any batch size; and an evaluation ends at once when it is told to."""
    assert_stopped(one_start(crew, tmp_path, 2, step=6), tmp_path, 1, 2)
    argv = [*arguments(tmp_path / "evaluated", HIGH_RATE), "--batch-size", "10", "--seed", "8"]
    argv += ["--resume", str(tmp_path / "checkpoint.pt"), "--evaluate"]
    (answer,) = crew.run(leg, SLURM, argv, {})
    assert (answer["exit"], answer["handles"]) == (None, [False, False]), answer
    (row,) = rows(tmp_path / "evaluated", "eval", "evaluate.jsonl")
    assert row["images"] == IMAGES // 4


FAILS = f"""
import sys
sys.path.insert(0, {str(ROOT / "tests/support")!r})
import torch
from harness import load_chapter
from with_tiny_model import TinyModel
chapter = load_chapter({SLURM!r})


class Broken(TinyModel):
    def forward(self, images):
        raise RuntimeError("a mistake in the model")


chapter.build_model = lambda args, num_classes: Broken(num_classes)
chapter.main()
"""


def test_failing_with_workers(tmp_path: Path) -> None:
    """A rank that fails ends its loader's workers, though they ignore SIGTERM, by which Python
    would end them, to wait for them then."""
    script = tmp_path / "fails.py"
    script.write_text(FAILS)
    argv = ["--synthetic", "64", "--image-size", "8", "--batch-size", "4", "--workers", "2"]
    argv += ["--print-freq", "1", "--output-dir", "out"]
    statuses, _, errors = run_warm([script, *argv], tmp_path, 1, 90, tmp_path)
    assert statuses == [1] and "a mistake in the model" in errors[0], errors
