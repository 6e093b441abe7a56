"""Faults of the disk, odd images, files and networks that are not to be trusted: each ends as it is
promised, and what was seen goes into tests/FAULTS.md by the fixture `fault_table`.

test_errors.py has the mistakes of the command line; here the disk is really full, the picture is
really a CMYK one, and the run that is killed is killed.
"""

from __future__ import annotations

import contextlib
import inspect
import math
import os
import re
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from types import ModuleType
from unittest import mock

import check_imagenet
import pytest
import torch
from crew import Crew
from fault_table import FaultTable
from harness import (
    CHAPTERS,
    ROOT,
    Result,
    alive,
    command_for,
    events,
    kill_all,
    load_chapter,
    load_state,
    rows,
    run,
    start,
)
from PIL import Image
from run_log import read_run
from test_errors import Bomb, Tiny, assert_says, call, call_entry, image_tree, one_line, snapshot
from torch import nn

ALONE, FIRST, SPAWNS = "01_dataparallel", "02_distributed", "03_multiprocessing"
RANKED = [chapter for chapter in CHAPTERS if chapter != ALONE]
# torchvision 0.29 announces that decode_image will move to TorchCodec; the chapters use it.
pytestmark = pytest.mark.filterwarnings("ignore:The image decoding and encoding:DeprecationWarning")
# One epoch is 2 steps of 4 images, one validation 2 images.
BASE = ["--synthetic", "8", "--image-size", "8", "--batch-size", "4", "--workers", "0"]
# For real launches, a model of torchvision: without BatchNorm, and a checkpoint of 6 MB.
SMALL = ["--arch", "squeezenet1_1", "--image-size", "32", "--batch-size", "4"]
SMALL += ["--synthetic", "8", "--workers", "0", "--print-freq", "1"]
NO_GPU = {"CUDA_VISIBLE_DEVICES": ""}
WRAPPER = """
import io, os, signal, sys
from pathlib import Path
import torch
sys.path.insert(0, {tests!r})
from harness import load_chapter
chapter = load_chapter("01_dataparallel")
{patch}
chapter.main()
"""


def ranks_of(chapter: str) -> int:
    return 1 if chapter == ALONE else 2


def shown(line: str) -> str:
    """A line as the table shows it: without the name of the chapter and the folders of a test."""
    return re.sub(r"/(tmp|home)/\S*/", "", line.split(": error: ", 1)[1])


def the_line(result: Result, chapter: str = ALONE) -> str:
    """The line that a real launch ends with, having checked that stderr is this line alone:
    no traceback, and nothing that the interpreter adds when it exits."""
    assert result.returncode == 1, result.output
    assert len(result.stderr.splitlines()) == 1, result.output
    assert result.stderr.startswith(f"{chapter}: error: "), result.output
    return result.stderr.strip()


def wrapped(patch: str, argv: list, cwd: Path) -> tuple[Result, float]:
    """Chapter 01 really launched with something of it changed; and the seconds that it took."""
    script = cwd / "wrapper.py"
    script.write_text(WRAPPER.format(tests=str(ROOT / "tests/support"), patch=patch))
    began = time.monotonic()
    result = run([sys.executable, script, *argv], cwd, env=NO_GPU)
    return result, time.monotonic() - began


def no_rest(folder: Path) -> None:
    """Nothing temporary is left in a folder."""
    assert not list(folder.rglob("*.tmp*")), list(folder.rglob("*"))


# ---------------------------------------------------------------------------------------- the disk


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 24 MiB."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=24m", "none", str(disk)]
    if os.geteuid() or subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("needs root, to mount a small disk")
    yield disk
    subprocess.run(["umount", "-l", str(disk)], check=True)


class Half(nn.Module):
    """A checkpoint of half a MiB: 65,000 weights and their momentum."""

    def __init__(self, num_classes: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(3, 5000), nn.Linear(5000, num_classes))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.layers(images.mean((2, 3)))


def half(chapter: ModuleType) -> AbstractContextManager:
    return mock.patch.object(
        chapter, "build_model", lambda arch, classes, pretrained: Half(classes)
    )


