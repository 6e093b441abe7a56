"""A resumed run is the uninterrupted one: bit for bit with one and two ranks, else to rounding."""

import math
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from crew import Crew, call_main
from harness import (
    AS_OTHERS,
    CHAPTERS,
    assert_same,
    load_chapter,
    load_state,
    rows,
)
from run_log import read_run
from stops import assert_stopped, one_start
from tiers import table
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from with_tiny_model import save_every_epoch, stateful, tiny_float64

WORLD_SIZES = {"01_dataparallel": 1, "02_distributed": 2, "03_multiprocessing": 3}
BATCH = ["--batch-size", "12", "--image-size", "16"]


def train(crew: Crew, chapter: str, world_size: int, argv: list, **patches: Any) -> list[dict]:
    answers = crew.run(
        call_main, chapter, [str(word) for word in argv], patches, world_size=world_size
    )
    assert [answer["exit"] for answer in answers] == [None] * world_size, answers
    return answers


WAYS = [(chapter, 2, WORLD_SIZES.get(chapter, 2)) for chapter in CHAPTERS]
# The loop of 03, 06 and 07 is 02's to the letter; launches stop 03 and 06.
CORE_WAYS = [way for way in WAYS if way[0][:2] not in ("03", "06", "07")]
MORE_WAYS = [("02_distributed", 0, 2), *((chapter, 2, 1) for chapter in CHAPTERS[1:])]


@pytest.mark.parametrize(
    ("chapter", "workers", "ranks"), table([*WAYS, *MORE_WAYS], CORE_WAYS), ids=str
)
def test_bit_for_bit(
    chapter: str, workers: int, ranks: int, crew: Crew, tmp_path: Path, image_folder: Path
) -> None:
    """A run in one piece, one saved after every step, one told to stop and resumed, and one killed
    and resumed: with dropout, BatchNorm, augmentation and loader workers what is saved in the end,
    and all that is logged on the way, is the same."""
    ranks = min(2, ranks)
    argv = ["--data", image_folder, "--image-size", 16, "--batch-size", 8, "--epochs", 2]
    argv += ["--workers", workers, "--seed", 5, "--output-dir"]
    whole, saved, stopped, killed = (tmp_path / name for name in ("a", "b", "c", "d"))

    def go(folder: Path, *more: Any, **ask: Any) -> list[dict]:
        return one_start(crew, chapter, [*argv, folder, *more], ranks, stateful, **ask)

    assert go(whole)[0]["exit"] is None
    assert go(saved, "--save-minutes", 0)[0]["exit"] is None
    # Of 3 steps an epoch: inside the second one.
    assert_stopped(go(stopped, step=5), stopped, 1, 2)
    # Killed later than its last save, so that its log is further than that.
    killed.mkdir()
    shutil.copy(stopped / "checkpoint.pt", killed)
    shutil.copy(stopped / "best.pt", killed)
    shutil.copy(whole / "metrics.jsonl", killed)
    for folder in (stopped, killed):
        assert go(folder)[0]["exit"] is None
        assert rows(folder, "start")[1]["step"] == 2

    for folder in (saved, stopped, killed):
        for name in ("checkpoint.pt", "best.pt"):
            assert_same(load_state(whole / name), load_state(folder / name))
        assert numbers(folder) == numbers(whole)
    assert len(numbers(whole)) == 2 * 4  # three steps and an evaluation, twice


def numbers(run_dir: Path) -> list[tuple]:
    """What the log says of training, without what a resumed run has done again."""
    keys = ("epoch", "step", "loss", "acc1", "acc5", "lr", "images")
    run = read_run(run_dir)
    return [tuple(row.get(key) for key in keys) for row in [*run.train, *run.eval]]


def test_three_ranks(crew: Crew, tmp_path: Path) -> None:
    """DDP fills its buckets anew, in another order, after the first step of a start; three numbers
    may have another sum in another order. Where it keeps its first buckets (it does when it looks
    for unused parameters), three ranks resume bit for bit as well: nothing else differs."""
    argv = ["--synthetic", 96, *BATCH, "--epochs", 2, "--workers", 0]
    keeps = partial(DistributedDataParallel, find_unused_parameters=True)
    patches = {"build_model": tiny_float64, "DistributedDataParallel": keeps}
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    begin = [*argv, "--output-dir", whole]
    train(crew, "02_distributed", 3, begin, **patches, save_checkpoint=save_every_epoch)
    again = [*argv, "--resume", whole / "after1.pt", "--output-dir", cut]
    train(crew, "02_distributed", 3, again, **patches)
    assert_same(*(load_state(folder / "checkpoint.pt") for folder in (whole, cut)))


