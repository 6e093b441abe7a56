"""A mistake ends in one line that says what it is and what to type instead: no traceback, a status
that is not zero, and nothing written.

Every rank must refuse alike, so most are made on two. Each is made in 02, and again where another
function notices it (test_static.py has those that are the same).
"""

import contextlib
import errno
import fcntl
import io
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from argparse import Namespace
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
    flags_of,
    launch,
    load_chapter,
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
    one_line,
    ranks_of,
    runs_well,
    snapshot,
    tiny,
)
from tiers import table
from with_tiny_model import TinyModel

APEX, EVALUATES = "04_apex", "07_dist_eval"
OWN_CHECK = (SPAWNS, APEX, EVALUATES)  # check_flags, or who calls it
# What every mistake starts from; its own words come later, and win.
BASE = shlex.split("--image-size 8 --batch-size 4 --epochs 1 --workers 0 --output-dir out")
NO_GPU = {"CUDA_VISIBLE_DEVICES": ""}


def call_by_hand(chapter: str, argv: list[str], cwd: Path, missing: str = "RANK") -> dict:
    """call, without what torchrun sets; or without a part, as where Kubernetes sets the rest."""
    with mock.patch.dict(os.environ):
        del os.environ[missing]
        return call(chapter, argv, cwd)


def call_as_fourth(chapter: str, argv: list[str], cwd: Path) -> dict:
    """call, as the last of four ranks on a machine that has two GPUs."""
    ranks = {"RANK": "3", "LOCAL_RANK": "3", "WORLD_SIZE": "4"}
    with mock.patch.dict(os.environ, ranks):
        return call_with_gpus(chapter, argv, cwd)


def call_on_two_cpus(chapter: str, argv: list[str], cwd: Path) -> dict:
    """call, on a machine of two CPUs."""
    enter = call_parent if chapter == SPAWNS else call
    with mock.patch("os.sched_getaffinity", lambda _: {0, 1}):
        return enter(chapter, argv, cwd)


def call_itself(chapter: str, argv: list[str], cwd: Path) -> dict:
    """call, with the chapter's own model in place of the tiny one."""
    return call(chapter, argv, cwd, nullcontext)


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
CHECKS = (ALONE, HUB, *OWN_CHECK)  # for what check_flags does
ON_ONE = (ALONE,)  # for what only rank 0 does; the same function in all (06: see below)


def damaged(name: str, says: str = "", of: tuple = (HUB,)) -> Mistake:
    """A checkpoint that cannot be believed."""
    return Mistake(f"--synthetic 8 --resume {name}.pt", f"cannot load {name}.pt, ... {says}", of)


