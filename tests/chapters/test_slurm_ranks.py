"""Chapter 06 without a Slurm: ranks from its variables, and a stop in the middle of an epoch.

test_slurm.py sees the same with a real one. Here the variables are those that real ones have set.
"""

from __future__ import annotations

import multiprocessing
import os
import re
import signal
import subprocess
import time
from itertools import groupby
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from crew import Crew, call_main
from harness import (
    CHAPTERS,
    LAUNCHER_VARIABLES,
    SLURM,
    events,
    load_chapter,
    load_state,
    rows,
)
from plain_training import (
    BATCH,
    EPOCHS,
    HIGH_RATE,
    IMAGES,
    SEED,
    arguments,
    assert_is_plain_training,
)
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset
from with_tiny_model import tiny_float64

STEPS = IMAGES // BATCH  # of an epoch
USR1, TERM = signal.SIGUSR1, signal.SIGTERM


@pytest.fixture(scope="module")
def chapter() -> ModuleType:
    return load_chapter(SLURM)


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Of a fresh shell; what a test or the chapter sets in it goes with the test."""
    fresh = {k: v for k, v in os.environ.items() if not k.startswith(LAUNCHER_VARIABLES)}
    monkeypatch.setattr(os, "environ", os.environ.copy())
    for name in set(os.environ) - set(fresh):
        monkeypatch.delenv(name)
    return monkeypatch


# ------------------------------------------------------------------------------- ranks from srun


def counts(numbers: list[int]) -> str:
    """As Slurm writes the numbers of tasks on the nodes: 2(x3),1 for 2, 2, 2, 1."""
    runs = [(number, len(list(same))) for number, same in groupby(numbers)]
    return ",".join(f"{number}(x{times})" if times > 1 else f"{number}" for number, times in runs)


def variables(tasks: list[int], gpus: int = 0, cyclic: bool = False, **more: str) -> list[dict]:
    """What srun sets for each task of a step with so many tasks on its nodes."""
    places = [(node, local) for node, number in enumerate(tasks) for local in range(number)]
    if cyclic:  # --distribution=cyclic deals the tasks out to the nodes in turn
        places.sort(key=lambda place: (place[1], place[0]))
    job = {
        "SLURM_JOB_ID": "4711", "SLURM_STEP_ID": "0", "SLURM_STEP_NODELIST": "n[1-9]",
        "SLURM_STEP_TASKS_PER_NODE": counts(tasks), "SLURM_NTASKS": str(sum(tasks)),
    }  # fmt: skip
    job |= {"SLURM_GPUS_ON_NODE": str(gpus)} if gpus else {}
    return [
        job
        | {"SLURM_PROCID": str(number), "SLURM_NODEID": str(node), "SLURM_LOCALID": str(local)}
        | more
        for number, (node, local) in enumerate(places)
    ]


def test_the_counts_are_as_slurm_writes_them() -> None:
    assert counts([2, 2, 1]) == "2(x2),1" and counts([4]) == "4" and counts([1, 1]) == "1(x2)"


# tasks of the nodes, GPUs of each node, --procs-per-task (0: left out), processes of each task.
REQUESTS = {
    "one task": ([1], 0, 0, 1),
    "one task and GPU": ([1], 1, 0, 1),
    "a task per GPU": ([4, 4], 4, 0, 1),
    "a task per GPU, one each": ([1, 1, 1], 1, 0, 1),
    "a task per GPU, --gpus-per-task=1": ([2, 2], 2, 0, 1),
    "CPUs": ([2, 2], 0, 0, 1),
    "CPUs, uneven": ([2, 2, 1], 0, 0, 1),
    "CPUs, very uneven": ([1, 3, 3, 2], 0, 0, 1),
    "CPUs, a task per node": ([1, 1], 0, 0, 1),
    "CPUs, three processes in each task": ([1, 1], 0, 3, 3),
    "CPUs, two processes in each of uneven tasks": ([2, 1], 0, 2, 2),
    "a task per node, 2 GPUs": ([1, 1], 2, 0, 2),
    "a task per node, 4 GPUs": ([1], 4, 0, 4),
    "a task per node, 8 GPUs": ([1, 1, 1], 8, 0, 8),
    "2 tasks per node with 2 GPUs each": ([2, 2], 4, 2, 2),
    "not all GPUs, as was asked for": ([1, 1], 4, 3, 3),
    "one process, as was asked for": ([1, 1], 4, 1, 1),
}


@pytest.mark.parametrize("cyclic", [False, True], ids=["block", "cyclic"])
@pytest.mark.parametrize("request_", REQUESTS.values(), ids=REQUESTS)
def test_ranks(request_: tuple, cyclic: bool, chapter: ModuleType) -> None:
    """All tasks of a step together: each rank once, each local rank once on its node, and the
    same world size and meeting point for all."""
    tasks, gpus, asked, procs = request_
    step = variables(tasks, gpus, cyclic)
    places = [chapter.places_of_task(env, asked) for env in step]
    assert {len(of_task) for of_task in places} == {procs}
    world_size = sum(tasks) * procs
    ranks = [int(place["RANK"]) for of_task in places for place in of_task]
    assert ranks == list(range(world_size))  # PROCID * procs + i, with PROCID in order
    for node, number in enumerate(tasks):
        of_node = [
            place
            for env, of_task in zip(step, places, strict=True)
            if env["SLURM_NODEID"] == str(node)
            for place in of_task
        ]
        assert sorted(int(p["LOCAL_RANK"]) for p in of_node) == list(range(number * procs))
        assert {p["LOCAL_WORLD_SIZE"] for p in of_node} == {str(number * procs)}
    for name, value in {
        "WORLD_SIZE": str(world_size),
        "MASTER_ADDR": "n1" if len(tasks) > 1 else "127.0.0.1",
        "MASTER_PORT": "14711",
    }.items():
        assert {place[name] for of_task in places for place in of_task} == {value}


def test_ranks_by_hand(chapter: ModuleType) -> None:
    """Some written out, from tasks of a real Slurm: 2 nodes with 2 GPUs each."""

    def of(env: dict[str, str], procs: int = 0) -> list[tuple[str, str, str, str]]:
        names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
        return [tuple(p[name] for name in names) for p in chapter.places_of_task(env, procs)]

    shared = {"SLURM_JOB_ID": "5", "SLURM_STEP_ID": "0", "SLURM_STEP_NODELIST": "n[1-2]"}
    # srun --nodes 2 --ntasks-per-node 1 --gres gpu:2, the task on n2
    per_node = shared | {"SLURM_STEP_TASKS_PER_NODE": "1(x2)", "SLURM_GPUS_ON_NODE": "2"}
    per_node |= {"SLURM_PROCID": "1", "SLURM_NODEID": "1", "SLURM_LOCALID": "0"}
    assert of(per_node) == [("2", "4", "0", "2"), ("3", "4", "1", "2")]
    # srun --nodes 2 --ntasks-per-node 2 --gpus-per-task 1 --distribution cyclic, the second on n1
    cyclic = shared | {"SLURM_STEP_TASKS_PER_NODE": "2(x2)", "SLURM_GPUS_ON_NODE": "2"}
    cyclic |= {"SLURM_PROCID": "2", "SLURM_NODEID": "0", "SLURM_LOCALID": "1"}
    assert of(cyclic | {"CUDA_VISIBLE_DEVICES": "1"}) == [("2", "4", "1", "2")]
    # srun --ntasks 5 on three nodes, the last
    uneven = shared | {"SLURM_STEP_TASKS_PER_NODE": "2(x2),1", "SLURM_STEP_NODELIST": "n[1-3]"}
    uneven |= {"SLURM_PROCID": "4", "SLURM_NODEID": "2", "SLURM_LOCALID": "0"}
    assert of(uneven) == [("4", "5", "0", "1")]


@pytest.mark.parametrize(
    ("nodes", "first"),
    {
        "n[1-2]": "n1",
        "n2": "n2",
        "gpu[03-05,9],login1": "gpu03",
        "gpu[7,9-12]": "gpu7",
        "login1,gpu[03-05]": "login1",
        "rack[1-2]n[01-04]": "rack1n01",
        "rack[08,10]-n[001-004,9].cluster": "rack08-n001.cluster",
        "gpu-node-4.cluster.example.org,gpu-node-5.cluster.example.org": (
            "gpu-node-4.cluster.example.org"
        ),
        "a-b.c[1-2]": "a-b.c1",
    }.items(),
)
def test_rank_0_is_on_the_first_node(nodes: str, first: str, chapter: ModuleType) -> None:
    step = variables([1, 1], SLURM_STEP_NODELIST=nodes)
    assert {chapter.places_of_task(env, 0)[0]["MASTER_ADDR"] for env in step} == {first}


def test_the_address_can_be_given(chapter: ModuleType) -> None:
    given = {"MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "29400"}
    for tasks in ([1, 1], [2]):
        for env in variables(tasks, **given):
            place = chapter.places_of_task(env, 0)[0]
            assert given.items() <= place.items()


def test_ports(chapter: ModuleType) -> None:
    """None needs a right or is one that the kernel gives to clients; a job has one, again after a
    requeue; jobs and steps that run side by side have others."""

    def port(job: int, step: int = 0, **more: str) -> int:
        ids = {"SLURM_JOB_ID": str(job), "SLURM_STEP_ID": str(step)}
        places = [chapter.places_of_task(env | ids, 0)[0] for env in variables([2, 1], **more)]
        assert len({place["MASTER_PORT"] for place in places}) == 1
        return int(places[0]["MASTER_PORT"])

    ports = [port(job) for job in (*range(1, 3000, 7), *range(19_900, 20_100), 2**31, 67_108_863)]
    assert min(ports) >= 10_000 and max(ports) < 30_000
    assert port(77) == port(77, SLURM_RESTART_COUNT="3")
    assert len({port(job) for job in range(500, 600)}) == 100
    assert len({port(500, step) for step in range(4)}) == 4


def test_several_steps_of_a_job(chapter: ModuleType) -> None:
    """A step on a part of the job's nodes: what belongs to the job does not matter."""
    job = {"SLURM_NTASKS": "4", "SLURM_TASKS_PER_NODE": "2(x2)", "SLURM_JOB_NODELIST": "n[1-2]"}
    job |= {"SLURM_NODELIST": "n[1-2]", "SLURM_NNODES": "2"}
    step = {"SLURM_STEP_ID": "3", "SLURM_STEP_NODELIST": "n2"}
    places = [chapter.places_of_task(env | job | step, 0)[0] for env in variables([2])]
    assert [place["RANK"] for place in places] == ["0", "1"]
    assert {place["WORLD_SIZE"] for place in places} == {"2"}
    assert {place["MASTER_ADDR"] for place in places} == {"127.0.0.1"}
    assert {place["MASTER_PORT"] for place in places} == {"14714"}


