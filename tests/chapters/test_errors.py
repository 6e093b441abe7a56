"""A mistake ends in one line that says what it is and what to type instead: no traceback, a status
that is not zero, and nothing written.

Every rank must refuse alike, so most are made on two. `make test` makes each in 02, and again where
another function notices it (test_static.py has those that are the same); `make proof` everywhere.
"""

from __future__ import annotations

import io
import os
import re
import shlex
import shutil
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import NamedTuple
from unittest import mock
from urllib.error import URLError

import numpy as np
import pytest
import torch
from crew import Crew
from harness import (
    CHAPTERS,
    HOROVOD,
    LAUNCHED_BY_TORCHRUN,
    ROOT,
    SLURM,
    events,
    launch,
    load_chapter,
    load_state,
    run,
)
from PIL import Image
from refusals import (
    ALONE,
    HUB,
    RANKED,
    SPAWNS,
    Bomb,
    Tiny,
    assert_says,
    call,
    call_entry,
    image_tree,
    one_line,
    picture,
    ranks_of,
    runs_well,
    snapshot,
)
from tiers import table

APEX, EVALUATES = "04_apex", "07_dist_eval"
# What every mistake starts from; its own words come later, and win.
BASE = shlex.split("--image-size 8 --batch-size 4 --epochs 1 --workers 0 --output-dir out")
NO_GPU = {"CUDA_VISIBLE_DEVICES": ""}
# Where `make test` makes a mistake that a function notices which is not the same everywhere.
IN_LOADING = (HUB, SLURM)
IN_SETUP = (HUB, HOROVOD, SLURM)
IN_RUN = (HUB, APEX, HOROVOD, SLURM, EVALUATES)
IN_MAIN = (ALONE, HUB, SPAWNS, APEX, HOROVOD, SLURM)