STOPPED = "--resume stopped.pt --arch resnet18"
MISTAKES = {
    # the images
    "no_folder": Mistake("--data nowhere", "nowhere has no folder train$", (ALONE, HUB)),
    "no_images": Mistake("", "one of the arguments --data --synthetic is required"),
    "other_classes": Mistake("--data other_classes", "one of train/ and val/ has ... 'b', 'c'"),
    "link_above": Mistake(
        "--data looped", "looped/train/a/loop/a: a link ... leads to a folder above", (ALONE, HUB)
    ),
    "one_class": Mistake("--data nested", "nested/train has one folder, 'train': it needs one"),
    "too_few": Mistake("--data good --batch-size 16", "--batch-size 16 ... all 8 images", EACH),
    # the words
    "uneven_2": Mistake(
        "--synthetic 8 --batch-size 7", "of the 2 ranks: use 6 or 8$", (HUB, *OWN_CHECK)
    ),
    "below_ranks": Mistake("--synthetic 8 --batch-size 1", "use 2 or 4$"),
    "no_epochs": Mistake("--synthetic 8 --epochs -1", "--epochs -1 ... use 1 to", CHECKS),
    "smoothed": Mistake(
        "--synthetic 8 --label-smoothing nan", "-smoothing nan ... 0 to 1$", CHECKS
    ),
    "too_smooth": Mistake("--synthetic 8 --label-smoothing 1.5", "1.5 ... use 0 to 1$"),
    "never_printed": Mistake("--synthetic 8 --print-freq 0", "--print-freq 0 ... use 1 to", CHECKS),
    "fewer_workers": Mistake("--synthetic 8 --workers -1", "--workers -1 ... use 0 to", CHECKS),
    "more_workers": Mistake(
        "--synthetic 8 --workers 400",
        "--workers 400 ... use 0 to 16$",
        CHECKS,
        entry=call_on_two_cpus,
    ),
    "no_rate": Mistake("--synthetic 8 --lr 0", "--lr 0.0 trains nothing: use a larger", CHECKS),
    "rate_of_nan": Mistake("--synthetic 8 --lr nan", "--lr nan ... use 0 to", CHECKS),
    "endless_rate": Mistake("--synthetic 8 --lr inf", "--lr inf ... use 0 to"),
    "grows": Mistake("--synthetic 8 --weight-decay -1", "--weight-decay -1.0 ... use 0 to", CHECKS),
    "clipped_by_nan": Mistake("--synthetic 8 --clip-grad nan", "-grad nan ... use 0 to", CHECKS),
    "saved_never": Mistake("--synthetic 8 --save-minutes inf", "minutes inf ... use 0 to", CHECKS),
    "mistyped": Mistake("--synthetic 8 --epochz 3", "unrecognized arguments: --epochz 3$", EACH),
    "no_model": Mistake("--synthetic 8 --arch resnet05", "invalid choice: 'resnet05'", EACH),
    # It would fetch the weights of a backbone.
    "no_classifier": Mistake(
        "--synthetic 8 --arch ssdlite320_mobilenet_v3_large", "invalid choice ... vit_b_16"
    ),
    "other_head": Mistake(
        "--synthetic 8 --pretrained",
        r"1000 classes, not 10\. In build_model write: ... num_classes\); return model$",
        EACH,
        call_itself,
    ),
    # going on, and evaluating
    "evaluate_nothing": Mistake(
        "--synthetic 8 --evaluate", "needs weights: add --resume, ... or --pretrained", EACH
    ),
    "evaluate_nothing_yet": Mistake(
        "--synthetic 8 --evaluate --resume", "--resume out/checkpoint.pt: there is no such file$"
    ),
    # As it was written once.
    "resume_auto": Mistake(
        "--synthetic 8 --resume auto", "--resume auto: there is no such file$", (ALONE, HUB)
    ),
    "unmounted": Mistake(
        "--synthetic 8 --resume --output-dir unmounted",
        "--resume unmounted/checkpoint.pt: there is no",
    ),
    "resume_arch": Mistake(
        "--synthetic 8 --resume run/checkpoint.pt",
        "the checkpoint is of resnet18 with 10 classes, not of resnet50 with 10 classes$",
        EACH,
    ),
    "resume_renamed": Mistake(
        "--data good --resume of_cats.pt --arch resnet18",
        "class 0 was 'cat', and is 'a' in these images$",
        EACH,
    ),
    "other_metric": Mistake(
        "--synthetic 8 --arch resnet18 --output-dir by_recall --resume",
        "chosen by recall, not by acc1: give its PATH to --resume, and another --output-dir$",
        (ALONE, HUB, SLURM),
    ),
    "best_alone": Mistake(
        "--synthetic 8 --arch resnet18 --output-dir best_alone --resume",
        "checkpoint.pt is gone, ... copy that to best_alone/checkpoint.pt to go on from it$",
        (ALONE, HUB),
    ),
    "other_batch": Mistake(
        f"--synthetic 8 {STOPPED} --batch-size 8",
        "inside an epoch: keep --batch-size 4 --seed 0, not --batch-size 8 --seed 0$",
        (ALONE, HUB),
    ),
    "other_seed": Mistake(f"--synthetic 8 {STOPPED} --seed 8", "keep --batch-size 4 --seed 0"),
    "other_images": Mistake(f"--synthetic 9 {STOPPED}", "keep images 8 ... not images 9"),
    "resume_foreign": Mistake("--synthetic 8 --resume foreign.pt", "foreign.pt, ... 'optimizer'"),
    "resume_nameless": Mistake("--synthetic 8 --resume nameless.pt", "of another program, not of"),
    **{name: damaged(name) for name in ("text", "zeros", "list", "bomb")},
    "flipped": damaged("flipped", "a checksum is wrong", (ALONE, HUB)),
    "nan_weight": damaged("nan_weight", "weights or momentum are not finite", (ALONE, HUB)),
    "infinite": damaged("infinite", "weights or momentum are not finite"),
    "pipe_to_resume": Mistake(
        "--synthetic 8 --resume pipe", "--resume pipe: there is no such file"
    ),
    "before_the_first": damaged("before_the_first", "epoch or best is out of range"),
    "best_of_nan": damaged("best_of_nan", "epoch or best is out of range"),
    "nan_momentum": damaged("nan_momentum", "weights or momentum are not finite"),
    # the output folder
    "holds_a_run": Mistake(
        "--synthetic 8 --output-dir run", "run holds a run: use --resume without PATH", ON_ONE
    ),
    "holds_another_run": Mistake(
        "--synthetic 8 --output-dir run --resume alone/checkpoint.pt", "holds a run: use", ON_ONE
    ),
    "holds_a_checkpoint": Mistake(
        "--synthetic 8 --output-dir alone", "alone holds a run: use", ON_ONE
    ),
    "holds_the_best": Mistake(
        "--synthetic 8 --output-dir best_alone", "best_alone holds a run: use", ON_ONE
    ),
    "best_of_this_folder": Mistake(
        "--synthetic 8 --output-dir best_alone --resume best_alone/best.pt",
        "best_alone holds a run: use --resume without PATH, or another",
        ON_ONE,
    ),
    "file_of_this_folder": Mistake(
        "--synthetic 8 --output-dir good/.. --resume of_cats.pt", "holds a run: use", ON_ONE
    ),
    "no_folder_at_all": Mistake(
        "--synthetic 8 --output-dir taken.csv/out",
        "cannot write taken.csv/out/metrics.jsonl",
        ON_ONE,
    ),
    "no_log": Mistake("--synthetic 8 --output-dir no_log", "write no_log/metrics.jsonl", ON_ONE),
    "log_is_a_pipe": Mistake(
        "--synthetic 8 --output-dir piped", "write piped/metrics.jsonl: it is a pipe$", ON_ONE
    ),
    "no_log_of_evaluation": Mistake(
        "--synthetic 8 --output-dir no_log --evaluate --resume", "no_log/evaluate.jsonl", ON_ONE
    ),
    # the machine, the network and the launcher
    "by_hand": Mistake(
        "--synthetic 8",
        r"start it with torchrun --standalone --nproc-per-node 2 \S+/main.py \.\.\.$",
        LAUNCHED_BY_TORCHRUN,
        call_by_hand,
    ),
    "by_half": Mistake(
        "--synthetic 8",
        "start it with torchrun --standalone",
        LAUNCHED_BY_TORCHRUN,
        partial(call_by_hand, missing="LOCAL_RANK"),
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
    "negative_gpu": own(ALONE, "--gpus -1", "--gpus -1: ... 0 GPUs, counted"),
    "no_process": own(SPAWNS, "--nprocs 0", "--nprocs 0 is out of range: use 1 or more"),
    "rank_outside": own(SPAWNS, "--nnodes 2 --node-rank 2", "--node-rank 2 must be 0 to 1"),
    "no_port": own(SPAWNS, "--nnodes 2", "--nnodes ... --master-addr and --master-port"),
    "compiled_threads": own(ALONE, "--compile", "--compile ... DataParallel"),
    "apex_without_gpus": own(APEX, "--apex O1", "Apex needs a GPU: use --amp-dtype"),
    "apex_compiled": own(APEX, "--apex O1 --compile", "--compile does not go with --apex: drop it"),
    "apex_and_dtype": own(APEX, "--apex O1 --amp-dtype fp16", "not allowed with argument"),
    "no_meeting_folder": own(SLURM, "--dist-file nowhere", "--dist-file nowhere ... make it"),
    "predictions_taken": own(EVALUATES, "--save-predictions taken.csv", "taken.csv: name a new"),
}


@pytest.fixture(scope="module")
def pristine(crew: Crew, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the mistakes meet: image folders, checkpoints, another run, a file."""
    here = tmp_path_factory.mktemp("errors")
    image_tree(here / "good", "ab", "ab")
    image_tree(here / "other_classes", "ab", "ac")
    image_tree(here / "nested/train", "ab", "ab")
    image_tree(here / "nested/val", "ab", "ab")
    (here / "nested/val/val").rename(here / "nested/val/more")
    shutil.rmtree(here / "nested/train/val")
    shutil.rmtree(here / "nested/val/more")
    (here / "taken.csv").write_text("yesterday's predictions\n")

    argv = [*BASE, "--synthetic", "8", "--arch", "resnet18", "--output-dir", "run"]
    runs_well(crew, HUB, argv, here)
    good = here / "run/checkpoint.pt"
    state = load_state(good)
    name = f"{state['model_name']}, stopped inside an epoch"
    stopped = {"model_name": name, "epoch": 0, "step": 1}
    torch.save(state | stopped | {"typed": "--batch-size 4 --seed 0"}, here / "stopped.pt")
    named = {"model_name": "resnet18 with 2 classes", "classes": ["cat", "dog"]}
    torch.save(state | named, here / "of_cats.pt")
    torch.save(state | {"epoch": -5}, here / "before_the_first.pt")
    torch.save(state | {"best": float("nan")}, here / "best_of_nan.pt")
    for folder, name, more in (
        ("by_recall", "checkpoint.pt", {"metric": "recall"}),
        ("best_alone", "best.pt", {"epoch": 2}),
    ):
        (here / folder).mkdir()
        torch.save(state | more, here / folder / name)
    (here / "alone").mkdir()
    shutil.copy(good, here / "alone/checkpoint.pt")
    torch.save({"model": state["model"], "args": {}}, here / "foreign.pt")
    nameless = {key: state[key] for key in ("model", "optimizer", "epoch")}
    torch.save(nameless, here / "nameless.pt")
    data = bytearray(good.read_bytes())
    (here / "text.pt").write_text("epoch 1\n")
    (here / "zeros.pt").write_bytes(bytes(len(data)))
    torch.save([1, 2], here / "list.pt")
    torch.save({"bomb": Bomb()}, here / "bomb.pt")

    weight, momentum = state["model"]["head.weight"], state["optimizer"]["state"][0]
    at = data.index(weight.numpy().tobytes())
    data[at : at + 8] = bytes(8)
    (here / "flipped.pt").write_bytes(data)
    # torch itself takes these three.
    assert not torch.equal(load_state(here / "flipped.pt")["model"]["head.weight"], weight)
    for name, tensor, value in (
        ("nan_weight", weight, "nan"),
        ("infinite", weight, "inf"),
        ("nan_momentum", momentum["momentum_buffer"], "nan"),
    ):
        kept = tensor.clone()
        tensor[(0,) * tensor.ndim] = float(value)
        torch.save(state, here / f"{name}.pt")
        tensor.copy_(kept)

    (here / "unmounted").mkdir()
    (here / "unmounted/checkpoint.pt").symlink_to("/not/mounted/checkpoint.pt")
    for name in ("metrics.jsonl", "evaluate.jsonl"):
        (here / "no_log" / name).mkdir(parents=True)
    image_tree(here / "looped", "ab", "ab")
    (here / "looped/train/a/loop").symlink_to("..")
    other = io.BytesIO()  # of the same size as what the chapter writes
    torch.save(with_other_momentum(good), other)
    (here / "other_momentum.pt").write_bytes(other.getvalue())
    assert other.tell() == good.stat().st_size
    return here


def with_other_momentum(path: Path) -> dict:
    """The same epoch of another run, as it lies on a second machine."""
    state = load_state(path)
    state["optimizer"]["state"][0]["momentum_buffer"] += 1
    return state


@pytest.fixture
def room(pristine: Path, tmp_path: Path) -> Path:
    """A copy for one test, with pipes, which nothing copies."""
    room = shutil.copytree(pristine, tmp_path / "room", symlinks=True)
    (room / "piped").mkdir()
    os.mkfifo(room / "piped/metrics.jsonl")
    os.mkfifo(room / "pipe")
    return room


def assert_refused(answers: list[dict], says: str, room: Path, before: Path) -> None:
    """Every rank ends with the same line, and nothing is written."""
    (line,) = {one_line(answer) for answer in answers}
    # In the pattern " ... " stands for anything.
    assert re.search(says.replace(" ... ", ".*"), line), f"{says!r} is not in: {line}"
    assert snapshot(room) == snapshot(before)


# In 03: what check_flags refuses.
SEEN_BY_PARENT = {"uneven_2", "no_epochs", "evaluate_nothing", "no_rate", "rate_of_nan", "grows"}
SEEN_BY_PARENT |= {"smoothed", "never_printed", "fewer_workers", "more_workers"}
SEEN_BY_PARENT |= {"clipped_by_nan", "saved_never"}
# It alone reads a checkpoint whole; the others compare checksums with it.
SEEN_BY_RANK_0 = {"flipped", "nan_weight", "infinite", "nan_momentum"}
TABLE = [(chapter, name) for name, mistake in MISTAKES.items() for chapter in mistake.of]


@pytest.mark.parametrize(("chapter", "name"), TABLE)
def test_refused(crew: Crew, chapter: str, name: str, room: Path, pristine: Path) -> None:
    mistake = MISTAKES[name]
    argv = [*BASE, *mistake.argv.split()]
    by_parent = chapter == SPAWNS and name in SEEN_BY_PARENT and mistake.entry is call
    entry = call_parent if by_parent else mistake.entry
    ranks = 1 if name in SEEN_BY_RANK_0 else ranks_of(chapter)
    answers = crew.run(entry, chapter, argv, room, world_size=ranks)
    assert_refused(answers, mistake.says, room, pristine)


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
    # A gradient that breaks the weights in the last step of an epoch, whose loss is still finite:
    # rank 0 sees it before it saves.
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
    says = r"the loss is (nan|inf) at step 1 of epoch 0: use a lower --lr, and --resume$"
    if what == "gradient":
        says = "weights or momentum are not finite in epoch 1: use a lower --lr, and --resume$"
    ranks = 1 if what == "gradient" else ranks_of(chapter)
    for answer in crew.run(call, chapter, argv, tmp_path, change, world_size=ranks):
        assert re.search(says, one_line(answer))
    assert events(tmp_path / "out")[-1]["event"] in ("start", "eval", "train")
    saved = [load_state(path) for path in tmp_path.glob("out/*.pt")]
    assert [state["epoch"] for state in saved] == ([] if first_bad == 1 else [1, 1])
    for state in saved:
        assert all(weight.isfinite().all() for weight in state["model"].values())


def diverges_in_validation(chapter: ModuleType) -> AbstractContextManager:
    """The weights are finite, and what the last rank computes with them is not."""
    is_last = int(os.environ["CREW_RANK"]) + 1 == int(os.environ["CREW_SIZE"])

    def spoil(model: TinyModel, images: tuple, logits: torch.Tensor) -> torch.Tensor:
        return logits * float("inf") if is_last and not model.training else logits

    def build(args: object, num_classes: int) -> TinyModel:
        model = TinyModel(num_classes)
        model.register_forward_hook(spoil)
        return model

    return mock.patch.object(chapter, "build_model", build)


@pytest.mark.parametrize("chapter", table(CHAPTERS, [HUB]))
def test_loss_of_validation(crew: Crew, chapter: str, tmp_path: Path) -> None:
    """All ranks say so, and such an epoch is not the best one."""
    argv, ranks = [*BASE, "--synthetic", "8"], ranks_of(chapter)
    answers = crew.run(call, chapter, argv, tmp_path, diverges_in_validation, world_size=ranks)
    says = "the loss is (nan|inf) in validation: use .*, and begin with best.pt$"
    for answer in answers:
        assert re.search(says, one_line(answer))
    assert not (tmp_path / "out/best.pt").exists()


def call_by_rank(chapter: str, argvs: list[list[str]], cwd: Path) -> dict:
    """call, with words of its own for each rank."""
    return call(chapter, argvs[int(os.environ["CREW_RANK"])], cwd)


AS_SAVED = "--synthetic 8 --arch resnet18"
DISAGREE = {
    "images to evaluate": ("--data good", "--data more_to_evaluate"),
    # Their numbers are the same.
    "images": ("--data good", "--data other_names"),
    "--synthetic": ("--synthetic 8", "--synthetic 12"),
    "checkpoint": (
        f"{AS_SAVED} --epochs 2 --resume run/checkpoint.pt",
        f"{AS_SAVED} --epochs 2 --resume other_momentum.pt",
    ),
    "--seed": ("--synthetic 8 --seed 0", "--synthetic 8 --seed 1"),
    "--weight-decay": ("--synthetic 8", "--synthetic 8 --weight-decay 0.5"),
    "--label-smoothing": ("--synthetic 8", "--synthetic 8 --label-smoothing 0.9"),
    "--clip-grad": ("--synthetic 8", "--synthetic 8 --clip-grad 1"),
    "--save-minutes": ("--synthetic 8", "--synthetic 8 --save-minutes 1"),
    "--bf16": ("--synthetic 8", "--synthetic 8 --bf16"),
    "--image-size": ("--synthetic 8", "--synthetic 8 --image-size 16"),
    "--batch-size": ("--synthetic 8", "--synthetic 8 --batch-size 8"),
    "--print-freq": ("--synthetic 8 --print-freq 1", "--synthetic 8 --print-freq 3"),
    "--epochs": ("--synthetic 8", "--synthetic 8 --epochs 2"),
    "--arch": ("--synthetic 8", "--synthetic 8 --arch resnet18"),
    "--lr": ("--synthetic 8 --lr 0.1", "--synthetic 8 --lr 0.2"),
    "--sync-bn": ("--synthetic 8", "--synthetic 8 --sync-bn"),
    "--compile": ("--synthetic 8", "--synthetic 8 --compile"),
    "--evaluate": (
        f"{AS_SAVED} --resume run/checkpoint.pt",
        f"{AS_SAVED} --resume run/checkpoint.pt --evaluate",
    ),
}
# By machine; and with --pretrained a rank refuses other classes before it asks the others.
MAY_DIFFER = "--data --workers --output-dir --resume --pretrained"
# By functions that are not 02's.
CARRIED = ("--lr", "checkpoint")
ELSEWHERE = [(chapter, what) for chapter in RANKED if chapter != HUB for what in CARRIED]


def renamed(folder: Path) -> None:
    """Other folders of the same numbers of images: `other_names` has one class renamed."""
    shutil.copytree(folder / "good", folder / "other_names")
    for split in ("train", "val"):
        (folder / "other_names" / split / "b").rename(folder / "other_names" / split / "c")
    shutil.copytree(folder / "good", folder / "more_to_evaluate")
    shutil.copy(folder / "good/val/a/0.png", folder / "more_to_evaluate/val/a/1.png")


def test_flags_in_which_ranks_may_differ() -> None:
    """Or a new flag might, unseen."""
    flags = {what for what in DISAGREE if what.startswith("--")}
    assert flags | {*MAY_DIFFER.split()} == {*flags_of(HUB)}


@pytest.mark.parametrize(
    ("chapter", "what"),
    [*((HUB, what) for what in DISAGREE), *ELSEWHERE],
)
def test_ranks_that_disagree(
    crew: Crew, chapter: str, what: str, room: Path, pristine: Path
) -> None:
    """As on two machines that were started differently, or have disks of their own. None of them
    trains on, or waits for the other for ever, and no log is begun that would stand in the way of
    the next start."""
    if "--data" in DISAGREE[what][0]:
        renamed(room)
    before = snapshot(room)
    argvs = [[*BASE, *argv.split()] for argv in DISAGREE[what]]
    answers = crew.run(call_by_rank, chapter, argvs, room, world_size=2)
    (line,) = {one_line(answer) for answer in answers}
    values = "0.1 and 0.2" if what == "--lr" else r"\S.* and \S.*"
    assert re.fullmatch(f"error: ranks differ in {what}: {values}", line), line
    assert snapshot(room) == before


def test_swapped_folders(crew: Crew, room: Path) -> None:
    """The files have the same names on both machines, and one calls cats dogs. So would half a copy
    of a data set: the sizes of the files tell."""
    shutil.copytree(room / "good", room / "swapped")
    for split in ("train", "val"):
        classes = room / "swapped" / split
        (classes / "a").rename(classes / "c")
        (classes / "b").rename(classes / "a")
        (classes / "c").rename(classes / "b")
    argvs = [[*BASE, "--data", name] for name in ("good", "swapped")]
    for answer in crew.run(call_by_rank, HUB, argvs, room, world_size=2):
        assert "ranks differ in images: 8 (checksum" in one_line(answer)


def test_machines_may_differ(crew: Crew, room: Path) -> None:
    """In where the images are, in workers, and in the folder of ranks that write nothing."""
    (room / "good").rename(room / "a_longer_name")
    (room / "good").symlink_to("a_longer_name")
    shutil.copytree(room / "a_longer_name", room / "copied")
    argvs = [[*BASE, "--data", "good"], [*BASE, "--data", "copied", "--workers", "1"]]
    argvs[1] += ["--output-dir", "other"]
    for answer in crew.run(call_by_rank, HUB, argvs, room, world_size=2):
        assert answer["exit"] is None, answer
    assert not (room / "other").exists()


class OwnDataSet:
    """Its `samples` are no list of files; two of them never look alike."""

    def __init__(self) -> None:
        self.samples = [object()]

    def __len__(self) -> int:
        return 3


def test_fingerprint_of_an_own_data_set() -> None:
    """It is compared by its length: whatever else it has, ranks that are right are not accused."""
    fingerprint = load_chapter(HUB).fingerprint
    assert fingerprint(OwnDataSet()) == fingerprint(OwnDataSet())


# ------------------------------------------------------------------------ one run at a time, a log

TRIES = """
import fcntl, sys
file = open(sys.argv[1], "a")
try:
    fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    print("free")
except BlockingIOError:
    print("locked")
"""


def looks_at_lock(chapter: ModuleType) -> AbstractContextManager:
    """Whenever rank 0 saves, another process tries to lock its log."""
    save = chapter.save_checkpoint

    def look(state: dict, path: Path) -> None:
        save(state, path)
        words = [sys.executable, "-c", TRIES, path.with_name("metrics.jsonl")]
        with path.with_name("seen").open("a") as file:
            subprocess.run(words, stdout=file, check=True)

    changes = contextlib.ExitStack()
    changes.enter_context(tiny(chapter))
    changes.enter_context(mock.patch.object(chapter, "save_checkpoint", look))
    return changes


@pytest.mark.parametrize("chapter", CHAPTERS)
def test_the_folder_stays_locked(crew: Crew, chapter: str, tmp_path: Path) -> None:
    """To the last epoch, with loader workers: nothing in rank 0 opens and closes its log, by which
    the lock would be lost. When it has ended, the folder is free."""
    argv = [*BASE, "--synthetic", "8", "--epochs", "2", "--workers", "1"]
    runs_well(crew, chapter, argv, tmp_path, looks_at_lock, ranks=ranks_of(chapter))
    seen = (tmp_path / "out/seen").read_text().split()
    assert len(seen) >= 3 and set(seen) == {"locked"}
    log = tmp_path / "out/metrics.jsonl"
    assert subprocess.check_output([sys.executable, "-c", TRIES, log], text=True) == "free\n"


def less_patient(chapter: ModuleType) -> AbstractContextManager:
    """06 waits for a second, not for a minute."""
    changes = contextlib.ExitStack()
    changes.enter_context(tiny(chapter))
    if hasattr(chapter, "LOCK_SECONDS"):
        changes.enter_context(mock.patch.object(chapter, "LOCK_SECONDS", 1))
    return changes


@pytest.mark.parametrize("chapter", [ALONE, HUB, SLURM])
@pytest.mark.parametrize("more", ["", "--resume"])
def test_another_run_is_at_work(crew: Crew, chapter: str, more: str, tmp_path: Path) -> None:
    """Also one that has just begun and logged nothing. It is this process, which has the lock."""
    log = tmp_path / "out/metrics.jsonl"
    log.parent.mkdir()
    argv = [*BASE, "--synthetic", "8", *more.split()]
    with log.open("a") as file, log.with_name("evaluate.jsonl").open("a") as other:
        fcntl.lockf(file, fcntl.LOCK_EX)
        fcntl.lockf(other, fcntl.LOCK_EX)
        (answer,) = crew.run(call, chapter, argv, tmp_path, less_patient)
        # An evaluation is in nobody's way, nor is another one in its.
        evaluate = [*BASE, "--synthetic", "8", "--evaluate", "--pretrained"]
        runs_well(crew, chapter, evaluate, tmp_path)
    line = one_line(answer)
    assert line == "error: another run is at work in out: `fuser out/metrics.jsonl` names it"
    assert ("waiting up to 1 s for the lock" in answer["stdout"]) == (chapter == SLURM)
    assert log.read_text() == ""


def test_the_lock_of_a_dead_node(crew: Crew, tmp_path: Path) -> None:
    """06 waits until it is gone, and trains. (The real wait is a minute.)"""
    (tmp_path / "out").mkdir()
    words = ["-c", f"{TRIES}\nprint(flush=True)\ninput()", tmp_path / "out/metrics.jsonl"]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    holder = subprocess.Popen([sys.executable, *words], **pipes)
    assert holder.stdout.readline() == b"free\n"
    with contextlib.closing(holder.stdin):
        runs_well(crew, SLURM, [*BASE, "--synthetic", "8", "--resume"], tmp_path, partial(
            ends_meanwhile, pid=holder.pid
        ))  # fmt: skip
    holder.wait()
    assert [row["event"] for row in events(tmp_path / "out")][-1] == "end"


@contextlib.contextmanager
def ends_meanwhile(chapter: ModuleType, pid: int) -> Iterator[None]:
    """When 06 has said that it waits, who has the lock is killed."""

    def sleep(seconds: float) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        time.sleep(0.2)

    clock = Namespace(sleep=sleep, monotonic=time.monotonic, time=time.time)
    clock.perf_counter = time.perf_counter
    with tiny(chapter), mock.patch.object(chapter, "time", clock):
        yield


@pytest.mark.parametrize("chapter", [ALONE, SLURM])
def test_no_locks(crew: Crew, chapter: str, tmp_path: Path) -> None:
    """Some file systems of clusters have none: a line says so, and the run goes on."""
    argv = [*BASE, "--synthetic", "8"]
    (answer,) = crew.run(call, chapter, argv, tmp_path, has_no_locks)
    assert answer["exit"] is None, answer
    first = answer["stdout"].splitlines()[0]
    assert re.fullmatch(
        r"cannot lock out/metrics.jsonl \(.*not implemented.*\): start no .*", first
    )


@contextlib.contextmanager
def has_no_locks(chapter: ModuleType) -> Iterator[None]:
    error = OSError(errno.ENOSYS, "Function not implemented")
    with tiny(chapter), mock.patch("fcntl.lockf", side_effect=error):
        yield


@pytest.mark.parametrize("chapter", [ALONE, HUB])
def test_log_on_a_full_disk(crew: Crew, chapter: str, tmp_path: Path) -> None:
    """The line names the log."""
    (tmp_path / "out").mkdir()
    (tmp_path / "out/metrics.jsonl").symlink_to("/dev/full")
    (answer,) = crew.run(call, chapter, [*BASE, "--synthetic", "8"], tmp_path)
    assert "cannot write out/metrics.jsonl or stdout: [Errno 28]" in one_line(answer)


# ---------------------------------------------------------------------------------- real launches


# What stands below our line: torchrun's frame, or nothing that speaks of something else.
LAST = {HUB: r"\n  SystemExit: (error: [^\n]+)\n\s*\n=+\s*$"}
# The other rank notes the SIGTERM by which srun ends it. If that interrupts its wait for this one,
# torch reports the wait, with its frames.
OTHERS = r"srun|slurmstepd|\[W\d|Exception raised|frame #|<omitting"
LAST |= {SLURM: rf"(error: [^\n]+)(\n+({OTHERS})[^\n]*)*\s*$"}
LAST |= {SPAWNS: r"(error: [^\n]+)\n([^\n]*Terminating[^\n]*\n)?error: process \d [^\n]+above\s*$"}


@pytest.mark.parametrize("chapter", table([HUB, SPAWNS, SLURM], [HUB]))
def test_real_refusal_is_the_last_word(chapter: str, tmp_path: Path) -> None:
    """Whatever a launcher adds, its output ends with our line: torchrun's report of 40 lines does,
    and srun's and mp.spawn's few. (horovodrun ends with a traceback of its own.)"""
    argv = ["--synthetic", "8", "--image-size", "8", "--batch-size", "8", "--output-dir", "out"]
    (tmp_path / "out").mkdir()
    (tmp_path / "out/metrics.jsonl").write_text("{}\n")
    # A report of torchrun names one rank, however many have failed.
    result = launch(chapter, argv, tmp_path, 1 if chapter == HUB else 2, env=NO_GPU)
    assert result.returncode not in (0, -9), result.output
    found = re.search(LAST[chapter], result.stderr)
    assert found, result.output
    assert found[1] == "error: out holds a run: use --resume without PATH, or another --output-dir"
    assert "destroy_process_group" not in result.stderr, result.output
