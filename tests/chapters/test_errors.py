"""A mistake ends in one line that says what it is and what to type instead: no traceback, a status
that is not zero, and nothing written.

Nearly all cases run in warm processes, on two ranks where the chapter has ranks, because every
rank must refuse alike; a few real launches show that the line survives torchrun and spawn.
"""

from __future__ import annotations

import contextlib
import errno
import gc
import os
import pickle
import re
import shlex
import shutil
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import ModuleType
from unittest import mock
from urllib.error import URLError

import numpy as np
import pytest
import torch
from crew import Crew, call_main
from harness import (
    CHAPTERS,
    HOROVOD,
    LAUNCHED_BY_TORCHRUN,
    ROOT,
    SLURM,
    Result,
    command_for,
    events,
    launch,
    load_chapter,
    load_state,
    run,
)
from PIL import Image
from torch import nn

ALONE = "01_dataparallel"  # one process: no batch to divide, no rank to disagree with
SPAWNS = "03_multiprocessing"
EVALUATES = "07_dist_eval"
RANKED = [chapter for chapter in CHAPTERS if chapter != ALONE]
# What every case starts from; a case's own words come later, and win.
BASE = "--image-size 8 --batch-size 4 --epochs 1 --workers 0 --output-dir out"
# These tests are about words, not devices: let a machine with GPUs be like one without.
NO_GPU = {"CUDA_VISIBLE_DEVICES": ""}
# The tables below may grow. Whoever takes a case out has to take it out here as well.
LEAST_CASES, LEAST_NUMBERS = 72, 125


# ----------------------------------------------------------------------- what runs in the processes


class Tiny(nn.Module):
    """The smallest model that trains: the mean colour of an image to its logits."""

    def __init__(self, num_classes: int) -> None:
        super().__init__()
        self.head = nn.Linear(3, num_classes)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.head(images.mean((2, 3)))


def tiny(chapter: ModuleType) -> AbstractContextManager:
    """The tiny model in place of the chapter's own."""
    model = lambda arch, num_classes, pretrained: Tiny(num_classes)  # noqa: E731
    return mock.patch.object(chapter, "build_model", model)


def call(chapter: str, argv: list[str], cwd: Path, change: Callable = tiny) -> dict:
    """call_main in a folder, as on a machine without GPUs, and with something changed: a function
    of the chapter's module that returns a context. An exception is an answer: {"traceback": ...}"""
    before = os.getcwd()
    os.chdir(cwd)
    if not gc.get_freeze_count():
        gc.freeze()  # torch itself is never garbage: without this collecting takes 0.2 s
    # What a failing run leaves is collected here, not in the forked loader's worker of the next
    # one, which has not the threads to end a process group. Its own workers get 0.1 s to end.
    with mock.patch("torch.utils.data._utils.MP_STATUS_CHECK_INTERVAL", 0.1):
        try:
            with (
                mock.patch("torch.cuda.is_available", return_value=False),
                mock.patch("torch.cuda.device_count", return_value=0),
                # torch's record wants the real stderr for it, and warns where there is none.
                mock.patch("faulthandler.enable"),
                change(load_chapter(chapter)),
            ):
                return call_main(chapter, argv) | {"traceback": ""}
        except Exception:
            return {"exit": None, "stdout": "", "stderr": "", "traceback": traceback.format_exc()}
        finally:
            os.chdir(before)
            gc.collect()


def call_by_rank(chapter: str, argvs: list[list[str]], cwd: Path) -> dict:
    """call, with words of its own for each rank."""
    return call(chapter, argvs[int(os.environ["CREW_RANK"])], cwd)