def fill(ballast: Path, free: int) -> None:
    """Write a file until its disk is full, then give back so many bytes."""
    with contextlib.suppress(OSError), ballast.open("wb", buffering=0) as file:
        while file.write(bytes(4096)):
            pass
    os.truncate(ballast, ballast.stat().st_size - free)


@contextlib.contextmanager
def filling(chapter: ModuleType, ballast: Path) -> Iterator[None]:
    """Rank 0 fills the disk in its second evaluation, but for half of what a checkpoint takes."""
    own, calls = chapter.evaluate, []

    def evaluate(*args: object) -> object:
        calls.append(args)
        if len(calls) == 2 and os.environ["CREW_RANK"] == "0":
            fill(ballast, 256 << 10)
        return own(*args)

    with half(chapter), mock.patch.object(chapter, "evaluate", evaluate):
        yield


def test_full_disk(crew: Crew, small_disk: Path, fault_table: FaultTable) -> None:
    """The disk is full when the second epoch is saved: one line says so and how much is free, the
    files of the first epoch are whole, nothing half is left; with room again the run goes on."""
    out = small_disk / "out"
    argv = [*BASE, "--epochs", "2", "--output-dir", str(out)]
    change = partial(filling, ballast=small_disk / "ballast")
    answer, _ = crew.run(call, FIRST, argv, small_disk, change, world_size=2)
    line = one_line(answer, FIRST)
    says = (r"cannot save \S+/out/(best|checkpoint)\.pt: ", r"; 0 MiB free; the file before it is")
    assert_says(line, says)
    assert not answer["stderr"], answer
    for name in ("checkpoint.pt", "best.pt"):
        assert load_state(out / name)["epoch"] == 1
    assert {p.name for p in out.iterdir()} == {"checkpoint.pt", "best.pt", "metrics.jsonl"}
    assert len(rows(out, "eval")) == 2

    (small_disk / "ballast").unlink()
    for answer in crew.run(
        call, FIRST, [*argv, "--resume", "auto"], small_disk, half, world_size=2
    ):
        assert answer["exit"] is None and not answer["traceback"], answer
    assert rows(out, "start")[-1]["resumed_from_step"] == 2
    assert load_state(out / "checkpoint.pt")["epoch"] == 2 and events(out)[-1]["event"] == "end"
    no_rest(out)
    fault_table("full disk while saving (tmpfs)", FIRST, shown(line) + ", and it is", None)


def test_file_size_limit(crew: Crew, tmp_path: Path, fault_table: FaultTable) -> None:
    """A limit on the size of files (ulimit -f, as some clusters set it) ends a launched run the
    same way, and leaves the earlier files byte for byte as they were."""
    out = tmp_path / "out"
    argv = [*SMALL, "--output-dir", str(out)]
    (answer,) = crew.run(call, ALONE, [*argv, "--epochs", "1"], tmp_path, contextlib.nullcontext)
    assert answer["exit"] is None and not answer["traceback"], answer
    before = snapshot(out)
    command = [sys.executable, ROOT / ALONE / "main.py", *argv, "--epochs", "2", "--resume", "auto"]
    began = time.monotonic()
    limited = ["bash", "-c", 'ulimit -f 1024; exec "$@"', "limited", *command]
    result = run(limited, tmp_path, env=NO_GPU)
    seconds = time.monotonic() - began
    line = the_line(result)
    assert_says(line, (r"cannot save \S+/out/(best|checkpoint)\.pt: ", r"; \d+ MiB free; the file"))
    after = snapshot(out)
    assert after.pop("metrics.jsonl").startswith(before.pop("metrics.jsonl"))
    assert after == before and set(after) == {"checkpoint.pt", "best.pt"}
    fault_table("limit on the size of a file (ulimit -f)", ALONE, shown(line), seconds)


FILL = """
import contextlib
{fill}
save = chapter.save_checkpoint
def save_checkpoint(*args):
    save(*args)
    fill(Path({ballast!r}), 0)
chapter.save_checkpoint = save_checkpoint
"""


def full_while_logging(disk: Path, cwd: Path) -> tuple[list, Result, float]:
    """Chapter 01 on a disk that is filled after the first epoch is saved; its words."""
    patch = FILL.format(fill=inspect.getsource(fill), ballast=str(disk / "ballast"))
    # So many steps an epoch that the lines of the second one need another page of the disk.
    argv = [*SMALL, "--synthetic", "80", "--epochs", "2", "--output-dir", disk / "out"]
    return argv, *wrapped(patch, argv, cwd)


