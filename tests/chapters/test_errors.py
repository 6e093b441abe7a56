"""A mistake ends in one line that says what it is and what to type instead: no traceback, a status
that is not zero, and nothing written.

Every rank must refuse alike, so most are made on two. Each is made in 02, and again where another
function notices it (test_static.py has those that are the same).
"""

import contextlib
import os
import re
import shlex
import shutil
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from itertools import count
from pathlib import Path
from types import ModuleType
from typing import NamedTuple
from unittest import mock

import pytest
import torch
from crew import Crew
from harness import (
    CHAPTERS,
    LAUNCHED_BY_TORCHRUN,
    SLURM,
    events,
    launch,
    load_state,
)
from refusals import (
    ALONE,
    HUB,
    RANKED,
    SPAWNS,
    Bomb,
    call,
    call_parent,
    image_tree,
    last_words,
    one_line,
    ranks_of,
    runs_well,
    snapshot,
)
from tiers import table
from with_tiny_model import TinyModel

APEX, EVALUATES = "04_apex", "07_dist_eval"
OWN_CHECK = (SPAWNS, APEX, EVALUATES)  # check_flags, or who calls it
# What every mistake starts from; its own words come later, and win.
BASE = shlex.split("--image-size 8 --batch-size 4 --epochs 1 --workers 0 --output-dir out")
NO_GPU = {"CUDA_VISIBLE_DEVICES": ""}


def call_by_hand(chapter: str, argv: list[str], cwd: Path) -> dict:
    """call, without what torchrun sets."""
    with mock.patch.dict(os.environ):
        del os.environ["RANK"]
        return call(chapter, argv, cwd)


def call_as_fourth(chapter: str, argv: list[str], cwd: Path) -> dict:
    """call, as the last of four ranks on a machine that has two GPUs."""
    ranks = {"RANK": "3", "LOCAL_RANK": "3", "WORLD_SIZE": "4"}
    with mock.patch.dict(os.environ, ranks):
        return call_with_gpus(chapter, argv, cwd)


def call_with_gpus(chapter: str, argv: list[str], cwd: Path, usable: bool = True) -> dict:
    """call, where two GPUs seem to be."""
    found = {"is_available": lambda: usable, "device_count": lambda: 2}
    return call(chapter, argv, cwd, lambda _: mock.patch.multiple(torch.cuda, **found))


class Mistake(NamedTuple):
    """What is typed after BASE, a few words of the line, in which chapters, and how the chapter is
    entered."""

    argv: str
    says: str
    of: tuple = (HUB,)
    entry: Callable = call


def own(chapter: str, argv: str, says: str) -> Mistake:
    """A mistake with what only one chapter has. 03's are those that its parent sees."""
    entry = call_parent if chapter == SPAWNS else call
    entry = call_with_gpus if "--compile" in argv else entry
    return Mistake(f"--synthetic 8 {argv}", says, (chapter,), entry)