def call_as_fourth(chapter: str, argv: list[str], cwd: Path) -> dict:
    """call, as the last of four ranks on a machine that has two GPUs."""
    ranks = {"RANK": "3", "LOCAL_RANK": "3", "WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "4"}
    ranks |= {"SLURM_PROCID": "3", "SLURM_LOCALID": "3", "SLURM_STEP_TASKS_PER_NODE": "4"}
    fourth = "horovod.torch.local_rank" if chapter == HOROVOD else "os.getppid"
    yes, two = lambda: True, lambda: 2
    two_gpus = mock.patch.multiple(torch.cuda, is_available=yes, device_count=two)
    with mock.patch.dict(os.environ, ranks), mock.patch(fourth, return_value=3):
        return call(chapter, argv, cwd, lambda _: two_gpus)


def call_offline(chapter: str, argv: list[str], cwd: Path) -> dict:
    """call, with the model of torchvision, whose weights nobody can fetch."""
    fetch = "torchvision.models._api.load_state_dict_from_url"
    return call(chapter, argv, cwd, lambda _: mock.patch(fetch, side_effect=URLError("no network")))


class Mistake(NamedTuple):
    """What is typed after BASE, a few words of the line (see assert_says), in which chapters `make
    test` makes it, in which it can be made, on how many ranks, and how the chapter is entered."""

    argv: str
    says: str
    now: tuple = (HUB,)
    of: tuple = tuple(CHAPTERS)
    ranks: int = 2
    entry: Callable = call


def own(chapter: str, argv: str, says: str) -> Mistake:
    """A mistake with what only one chapter has. 03's are those that its parent sees."""
    entry = call_entry if chapter == SPAWNS else call
    return Mistake(f"--synthetic 8 {argv}", says, (chapter,), (chapter,), entry=entry)


MISTAKES = {
    # the images
    "no_images": Mistake("", "give --data DIR or --synthetic"),
    "no_folder": Mistake("--data nowhere", "--data nowhere ... No such file"),
    "flat_val": Mistake("--data flat_val", "--data flat_val ... class folder ... val/CLASS/"),
    "other_classes": Mistake("--data other_classes", "train/ and val/ differ ... 'b', 'c'"),
    "too_few": Mistake("--data good --batch-size 16", "8 images ... --batch-size 16", IN_RUN),
    # the words; each number alone: NUMBERS below
    "arch": Mistake("--synthetic 8 --arch gpt", "--arch ... 'gpt' ... resnet50"),
    "abbreviated": Mistake("--synthetic 8 --epoch 2", r"unrecognized ... --epoch\b"),
    "warmup_longer": Mistake("--synthetic 8 --warmup-epochs 2", "--warmup-epochs ... --epochs"),
    "much_smoothing": Mistake("--synthetic 8 --label-smoothing 1.01", "at most 1$"),
    "uneven_2": Mistake(
        "--synthetic 8 --batch-size 7", "7 ... 2 ranks: use 6 or 8$", IN_SETUP, tuple(RANKED)
    ),
    "below_ranks": Mistake("--synthetic 8 --batch-size 1", "use 4 or 2$", of=tuple(RANKED)),
    "sync_bn": Mistake("--synthetic 8 --sync-bn", "needs GPUs: leave", IN_SETUP, tuple(RANKED)),
    # going on, and evaluating
    "evaluate_nothing": Mistake("--synthetic 8 --evaluate", "--evaluate needs --resume PATH"),
    "resume_missing": Mistake("--synthetic 8 --resume gone.pt", "gone.pt ... No such file"),
    "resume_bomb": Mistake("--synthetic 8 --resume bomb.pt", "bomb.pt is no usable", IN_LOADING),
    "resume_pretrained": Mistake(
        "--synthetic 8 --resume run/checkpoint.pt --pretrained", "--resume ... drop --pretrained"
    ),
    "resume_arch": Mistake(
        "--synthetic 8 --resume run/checkpoint.pt --arch alexnet", "resnet18: drop --arch alexnet"
    ),
    "resume_classes": Mistake(
        "--data good --resume run/checkpoint.pt", "run/checkpoint.pt ... 10 ... data 2$", IN_RUN
    ),
    "resume_inside_epoch": Mistake(
        "--synthetic 8 --resume inside_epoch.pt",
        "inside_epoch.pt ... 06_slurm$",
        of=tuple(chapter for chapter in CHAPTERS if chapter != SLURM),
    ),
    # the output folder
    "holds_a_run": Mistake("--synthetic 8 --output-dir run", "run holds ... auto or another"),
    "holds_another_run": Mistake(
        "--synthetic 8 --output-dir run --resume alone/checkpoint.pt", "run holds ... auto or"
    ),
    "holds_a_checkpoint": Mistake("--synthetic 8 --output-dir alone", "alone holds ... auto or"),
    "output_is_a_file": Mistake("--synthetic 8 --output-dir some_file", "write to ... some_file"),
    # the machine, the network and the launcher
    "more_processes_than_gpus": Mistake(
        "--synthetic 8", "more ... start 2$", IN_SETUP, tuple(RANKED), entry=call_as_fourth
    ),
    "no_network": Mistake(
        "--synthetic 8 --pretrained --arch squeezenet1_1",
        "--pretrained ... squeezenet1_1 ... no network",
        of=(HUB,),
        ranks=1,  # of several, only rank 0 fetches them
        entry=call_offline,
    ),
    "without_torchrun": Mistake(
        "--synthetic 8",
        "torchrun --standalone --nproc-per-node 2 ",
        LAUNCHED_BY_TORCHRUN,
        LAUNCHED_BY_TORCHRUN,
        entry=call_entry,
    ),
    # the chapters' own (04's: test_amp.py)
    "gpus_without_gpus": own(ALONE, "--gpus 0", "--gpus 0: ... 0 GPUs, counted"),
    "rank_outside": own(SPAWNS, "--nnodes 2 --node-rank 2", "--node-rank 2: give 0 to 1"),
    "no_port": own(SPAWNS, "--nnodes 2", "--nnodes ... --master-addr and --master-port"),
    "high_port": own(SPAWNS, "--master-port 65536", "--master-port 65536 ... 65535"),
    "uneven_passes": own(
        HOROVOD, "--batch-size 8 --backward-passes-per-step 3", "step 3 ... 4 images"
    ),
    "no_meeting": own(SLURM, "--dist-file nowhere", "--dist-file nowhere ... make it"),
    "predictions_taken": own(EVALUATES, "--save-predictions taken.csv", "taken.csv exists"),
}
# The least that each number may be; 2**31 is too much for all.
NUMBERS: dict[str, float] = {
    "--synthetic": 4, "--image-size": 8, "--epochs": 1, "--batch-size": 1, "--lr": 1e-9,
    "--warmup-epochs": 0.0, "--weight-decay": 0.0, "--label-smoothing": 0.0, "--workers": 0,
    "--seed": 0, "--print-freq": 1, "--dist-timeout": 1, "--nprocs": 1, "--nnodes": 1,
    "--node-rank": 0, "--master-port": 1, "--clip-grad": 0.0, "--loss-scale": 0.0,
    "--backward-passes-per-step": 1, "--procs-per-task": 0,
}  # fmt: skip


@pytest.fixture(scope="module")
def pristine(crew: Crew, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the mistakes meet: image folders, checkpoints, another run, a file."""
    here = tmp_path_factory.mktemp("errors")
    image_tree(here / "good", "ab", "ab")
    image_tree(here / "flat_val", "ab", "")
    image_tree(here / "other_classes", "ab", "ac")
    picture(here / "flat_val/val/0.png")
    (here / "some_file").write_text("a file\n")
    (here / "taken.csv").write_text("yesterday's predictions\n")

    argv = [*BASE, "--synthetic", "8", "--arch", "resnet18", "--output-dir", "run"]
    runs_well(crew, HUB, argv, here)
    good = here / "run/checkpoint.pt"
    state = load_state(good)
    torch.save(state | {"step_in_epoch": 1}, here / "inside_epoch.pt")
    (here / "alone").mkdir()
    shutil.copy(good, here / "alone/checkpoint.pt")
    torch.save({"bomb": Bomb()}, here / "bomb.pt")
    return here


@pytest.fixture
def room(pristine: Path, tmp_path: Path) -> Path:
    """A copy for one test."""
    return shutil.copytree(pristine, tmp_path / "room")


TABLE = [
    pytest.param(chapter, name, marks=() if chapter in mistake.now else pytest.mark.proof)
    for name, mistake in MISTAKES.items()
    for chapter in mistake.of
]


@pytest.mark.parametrize(("chapter", "name"), TABLE)
def test_refused(crew: Crew, chapter: str, name: str, room: Path, pristine: Path) -> None:
    """The table: every rank ends with the same line, and nothing is written."""
    mistake = MISTAKES[name]
    argv = [*BASE, *mistake.argv.split()]
    ranks = 1 if chapter == ALONE else mistake.ranks
    answers = crew.run(mistake.entry, chapter, argv, room, world_size=ranks, timeout=60)
    (line,) = {one_line(answer, chapter) for answer in answers}
    assert_says(line, mistake.says)
    assert snapshot(room) == snapshot(pristine)


@pytest.mark.parametrize("chapter", CHAPTERS)
def test_numbers_out_of_range(chapter: str, capsys: pytest.CaptureFixture) -> None:
    """Too little, too much, or no number: the flag and its bounds are named. Its least is taken."""
    module = load_chapter(chapter)
    for action in module.build_parser()._actions:
        if action.type not in (int, float):
            continue
        flag, whole = action.option_strings[-1], action.type is int
        least = NUMBERS[flag]
        wrong = [least - 1, 2**31, *(["1.5"] if whole else ["nan", "inf", "many"])]
        for value in (least, *wrong):
            line = ""
            try:
                module.parse_args(["--synthetic", "8", flag, str(value)])
            except SystemExit as end:
                line = capsys.readouterr().err if end.code == 2 else str(end.code)
            named = flag in line and (f"{least:g} to 2**31" in line or "invalid" in line)
            assert named == (value in wrong), (flag, value, line)


# --------------------------------------------------------------------------- images nobody can read


def encoded(image: Image.Image, kind: str) -> bytes:
    file = io.BytesIO()
    image.save(file, kind)
    return file.getvalue()


UNREADABLE = {
    "truncated": encoded(Image.effect_noise((64, 64), 50), "JPEG")[:1000],
    "sixteen_bits": encoded(Image.fromarray(np.full((16, 16), 9999, np.uint16)), "PNG"),
}


@pytest.mark.parametrize(
    ("chapter", "kind", "split", "workers"),
    [(HUB, kind, "train", 0) for kind in UNREADABLE]
    # load_image is the same everywhere; what makes its error one line is not. A worker tells of it.
    + [(chapter, "truncated", "val", 1) for chapter in IN_MAIN],
)
def test_unreadable_image(
    crew: Crew, chapter: str, kind: str, split: str, workers: int, tmp_path: Path
) -> None:
    """The line holds the path of the file, also when a loader's worker met it."""
    image_tree(tmp_path / "data", "ab", "ab")
    bad = tmp_path / "data" / split / "a/bad.jpg"
    bad.write_bytes(UNREADABLE[kind])
    # One batch is the whole of train/, or the file might be in the rest that is dropped.
    batch = str(len(list(tmp_path.glob("data/train/*/*"))))
    argv = [*BASE, "--data", "data", "--workers", str(workers), "--batch-size", batch]
    (answer,) = crew.run(call, chapter, argv, tmp_path)
    assert_says(one_line(answer, chapter), re.escape(str(bad.relative_to(tmp_path))))
    assert not list(tmp_path.glob("out/*.pt*"))


# ------------------------------------------------------------------------- what goes wrong later on


def diverges(chapter: ModuleType, first_bad: int, what: str) -> AbstractContextManager:
    """From a training step on, counted from 1, the last rank's logits are infinite, or its gradient
    is not a number."""
    is_last = int(os.environ["CREW_RANK"]) + 1 == int(os.environ["CREW_SIZE"])

    class Diverging(Tiny):
        steps = 0

        def forward(self, images: torch.Tensor) -> torch.Tensor:
            logits = super().forward(images)
            self.steps += self.training
            if not (is_last and self.training and self.steps >= first_bad):
                return logits
            if what == "logits":
                return logits * float("inf")
            logits.register_hook(lambda gradient: gradient * float("nan"))
            return logits

    model = lambda arch, classes, pretrained: Diverging(classes)  # noqa: E731
    return mock.patch.object(chapter, "build_model", model)


@pytest.mark.parametrize(
    ("what", "first_bad", "good"),
    # A gradient that breaks the weights in the last step of an epoch, whose loss is still finite.
    [("logits", 1, "none"), ("gradient", 4, "checkpoint.pt")],
)
@pytest.mark.parametrize("chapter", table(CHAPTERS, IN_RUN))
def test_loss_is_not_finite(
    crew: Crew, chapter: str, what: str, first_bad: int, good: str, tmp_path: Path
) -> None:
    """On one rank, from a step on: all stop there and name the step and the last good checkpoint,
    which is one. The log stays JSON."""
    argv = [*BASE, "--synthetic", "8", "--epochs", "2", "--print-freq", "1"]
    change = partial(diverges, first_bad=first_bad, what=what)
    says = rf"loss (nan|inf) by step {first_bad}, lower --lr; last checkpoint: (out/)?{good}$"
    for answer in crew.run(call, chapter, argv, tmp_path, change, world_size=ranks_of(chapter)):
        assert_says(one_line(answer, chapter), says)
    assert events(tmp_path / "out")[-1]["event"] in ("start", "eval", "train")
    saved = [load_state(path) for path in tmp_path.glob("out/*.pt")]
    assert [state["epoch"] for state in saved] == ([] if first_bad == 1 else [1, 1])
    for state in saved:
        assert all(weight.isfinite().all() for weight in state["model"].values())


def call_by_rank(chapter: str, argvs: list[list[str]], cwd: Path) -> dict:
    """call, with words of its own for each rank."""
    return call(chapter, argvs[int(os.environ["CREW_RANK"])], cwd)


DISAGREE = {
    "images": ("--synthetic 8", "--synthetic 12"),
    "checkpoint": ("--synthetic 8 --resume run/checkpoint.pt", "--synthetic 8"),
}


@pytest.mark.parametrize(
    ("chapter", "what"),
    [(HUB, "checkpoint"), *((chapter, "images") for chapter in IN_RUN)],
)
def test_ranks_that_disagree(
    crew: Crew, chapter: str, what: str, room: Path, pristine: Path
) -> None:
    """As on two machines with disks of their own. None of them waits for the other for ever, and
    no log is begun that would stand in the way of the next start."""
    argvs = [[*BASE, *argv.split()] for argv in DISAGREE[what]]
    answers = crew.run(call_by_rank, chapter, argvs, room, world_size=2, timeout=60)
    for rank, answer in enumerate(answers):
        says = rf"rank {rank} has ... 'val_images': \d ... share both"
        assert_says(one_line(answer, chapter), says)
    assert snapshot(room) == snapshot(pristine)


# ---------------------------------------------------------------------------------- real launches


def test_real_start_without_torchrun(tmp_path: Path) -> None:
    """`python main.py ...`: one line is all there is, the status is 1, nothing is written; the line
    ends with the command that works, words and all."""
    words = [os.path.relpath(ROOT / HUB / "main.py", tmp_path), "--synthetic", "8"]
    result = run([sys.executable, *words], tmp_path, env=NO_GPU)
    assert result.returncode == 1 and result.stdout == "", result.output
    (line,) = result.stderr.splitlines()
    typed = shlex.split(line.split(f"{HUB}: error: start it by: torchrun ")[1])
    assert typed == ["--standalone", "--nproc-per-node", "2", *words]
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("chapter", table([HUB, SPAWNS], [HUB]))
def test_real_refusal_of_every_rank(chapter: str, tmp_path: Path) -> None:
    """What only the ranks can see: the line comes through torchrun, and through spawn. (torchrun
    adds a report of its own, and a traceback of itself, but none of ours.)"""
    argv = ["--synthetic", "8", "--image-size", "8", "--batch-size", "7", "--output-dir", "out"]
    result = launch(chapter, argv, tmp_path, 2, env=NO_GPU)
    assert result.returncode not in (0, -9), result.output
    assert f"{chapter}: error: --batch-size 7" in result.output and result.lines("use 6 or 8")
    assert 'main.py", line' not in result.output, result.output
    assert "destroy_process_group" not in result.stderr, result.output
    assert not list(tmp_path.iterdir())


def test_real_child_that_raises(tmp_path: Path) -> None:
    """03: the traceback of a child is shown, once, and the parent fails. (A child that is killed:
    test_faults.py.)"""
    argv = [*BASE, "--synthetic", "8", "--arch", "squeezenet1_1"]  # which wants larger images
    result = launch(SPAWNS, argv, tmp_path, 1, env=NO_GPU)
    assert result.returncode not in (0, -9), result.output
    assert result.stderr.count("RuntimeError: ") == 1 and "in forward" in result.stderr