def test_any_workers_have_the_same_dropout(crew: Crew, tmp_path: Path, image_folder: Path) -> None:
    """Neither views nor loaders draw from the generator of dropout, which on a CPU is that of the
    process: without workers too a run is, bit for bit, the one with workers."""
    states = []
    for workers in (0, 2):
        argv = ["--data", image_folder, *BATCH, "--epochs", 2, "--workers", workers]
        argv += ["--output-dir", tmp_path / str(workers)]
        train(crew, "02_distributed", 1, argv, build_model=stateful)
        states.append(load_state(tmp_path / f"{workers}/checkpoint.pt"))
    assert_same(*states)


# Each chapter's checkpoint goes on in another one, and each goes on from another one's.
ORDER = [CHAPTERS[n] for n in (0, 4, 1, 5, 2, 6, 7, 3)]
RING = list(zip(ORDER, [*ORDER[1:], ORDER[0]], strict=True))


@pytest.mark.parametrize(("first", "last"), RING)
def test_any_chapter_resumes_any_other(first: str, last: str, crew: Crew, tmp_path: Path) -> None:
    """Inside an epoch, at different world sizes: 1, 2 and 3 ranks, 2 from 04 on."""
    argv = ["--synthetic", 50, *BATCH, "--epochs", 2, "--workers", 0]
    patches = {"build_model": tiny_float64, "save_checkpoint": save_every_epoch}
    whole, other = tmp_path / "whole", tmp_path / "other"
    begin = [*argv, *AS_OTHERS.get(first, []), "--save-minutes", 0, "--output-dir", whole]
    train(crew, first, WORLD_SIZES.get(first, 2), begin, **patches)
    resume = [*argv, *AS_OTHERS.get(last, []), "--resume", whole / "inside1.2.pt"]
    resume += ["--output-dir", other]
    train(crew, last, WORLD_SIZES.get(last, 2), resume, build_model=tiny_float64)
    a, b = load_state(whole / "checkpoint.pt"), load_state(other / "checkpoint.pt")
    assert b["epoch"] == 2
    for name, tensor in a["model"].items():
        assert torch.allclose(tensor, b["model"][name], rtol=0, atol=1e-10), name
    for key, slot in a["optimizer"]["state"].items():
        momentum = b["optimizer"]["state"][key]["momentum_buffer"]
        assert torch.allclose(slot["momentum_buffer"], momentum, rtol=0, atol=1e-10), key
    # It really went on, from there: the steps before it alone are somewhere else.
    assert rows(other, "start")[0]["step"] == 2
    early = load_state(whole / "inside1.2.pt")["model"]
    assert any(not torch.allclose(t, early[n], rtol=0, atol=1e-6) for n, t in b["model"].items())


def test_what_is_typed_counts(crew: Crew, tmp_path: Path) -> None:
    """No flag is taken from a checkpoint. The run goes on at the same epoch, also when an epoch has
    other steps."""
    patches = {"build_model": tiny_float64}
    argv = ["--synthetic", 96, "--image-size", 16, "--batch-size", 12, "--epochs", 4, "--lr", 0.2]
    argv += ["--weight-decay", 0.01, "--workers", 0]
    run = tmp_path / "run"
    train(
        crew, "02_distributed", 2, [*argv, "--output-dir", run],
        **patches, save_checkpoint=save_every_epoch,
    )  # fmt: skip
    typed = [*argv, "--batch-size", 24, "--lr", 0.4, "--weight-decay", 0, "--print-freq", 1]
    typed += ["--resume", run / "after2.pt", "--output-dir", tmp_path / "typed"]
    answers = train(crew, "02_distributed", 2, typed, **patches)
    (start,) = rows(tmp_path / "typed", "start")
    assert start["args"]["lr"] == 0.4 and not answers[1]["stdout"]
    train_rows = rows(tmp_path / "typed", "train")
    # 4 steps an epoch in place of 8: it starts half way.
    assert [row["epoch"] for row in train_rows] == [2] * 4 + [3] * 4
    assert [row["step"] for row in train_rows] == [1, 2, 3, 4] * 2
    peak = 0.4 * 24 / 256
    middles = [(step + 0.5) / 4 for step in range(8, 16)]  # in epochs, of which 0.4 warm up
    expected = [peak * 0.5 * (1 + math.cos(math.pi * (at - 0.4) / 3.6)) for at in middles]
    assert [row["lr"] for row in train_rows] == pytest.approx(expected, rel=1e-12)
    group = load_state(tmp_path / "typed/checkpoint.pt")["optimizer"]["param_groups"][0]
    assert group["weight_decay"] == 0