EACH = tuple(CHAPTERS)  # for what main does, which is another one in each
STOPPED = "--resume stopped.pt --arch resnet18"
MISTAKES = {
    # the images
    "no_folder": Mistake("--data nowhere", "nowhere has no folder train$", (ALONE, HUB)),
    "no_images": Mistake("", "one of the arguments --data --synthetic is required"),
    "other_classes": Mistake("--data other_classes", "one of train/ and val/ has ... 'b', 'c'"),
    "too_few": Mistake("--data good --batch-size 16", "--batch-size 16 ... all 8 images", EACH),
    # the words
    "uneven_2": Mistake(
        "--synthetic 8 --batch-size 7", "of the 2 ranks: use 6 or 8$", (HUB, *OWN_CHECK)
    ),
    "below_ranks": Mistake("--synthetic 8 --batch-size 1", "use 2 or 4$"),
    "no_epochs": Mistake(
        "--synthetic 8 --epochs -1", "--epochs -1 ... 1 or more", (ALONE, HUB, *OWN_CHECK)
    ),
    # going on, and evaluating
    "evaluate_nothing": Mistake(
        "--synthetic 8 --evaluate", "needs weights: add --resume, ... or --pretrained", EACH
    ),
    "evaluate_nothing_yet": Mistake(
        "--synthetic 8 --evaluate --resume", "no checkpoint out/checkpoint.pt: --resume PATH"
    ),
    # As it was written once.
    "resume_auto": Mistake(
        "--synthetic 8 --resume auto", "no checkpoint auto ... --resume alone", (ALONE, HUB)
    ),
    "resume_arch": Mistake(
        "--synthetic 8 --resume run/checkpoint.pt",
        "the checkpoint is of resnet18 with 10 classes, not of resnet50 with 10 classes$",
        EACH,
    ),
    "resume_foreign": Mistake("--synthetic 8 --resume foreign.pt", "is of another program, not"),
    # the output folder
    "holds_a_run": Mistake(
        "--synthetic 8 --output-dir run", "run holds a run: use --resume without PATH"
    ),
    "holds_another_run": Mistake(
        "--synthetic 8 --output-dir run --resume alone/checkpoint.pt", "run holds a run: use"
    ),
    "holds_a_checkpoint": Mistake("--synthetic 8 --output-dir alone", "alone holds a run: use"),
    # the machine, the network and the launcher
    "by_hand": Mistake(
        "--synthetic 8",
        r"start it with torchrun --standalone --nproc-per-node 2 \S+/main.py \.\.\.$",
        LAUNCHED_BY_TORCHRUN,
        call_by_hand,
    ),
    "more_processes_than_gpus": Mistake("--synthetic 8", "start 2$", entry=call_as_fourth),
    "unusable_gpus": Mistake(
        "--synthetic 8",
        "cannot use the GPUs ... driver",
        (ALONE, HUB),
        partial(call_with_gpus, usable=False),
    ),
    # the chapters' own
    "gpus_without_gpus": own(ALONE, "--gpus 0", "--gpus 0: ... 0 GPUs, counted"),
    "rank_outside": own(SPAWNS, "--nnodes 2 --node-rank 2", "--node-rank 2 must be 0 to 1"),
    "no_port": own(SPAWNS, "--nnodes 2", "--nnodes ... --master-addr and --master-port"),
    "compiled_threads": own(ALONE, "--compile", "--compile ... DataParallel"),
    "apex_without_gpus": own(APEX, "--apex O1", "Apex needs a GPU: use --amp-dtype"),
    "apex_compiled": own(APEX, "--apex O1 --compile", "--compile does not go with --apex: drop it"),
    "apex_and_dtype": own(APEX, "--apex O1 --amp-dtype fp16", "not allowed with argument"),
    "other_batch": own(SLURM, f"{STOPPED} --batch-size 8", "keep --batch-size 4 --seed 0"),
    "other_seed": own(SLURM, f"{STOPPED} --seed 8", "keep --batch-size 4 --seed 0"),
    "no_meeting_folder": own(SLURM, "--dist-file nowhere", "--dist-file nowhere ... make it"),
    "predictions_taken": own(EVALUATES, "--save-predictions taken.csv", "taken.csv: name a new"),
}


