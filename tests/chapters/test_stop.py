"""A run that is told to stop saves inside the epoch, and the next start goes on at that step.

With dropout, BatchNorm and workers, bit for bit: test_resume.py. Under real launchers:
tests/faults and test_slurm.py.
"""

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from unittest import mock

import pytest
from crew import Crew, call_main
from harness import HOROVOD, ROOT, SLURM, events, load_chapter, load_state, rows
from plain_training import (
    EPOCHS,
    HIGH_RATE,
    IMAGES,
    arguments,
    assert_is_plain_training,
    assert_one_run,
)
from refusals import HUB
from stops import TERM, USR1, assert_stopped, leg, one_start
from tiers import table
from warm import run_warm
from with_tiny_model import save_every_epoch, tiny_float64


def start(crew: Crew, folder: Path, ranks: int, *more: object, **ask: object) -> list[dict]:
    argv = [*arguments(folder, HIGH_RATE), *more]
    return one_start(crew, ask.pop("chapter", HUB), argv, ranks, tiny_float64, **ask)


def assert_whole(answers: list[list[dict]], folder: Path) -> None:
    """All starts together are the uninterrupted run."""
    assert answers[-1][0]["exit"] is None, answers[-1]
    steps = [answer[0]["step"] for answer in answers]
    done = [sum(steps[:number]) for number in range(len(steps))]
    assert_one_run(folder, [len(answer) for answer in answers], done)


def assert_plain(folder: Path) -> None:
    state = load_state(folder / "checkpoint.pt")
    assert_is_plain_training(state, tiny_float64, HIGH_RATE, 1e-10, folder)


# Numbers of ranks; the step, or evaluation, of a start at which one rank is told; the epoch, and
# the steps of it that are done when it has stopped.
STOPS = {
    "inside": ((2, 2), [dict(step=6)], [(1, 2)]),
    # Inside the epoch that the stop before it has left, too.
    "twice, at three sizes": (
        (1, 2, 3),
        [dict(step=1, signal=USR1), dict(step=2, times=3)],
        [(0, 1), (0, 3)],
    ),
    "only the evaluation is left": ((1, 2), [dict(step=12)], [(2, 4)]),
    "at the end of an epoch": ((2, 2, 2), [dict(step=4), dict(step=1)], [(0, 4), (1, 1)]),
    "in an evaluation": ((2, 1), [dict(evaluation=1)], [(1, 1)]),
}


@pytest.mark.parametrize("case", STOPS)
def test_stop(case: str, crew: Crew, tmp_path: Path) -> None:
    """One rank is told, once or three times. All stop at the same step, and together the starts are
    one whole run."""
    sizes, asks, stops = STOPS[case]
    answers = []
    for ranks, ask, stop in zip(sizes, asks, stops, strict=False):
        answers.append(start(crew, tmp_path, ranks, **ask))
        assert_stopped(answers[-1], tmp_path, *stop)
    answers.append(start(crew, tmp_path, sizes[-1]))
    assert_whole(answers, tmp_path)


def test_asked_when_nothing_is_left(crew: Crew, tmp_path: Path) -> None:
    """In the last evaluation, or as a finished run begins again: it has ended."""
    first = start(crew, tmp_path, 2, evaluation=EPOCHS)
    assert_whole([first], tmp_path)
    again = start(crew, tmp_path, 1, step=1)
    assert (again[0]["exit"], again[0]["step"]) == (None, 0)
    assert [row["event"] for row in events(tmp_path)][-2:] == ["start", "end"]


class Clock:
    """In place of the module `time` in a chapter: each step takes so many seconds."""

    def __init__(self, seconds: float) -> None:
        self.seconds, self.now = seconds, 1000.0

    def perf_counter(self) -> float:
        return self.now


def meetings_of(chapter: ModuleType, seconds: float, steps: int, *flags: str) -> list[int]:
    """The steps of one epoch at which the ranks meet, if a step takes so long."""
    clock = Clock(seconds)
    args = chapter.build_parser().parse_args(["--synthetic", *flags])
    with mock.patch.object(chapter, "time", clock):
        leader = chapter.Meetings(args, 0, steps, clock=True)
        other = chapter.Meetings(args, 0, steps, clock=False)
        met = []
        for step in range(1, steps + 1):
            clock.now += seconds
            if step == leader.next:
                assert other.next == step
                met.append(step)
                news = [sum(told) for told in zip(leader.news(), other.news(), strict=True)]
                assert leader.learn(news) == other.learn(news) == (False, False)
    return met


def test_when_ranks_meet() -> None:
    """At each row of the log and at the end of an epoch; and, so that 30 seconds are enough to
    stop, every 5 seconds, whatever --print-freq says."""
    hub = load_chapter(HUB)
    assert meetings_of(hub, 0.1, 45) == [1, 2, 20, 40, 45]
    assert meetings_of(hub, 2.0, 12, "--print-freq", "500") == [1, 2, 4, 6, 8, 10, 12]
    assert meetings_of(hub, 0.5, 45, "--print-freq", "500") == [1, 2, 12, 22, 32, 42, 45]
    assert meetings_of(hub, 60.0, 3, "--print-freq", "500") == [1, 2, 3]


def counted(chapter: str, argv: list[str]) -> dict:
    """In a crew member: call_main, and how many all-reduces it made outside of DDP."""
    import torch.distributed as dist

    calls, all_reduce = [], dist.all_reduce

    def counting(tensor: object, *more: object, **options: object) -> object:
        calls.append(tensor.numel())
        return all_reduce(tensor, *more, **options)

    with mock.patch.object(dist, "all_reduce", counting):
        return call_main(chapter, argv, {"build_model": tiny_float64}) | {"calls": calls}