def two_groups(args: object, model: nn.Module) -> torch.optim.Optimizer:
    """In place of build_optimizer: the last layer has a rate of its own."""
    groups = [
        {"params": model.conv.parameters(), "lr": 0.1},
        {"params": model.head.parameters(), "lr": 0.3},
    ]
    return torch.optim.AdamW(groups)


@pytest.mark.parametrize("chapter", ["02_distributed", "04_apex"])
def test_groups_keep_their_rates(chapter: str, crew: Crew, tmp_path: Path) -> None:
    """Of any optimizer: each is multiplied by the same factor, and after a resume as well."""
    argv = ["--synthetic", 24, *BATCH, "--workers", 0, "--output-dir", tmp_path, "--epochs", 2]
    argv += AS_OTHERS.get(chapter, [])
    patches = {"build_optimizer": two_groups, "build_model": tiny_float64}
    lrs = []
    for more in (["--print-freq", 1], ["--resume", "--epochs", 3]):
        train(crew, chapter, 1, [*argv, *more], **patches)
        groups = load_state(tmp_path / "checkpoint.pt")["optimizer"]["param_groups"]
        lrs.append([group["lr"] for group in groups])
    steps = rows(tmp_path, "start")[0]["steps_per_epoch"]
    for epochs, found in zip((2, 3), lrs, strict=True):
        warmup, done = epochs / 10, epochs - 0.5 / steps
        factor = 0.5 * (1 + math.cos(math.pi * (done - warmup) / (epochs - warmup)))
        assert found == pytest.approx([0.1 * factor, 0.3 * factor], rel=1e-12)


@pytest.mark.parametrize("chapter", CHAPTERS)
def test_the_same_line_again(crew: Crew, chapter: str, tmp_path: Path) -> None:
    """--resume starts afresh in a new folder, and in one whose run ended before its first
    checkpoint; a finished run says so, and nothing is touched."""
    argv = ["--synthetic", 24, *BATCH, "--epochs", 1, "--workers", 0, "--resume"]
    argv += ["--output-dir", tmp_path / "run"]
    world_size = min(2, WORLD_SIZES.get(chapter, 2))
    checkpoint = tmp_path / "run/checkpoint.pt"
    for _ in range(2):
        checkpoint.unlink(missing_ok=True)
        checkpoint.with_name("best.pt").unlink(missing_ok=True)
        train(crew, chapter, world_size, argv, build_model=tiny_float64)
    before = checkpoint.read_bytes()
    first, *others = train(crew, chapter, world_size, argv, build_model=tiny_float64)
    assert "\nnothing to train: all 1 epochs are done\n" in first["stdout"]
    assert checkpoint.read_bytes() == before
    assert not any(other["stdout"] for other in others)
    assert [row["epoch"] for row in rows(tmp_path / "run", "start")] == [0, 0, 1]
    assert len(rows(tmp_path / "run", "eval")) == 2


@pytest.mark.parametrize("before", [25, None])
def test_other_images(crew: Crew, before: int | None, tmp_path: Path) -> None:
    """A run goes on with more images than before, or from a checkpoint that knows no classes, as
    older ones do; one line says so, on rank 0."""
    argv = ["--synthetic", 24, *BATCH, "--workers", 0, "--output-dir", tmp_path]
    train(crew, "02_distributed", 2, [*argv, "--epochs", 1], build_model=tiny_float64)
    path = tmp_path / "checkpoint.pt"
    state = load_state(path)
    state |= {"images": f"{before} (checksum 0)"}
    if before is None:
        del state["classes"]
    torch.save(state, path)
    more = ["--epochs", 2, "--resume"]
    first, other = train(crew, "02_distributed", 2, [*argv, *more], build_model=tiny_float64)
    says = "the checkpoint does not name its classes: they were not compared\n"
    if before:
        says = f"other images: {load_state(path)['images']} images, before 25 (checksum 0)\n"
    assert says in first["stdout"] and not other["stdout"]
    assert load_state(path)["epoch"] == 2