@pytest.mark.parametrize(
    ("cpus", "tasks", "gpus", "workers"),
    [("8", [2], 2, 8), ("8", [1], 4, 2), ("2", [1], 4, 1), ("64", [2], 0, 16), ("7", [1], 2, 3)],
)
def test_workers(
    cpus: str, tasks: list[int], gpus: int, workers: int,
    chapter: ModuleType, environment: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """Their default is the rank's share of the task's CPUs, where those were asked for."""
    usual = chapter.build_parser().parse_args([]).workers
    without, *_ = variables(tasks, gpus)
    assert "CPUS_PER_RANK" not in chapter.places_of_task(without, 0)[0]
    for place in chapter.places_of_task(without | {"SLURM_CPUS_PER_TASK": cpus}, 0):
        environment.setenv("CPUS_PER_RANK", place["CPUS_PER_RANK"])
        assert chapter.build_parser().parse_args([]).workers == workers
    environment.delenv("CPUS_PER_RANK")
    assert chapter.build_parser().parse_args([]).workers == usual


def test_torchrun_knows_already(chapter: ModuleType) -> None:
    """Its processes have the variables of the task that torchrun is."""
    env = variables([1, 1], 2)[1] | {"TORCHELASTIC_RUN_ID": "1", "RANK": "3", "WORLD_SIZE": "4"}
    assert chapter.places_of_task(env, 0) == [{}]
    assert chapter.places_of_task({"TORCHELASTIC_RUN_ID": "none", "RANK": "0"}, 0) == [{}]


TWO = variables([2], 4)[0]
MISTAKES = {
    "by hand": ({}, 0, "not started by srun"),
    "batch shell": (
        {"SLURM_JOB_ID": "7", "SLURM_PROCID": "0", "SLURM_LOCALID": "0", "SLURM_NODEID": "0",
         "SLURM_TASKS_PER_NODE": "2", "SLURM_GPUS_ON_NODE": "2"}, 0, "not started by srun",
    ),
    "2 tasks, 4 GPUs": (TWO, 0, r"2 task\(s\) of 1 process\(es\) on a node for 4 GPU\(s\)"),
    "2 tasks, 1 GPU": (
        variables([2], 1)[1], 0, r"2 task\(s\) of 1 process\(es\) on a node for 1 GPU\(s\)",
    ),
    "3 processes, 2 GPUs": (
        variables([1, 1], 2)[0], 3, r"1 task\(s\) of 3 process\(es\) on a node for 2 GPU\(s\)",
    ),
    "2 tasks of 3, 4 GPUs": (TWO, 3, r"2 task\(s\) of 3 process\(es\) on a node for 4 GPU\(s\)"),
}  # fmt: skip


@pytest.mark.parametrize("mistake", MISTAKES.values(), ids=MISTAKES)
def test_mistakes(
    mistake: tuple, chapter: ModuleType, environment: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """One line, which names what does not fit and what to type."""
    env, procs, words = mistake
    with pytest.raises(ValueError, match=words):
        chapter.places_of_task(env, procs)
    for name, value in env.items():
        environment.setenv(name, value)
    environment.setattr("sys.argv", ["06_slurm/main.py", "--synthetic", "8"])
    argv = ["--synthetic", "8", "--procs-per-task", str(procs), "--output-dir", str(tmp_path)]
    with pytest.raises(SystemExit) as ended:
        chapter.main(argv)
    typed = r"srun -K --ntasks-per-node 2 --gres gpu:2 python 06_slurm/main.py --synthetic 8 "
    assert re.fullmatch(rf"06_slurm: error: {words}: type {typed}\(as many .*", ended.value.code)
    assert list(tmp_path.iterdir()) == []


# -------------------------------------------------------------------- the GPU, the meeting point


@pytest.mark.parametrize(
    ("visible", "on_node", "local_rank", "local_world_size", "index"),
    [
        (1, 2, 0, 2, 0),  # --gpus-per-task=1 shows each task its own one
        (1, 2, 1, 2, 0),
        (4, 4, 3, 4, 3),  # --gres=gpu:4 shows each task all of them
        (4, 4, 0, 4, 0),
        (2, 4, 3, 4, 1),  # two tasks of two processes, --gpus-per-task=2
        (4, None, 2, 4, 2),  # without Slurm
        (4, 4, 1, 2, 1),  # fewer than there are, as was asked for
        (2, None, 2, 3, "start 2"),
        (2, None, 0, 3, "start 2"),  # says so as well: all ranks end
        (1, 1, 1, 2, "start 1"),
        (4, 4, 4, 5, "start 4"),
        (1, 2, 2, 3, "start 2"),
    ],
)
def test_gpu(
    visible: int, on_node: int | None, local_rank: int, local_world_size: int, index: int | str,
    chapter: ModuleType, environment: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """Each rank has one of its own, on a machine that seems to have GPUs."""
    joined, chosen = [], []
    environment.setattr(torch.cuda, "is_available", lambda: True)
    environment.setattr(torch.cuda, "device_count", lambda: visible)
    environment.setattr(torch.cuda, "set_device", chosen.append)
    environment.setattr(
        dist, "init_process_group", lambda *given, **more: joined.append((given, more))
    )
    places = {"RANK": 5, "WORLD_SIZE": 8, "MASTER_ADDR": "127.0.0.1", "LOCAL_RANK": local_rank}
    places |= {"LOCAL_WORLD_SIZE": local_world_size}
    for name, value in (places | ({"SLURM_GPUS_ON_NODE": on_node} if on_node else {})).items():
        environment.setenv(name, str(value))
    args = chapter.build_parser().parse_args(["--synthetic", "--batch-size", "64"])
    if isinstance(index, str):
        with pytest.raises(SystemExit, match=rf"^06_slurm: error: more .*: {index}$"):
            chapter.setup_distributed(args)
        assert not joined
        return
    device = torch.device("cuda", index)
    assert chapter.setup_distributed(args) == (5, 8, device)
    assert chosen == [device]
    ((backend, place, _, world_size, rank), more) = joined[0]
    assert (backend, place, world_size, rank) == ("nccl", "env://", 8, 5)
    assert more == {"device_id": device}


def test_meeting_in_a_file(
    chapter: ModuleType, environment: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """One of this job, step and start alone, and the same for all of its ranks."""
    environment.chdir(tmp_path)
    (tmp_path / "meet").mkdir()
    args = SimpleNamespace(dist_file=Path("meet"))

    def name(job: str, step: str, restarts: str | None = None) -> str:
        environment.setenv("SLURM_JOB_ID", job)
        environment.setenv("SLURM_STEP_ID", step)
        environment.delenv("SLURM_RESTART_COUNT", raising=False)
        if restarts:
            environment.setenv("SLURM_RESTART_COUNT", restarts)
        names = set()
        for rank in "01":
            environment.setenv("SLURM_PROCID", rank)
            names.add(chapter.meeting_point(args))
        assert len(names) == 1
        return names.pop()

    starts = [("7", "0"), ("7", "0", "1"), ("7", "0", "2"), ("7", "1"), ("8", "0"), ("8", "0", "1")]
    starts += [("71", "0"), ("7", "10"), ("1", "7", "10"), ("17", "1", "0")]
    names = [name(*start) for start in starts]
    assert len(set(names)) == len(names)
    assert all(re.fullmatch(rf"file://{tmp_path}/meet/[-\w]+", name) for name in names), names
    assert list((tmp_path / "meet").iterdir()) == []

    # A real rendezvous there: the name is one that torch understands.
    dist.init_process_group("gloo", names[0], rank=0, world_size=1)
    dist.destroy_process_group()


def test_a_meeting_leaves_nothing(crew: Crew, tmp_path: Path) -> None:
    (tmp_path / "meet").mkdir()
    argv = ["--epochs", 1, "--dist-file", tmp_path / "meet"]
    assert one_start(crew, tmp_path / "run", 2, *argv)[0]["exit"] is None
    assert list((tmp_path / "meet").iterdir()) == []


def test_meeting_nowhere(
    chapter: ModuleType, environment: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """One line, at once, in place of a wait until --dist-timeout."""
    for missing in (tmp_path / "missing", Path(__file__)):
        with pytest.raises(SystemExit) as ended:
            chapter.meeting_point(SimpleNamespace(dist_file=missing))
        assert (
            ended.value.code == f"06_slurm: error: --dist-file {missing} is not a folder: make it"
        )
    environment.setenv("MASTER_ADDR", "n1.invalid")
    with pytest.raises(SystemExit) as ended:
        chapter.meeting_point(SimpleNamespace(dist_file=None))
    line = "06_slurm: error: no address for n1.invalid: "
    assert ended.value.code == line + "export MASTER_ADDR=... or use --dist-file DIR"
    environment.setenv("MASTER_ADDR", "127.0.0.1")
    assert chapter.meeting_point(SimpleNamespace(dist_file=None)) == "env://"


# ------------------------------------------------------------------------ the rest of an epoch


@pytest.mark.parametrize("images", [IMAGES, 48, 49, 59])
@pytest.mark.parametrize("world_size", [1, 2, 3])
def test_sampler(world_size: int, images: int, chapter: ModuleType) -> None:
    """After a stop at any step: what was done, by any other number of ranks, and what is left
    are all whole batches of the epoch's order, each image once."""
    data = torch.zeros(images)
    for epoch in (0, 2):
        order = torch.randperm(images, generator=torch.Generator().manual_seed(SEED + epoch))
        batches = [set(batch.tolist()) for batch in order.split(BATCH)][: images // BATCH]
        for done in range(len(batches) + 1):
            left = []
            for rank in range(world_size):
                sampler = chapter.ResumableSampler(
                    data, world_size, rank, seed=SEED, drop_last=True
                )
                sampler.set_epoch(epoch)
                sampler.done = done * (BATCH // world_size)
                assert len(list(sampler)) == len(sampler)
                loader = DataLoader(
                    range(images), BATCH // world_size, sampler=sampler, drop_last=True
                )
                left.append([batch.tolist() for batch in loader])
                assert len(left[-1]) == len(loader) == len(batches) - done
            together = [set(sum(shares, [])) for shares in zip(*left, strict=True)]
            assert together == batches[done:]
            assert all(len(sum(shares, [])) == BATCH for shares in zip(*left, strict=True))
            # Untouched by what was done in the epoch before.
            sampler.done = 0
            sampler.set_epoch(epoch + 1)
            order_of_next = torch.randperm(
                images, generator=torch.Generator().manual_seed(SEED + epoch + 1)
            )
            assert list(sampler) == order_of_next[rank::world_size].tolist()[: len(sampler)]


# --------------------------------------------------------------------- the stop inside an epoch


def test_asked_when_a_process_of_the_task_has_ended(
    chapter: ModuleType, environment: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A task hands signals on to its processes. One may have ended, because it was asked before."""
    gone = subprocess.Popen(["true"])
    gone.wait()
    process = mock.Mock(pid=gone.pid, is_alive=lambda: False)
    children = mock.Mock(processes=[process], pids=lambda: [gone.pid])
    children.join = lambda *given: [signal.raise_signal(number) for number in (USR1, TERM)]
    environment.setattr("torch.multiprocessing.spawn", lambda *given, **more: children)
    for name, value in variables([1], 2)[0].items():
        environment.setenv(name, value)
    kept = {number: signal.getsignal(number) for number in (USR1, TERM)}
    try:
        chapter.main(["--synthetic", "8", "--output-dir", str(tmp_path)])
    finally:
        for number, handler in kept.items():
            signal.signal(number, handler)


class Recorded(Dataset):
    """Notes the number of each image that is taken from it."""

    def __init__(self, images: Dataset, taken: list) -> None:
        self.images, self.taken = images, taken

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> Any:
        self.taken.append(index)
        return self.images[index]


def leg(chapter: str, argv: list[str], ask: dict[str, Any]) -> dict:
    """In a crew member: one start of a run that may be asked to stop, and the numbers of the
    images that this rank trained on. ask: who, after which step or in which evaluation of this
    start, by which signal."""
    module, taken, at = load_chapter(chapter), [], {"step": 0, "evaluation": 0}
    build_datasets, to_device, evaluate = module.build_datasets, module.to_device, module.evaluate
    mine, workers = int(os.environ["CREW_RANK"]) == ask.get("rank"), []

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

    def recorded(args: Any) -> tuple[Dataset, Dataset, int]:
        train_set, *others = build_datasets(args)
        return Recorded(train_set, taken), *others

    def counting(*given: Any) -> tuple[Tensor, Tensor]:
        if not at.get("in evaluation"):
            at["step"] += 1
            maybe_ask(step=at["step"])
        return to_device(*given)

    def evaluating(*given: Any) -> dict:
        at["evaluation"] += 1
        maybe_ask(evaluation=at["evaluation"])
        at["in evaluation"] = True
        result = evaluate(*given)
        at["in evaluation"] = False
        return result

    def seeded(*given: Any) -> int:
        seeds.append(torch.initial_seed())
        return train_one_epoch(*given)

    train_one_epoch, seeds = module.train_one_epoch, []
    patches = {"build_datasets": recorded, "to_device": counting, "evaluate": evaluating}
    patches |= {"train_one_epoch": seeded}
    getattr(module, "ASKED_TO_STOP", []).clear()
    kept = {number: signal.getsignal(number) for number in (signal.SIGUSR1, signal.SIGTERM)}
    try:
        answer = call_main(chapter, argv, patches | {"build_model": tiny_float64})
        handlers = [signal.getsignal(number) for number in kept]
    finally:
        for number, handler in kept.items():
            signal.signal(number, handler)
    asked = [handler is not signal.SIG_DFL for handler in handlers]
    seen = {"taken": taken, "handles": asked, "workers": len(workers), "seeds": seeds}
    return answer | seen | at


def one_start(
    crew: Crew, folder: Path, world_size: int, *more: Any, chapter: str = SLURM, **ask: Any
) -> list[dict]:
    """Another start of the run in a folder; the answers of its ranks, which have all ended alike
    and at the same step."""
    argv = [*arguments(folder, HIGH_RATE), "--print-freq", "1", "--resume", "auto"]
    argv += [str(word) for word in more]
    ask.setdefault("rank", world_size - 1)
    ask.setdefault("signal", signal.SIGUSR1)
    answers = crew.run(leg, chapter, argv, ask, world_size=world_size, timeout=60)
    for name in ("exit", "step", "evaluation", "handles"):
        assert all(answer[name] == answers[0][name] for answer in answers), answers
    return answers


def assert_stopped(answers: list[dict], folder: Path, epoch: int, done: int, step: int) -> None:
    """By request, with the last word in the log, and a checkpoint of that very step."""
    assert answers[0]["exit"] == 75, answers
    assert events(folder)[-1]["event"] == "stopped"
    state = load_state(folder / "checkpoint.pt")
    assert (state["epoch"], state["step_in_epoch"], state["global_step"]) == (epoch, done, step)
    assert not (folder / "saving.tmp").exists()


def assert_whole(answers: list[list[dict]], folder: Path) -> None:
    """All starts together are the uninterrupted run: each step once, each image of an epoch once,
    each epoch evaluated once, and the plain loop's parameters."""
    assert answers[-1][0]["exit"] is None, answers[-1]
    assert events(folder)[-1]["event"] == "end"
    assert [row["step"] for row in rows(folder, "train")] == list(range(1, EPOCHS * STEPS + 1))
    assert [row["epoch"] for row in rows(folder, "train")] == [
        epoch for epoch in range(EPOCHS) for _ in range(STEPS)
    ]
    assert [row["epoch"] for row in rows(folder, "eval")] == list(range(EPOCHS))
    starts = rows(folder, "start")
    steps = [answer[0]["step"] for answer in answers]
    assert [row["resumed_from_step"] for row in starts] == [
        sum(steps[:number]) for number in range(len(steps))
    ]
    assert [row["world_size"] for row in starts] == [len(answer) for answer in answers]
    taken = []
    for ranks in answers:
        share = BATCH // len(ranks)
        assert {len(rank["taken"]) for rank in ranks} == {ranks[0]["step"] * share}
        for step in range(ranks[0]["step"]):
            taken += [n for rank in ranks for n in rank["taken"][step * share :][:share]]
    for epoch in range(EPOCHS):
        order = torch.randperm(IMAGES, generator=torch.Generator().manual_seed(SEED + epoch))
        images = taken[epoch * STEPS * BATCH :][: STEPS * BATCH]
        assert sorted(images) == sorted(order[: STEPS * BATCH].tolist()), epoch
    assert len(taken) == EPOCHS * STEPS * BATCH
    state = load_state(folder / "checkpoint.pt")
    assert (state["epoch"], state["step_in_epoch"]) == (EPOCHS, 0)
    assert_is_plain_training(state, tiny_float64, HIGH_RATE, 1e-10, folder)


@pytest.mark.parametrize(
    ("sizes", "ask", "stops"),
    [
        # The step of a start at which one rank is asked; epoch, steps of it and all steps done.
        ((2, 2), [dict(step=6)], [(1, 2, 6)]),
        ((3, 1), [dict(step=5, signal=TERM)], [(1, 1, 5)]),
        ((2, 3), [dict(step=11, rank=0)], [(2, 3, 11)]),
        # Twice, and at three sizes; the second inside the epoch that the first one stopped.
        ((1, 2, 3), [dict(step=1), dict(step=2, signal=TERM)], [(0, 1, 1), (0, 3, 3)]),
        # The last step of an epoch, and of the last one: only the evaluation is left.
        ((2, 1), [dict(step=8, rank=0)], [(1, 4, 8)]),
        ((1, 2), [dict(step=12)], [(2, 4, 12)]),
        ((2, 2, 2), [dict(step=4), dict(step=1)], [(0, 4, 4), (1, 1, 5)]),
        # While it evaluates.
        ((2, 1), [dict(evaluation=1)], [(1, 0, 4)]),
        ((2, 3), [dict(evaluation=2, rank=0, signal=TERM)], [(2, 0, 8)]),
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
    """The ranks look when they write a line: after the first step of an epoch, every --print-freq
    steps, and after its last."""
    freq = ["--print-freq", 3]
    first = one_start(crew, tmp_path, 2, *freq, step=6)
    assert_stopped(first, tmp_path, 1, 3, 7)
    last = one_start(crew, tmp_path, 2, *freq)
    assert last[0]["exit"] is None
    assert [row["step"] for row in rows(tmp_path, "train")] == [1, 3, 4, 5, 7, 8, 9, 11, 12]
    assert [answers[0]["step"] for answers in (first, last)] == [7, 5]
    # Two epochs of each start: what is left of one is not augmented as its beginning was.
    seeds = [seed for answer in (*first, *last) for seed in answer["seeds"]]
    assert len(set(seeds)) == len(seeds) == 8
    state = load_state(tmp_path / "checkpoint.pt")
    assert_is_plain_training(state, tiny_float64, HIGH_RATE, 1e-10, tmp_path)


def test_asked_in_the_last_evaluation(crew: Crew, tmp_path: Path) -> None:
    """Then nothing is left to do: no requeue."""
    assert_whole([one_start(crew, tmp_path, 2, evaluation=EPOCHS)], tmp_path)


def test_asked_when_nothing_is_left(crew: Crew, tmp_path: Path) -> None:
    """A finished run that is started again, and asked to stop at once."""
    one_start(crew, tmp_path, 1, "--epochs", 1)
    again = one_start(crew, tmp_path, 1, "--epochs", 1, step=1)
    assert (again[0]["exit"], again[0]["step"]) == (None, 0)
    assert [row["event"] for row in events(tmp_path)][-2:] == ["start", "end"]


def test_loader_workers_survive(crew: Crew, tmp_path: Path) -> None:
    """Slurm signals every process of a step, and the workers have none of their ranks' handlers.
    By the second step both workers of the rank have delivered, and so begun."""
    answers = one_start(crew, tmp_path, 2, "--workers", 2, step=2, workers=[USR1, TERM])
    assert [answer["workers"] for answer in answers] == [0, 2]
    assert answers[0]["exit"] is None, answers
    state = load_state(tmp_path / "checkpoint.pt")
    assert_is_plain_training(state, tiny_float64, HIGH_RATE, 1e-10, tmp_path)


def test_stop_with_loader_workers(crew: Crew, tmp_path: Path) -> None:
    """What they have fetched beyond the stop is not lost."""
    first = one_start(crew, tmp_path, 2, "--workers", 2, step=6)
    assert_stopped(first, tmp_path, 1, 2, 6)
    last = one_start(crew, tmp_path, 2, "--workers", 1)
    assert last[0]["exit"] is None
    assert [row["step"] for row in rows(tmp_path, "train")] == list(range(1, 13))
    state = load_state(tmp_path / "checkpoint.pt")
    assert_is_plain_training(state, tiny_float64, HIGH_RATE, 1e-10, tmp_path)


@pytest.fixture(scope="module")
def stopped(crew: Crew, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that was stopped after two steps of its second epoch."""
    folder = tmp_path_factory.mktemp("stopped")
    assert_stopped(one_start(crew, folder, 2, step=6), folder, 1, 2, 6)
    return folder


@pytest.mark.parametrize("chapter", [name for name in CHAPTERS if name != SLURM])
def test_other_chapters_refuse(chapter: str, crew: Crew, stopped: Path, tmp_path: Path) -> None:
    """They would train on the first images of that epoch once more."""
    file = stopped / "checkpoint.pt"
    argv = [*arguments(tmp_path / "run", HIGH_RATE), "--resume", str(file)]
    (answer,) = crew.run(call_main, chapter, argv)
    line = f"--resume {file} stopped inside an epoch: go on with 06_slurm"
    assert answer["exit"] == f"{chapter}: error: {line}"
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("chapter", ["02_distributed", SLURM])
def test_its_checkpoint_can_be_evaluated(
    chapter: str, crew: Crew, stopped: Path, tmp_path: Path
) -> None:
    """By any chapter, with any batch size; and an evaluation ends at once when it is told to."""
    argv = [*arguments(tmp_path, HIGH_RATE), "--resume", str(stopped / "checkpoint.pt")]
    argv += ["--evaluate", "--batch-size", "10", "--seed", "8"]
    answers = crew.run(leg, chapter, argv, {}, world_size=2)
    assert [answer["exit"] for answer in answers] == [None, None], answers
    (row,) = rows(tmp_path, "eval", "evaluate.jsonl")
    assert (row["images"], row["step"]) == (IMAGES // 4, 6)
    assert all(answer["handles"] == [False, False] for answer in answers)


@pytest.mark.parametrize(
    ("typed", "kept"), [(["--batch-size", "24"], "batch-size 12"), (["--seed", "8"], "seed 7")]
)
def test_the_same_images_or_none(
    typed: list[str], kept: str, crew: Crew, stopped: Path, tmp_path: Path
) -> None:
    """With another order or other steps it is unknown which images the epoch has had."""
    file = stopped / "checkpoint.pt"
    argv = [*arguments(tmp_path, HIGH_RATE), "--resume", str(file), *typed]
    answers = crew.run(leg, SLURM, argv, {}, world_size=2)
    line = f"06_slurm: error: --resume {file} stopped inside an epoch: keep --{kept}"
    assert [answer["exit"] for answer in answers] == [line, line]


def test_what_may_change(crew: Crew, stopped: Path, tmp_path: Path) -> None:
    """A silent command line goes on as before; another rate counts from the next step on."""
    argv = ["--synthetic", str(IMAGES), "--workers", "0", "--print-freq", "1"]
    argv += ["--resume", str(stopped / "checkpoint.pt")]
    for name, typed in (("silent", []), ("typed", ["--lr", str(2 * HIGH_RATE)])):
        more = [*typed, "--output-dir", str(tmp_path / name)]
        (answer,) = crew.run(leg, SLURM, argv + more, {})
        assert (answer["exit"], answer["step"]) == (None, 6), answer
    silent, typed = (rows(tmp_path / name, "train") for name in ("silent", "typed"))
    assert [row["step"] for row in silent] == [row["step"] for row in typed] == list(range(7, 13))
    assert [row["lr"] for row in typed] == [2 * row["lr"] for row in silent]
    state = load_state(tmp_path / "silent/checkpoint.pt")
    reference = load_state(stopped / "checkpoint.pt")
    assert state["args"]["seed"] == reference["args"]["seed"] == SEED
    model: nn.Module = tiny_float64("", 10, False)
    model.load_state_dict(state["model"])


def test_fewer_images_than_were_done(crew: Crew, stopped: Path, tmp_path: Path) -> None:
    """Another data set is a mistake inside an epoch, and is said to be one."""
    argv = ["--synthetic", "12", "--workers", "0", "--resume", str(stopped / "checkpoint.pt")]
    (answer,) = crew.run(leg, SLURM, [*argv, "--output-dir", str(tmp_path)], {})
    assert isinstance(answer["exit"], str) and answer["exit"].startswith("06_slurm: error: ")