def test_full_disk_for_the_log(small_disk: Path, tmp_path: Path, fault_table: FaultTable) -> None:
    """The disk becomes full between two saves: the line that metrics.jsonl cannot take ends the
    run in one line, at its exit too, and the checkpoint is whole."""
    out = small_disk / "out"
    _, result, seconds = full_while_logging(small_disk, tmp_path)
    line = the_line(result)
    assert_says(line, ("No space left on device",))
    assert load_state(out / "checkpoint.pt")["epoch"] == load_state(out / "best.pt")["epoch"] == 1
    assert len((out / "metrics.jsonl").read_text().splitlines()) > 20
    no_rest(out)
    fault_table("full disk while logging (tmpfs)", ALONE, shown(line), seconds)


def test_log_goes_on_after_a_full_disk(crew: Crew, small_disk: Path, tmp_path: Path) -> None:
    """With room again, the run goes on in the same metrics.jsonl: the line that is cut off in it
    costs no other one, tools/run_log.py reads both starts and the end."""
    argv, *_ = full_while_logging(small_disk, tmp_path)
    (small_disk / "ballast").unlink()
    argv = [*map(str, argv), "--resume", "auto"]
    (answer,) = crew.run(call, ALONE, argv, tmp_path, contextlib.nullcontext)
    assert answer["exit"] is None and not answer["traceback"], answer
    text = (small_disk / "out/metrics.jsonl").read_text()
    assert text.count('{"event": "start"') == 2
    seen = read_run(small_disk / "out")
    assert [row["resumed_from_step"] for row in seen.starts] == [0, 20] and seen.end
    assert [row["step"] for row in seen.train] == list(range(1, 41))


@pytest.mark.parametrize(
    "mode",
    [
        pytest.param("", id="as usual"),
        pytest.param("1", id="as Python 3.13"),
    ],
)
def test_log_that_takes_nothing(mode: str, tmp_path: Path, fault_table: FaultTable) -> None:
    """metrics.jsonl is on a full device from the start: one line, before any training. Python 3.13
    tells of every file that it cannot close, older ones only in development mode: nor of this."""
    (tmp_path / "out").mkdir()
    (tmp_path / "out/metrics.jsonl").symlink_to("/dev/full")
    argv = [*SMALL, "--epochs", "1", "--resume", "auto", "--output-dir", "out"]
    env = NO_GPU | {"PYTHONDEVMODE": mode, "PYTHONWARNINGS": "ignore"}
    began = time.monotonic()
    result = run([sys.executable, ROOT / ALONE / "main.py", *argv], tmp_path, env=env)
    seconds = time.monotonic() - began
    line = the_line(result)
    assert_says(line, ("No space left on device",))
    assert not result.lines("train  ") and not list(tmp_path.glob("out/*.pt"))
    fault_table("full disk for the first line of the log", ALONE, shown(line), seconds)


DIE = """
own, calls = torch.save, []
def save(state, file):
    calls.append(state)
    if len(calls) <= 2:  # best.pt and checkpoint.pt of the first epoch
        return own(state, file)
    whole = io.BytesIO()
    own(state, whole)
    file.write(whole.getvalue()[: len(whole.getvalue()) // 2])
    file.flush()
    os.kill(os.getpid(), signal.SIGKILL)
torch.save = save
"""


def test_killed_while_saving(crew: Crew, tmp_path: Path, fault_table: FaultTable) -> None:
    """A run killed while it saves leaves half a file under another name, and the checkpoint before
    it; the next start goes on from there and uses up that half."""
    argv = [*SMALL, "--epochs", "3", "--output-dir", "out"]
    result, seconds = wrapped(DIE, argv, tmp_path)
    assert result.returncode == -9 and "Traceback" not in result.stderr, result.output
    out = tmp_path / "out"
    rest = list(out.glob("*.tmp"))
    assert [path.name for path in rest] == ["saving.tmp"]
    assert load_state(out / "checkpoint.pt")["epoch"] == load_state(out / "best.pt")["epoch"] == 1
    with pytest.raises(RuntimeError):
        load_state(rest[0])
    argv += ["--resume", "auto"]
    (answer,) = crew.run(call, ALONE, argv, tmp_path, contextlib.nullcontext)
    assert answer["exit"] is None and not answer["traceback"], answer
    assert [row["resumed_from_step"] for row in rows(out, "start")] == [0, 2]
    assert load_state(out / "checkpoint.pt")["epoch"] == 3 and events(out)[-1]["event"] == "end"
    assert {p.name for p in out.iterdir()} == {"checkpoint.pt", "best.pt", "metrics.jsonl"}
    outcome = "the checkpoint before it is whole; --resume auto goes on and leaves no *.tmp"
    fault_table("SIGKILL in the middle of torch.save", ALONE, outcome, seconds)