def call_as_fourth(chapter: str, argv: list[str], cwd: Path) -> dict:
    """call, as the last of four ranks on a machine that has two GPUs."""
    ranks = {"RANK": "3", "LOCAL_RANK": "3", "WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "4"}
    ranks |= {"SLURM_PROCID": "3", "SLURM_LOCALID": "3", "SLURM_STEP_TASKS_PER_NODE": "4"}
    fourth = "horovod.torch.local_rank" if chapter == HOROVOD else "os.getppid"
    with mock.patch.dict(os.environ, ranks), mock.patch(fourth, return_value=3):
        return call(chapter, argv, cwd, two_gpus)


def two_gpus(chapter: ModuleType) -> AbstractContextManager:
    """Two GPUs, as far as a chapter asks about them before it uses one."""
    yes, two = lambda: True, lambda: 2
    return mock.patch.multiple(torch.cuda, is_available=yes, device_count=two)


def call_entry(chapter: str, argv: list[str], cwd: Path, change: Callable = tiny) -> dict:
    """call, but in by the door of `python main.py`: without a launcher's environment, and in 03
    by main, which may not start a process."""
    launcher = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR")
    with mock.patch.dict(os.environ):
        for name in launcher:
            os.environ.pop(name, None)
        if chapter != SPAWNS:
            return call(chapter, argv, cwd, change)
        os.environ |= {"RANK": "0", "WORLD_SIZE": "1"}  # what call_main reads on its way in
        return call(chapter, argv, cwd, partial(by_main, change=change))


@contextlib.contextmanager
def by_main(chapter: ModuleType, change: Callable) -> Iterator[None]:
    """03 from its main; call_main, which enters at its worker, adds two words that go again."""
    enter = lambda rank, argv, port: chapter.main(argv[:-2])  # noqa: E731
    started = AssertionError("started processes")
    with (
        mock.patch.object(chapter, "worker", enter),
        mock.patch("torch.multiprocessing.spawn", side_effect=started),
        change(chapter),
    ):
        yield


@contextlib.contextmanager
def without_root(chapter: ModuleType) -> Iterator[None]:
    """As nobody, if this is root, for whom permissions do not count."""
    root = os.geteuid() == 0
    if root:
        os.setresuid(65534, 65534, 0)
    try:
        with tiny(chapter):
            yield
    finally:
        if root:
            os.setresuid(0, 0, 0)


def parse_only(chapter: ModuleType) -> AbstractContextManager:
    """No run after parsing: a chapter that does not refuse 2**31 workers would start them."""
    return mock.patch.object(chapter, "run", lambda *_: None)


def offline(chapter: ModuleType) -> AbstractContextManager:
    """No network when torchvision is asked for weights."""

    def get_model(name: str, weights: object = None, num_classes: int = 1000) -> nn.Module:
        if weights:
            raise URLError(OSError(-3, "Temporary failure in name resolution"))
        return Tiny(num_classes)

    return mock.patch("torchvision.models.get_model", get_model)


# How a save can fail: what raises, and what. The text is torch's own when its file takes no more.
SAVE_FAILURES = {
    "torch": ("torch.save", RuntimeError("PytorchStreamWriter failed writing file\nframe #0: c10")),
    "write": ("torch.save", OSError(errno.ENOSPC, "No space left on device")),
    "flush": ("os.fsync", OSError(errno.ENOSPC, "No space left on device")),
    "rename": ("pathlib.Path.replace", PermissionError(errno.EACCES, "Permission denied")),
}


@contextlib.contextmanager
def saves(chapter: ModuleType, failure: str, good: int) -> Iterator[None]:
    """The first `good` files are saved, then each save fails half-way."""
    name, error = SAVE_FAILURES[failure]
    real = {"torch.save": torch.save, "os.fsync": os.fsync}.get(name, Path.replace)
    calls = []

    def failing(*args: object) -> object:
        calls.append(args)
        if len(calls) <= good:
            return real(*args)
        if real is torch.save:
            args[1].write(b"half")
        raise error

    with tiny(chapter), mock.patch(name, failing):
        yield


class Diverging(Tiny):
    """Finite until a training step, on one rank; from then on either the logits are infinite
    or the gradient is not a number."""

    def __init__(self, num_classes: int, first_bad: int, what: str) -> None:
        super().__init__(num_classes)
        self.first_bad, self.what, self.steps = first_bad, what, 0
        if os.environ["CREW_RANK"] != str(int(os.environ["CREW_SIZE"]) - 1):
            self.first_bad = 1_000_000

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        logits = super().forward(images)
        self.steps += self.training
        if self.training and self.steps >= self.first_bad:
            if self.what == "logits":
                return logits * float("inf")
            logits.register_hook(lambda gradient: gradient * float("nan"))
        return logits


def diverges(chapter: ModuleType, first_bad: int, what: str = "logits") -> AbstractContextManager:
    """A model that diverges at this step, counted from 1."""
    model = lambda arch, classes, pretrained: Diverging(classes, first_bad, what)  # noqa: E731
    return mock.patch.object(chapter, "build_model", model)


# --------------------------------------------------------------------------- what the tests look at


def snapshot(folder: Path) -> dict[str, bytes | None]:
    """Everything below a folder: files with their bytes."""
    return {
        str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None
        for path in folder.rglob("*")
    }


def one_line(answer: dict, chapter: str, status: int = 1) -> str:
    """The line an answer consists of, having checked that it is one and nothing else."""
    assert not answer["traceback"], answer["traceback"]
    assert "Traceback" not in answer["stdout"] + answer["stderr"], answer
    if status == 2:  # argparse: its usage, then the line
        assert answer["exit"] == 2, answer
        assert answer["stdout"] == ""
        *usage, line = answer["stderr"].strip().splitlines()
        assert usage[0].startswith("usage: ") and re.match(r"\S+: error: ", line), answer
        assert sum(": error: " in word for word in usage) == 0
    else:
        line = answer["exit"]
        # A text is what python prints to stderr, with status 1.
        assert isinstance(line, str), answer
        assert line.startswith(f"{chapter}: error: "), line
    assert "\n" not in line.strip(), line
    assert line.isprintable() and 30 < len(line), line
    return line


def assert_says(line: str, words: tuple[str, ...]) -> None:
    """The words, or patterns, are in the line."""
    for word in words:
        assert re.search(word, line), f"{word!r} is not in: {line}"


class Bomb:
    """Unpickled, it makes a folder."""

    def __reduce__(self) -> tuple:
        return os.mkdir, ("exploded",)


def picture(path: Path, size: int = 16) -> None:
    """A picture of noise, as PNG or JPEG."""
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.random.default_rng(len(path.name)).integers(0, 256, (size, size, 3))
    Image.fromarray(pixels.astype(np.uint8)).save(path)


def image_tree(folder: Path, train: str, val: str) -> None:
    """An image folder: of each class, a letter, 4 pictures in train/ and 1 in val/."""
    for split, classes, count in (("train", train, 4), ("val", val, 1)):
        for name in classes:
            for number in range(count):
                picture(folder / split / name / f"{number}.png")


@pytest.fixture(scope="module")
def pristine(crew: Crew, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the cases meet: image folders, checkpoints, another run, a file."""
    here = tmp_path_factory.mktemp("errors")
    for name, train, val in (
        ("good", "ab", "ab"),
        ("no_train", "", "ab"),
        ("no_val", "ab", ""),
        ("flat_val", "ab", ""),
        ("empty_train_class", "ab", "abc"),
        ("empty_val_class", "abc", "ab"),
        ("other_classes", "ab", "ac"),
        ("fewer", "ab", "a"),
    ):
        image_tree(here / name, train, val)
    for number in range(3):
        picture(here / "flat_val/val" / f"{number}.png")
    (here / "empty_train_class/train/c").mkdir()
    (here / "empty_val_class/val/c").mkdir()
    (here / "fewer/val/b").mkdir()
    picture(here / "fewer/val/b/0.png")
    (here / "fewer/train/b/0.png").unlink()
    (here / "some_file").write_text("a file\n")
    (here / "taken.csv").write_text("yesterday's predictions\n")

    argv = [*shlex.split(BASE), "--synthetic", "8", "--arch", "resnet18", "--output-dir", "run"]
    (answer,) = crew.run(call, "02_distributed", argv, here)
    assert answer["exit"] is None, answer
    good = here / "run/checkpoint.pt"
    (here / "only_checkpoint").mkdir()
    shutil.copy(good, here / "only_checkpoint/checkpoint.pt")
    state = load_state(good)
    torch.save(state | {"step_in_epoch": 1}, here / "inside_epoch.pt")
    torch.save(state["model"], here / "weights.pt")
    torch.save([state], here / "list.pt")
    torch.save(state["model"]["head.bias"], here / "tensor.pt")
    torch.save({"epoch": 3, "arch": "resnet18", "state_dict": state["model"]}, here / "other.pt")
    torch.save({"bomb": Bomb()}, here / "bomb.pt")
    (here / "bomb.pkl").write_bytes(pickle.dumps(Bomb()))
    whole = good.read_bytes()
    (here / "half.pt").write_bytes(whole[: len(whole) // 2])
    (here / "short.pt").write_bytes(whole[:-1])
    (here / "empty.pt").touch()
    (here / "text.pt").write_text("These are not weights.\n" * 100)
    return here


@pytest.fixture(scope="module")
def room(pristine: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy for cases that change nothing; a case that does change something puts it back."""
    copy = tmp_path_factory.mktemp("room") / "here"
    shutil.copytree(pristine, copy)
    return copy


@contextlib.contextmanager
def untouched(room: Path, pristine: Path, empty: tuple[str, ...] = ()) -> Iterator[None]:
    """Nothing in the folder is written, changed or removed meanwhile, though these folders may
    have been made. If something is, it is put back for the next case, whatever else has failed."""
    changed = []
    try:
        yield
    finally:
        before, after = snapshot(pristine), snapshot(room)
        missing = object()
        names = sorted(before | after)
        changed = [n for n in names if before.get(n, missing) != after.get(n, missing)]
        if changed:
            shutil.rmtree(room)
            shutil.copytree(pristine, room)
    assert set(changed) <= set(empty), f"written, changed or removed: {changed}"
    assert all(after[name] is None for name in changed), changed


# ------------------------------------------------------------------------------- the table of words


@dataclass
class Case:
    """What is typed after BASE, what the line says (patterns), and where."""

    argv: str
    says: tuple[str, ...]
    status: int = 1
    world_size: int = 2
    chapters: tuple[str, ...] = tuple(CHAPTERS)


def data(folder: str, *says: str) -> Case:
    """A case of a wrong image folder: its name is always in the line."""
    return Case(f"--data {folder}", (f"--data {folder}", *says))


def resume(file: str, *says: str) -> Case:
    """A case of a wrong checkpoint: its name is always in the line."""
    return Case(f"--synthetic 8 --resume {file}", (f"--resume {re.escape(file)}", *says))


def uneven(batch: int, world_size: int, *nearest: int) -> Case:
    """A case of a batch that the ranks cannot share, and the sizes that the line offers."""
    says = (f"--batch-size {batch} ", rf"\b{world_size} ranks", *(rf"\b{n}\b" for n in nearest))
    argv = f"--synthetic 40 --batch-size {batch}"
    return Case(argv, says, world_size=world_size, chapters=tuple(RANKED))


CASES = {
    # where the images come from
    "no_images": Case("", ("--data", "--synthetic")),
    "images_twice": Case("--data good --synthetic 8", ("--data", "--synthetic")),
    "no_folder": data("nowhere", "No such file", "train"),
    "folder_is_a_file": Case("--data some_file", ("some_file", "[Nn]ot a directory")),
    "no_train": data("no_train", "train", "No such file"),
    "no_val": data("no_val", "val", "No such file"),
    "flat_val": data("flat_val", "val/CLASS/", "class folder"),
    "empty_train_class": data("empty_train_class", r"classes c\b", "train/CLASS/"),
    "empty_val_class": data("empty_val_class", r"classes c\b", "val/CLASS/"),
    "other_classes": data("other_classes", "train/ and val/ differ", "'b', 'c'"),
    "too_few_images": Case("--synthetic 8 --batch-size 16", ("8 images", "--batch-size 16")),
    "too_few_files": Case("--data good --batch-size 16", ("8 images", "--batch-size 16")),
    # names
    "arch": Case("--synthetic 8 --arch gpt", ("--arch", "'gpt'", "resnet50"), 2),
    "arch_near": Case("--synthetic 8 --arch resnet5O", ("--arch", "'resnet5O'", "resnet50"), 2),
    "arch_case": Case("--synthetic 8 --arch ResNet18", ("--arch", "'ResNet18'", "resnet18"), 2),
    "arch_function": Case("--synthetic 8 --arch get_model", ("--arch", "'get_model'"), 2),
    "unknown_flag": Case("--synthetic 8 --learning-rate 1", ("--learning-rate",), 2),
    "abbreviated": Case("--synthetic 8 --epoch 2", (r"--epoch\b", "unrecognized"), 2),
    "underscore": Case("--synthetic 8 --batch_size 8", ("--batch_size",), 2),
    "single_dash": Case("--synthetic 8 -epochs 2", ("-epochs",), 2),
    "stray_word": Case("--data good imagenet", ("imagenet",), 2),
    "no_value": Case("--synthetic 8 --lr", ("--lr", "expected one argument"), 2),
    # numbers that do not go together; one alone: NUMBERS below
    "warmup_longer": Case("--synthetic 8 --warmup-epochs 2", ("--warmup-epochs", "--epochs")),
    "uneven_2": uneven(7, 2, 6, 8),
    "uneven_3": uneven(8, 3, 6, 9),
    "uneven_3_up": uneven(10, 3, 9, 12),
    "batch_below_world_2": uneven(1, 2, 2, 4),
    "batch_below_world_3": uneven(2, 3, 3, 6),
    "sync_bn_on_cpu": Case(
        "--synthetic 8 --sync-bn", ("--sync-bn", "GPU", "leave it out"), chapters=tuple(RANKED)
    ),
    # going on, and evaluating
    "evaluate_nothing": Case("--synthetic 8 --evaluate", ("--evaluate", "--resume PATH")),
    "evaluate_auto_of_nothing": Case(
        "--synthetic 8 --evaluate --resume auto", ("--evaluate", "--resume PATH")
    ),
    "resume_pretrained": Case(
        "--synthetic 8 --resume run/checkpoint.pt --pretrained", ("--resume", "drop --pretrained")
    ),
    "resume_missing": resume("gone.pt", "No such file"),
    "resume_folder": resume("run", "[Ii]s a ?[Dd]irectory"),
    "resume_empty": resume("empty.pt"),
    "resume_half": resume("half.pt"),
    "resume_short": resume("short.pt"),
    "resume_text": resume("text.pt"),
    "resume_bomb": resume("bomb.pt"),
    "resume_raw_bomb": resume("bomb.pkl"),
    "resume_weights": resume("weights.pt"),
    "resume_list": resume("list.pt"),
    "resume_tensor": resume("tensor.pt"),
    "resume_other_project": resume("other.pt"),
    "resume_other_arch": Case(
        "--synthetic 8 --resume run/checkpoint.pt --arch resnet34",
        ("--resume run/checkpoint.pt", "resnet18", "drop --arch resnet34"),
    ),
    "resume_other_classes": Case(
        "--data good --resume run/checkpoint.pt", ("run/checkpoint.pt", "10 classes", r"data 2\b")
    ),
    "evaluate_other_classes": Case(
        "--data good --evaluate --resume run/checkpoint.pt", ("10 classes", r"data 2\b")
    ),
    "resume_inside_epoch": Case(
        "--synthetic 8 --resume inside_epoch.pt", ("--resume inside_epoch.pt", "06_slurm"),
        chapters=tuple(c for c in CHAPTERS if c != SLURM),
    ),
    "uneven_passes": Case(
        "--synthetic 8 --batch-size 8 --backward-passes-per-step 3",
        ("--backward-passes-per-step 3", "4 images"), chapters=(HOROVOD,),
    ),
    "no_such_meeting": Case(
        "--synthetic 8 --dist-file nowhere", ("--dist-file nowhere", "make it"), chapters=(SLURM,)
    ),
    # the output folder
    "holds_a_run": Case(
        "--synthetic 8 --output-dir run", (r"\brun holds", "--resume auto", "--output-dir")
    ),
    "holds_another_run": Case(
        "--synthetic 8 --output-dir run --resume only_checkpoint/checkpoint.pt",
        (r"\brun holds", "--resume auto", "--output-dir"),
    ),
    "holds_a_checkpoint": Case(
        "--synthetic 8 --output-dir only_checkpoint", ("only_checkpoint holds", "--resume auto")
    ),
    "output_is_a_file": Case("--synthetic 8 --output-dir some_file", ("some_file",)),
    "output_below_a_file": Case(
        "--synthetic 8 --output-dir some_file/out", ("some_file", "cannot write")
    ),
    "output_not_writable": Case("--synthetic 8 --output-dir /proc/sys/out", ("/proc/sys",)),
    # the chapters' own
    "gpus_without_gpus": Case("--synthetic 8 --gpus 0", ("--gpus 0", "0 GPUs"), chapters=(ALONE,)),
    "gpus_words": Case("--synthetic 8 --gpus all", ("--gpus all", "counted"), chapters=(ALONE,)),
    "gpus_twice": Case("--synthetic 8 --gpus 0,0", ("--gpus 0,0", "counted"), chapters=(ALONE,)),
    "predictions_taken": Case(
        "--synthetic 8 --save-predictions taken.csv",
        ("--save-predictions taken.csv exists", "new file"),
        chapters=(EVALUATES,),
    ),
    "predictions_nowhere": Case(
        "--synthetic 8 --save-predictions nowhere/new.csv",
        ("nowhere",),
        chapters=(EVALUATES,),
    ),
}  # fmt: skip
# What only the way in can see, so it is entered as `python main.py` does.
ENTRY_CASES = {
    "rank_outside": Case("--synthetic 8 --nnodes 2 --node-rank 2", ("--node-rank 2", "0 to 1")),
    "rank_of_one": Case("--synthetic 8 --node-rank 1", ("--node-rank 1", "0")),
    "no_port": Case("--synthetic 8 --nnodes 2", ("--nnodes", "--master-addr", "--master-port")),
    "high_port": Case("--synthetic 8 --master-port 65536", ("--master-port 65536", "65535")),
    "parent_sees_too": Case("--synthetic 8 --epochs 0", ("--epochs 0", r"range: 1\b")),
}
# As in a folder of somebody else: closed cannot be entered, locked cannot be written.
PERMISSIONS = {
    "output_below_closed": Case("--synthetic 8 --output-dir closed/out", ("closed",)),
    "output_closed": Case("--synthetic 8 --output-dir closed", ("closed",)),
    "output_below_locked": Case("--synthetic 8 --output-dir locked/some/out", ("locked",)),
    "output_locked": Case("--synthetic 8 --output-dir locked", ("locked",)),
    "resume_closed": Case("--synthetic 8 --resume closed/run.pt", ("closed/run.pt", "ermission")),
    "auto_closed": Case("--synthetic 8 --resume auto --output-dir closed/out", ("closed",)),
    "data_closed": Case("--data closed", ("closed", "ermission")),
    "data_below_closed": Case("--data closed/images", ("closed/images", "ermission")),
}
# Each number alone: its least, and what is wrong with it besides less than that.
LARGE = 2**31
NUMBERS: dict[str, tuple[float, tuple]] = {
    "--synthetic": (4, (LARGE,)),
    "--image-size": (8, (LARGE,)),
    "--epochs": (1, (LARGE,)),
    "--batch-size": (1, (LARGE,)),
    "--lr": (1e-9, ("nan", "inf")),
    "--warmup-epochs": (0.0, ("nan", "inf", "-0.1")),
    "--weight-decay": (0.0, ("nan", "inf", "-0.1")),
    "--label-smoothing": (0.0, ("nan", "inf", "-0.1", "1.01", "2")),
    "--workers": (0, (LARGE,)),
    "--seed": (0, (LARGE,)),
    "--print-freq": (1, (LARGE,)),
    "--dist-timeout": (1, (LARGE,)),
    "--nprocs": (1, (LARGE,)),
    "--nnodes": (1, (LARGE,)),
    "--node-rank": (0, (LARGE,)),
    "--master-port": (1, (LARGE,)),
    "--clip-grad": (0.0, ("nan", "inf", "-0.1")),
    "--loss-scale": (0.0, ("nan", "inf", "-0.1")),
    "--backward-passes-per-step": (1, (LARGE,)),
    "--procs-per-task": (0, (LARGE,)),
}


def number_cases() -> dict[str, Case]:
    """NUMBERS as cases: a flag's name and value are in the line, and the bound that it breaks."""
    cases = {}
    for flag, (least, others) in NUMBERS.items():
        whole = isinstance(least, int)
        for value in ({0, -1} if least > 0 else {-1}) | ({least - 1} if whole else set()):
            bound = re.escape(f"{least or 0:g}") + ("|1e-09" if flag == "--lr" else "")
            cases[f"{flag}={value}"] = Case(f"{flag} {value}", (rf"{flag} {value}\b", bound))
        for value in others:
            says, large = (rf"{flag}( {value}\b)?",), value in (LARGE, "inf")
            # Without the upper bound the line would ask for more of what was too much.
            says += (r"2\*\*31|21474836",) if large else ()
            if value in ("1.01", "2"):
                says += ("at most 1",)
            cases[f"{flag}={value}"] = Case(f"{flag} {value}", says)
        for value in ("many", "", *(("1.5", "nan", "1e3") if whole else ("0,1",))):
            says = (f"argument {flag}", "invalid", re.escape(repr(value)))
            cases[f"{flag}={value or 'nothing'}"] = Case(f"{flag} {value!r}", says, 2)
    for name, case in cases.items():
        declaring = tuple(c for c in CHAPTERS if name.split("=")[0] in numeric_flags(c))
        case.chapters, case.world_size = declaring, 1
        case.argv = ("" if name.startswith("--synthetic") else "--synthetic 8 ") + case.argv
    return cases


def numeric_flags(chapter: str) -> list[str]:
    """The flags of a chapter that take a number."""
    actions = load_chapter(chapter).build_parser()._actions
    return [a.option_strings[-1] for a in actions if a.type in (int, float)]


NUMBER_CASES = number_cases()
ALL = CASES | NUMBER_CASES
TABLE = [(chapter, name) for name, case in ALL.items() for chapter in case.chapters]


def test_the_tables_do_not_shrink() -> None:
    """As many cases as ever, and each number that a chapter declares is among them."""
    assert len(CASES) + len(ENTRY_CASES) + len(PERMISSIONS) >= LEAST_CASES
    assert len(NUMBER_CASES) >= LEAST_NUMBERS
    declared = {flag for chapter in CHAPTERS for flag in numeric_flags(chapter)}
    assert set(NUMBERS) == declared
    for chapter in CHAPTERS:
        assert {"no_images", "flat_val", "resume_bomb"} <= {n for c, n in TABLE if c == chapter}


@pytest.mark.parametrize("chapter", CHAPTERS)
def test_what_is_right_is_not_refused(crew: Crew, chapter: str, room: Path, tmp_path: Path) -> None:
    """BASE itself, both kinds of images, going on, and each number's least: without this, a
    chapter that refuses everything would pass."""
    base, out, ranks = shlex.split(BASE), str(tmp_path / "out"), 1 if chapter == ALONE else 2
    for argv in (
        ["--synthetic", "8", "--output-dir", out],
        ["--synthetic", "8", "--output-dir", out, "--resume", "auto", "--epochs", "2"],
        ["--synthetic", "8", "--output-dir", out, "--resume", "run/checkpoint.pt", "--evaluate"],
        ["--data", "good", "--output-dir", str(tmp_path / "files")],
    ):
        for answer in crew.run(call, chapter, [*base, *argv], room, world_size=ranks):
            assert (answer["exit"], answer["traceback"]) == (None, ""), answer
    assert load_state(tmp_path / "out/checkpoint.pt")["epoch"] == 2
    parse_args = load_chapter(chapter).parse_args
    for flag in numeric_flags(chapter):
        least = NUMBERS[flag][0]
        args, _ = parse_args(["--synthetic", "8", flag, str(least), "--output-dir", out + "2"])
        assert getattr(args, flag[2:].replace("-", "_")) == least
    assert parse_args(["--synthetic", "8", "--label-smoothing", "1", "--output-dir", out + "2"])


@pytest.mark.parametrize(("chapter", "name"), TABLE)
def test_refused(crew: Crew, chapter: str, name: str, room: Path, pristine: Path) -> None:
    """The table: every rank ends with the same line, and nothing is written."""
    case = ALL[name]
    ranks = 1 if chapter == ALONE else case.world_size
    with untouched(room, pristine):
        argv = shlex.split(f"{BASE} {case.argv}")
        what = [call, chapter, argv, room]
        if name in NUMBER_CASES:  # seen by the parser: in 03 that of the process that spawns
            what = [call_entry, *what[1:]] if chapter == SPAWNS else [*what, parse_only]
        answers = crew.run(*what, world_size=ranks, timeout=60)
        (line,) = {one_line(answer, chapter, case.status) for answer in answers}
        assert_says(line, case.says)


@pytest.mark.skipif(SPAWNS not in CHAPTERS, reason="needs chapter 03")
@pytest.mark.parametrize("name", ENTRY_CASES)
def test_refused_before_anything_is_spawned(
    crew: Crew, name: str, room: Path, pristine: Path
) -> None:
    """03 in its parent: once, and no process is started to say it again."""
    case = ENTRY_CASES[name]
    with untouched(room, pristine):
        (answer,) = crew.run(call_entry, SPAWNS, shlex.split(f"{BASE} {case.argv}"), room)
        assert_says(one_line(answer, SPAWNS), case.says)


@pytest.fixture(scope="module")
def foreign() -> Iterator[Path]:
    """A folder that all may use, unlike pytest's own, and in it two that are not for everyone."""
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o777)
    for name, mode in (("closed", 0o000), ("locked", 0o555)):
        (folder / name).mkdir(mode=mode)
    yield folder
    for path in folder.iterdir():
        path.chmod(0o755)
    shutil.rmtree(folder)


@pytest.mark.parametrize("name", PERMISSIONS)
@pytest.mark.parametrize("chapter", CHAPTERS)
def test_no_permission(crew: Crew, chapter: str, name: str, foreign: Path) -> None:
    """The path that is not allowed is in the line, on every rank."""
    argv, ranks = shlex.split(f"{BASE} {PERMISSIONS[name].argv}"), 1 if chapter == ALONE else 2
    answers = crew.run(call, chapter, argv, foreign, without_root, world_size=ranks, timeout=60)
    for answer in answers:
        assert_says(one_line(answer, chapter), PERMISSIONS[name].says)
    assert sorted(path.name for path in foreign.rglob("*")) == ["closed", "locked"]


@pytest.mark.skipif(SPAWNS not in CHAPTERS, reason="needs chapter 03")
@pytest.mark.parametrize("name", [name for name in PERMISSIONS if not name.startswith("data")])
def test_no_permission_in_the_parent(crew: Crew, name: str, foreign: Path) -> None:
    """03 reads the arguments before it spawns: its parent says it in the same way."""
    argv = shlex.split(f"{BASE} {PERMISSIONS[name].argv}")
    (answer,) = crew.run(call_entry, SPAWNS, argv, foreign, without_root)
    assert_says(one_line(answer, SPAWNS), PERMISSIONS[name].says)


@pytest.mark.parametrize("chapter", RANKED)
def test_more_processes_than_gpus(crew: Crew, chapter: str, room: Path, pristine: Path) -> None:
    """The fourth process on a machine with two GPUs: how many to start."""
    with untouched(room, pristine):
        argv = [*shlex.split(BASE), "--synthetic", "8"]
        (answer,) = crew.run(call_as_fourth, chapter, argv, room)
        assert_says(one_line(answer, chapter), ("more processes than GPUs", "start 2"))


@pytest.mark.parametrize("chapter", [c for c in LAUNCHED_BY_TORCHRUN if c in CHAPTERS])
def test_started_without_torchrun(crew: Crew, chapter: str, room: Path, pristine: Path) -> None:
    """`python main.py`: what to type instead. (A real launch below reads the whole of it.)"""
    with untouched(room, pristine):
        (answer,) = crew.run(call_entry, chapter, [*shlex.split(BASE), "--synthetic", "8"], room)
        assert_says(one_line(answer, chapter), ("torchrun --standalone --nproc-per-node 2 ",))


@pytest.mark.parametrize("chapter", CHAPTERS)
def test_pretrained_without_a_network(crew: Crew, chapter: str, room: Path, pristine: Path) -> None:
    """The weights cannot be fetched: it says so, and which flag wanted them."""
    with untouched(room, pristine, empty=("out",)):
        argv = [*shlex.split(BASE), "--synthetic", "8", "--arch", "resnet18", "--pretrained"]
        (answer,) = crew.run(call, chapter, argv, room, offline)
        assert_says(one_line(answer, chapter), ("name resolution", "--pretrained"))


# --------------------------------------------------------------------------- images nobody can read


def truncated(path: Path) -> Path:
    picture(path.with_suffix(".jpg"), 64)
    whole = path.with_suffix(".jpg").read_bytes()
    path.with_suffix(".jpg").write_bytes(whole[: len(whole) // 2])
    return path.with_suffix(".jpg")


def zero_bytes(path: Path) -> Path:
    path.with_suffix(".jpg").touch()
    return path.with_suffix(".jpg")


def text(path: Path) -> Path:
    path.with_suffix(".jpg").write_text("<html>404 Not Found</html>\n" * 20)
    return path.with_suffix(".jpg")


def sixteen_bits(path: Path) -> Path:
    pixels = np.arange(256, dtype=np.uint16).reshape(16, 16) * 256
    Image.fromarray(pixels).save(path.with_suffix(".png"))
    return path.with_suffix(".png")


UNREADABLE = [truncated, zero_bytes, text, sixteen_bits]


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("split", ["train", "val"])
@pytest.mark.parametrize(
    ("chapter", "spoil"),
    # load_image is the same text in every chapter: all kinds in one of them are enough.
    [("02_distributed", spoil) for spoil in UNREADABLE]
    + [(chapter, truncated) for chapter in CHAPTERS if chapter != "02_distributed"],
)
def test_unreadable_image(
    crew: Crew, chapter: str, spoil: Callable, split: str, workers: int, tmp_path: Path
) -> None:
    """The line holds the path of the file, also when a loader's worker met it."""
    image_tree(tmp_path / "data", "ab", "ab")
    bad = spoil(tmp_path / "data" / split / "a" / "bad")
    argv = [*shlex.split(BASE), "--data", str(tmp_path / "data"), "--workers", str(workers)]
    # One batch is the whole of train/, or the file might be in the rest that is dropped.
    argv += ["--batch-size", str(len(list(tmp_path.glob("data/train/*/*"))))]
    (answer,) = crew.run(call, chapter, argv, tmp_path)
    assert_says(one_line(answer, chapter), (re.escape(str(bad)),))
    assert not list(tmp_path.glob("out/*.pt*"))


# ------------------------------------------------------------------------- what goes wrong later on


@pytest.mark.parametrize("failure", SAVE_FAILURES)
@pytest.mark.parametrize("chapter", CHAPTERS)
def test_failing_save(crew: Crew, chapter: str, failure: str, tmp_path: Path) -> None:
    """The first epoch is saved, the second cannot be: the first one's files stay whole."""
    argv = [*shlex.split(BASE), "--synthetic", "8", "--epochs", "2"]
    (answer,) = crew.run(call, chapter, argv, tmp_path, partial(saves, failure=failure, good=2))
    line = one_line(answer, chapter)
    error = str(SAVE_FAILURES[failure][1]).splitlines()[0]
    assert_says(line, (r"cannot save out/(best|checkpoint)\.pt", re.escape(error), r"\d+ MiB free"))
    for name in ("checkpoint.pt", "best.pt"):
        assert load_state(tmp_path / "out" / name)["epoch"] == 1
    assert sorted(path.name for path in (tmp_path / "out").glob("*.pt*")) == [
        "best.pt",
        "checkpoint.pt",
    ]


@pytest.mark.parametrize("chapter", CHAPTERS)
def test_full_disk(crew: Crew, chapter: str, tmp_path: Path) -> None:
    """A device that is really full: no first checkpoint, and none that is half a file."""
    (tmp_path / "out").mkdir()
    (tmp_path / "out/saving.tmp").symlink_to("/dev/full")
    argv = [*shlex.split(BASE), "--synthetic", "8"]
    (answer,) = crew.run(call, chapter, argv, tmp_path)
    assert_says(one_line(answer, chapter), ("cannot save out/best.pt", r"\d+ MiB free"))
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["metrics.jsonl"]


@pytest.mark.parametrize(("first_bad", "checkpoint"), [(1, "none"), (3, "out/checkpoint.pt")])
@pytest.mark.parametrize("chapter", CHAPTERS)
def test_loss_is_not_finite(
    crew: Crew, chapter: str, first_bad: int, checkpoint: str, tmp_path: Path
) -> None:
    """One rank's loss is infinite from a step on: all stop there and name the step and the last
    good checkpoint, which is one."""
    argv = [*shlex.split(BASE), "--synthetic", "8", "--epochs", "2", "--print-freq", "1"]
    change = partial(diverges, first_bad=first_bad)
    ranks = 1 if chapter == ALONE else 2
    for answer in crew.run(call, chapter, argv, tmp_path, change, world_size=ranks):
        says = (r"loss (nan|inf)", rf"step {first_bad}\b", f"checkpoint: {checkpoint}", "--lr")
        assert_says(one_line(answer, chapter), says)
    assert events(tmp_path / "out")[-1]["event"] == ("start" if first_bad == 1 else "eval")
    assert (tmp_path / checkpoint).exists() == (first_bad == 3)
    if first_bad == 3:
        state = load_state(tmp_path / checkpoint)
        assert state["epoch"] == 1
        assert all(weight.isfinite().all() for weight in state["model"].values())


@pytest.mark.parametrize("chapter", CHAPTERS)
def test_weights_are_not_finite(crew: Crew, chapter: str, tmp_path: Path) -> None:
    """The last step of an epoch breaks the weights while its loss is still finite: the checkpoint
    that the line names is not the broken one, and the log is still JSON."""
    argv = [*shlex.split(BASE), "--synthetic", "8", "--epochs", "2", "--print-freq", "1"]
    change = partial(diverges, first_bad=4, what="gradient")
    (answer,) = crew.run(call, chapter, argv, tmp_path, change)
    assert_says(one_line(answer, chapter), ("loss nan", r"step 4\b", "out/checkpoint.pt"))
    assert events(tmp_path / "out")
    for path in (tmp_path / "out").glob("*.pt"):
        weights = load_state(path)["model"].values()
        assert all(weight.isfinite().all() for weight in weights), path


@pytest.mark.parametrize("what", ["images", "files", "checkpoint"])
@pytest.mark.parametrize("chapter", RANKED)
def test_ranks_that_disagree(
    crew: Crew, chapter: str, what: str, room: Path, pristine: Path
) -> None:
    """As on two machines with disks of their own. None of them waits for the other for ever, and
    no log is begun that would stand in the way of the next start."""
    base = shlex.split(BASE)
    first, second = {
        "images": (["--synthetic", "8"], ["--synthetic", "12"]),
        "files": (["--data", "good"], ["--data", "fewer"]),
        "checkpoint": (["--synthetic", "8", "--resume", "run/checkpoint.pt"], ["--synthetic", "8"]),
    }[what]
    argvs = [[*base, *first], [*base, *second]]
    with untouched(room, pristine, empty=("out",)):
        answers = crew.run(call_by_rank, chapter, argvs, room, world_size=2, timeout=60)
        for rank, answer in enumerate(answers):
            assert_says(
                one_line(answer, chapter), (f"rank {rank} has", r"'val_images': \d", "share")
            )


# ---------------------------------------------------------------------------------- real launches


def assert_refused(result: Result, chapter: str, *says: str) -> None:
    """It failed with the line, and whatever a launcher has to add, no line of ours is in a
    traceback. (torchrun ends with a report of its own, and a traceback of itself.)"""
    assert result.returncode not in (0, -9), result.output
    lines = result.lines(f"{chapter}: error: ")
    assert lines, result.output
    for line in lines:
        assert_says(line, says)
    assert 'main.py", line' not in result.output, result.output
    assert "destroy_process_group" not in result.stderr, result.output


@pytest.mark.skipif(ALONE not in CHAPTERS, reason="needs chapter 01")
def test_real_refusal_alone(tmp_path: Path) -> None:
    """Nobody in between: the line is all there is, and the status is 1."""
    result = launch(ALONE, ["--data", "nowhere", "--output-dir", "out"], tmp_path, env=NO_GPU)
    assert result.returncode == 1, result.output
    assert result.stdout == "" and len(result.stderr.splitlines()) == 1, result.output
    assert_refused(result, ALONE, "--data nowhere")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("chapter", [c for c in ("02_distributed", SPAWNS) if c in CHAPTERS])
def test_real_refusal_of_every_rank(chapter: str, tmp_path: Path) -> None:
    """What only the ranks can see: the line comes through torchrun, and through spawn."""
    argv = ["--synthetic", "8", "--image-size", "8", "--batch-size", "7", "--output-dir", "out"]
    result = launch(chapter, argv, tmp_path, 2, env=NO_GPU)
    assert_refused(result, chapter, "--batch-size 7|local rank")
    assert result.lines("use 6 or 8"), result.output
    assert not list(tmp_path.iterdir())


@pytest.mark.skipif(EVALUATES not in CHAPTERS, reason="needs chapter 07")
def test_real_unreadable_image(tmp_path: Path) -> None:
    """One of two ranks meets the file, in a loader's worker: the job ends, and the path is in the
    line. (The other rank may have its connection cut before torchrun ends it, and say so.)"""
    image_tree(tmp_path / "data", "ab", "ab")
    bad = truncated(tmp_path / "data/train/a/bad")
    (tmp_path / "data/train/a/0.png").unlink()
    argv = ["--data", "data", "--arch", "resnet18", "--batch-size", "8", "--epochs", "1"]
    argv += ["--image-size", "32", "--workers", "1", "--output-dir", "out"]
    result = launch(EVALUATES, argv, tmp_path, 2, env=NO_GPU)
    assert result.returncode not in (0, -9), result.output
    lines = result.lines(f"{EVALUATES}: error: ")
    assert len(lines) == 1, result.output
    assert_says(lines[0], (re.escape(str(bad.relative_to(tmp_path))),))
    assert "OSError" not in result.output, result.output


def test_real_start_without_torchrun(tmp_path: Path) -> None:
    """`python main.py ...`: the line ends with the command that works, words and all."""
    script = os.path.relpath(ROOT / "02_distributed/main.py", tmp_path)
    words = [script, "--synthetic", "8", "--output-dir", "out"]
    result = run([sys.executable, *words], tmp_path, env=NO_GPU)
    assert result.returncode == 1, result.output
    assert result.stdout == "" and len(result.stderr.splitlines()) == 1, result.output
    assert_refused(result, "02_distributed", "torchrun --standalone --nproc-per-node 2 ")
    typed = shlex.split(result.stderr.split("torchrun ")[1])
    assert typed == ["--standalone", "--nproc-per-node", "2", *words]
    assert not list(tmp_path.iterdir())


BROKEN_CHILD = """
import os, signal, sys
sys.path.insert(0, {tests!r})
from harness import load_chapter
chapter = load_chapter({chapter!r})
def build_model(*_):  # at the top, so that spawned children have it too
    if os.environ["LOCAL_RANK"] == "1":
        {broken}
    return own(*_)
own, chapter.build_model = chapter.build_model, build_model
if __name__ == "__main__":
    chapter.main()
"""


@pytest.mark.skipif(SPAWNS not in CHAPTERS, reason="needs chapter 03")
@pytest.mark.parametrize(
    ("broken", "says"),
    [
        ('raise KeyError("my own mistake")', ("Traceback", "KeyError: 'my own mistake'")),
        ("os.kill(os.getpid(), signal.SIGKILL)", (f"{SPAWNS}: error: .* rank 1 .*SIGKILL",)),
    ],
    ids=["raises", "killed"],
)
def test_real_child_that_breaks(broken: str, says: tuple[str, ...], tmp_path: Path) -> None:
    """03: what a child says is shown, a killed one is named; the parent fails, and nothing is
    left behind (run() looks after it)."""
    script = tmp_path / "script.py"
    tests = str(ROOT / "tests/support")
    script.write_text(BROKEN_CHILD.format(tests=tests, chapter=SPAWNS, broken=broken))
    argv = ["--synthetic", "8", "--arch", "resnet18", "--image-size", "32", "--batch-size", "4"]
    argv += ["--workers", "0", "--output-dir", "out"]
    result = run(command_for(SPAWNS, argv, 2, script), tmp_path, env=NO_GPU)
    assert result.returncode not in (0, -9), result.output
    for pattern in says:
        assert re.search(pattern, result.stderr), result.output
    assert result.stderr.count("KeyError: ") <= 1, result.output