def test_momentum_that_is_missing(crew: Crew, tmp_path: Path) -> None:
    """One line says so, on rank 0: it would begin at 0."""
    argv = ["--synthetic", 24, *BATCH, "--workers", 0, "--output-dir", tmp_path]
    train(crew, "02_distributed", 2, [*argv, "--epochs", 1], build_model=tiny_float64)
    path = tmp_path / "checkpoint.pt"
    state = load_state(path)
    del state["optimizer"]["state"][0]
    torch.save(state, path)
    more = ["--epochs", 2, "--resume"]
    first, other = train(crew, "02_distributed", 2, [*argv, *more], build_model=tiny_float64)
    weights = len(state["model"])
    says = f"momentum of {weights - 1} of {weights} weights: that of the others begins at 0\n"
    assert says in first["stdout"] and not other["stdout"]


def test_order_of_saves(crew: Crew, tmp_path: Path) -> None:
    """An epoch is saved before its evaluation, so that a best.pt alone is never what a killed run
    has left. Killed between its two files, a run must not know of a best that it has not saved.
    (Killed in the middle of a file: test_faults.py.)"""
    argv = ["--synthetic", 24, *BATCH, "--epochs", 1, "--workers", 0, "--output-dir", tmp_path]
    train(crew, "02_distributed", 1, argv, build_model=tiny_float64, save_checkpoint=note_name)
    assert (tmp_path / "saved").read_text() == "checkpoint.pt best.pt checkpoint.pt "


def note_name(state: dict, path: Path) -> None:
    """In place of save_checkpoint."""
    with path.with_name("saved").open("a") as file:
        file.write(f"{path.name} ")


def test_the_best_survives_a_resume(crew: Crew, tmp_path: Path) -> None:
    """A resumed run compares with what was reached before it, not with nothing."""
    argv = ["--synthetic", 24, *BATCH, "--epochs", 1, "--workers", 0, "--output-dir", tmp_path]
    train(crew, "02_distributed", 1, argv, build_model=tiny_float64)
    for name in ("checkpoint.pt", "best.pt"):
        state = load_state(tmp_path / name)
        torch.save({**state, "best": 100.0}, tmp_path / name)
    again = [*argv, "--resume", "--epochs", 2]
    train(crew, "02_distributed", 1, again, build_model=tiny_float64)
    assert load_state(tmp_path / "checkpoint.pt")["best"] == 100.0
    assert load_state(tmp_path / "best.pt")["epoch"] == 1


def scores_a_tensor(chapter: ModuleType) -> Callable:
    """In place of evaluate: its accuracy is no plain number, as that of an own metric may be."""
    evaluate = chapter.evaluate

    def scored(*args: Any) -> Any:
        found = evaluate(*args)
        scores = getattr(found, "scores", found)
        scores["acc1"] = torch.tensor(scores["acc1"])
        return found

    return scored


def train_with_tensors(chapter: str, argv: list[str]) -> dict:
    """In a crew member."""
    module = load_chapter(chapter)
    patches = {"evaluate": scores_a_tensor(module), "build_model": tiny_float64}
    return call_main(chapter, argv, patches)


@pytest.mark.parametrize("chapter", CHAPTERS)
def test_best_of_a_new_folder(crew: Crew, chapter: str, tmp_path: Path) -> None:
    """A run that begins from another one's checkpoint, however good that was, has a best.pt and a
    best score of its own: a plain number."""
    argv = ["--synthetic", 24, *BATCH, "--epochs", 1, "--workers", 0]
    begin = [*argv, "--output-dir", tmp_path / "old"]
    train(crew, "02_distributed", 1, begin, build_model=tiny_float64)
    state = load_state(tmp_path / "old/checkpoint.pt")
    torch.save({**state, "best": 100.0}, tmp_path / "good.pt")
    argv += ["--resume", tmp_path / "good.pt", "--epochs", 2, "--output-dir", tmp_path / "new"]
    words = [str(word) for word in argv + AS_OTHERS.get(chapter, [])]
    (answer,) = crew.run(train_with_tensors, chapter, words)
    assert answer["exit"] is None, answer
    best = load_state(tmp_path / "new/best.pt")["best"]
    assert type(best) is float and best < 100
    assert rows(tmp_path / "new", "end")[0]["best_acc1"] == best