@pytest.mark.parametrize("folder", ["", "new/out"])
def test_read_only_disk(crew: Crew, small_disk: Path, folder: str, fault_table: FaultTable) -> None:
    """An --output-dir that nobody can write to, root neither, is refused before any training."""
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    argv = [*BASE, "--epochs", "1", "--output-dir", str(small_disk / folder)]
    for answer in crew.run(call, FIRST, argv, small_disk, world_size=2, timeout=30):
        line = one_line(answer, FIRST)
        assert_says(line, ("--output-dir: cannot write to", re.escape(str(small_disk))))
        assert not answer["stdout"], answer
    fault_table("--output-dir on a read-only disk", FIRST, shown(line), None)


@pytest.mark.parametrize("chapter", CHAPTERS)
def test_finished_run_is_kept(
    crew: Crew, chapter: str, tmp_path: Path, fault_table: FaultTable
) -> None:
    """Another run does not begin in the folder of a finished one, whose files stay as they are."""
    argv = [*BASE, "--epochs", "1", "--output-dir", "out"]
    for answer in crew.run(call, chapter, argv, tmp_path, world_size=ranks_of(chapter)):
        assert answer["exit"] is None and not answer["traceback"], answer
    assert events(tmp_path / "out")[-1]["event"] == "end"
    before = snapshot(tmp_path)
    argv = [*argv, "--seed", "5"]
    for answer in crew.run(call, chapter, argv, tmp_path, world_size=ranks_of(chapter)):
        line = one_line(answer, chapter)
        assert_says(line, ("out holds a run", "--resume auto", "another --output-dir"))
    assert snapshot(tmp_path) == before
    fault_table("--output-dir holds a finished run", chapter, shown(line), None)


# ---------------------------------------------------------------------------------------- the data

COLOUR = (200, 60, 30)
GRAY = (98, 98, 98)  # its luminance


def plain(size: tuple[int, int] = (40, 30)) -> Image.Image:
    return Image.new("RGB", size, COLOUR)


def animated(path: Path, kind: str) -> None:
    # Three pictures, as a picture has three channels.
    others = [Image.new("RGB", (40, 30), colour) for colour in ((0, 255, 0), (0, 0, 255))]
    plain().save(path, kind, save_all=True, append_images=others)


# Name of the file (a folder is another class), how it is made, and the colour that is decoded.
USABLE: dict[str, tuple[str, Callable, tuple]] = {
    "CMYK JPEG": ("a/x.jpg", lambda path: plain().convert("CMYK").save(path), COLOUR),
    "grayscale JPEG": ("a/x.jpg", lambda path: plain().convert("L").save(path), GRAY),
    "RGBA PNG": ("a/x.png", lambda path: plain().convert("RGBA").save(path), COLOUR),
    "JPEG of 1x1 pixel": ("a/x.jpg", lambda path: plain((1, 1)).save(path), COLOUR),
    "JPEG of 6000x6000 pixels": ("a/x.jpg", lambda path: plain((6000, 6000)).save(path), COLOUR),
    "Chinese names": ("中文/图.jpg", lambda path: plain().save(path), COLOUR),
}
UNUSABLE: dict[str, tuple[str, Callable, str]] = {
    "animated GIF named .jpg": ("x.jpg", lambda p: animated(p, "GIF"), "not one 8-bit picture"),
    "animated WebP": ("x.webp", lambda p: animated(p, "WEBP"), "[Aa]nimated"),
    "link to nothing": ("x.jpg", lambda p: p.symlink_to("nothing"), "No such file"),
}