@pytest.fixture(scope="module")
def pristine(crew: Crew, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the mistakes meet: image folders, checkpoints, another run, a file."""
    here = tmp_path_factory.mktemp("errors")
    image_tree(here / "good", "ab", "ab")
    image_tree(here / "other_classes", "ab", "ac")
    (here / "taken.csv").write_text("yesterday's predictions\n")

    argv = [*BASE, "--synthetic", "8", "--arch", "resnet18", "--output-dir", "run"]
    runs_well(crew, HUB, argv, here)
    good = here / "run/checkpoint.pt"
    state = load_state(good)
    name = f"{state['model_name']}, stopped inside an epoch"
    stopped = {"model_name": name, "epoch": 0, "step": 1}
    torch.save(state | stopped | {"typed": "--batch-size 4 --seed 0"}, here / "stopped.pt")
    (here / "alone").mkdir()
    shutil.copy(good, here / "alone/checkpoint.pt")
    torch.save({"model": state["model"], "args": {}}, here / "foreign.pt")
    (here / "torn.pt").write_bytes(good.read_bytes()[: good.stat().st_size // 2])
    (here / "bombed").mkdir()
    torch.save({"bomb": Bomb()}, here / "bombed/checkpoint.pt")
    return here


@pytest.fixture
def room(pristine: Path, tmp_path: Path) -> Path:
    """A copy for one test."""
    return shutil.copytree(pristine, tmp_path / "room")


def assert_refused(answers: list[dict], says: str, room: Path, before: Path) -> None:
    """Every rank ends with the same line, and nothing is written."""
    (line,) = {one_line(answer) for answer in answers}
    # In the pattern " ... " stands for anything.
    assert re.search(says.replace(" ... ", ".*"), line), f"{says!r} is not in: {line}"
    assert snapshot(room) == snapshot(before)


SEEN_BY_PARENT = ("uneven_2", "no_epochs", "evaluate_nothing")  # in 03
TABLE = [(chapter, name) for name, mistake in MISTAKES.items() for chapter in mistake.of]


@pytest.mark.parametrize(("chapter", "name"), TABLE)
def test_refused(crew: Crew, chapter: str, name: str, room: Path, pristine: Path) -> None:
    mistake = MISTAKES[name]
    argv = [*BASE, *mistake.argv.split()]
    entry = call_parent if chapter == SPAWNS and name in SEEN_BY_PARENT else mistake.entry
    answers = crew.run(entry, chapter, argv, room, world_size=ranks_of(chapter))
    assert_refused(answers, mistake.says, room, pristine)


@pytest.mark.parametrize(
    ("argv", "error"),
    [("--resume torn.pt", "RuntimeError"), ("--resume --output-dir bombed", "UnpicklingError")],
)
def test_loud(crew: Crew, argv: str, error: str, room: Path, pristine: Path) -> None:
    """Half a checkpoint, and a pickle that would run code: torch says what it is, and the run does
    not begin afresh."""
    for answer in crew.run(call, HUB, [*BASE, "--synthetic", "8", *argv.split()], room):
        assert f"{error}: " in answer["exit"], answer
    assert snapshot(room) == snapshot(pristine)


# ------------------------------------------------------------------------- what goes wrong later on


def diverges(chapter: ModuleType, first_bad: int, what: str) -> AbstractContextManager:
    """From a training step on, counted from 1, the last rank's logits are infinite, or its gradient
    is not a number."""
    is_last = int(os.environ["CREW_RANK"]) + 1 == int(os.environ["CREW_SIZE"])
    steps = count(1)

    def spoil(model: TinyModel, images: tuple, logits: torch.Tensor) -> torch.Tensor:
        if is_last and model.training and next(steps) >= first_bad:
            if what == "logits":
                return logits * float("inf")
            logits.register_hook(lambda gradient: gradient * float("nan"))
        return logits

    def build(args: object, num_classes: int) -> TinyModel:
        model = TinyModel(num_classes)
        model.register_forward_hook(spoil)
        return model

    return mock.patch.object(chapter, "build_model", build)


@pytest.mark.parametrize(
    ("what", "first_bad"),
    # A gradient that breaks the weights in the last step of an epoch, whose loss is still finite.
    [("logits", 1), ("gradient", 4)],
)
@pytest.mark.parametrize("chapter", CHAPTERS)
def test_loss_is_not_finite(
    crew: Crew, chapter: str, what: str, first_bad: int, tmp_path: Path
) -> None:
    """On one rank, from a step on: all stop there and name the step, and the last checkpoint is a
    good one. The log stays JSON."""
    argv = [*BASE, "--synthetic", "8", "--epochs", "2", "--print-freq", "1"]
    change = partial(diverges, first_bad=first_bad, what=what)
    at = f"at step {first_bad} of epoch 0" if what == "logits" else ""
    says = rf"the (validation )?loss is (nan|inf) ?{at}: use a lower --lr, and --resume$"
    for answer in crew.run(call, chapter, argv, tmp_path, change, world_size=ranks_of(chapter)):
        assert re.search(says, one_line(answer))
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
    "checkpoint": ("--synthetic 8 --resume run/checkpoint.pt --arch resnet18", "--synthetic 8"),
    "step": (f"--synthetic 8 {STOPPED}", "--synthetic 8"),
}


@pytest.mark.parametrize(
    ("chapter", "what"),
    [(HUB, "checkpoint"), (SLURM, "step"), *((chapter, "images") for chapter in RANKED)],
)
def test_ranks_that_disagree(
    crew: Crew, chapter: str, what: str, room: Path, pristine: Path
) -> None:
    """As on two machines with disks of their own. None of them waits for the other for ever, and
    no log is begun that would stand in the way of the next start."""
    argvs = [[*BASE, *argv.split()] for argv in DISAGREE[what]]
    answers = crew.run(call_by_rank, chapter, argvs, room, world_size=2)
    says = r"different data or checkpoints \(images to train on, ...\): \[\(8, 2, \d[,)].*, \("
    assert_refused(answers, says.replace("...", ".*"), room, pristine)


@pytest.mark.parametrize("chapter", CHAPTERS)
def test_unknown_model(crew: Crew, chapter: str, room: Path, pristine: Path) -> None:
    """torchvision speaks of it, loudly, and no log is begun: the corrected line starts as typed."""
    argv = [*BASE, "--synthetic", "8", "--arch", "resnet05"]
    # nullcontext: its own model, not the tiny one.
    for answer in crew.run(call, chapter, argv, room, nullcontext, world_size=ranks_of(chapter)):
        assert "Unknown model resnet05" in last_words(answer)
    assert snapshot(room) == snapshot(pristine)


# ---------------------------------------------------------------------------------- real launches


# What stands below our line: torchrun's frame, or nothing that speaks of something else.
LAST = {HUB: r"\n  SystemExit: (error: [^\n]+)\n\s*\n=+\s*$"}
LAST |= {SLURM: r"(error: [^\n]+)(\nsrun: [^\n]+)*\s*$"}
LAST |= {SPAWNS: r"(error: [^\n]+)\n([^\n]*Terminating[^\n]*\n)?error: process \d [^\n]+above\s*$"}


@pytest.mark.parametrize("chapter", table([HUB, SPAWNS, SLURM], [HUB]))
def test_real_refusal_is_the_last_word(chapter: str, tmp_path: Path) -> None:
    """Whatever a launcher adds, its output ends with our line: torchrun's report of 40 lines does,
    and srun's and mp.spawn's few. (horovodrun ends with a traceback of its own.)"""
    argv = ["--synthetic", "8", "--image-size", "8", "--batch-size", "8", "--output-dir", "out"]
    (tmp_path / "out").mkdir()
    (tmp_path / "out/metrics.jsonl").touch()
    result = launch(chapter, argv, tmp_path, 2, env=NO_GPU)
    assert result.returncode not in (0, -9), result.output
    found = re.search(LAST[chapter], result.stderr)
    assert found, result.output
    assert found[1] == "error: out holds a run: use --resume without PATH, or another --output-dir"
    assert "destroy_process_group" not in result.stderr, result.output


def test_two_runs_in_one_folder(crew: Crew, tmp_path: Path) -> None:
    """Both have found it empty: who comes second to make the log ends, and the first one's run is
    whole. Also where both were started with --resume, as a job that may be requeued."""
    argv = [*BASE, "--synthetic", "8", "--resume"]
    (answer,) = crew.run(call, HUB, argv, tmp_path, other_run_begins)
    assert "another run has just begun in out" in one_line(answer)
    assert [row["event"] for row in events(tmp_path / "out")] == ["start"]


@contextlib.contextmanager
def other_run_begins(chapter: ModuleType) -> Iterator[None]:
    """While this one builds its model, after it has looked into the folder."""

    def build(args: object, num_classes: int) -> TinyModel:
        args.output_dir.mkdir()
        (args.output_dir / "metrics.jsonl").write_text('{"event": "start"}\n')
        return TinyModel(num_classes)

    with mock.patch.object(chapter, "build_model", build):
        yield