def test_one_all_reduce_a_meeting(crew: Crew, tmp_path: Path) -> None:
    """It tells loss, hits, who was told to stop, and what the clock says: five numbers."""
    argv = [*arguments(tmp_path, HIGH_RATE), "--print-freq", "2"]
    answers = crew.run(counted, HUB, argv, world_size=2)
    # Of 4 steps the ranks meet at 1, 2 and 4; then comes the evaluation.
    epoch = [5, 5, 5, 4]
    for answer in answers:
        assert answer["exit"] is None and answer["calls"] == epoch * EPOCHS, answer
    assert [row["step"] for row in rows(tmp_path, "train")] == [2, 4] * EPOCHS


def test_saved_inside_epochs(crew: Crew, tmp_path: Path) -> None:
    """Whenever --save-minutes are over; the run goes on, and is the same. What loader workers have
    fetched beyond a save is fetched again."""
    argv = [*arguments(tmp_path, HIGH_RATE), "--print-freq", "1", "--workers", "2"]
    patches = {"build_model": tiny_float64, "save_checkpoint": save_every_epoch}
    answers = crew.run(call_main, HUB, [*argv, "--save-minutes", "0"], patches, world_size=2)
    assert [answer["exit"] for answer in answers] == [None, None], answers
    assert_one_run(tmp_path, [2], [0])
    inside = {path.stem for path in tmp_path.glob("inside*.pt")}
    assert inside == {f"inside{epoch}.{step}" for epoch in range(EPOCHS) for step in (1, 2, 3, 4)}


def slowly(chapter: str, argv: list[str]) -> dict:
    """In a crew member: told to stop after a step, where rank 0 takes a second for each save. What
    the folder held when this rank had ended."""
    save = load_chapter(chapter).save_checkpoint

    def slow(state: dict, path: Path) -> None:
        time.sleep(1)
        save(state, path)

    patches = {"save_checkpoint": slow, "build_model": tiny_float64, "batches": told(chapter)}
    answer = call_main(chapter, argv, patches)
    return answer | {"saved": Path(argv[argv.index("--output-dir") + 1], "checkpoint.pt").exists()}


def told(chapter: str) -> Callable:
    """In place of batches: SIGTERM with the first one."""
    batches = load_chapter(chapter).batches

    def asking(*given: object) -> Iterator:
        os.kill(os.getpid(), TERM)
        yield from batches(*given)

    return asking


@pytest.mark.parametrize("chapter", table([HUB, HOROVOD], [HUB]))
def test_all_wait_for_the_save(chapter: str, crew: Crew, tmp_path: Path) -> None:
    """The first rank that ends may end the job: srun -K and horovodrun do."""
    for answer in crew.run(slowly, chapter, arguments(tmp_path, HIGH_RATE), world_size=2):
        assert answer["exit"] == 75 and answer["saved"], answer


def test_loader_workers_survive(crew: Crew, tmp_path: Path) -> None:
    """Slurm and systemd signal every process, and the workers have none of their ranks' handlers.
    By the second step both workers of the rank have delivered, and so begun."""
    answers = start(crew, tmp_path, 2, "--workers", 2, step=2, workers=[USR1, TERM])
    assert [answer["workers"] for answer in answers] == [0, 4]  # two of each loader
    assert answers[0]["exit"] is None, answers
    assert_plain(tmp_path)


@pytest.mark.parametrize("chapter", [HUB, SLURM])
def test_its_checkpoint_can_be_evaluated(chapter: str, crew: Crew, tmp_path: Path) -> None:
    """With any batch size; and an evaluation ends at once when it is told to, also where it
    inherits that signals are ignored."""
    assert_stopped(start(crew, tmp_path, 2, chapter=chapter, step=6), tmp_path, 1, 2)
    argv = [*arguments(tmp_path / "evaluated", HIGH_RATE), "--batch-size", "10", "--seed", "8"]
    argv += ["--resume", str(tmp_path / "checkpoint.pt"), "--evaluate"]
    (answer,) = crew.run(leg, chapter, argv, tiny_float64, {})
    assert (answer["exit"], answer["handles"]) == (None, [False, False]), answer
    (row,) = rows(tmp_path / "evaluated", "eval", "evaluate.jsonl")
    assert row["images"] == IMAGES // 4


FAILS = """
import sys
sys.path.insert(0, {support!r})
import torch
from harness import load_chapter
from with_tiny_model import TinyModel
chapter = load_chapter({chapter!r})


class Broken(TinyModel):
    def forward(self, images):
        raise RuntimeError("a mistake in the model")


chapter.build_model = lambda args, num_classes: Broken(num_classes)
chapter.main()
"""


@pytest.mark.parametrize("chapter", table([HUB, SLURM, "01_dataparallel", "08_fsdp2"], [HUB]))
def test_failing_with_workers(chapter: str, tmp_path: Path) -> None:
    """A rank that fails ends its loader's workers, though they ignore SIGTERM, by which Python
    would end them, to wait for them then."""
    script = tmp_path / "fails.py"
    script.write_text(FAILS.format(support=str(ROOT / "tests/support"), chapter=chapter))
    argv = ["--synthetic", "64", "--image-size", "8", "--batch-size", "4", "--workers", "2"]
    argv += ["--print-freq", "1", "--output-dir", "out"]
    statuses, _, errors = run_warm([script, *argv], tmp_path, 1, 90, tmp_path)
    assert statuses == [1] and "a mistake in the model" in errors[0], errors
    assert "killed by signal" not in errors[0], errors