def check(folder: Path, capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    """What tools/check_imagenet.py says of a folder."""
    capsys.readouterr()
    code = check_imagenet.main([str(folder), "--workers", "1"])
    return code, capsys.readouterr().out


@pytest.mark.parametrize("kind", USABLE)
def test_odd_image_is_used(
    crew: Crew,
    kind: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    fault_table: FaultTable,
) -> None:
    """An odd but sound picture is decoded to its colours, trained on and evaluated; the checker
    has no error to tell of it."""
    name, make, colour = USABLE[kind]
    for split, others in (("train", 3), ("val", 1)):
        (tmp_path / "data" / split / name).parent.mkdir(parents=True)
        make(tmp_path / "data" / split / name)
        for number in range(others):
            other = tmp_path / "data" / split / "b" / f"{number}.jpg"
            other.parent.mkdir(exist_ok=True)
            plain().save(other)
    image = load_chapter(FIRST).load_image(str(tmp_path / "data/train" / name)).float()
    assert (image.mean((1, 2)) - torch.tensor(colour)).abs().max() < 2
    argv = ["--data", "data", "--image-size", "16", "--batch-size", "4", "--epochs", "1"]
    argv += ["--workers", "0", "--output-dir", "out"]
    for answer in crew.run(call, FIRST, argv, tmp_path, world_size=2):
        assert answer["exit"] is None and not answer["traceback"], answer
    (trained,), (evaluated,) = rows(tmp_path / "out", "train"), rows(tmp_path / "out", "eval")
    assert trained["step"] == 1 and evaluated["images"] == 2
    assert math.isfinite(trained["loss"]) and math.isfinite(evaluated["loss"])
    code, said = check(tmp_path / "data", capsys)
    assert code == 0 and "error: " not in said, said
    outcome = f"decoded, trains on 4 images, evaluates {evaluated['images']}, loss finite"
    fault_table(f"image: {kind}", FIRST, outcome, None)


@pytest.mark.parametrize("split", ["train", "val"])
@pytest.mark.parametrize("kind", UNUSABLE)
def test_unusable_image_is_named(
    crew: Crew,
    kind: str,
    split: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    fault_table: FaultTable,
) -> None:
    """What is not one picture ends the run in one line with its path, and the checker names it."""
    name, make, why = UNUSABLE[kind]
    image_tree(tmp_path / "data", "ab", "ab")
    bad = tmp_path / "data" / split / "a" / name
    make(bad)
    images = len(list(tmp_path.glob("data/train/*/*")))
    argv = ["--data", str(tmp_path / "data"), "--batch-size", str(images), "--image-size", "8"]
    argv += ["--epochs", "1", "--workers", "0", "--output-dir", "out"]
    (answer,) = crew.run(call, FIRST, argv, tmp_path)
    line = one_line(answer, FIRST)
    assert_says(line, (re.escape(str(bad)), why))
    assert not list(tmp_path.glob("out/*.pt*"))
    code, said = check(tmp_path / "data", capsys)
    assert code == 1 and str(bad) in said, said
    fault_table(f"image: {kind}", FIRST, "refused with its path; check_imagenet.py names it", None)


def test_one_image(crew: Crew, tmp_path: Path, fault_table: FaultTable) -> None:
    """One training image, one validation image and a batch of one are a data set."""
    for split in ("train", "val"):
        (tmp_path / "data" / split / "a").mkdir(parents=True)
        plain().save(tmp_path / "data" / split / "a" / "x.jpg")
    argv = ["--data", "data", "--image-size", "16", "--batch-size", "1", "--epochs", "1"]
    argv += ["--workers", "0", "--output-dir", "out"]
    (answer,) = crew.run(call, FIRST, argv, tmp_path)
    assert answer["exit"] is None and not answer["traceback"], answer
    (trained,), (evaluated,) = rows(tmp_path / "out", "train"), rows(tmp_path / "out", "eval")
    assert trained["step"] == 1 and math.isfinite(trained["loss"])
    assert evaluated["images"] == 1 and math.isfinite(evaluated["loss"])
    outcome = "trains 1 step, evaluates 1 image, loss finite"
    fault_table("one training and one validation image", FIRST, outcome, None)


@pytest.mark.parametrize("chapter", CHAPTERS)
def test_fewer_val_images_than_ranks(
    crew: Crew, chapter: str, tmp_path: Path, fault_table: FaultTable
) -> None:
    """Ranks without an image to evaluate: it is counted once, with the result of a single rank."""
    argv = ["--synthetic", "4", "--image-size", "8", "--batch-size", "3", "--workers", "0"]
    (answer,) = crew.run(call, ALONE, [*argv, "--epochs", "1", "--output-dir", "out"], tmp_path)
    assert answer["exit"] is None, answer
    argv += ["--evaluate", "--resume", "out/checkpoint.pt"]
    (answer,) = crew.run(call, FIRST, [*argv, "--output-dir", "one"], tmp_path)
    assert answer["exit"] is None and not answer["traceback"], answer
    ranks = 1 if chapter == ALONE else 3
    argv = [*argv, "--output-dir", "many"]
    for answer in crew.run(call, chapter, argv, tmp_path, world_size=ranks):
        assert answer["exit"] is None and not answer["traceback"], answer
    (one,), (many,) = (rows(tmp_path / n, "eval", "evaluate.jsonl") for n in ("one", "many"))
    assert one["images"] == many["images"] == 1
    assert one["acc1"] == many["acc1"] and one["acc5"] == many["acc5"]
    # 04 computes in 16 bits.
    assert many["loss"] == pytest.approx(one["loss"], rel=1e-2 if "apex" in chapter else 1e-6)
    counted = "1 rank" if ranks == 1 else f"{ranks} ranks"
    outcome = f"evaluates {many['images']} image on {counted}, accuracy that of one rank"
    fault_table("fewer validation images than ranks", chapter, outcome, None)


def test_fewer_val_files_than_ranks(crew: Crew, tmp_path: Path) -> None:
    """The same for a folder of pictures, and while training: 1 file, 3 ranks."""
    image_tree(tmp_path / "data", "a", "a")
    argv = ["--data", "data", "--image-size", "8", "--batch-size", "3", "--epochs", "2"]
    argv += ["--workers", "0", "--output-dir", "out"]
    for answer in crew.run(call, FIRST, argv, tmp_path, world_size=3):
        assert answer["exit"] is None and not answer["traceback"], answer
    assert [row["images"] for row in rows(tmp_path / "out", "eval")] == [1, 1]
    assert [row["acc1"] for row in rows(tmp_path / "out", "eval")] == [100.0, 100.0]


@pytest.mark.parametrize(("batch", "says"), [(3, "2 images are fewer"), (2, "divide by 3 ranks")])
@pytest.mark.parametrize("chapter", RANKED)
def test_fewer_training_images_than_ranks(
    crew: Crew, chapter: str, batch: int, says: str, tmp_path: Path, fault_table: FaultTable
) -> None:
    """A rank without an image to train on: refused, whatever the batch."""
    image_tree(tmp_path / "data", "ab", "ab")
    for path in tmp_path.glob("data/train/*/[123].png"):
        path.unlink()
    argv = ["--data", "data", "--image-size", "8", "--batch-size", str(batch), "--epochs", "1"]
    argv += ["--workers", "0", "--output-dir", "out"]
    for answer in crew.run(call, chapter, argv, tmp_path, world_size=3):
        line = one_line(answer, chapter)
        assert_says(line, (says, f"--batch-size {batch}"))
    assert not (tmp_path / "out").exists()
    fault_table("fewer training images than ranks", chapter, "refused: " + shown(line), None)


# ------------------------------------------------------------------------------------------- trust


@pytest.mark.parametrize("chapter", CHAPTERS)
def test_bomb_in_the_output_folder(
    crew: Crew, chapter: str, tmp_path: Path, fault_table: FaultTable
) -> None:
    """A checkpoint.pt that would run code is found by --resume auto: refused, neither run nor
    changed."""
    (tmp_path / "out").mkdir()
    torch.save({"bomb": Bomb()}, tmp_path / "out/checkpoint.pt")
    before = snapshot(tmp_path)
    argv = [*BASE, "--epochs", "1", "--output-dir", "out", "--resume", "auto"]
    for answer in crew.run(call, chapter, argv, tmp_path, world_size=ranks_of(chapter)):
        line = one_line(answer, chapter)
        assert_says(line, ("--resume out/checkpoint.pt is no usable checkpoint",))
    assert snapshot(tmp_path) == before, "exploded, or changed"
    outcome = "refused, not run, not changed: --resume out/checkpoint.pt is no usable checkpoint"
    fault_table("pickle that runs code as checkpoint.pt", chapter, outcome, None)


@contextlib.contextmanager
def counting_fetches(chapter: ModuleType, folder: Path) -> Iterator[None]:
    """Who asks torchvision for weights leaves a file, and each rank its weights, when it trains."""
    rank, own = os.environ["CREW_RANK"], chapter.train_one_epoch

    def get_model(name: str, weights: object = None, num_classes: int = 10) -> nn.Module:
        model = Tiny(num_classes)
        if weights:
            (folder / f"fetched-by-{rank}").write_text(str(weights))
            for parameter in model.parameters():
                parameter.data.fill_(7.0)
        return model

    def train_one_epoch(args: object, model: nn.Module, *rest: object) -> object:
        torch.save([p.detach().clone() for p in model.parameters()], folder / f"weights-of-{rank}")
        return own(args, model, *rest)

    with (
        mock.patch("torchvision.models.get_model", get_model),
        mock.patch.object(chapter, "train_one_epoch", train_one_epoch),
    ):
        yield


@pytest.mark.parametrize("chapter", RANKED)
def test_one_rank_fetches_weights(
    crew: Crew, chapter: str, tmp_path: Path, fault_table: FaultTable
) -> None:
    """--pretrained on three ranks: one of them fetches, and all of them train on what it got."""
    argv = ["--synthetic", "6", "--image-size", "8", "--batch-size", "3", "--workers", "0"]
    argv += ["--epochs", "1", "--output-dir", "out", "--pretrained", "--arch", "resnet18"]
    change = partial(counting_fetches, folder=tmp_path)
    for answer in crew.run(call, chapter, argv, tmp_path, change, world_size=3):
        assert answer["exit"] is None and not answer["traceback"], answer
    assert [path.name for path in tmp_path.glob("fetched-by-*")] == ["fetched-by-0"]
    for rank in range(3):
        weights = load_state(tmp_path / f"weights-of-{rank}")
        assert len(weights) == 2 and all((weight == 7.0).all() for weight in weights), rank
    outcome = "1 of 3 ranks fetches, all 3 have the weights"
    fault_table("--pretrained on several ranks", chapter, outcome, None)


@contextlib.contextmanager
def without_network(chapter: ModuleType) -> Iterator[None]:
    """All ways by which Python, torchvision and torch.hub fetch a file raise."""
    own = socket.socket.connect

    def connect(self: socket.socket, address: object) -> None:
        # horovod's and torch's own rendezvous may be of Python, and on this machine.
        outside = isinstance(address, tuple) and address[0] not in ("127.0.0.1", "::1", "localhost")
        assert not outside, f"connects to {address}"
        own(self, address)

    refused = AssertionError("fetches something")
    with (
        mock.patch.object(socket.socket, "connect", connect),
        mock.patch.object(urllib.request, "urlopen", side_effect=refused),
        mock.patch("torch.hub.urlopen", side_effect=refused),
        mock.patch("torch.hub.download_url_to_file", side_effect=refused),
        mock.patch("torch.hub.load_state_dict_from_url", side_effect=refused),
        mock.patch("torchvision.models._api.load_state_dict_from_url", side_effect=refused),
    ):
        yield


@pytest.mark.parametrize("chapter", CHAPTERS)
def test_nothing_is_fetched(
    crew: Crew, chapter: str, tmp_path: Path, fault_table: FaultTable
) -> None:
    """Without --pretrained a run with a model of torchvision asks no other machine for anything."""
    argv = [*SMALL, "--epochs", "1", "--output-dir", "out"]
    ranks = ranks_of(chapter)
    for answer in crew.run(call, chapter, argv, tmp_path, without_network, world_size=ranks):
        assert answer["exit"] is None and not answer["traceback"], answer
    assert events(tmp_path / "out")[-1]["event"] == "end"
    fault_table("every download refused", chapter, "trains: it fetches nothing", None)


def listening(pids: list[int]) -> dict[int, set[str]]:
    """The addresses at which each of the processes accepts TCP connections, as /proc has them."""
    owners = {}
    for pid in pids:
        with contextlib.suppress(OSError):  # it may end while we look
            for entry in Path(f"/proc/{pid}/fd").iterdir():
                with contextlib.suppress(OSError):
                    if found := re.fullmatch(r"socket:\[(\d+)\]", os.readlink(entry)):
                        owners.setdefault(found[1], set()).add(pid)
    addresses: dict[int, set[str]] = {pid: set() for pid in pids}
    for table, family in (("tcp", socket.AF_INET), ("tcp6", socket.AF_INET6)):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            _, local, _, state, *_, inode = line.split()[:10]
            if state == "0A":
                words = re.findall("." * 8, local.split(":")[0])
                packed = b"".join(bytes.fromhex(word)[::-1] for word in words)
                for pid in owners.get(inode, ()):
                    addresses[pid].add(socket.inet_ntop(family, packed))
    return addresses


def while_it_trains(chapter: str, cwd: Path) -> tuple[dict[str, set[str]], float]:
    """Where a job of two ranks listens while it trains, by its kinds of processes: those that
    run the chapter, and torchrun. Gloo's own addresses are what GLOO_SOCKET_IFNAME says, here lo
    (otherwise those of the machine's name): this looks at the store in which ranks meet."""
    argv = [*SMALL, "--epochs", "1000", "--output-dir", "out"]
    began = time.monotonic()
    process = start(command_for(chapter, argv, 2), cwd, NO_GPU)
    try:
        deadline, log = time.monotonic() + 90, cwd / "out/metrics.jsonl"
        while not (log.exists() and '"train"' in log.read_text()):
            assert time.monotonic() < deadline and process.poll() is None, "it does not train"
            time.sleep(0.1)
        found: dict[str, set[str]] = {"torchrun": set(), "chapter": set()}
        for pid, addresses in listening(alive(process)).items():
            command = Path(f"/proc/{pid}/cmdline").read_text()
            found["torchrun" if "torch.distributed.run" in command else "chapter"] |= addresses
        return found, time.monotonic() - began
    finally:
        kill_all(process)
        process.communicate()


def test_spawned_job_listens_on_loopback(tmp_path: Path, fault_table: FaultTable) -> None:
    """03 on one machine: nobody from another one reaches the store in which its ranks meet."""
    found, seconds = while_it_trains(SPAWNS, tmp_path)
    assert found["chapter"] and found["chapter"] <= {"127.0.0.1", "::1"}, found
    outcome = "all its processes listen on loopback only"
    fault_table("who may reach the rendezvous", SPAWNS, outcome, seconds)


def test_who_listens_under_torchrun(tmp_path: Path, fault_table: FaultTable) -> None:
    """02: its own processes listen on loopback only. The store of torchrun --standalone listens on
    all interfaces, which no chapter can change: if a release of torch does, say so."""
    found, seconds = while_it_trains(FIRST, tmp_path)
    assert found["chapter"] and found["chapter"] <= {"127.0.0.1", "::1"}, found
    assert found["torchrun"] & {"0.0.0.0", "::"}, found
    outcome = "its processes listen on loopback only, torchrun's own store on all interfaces"
    fault_table("who may reach the rendezvous", FIRST, outcome, seconds)


@pytest.mark.parametrize("address", ["127.0.0.1", "0.0.0.0"])
def test_taken_port(crew: Crew, address: str, tmp_path: Path, fault_table: FaultTable) -> None:
    """03 is told to meet at a port that another program uses: it names the port, and starts no
    process."""
    with socket.create_server((address, 0)) as other:
        port = str(other.getsockname()[1])
        argv = [*BASE, "--epochs", "1", "--output-dir", "out", "--nprocs", "2"]
        argv += ["--master-port", port]
        (answer,) = crew.run(call_entry, SPAWNS, argv, tmp_path)
    line = one_line(answer, SPAWNS)
    assert_says(line, (rf"--master-port {port}\b", "in use"))
    assert not (tmp_path / "out").exists()
    outcome = shown(line).replace(port, "PORT")
    fault_table("--master-port that is in use", SPAWNS, outcome, None)
