"""Full disks, broken images and what else a run may meet: each ends as it is promised, and what was
seen goes into tests/FAULTS.md. (Mistakes of the command line: test_errors.py.)"""

import contextlib
import io
import os
import re
import subprocess
from collections.abc import Iterator
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from types import ModuleType
from unittest import mock

import numpy as np
import pytest
from crew import Crew
from fault_table import FaultTable
from harness import ROOT, load_state, rows
from PIL import Image
from refusals import (
    HUB,
    call,
    image_tree,
    last_words,
    one_line,
    runs_well,
)
from warm import run_warm

# torchvision 0.29 announces that decode_image will move to TorchCodec; the chapters use it.
pytestmark = pytest.mark.filterwarnings("ignore:The image decoding and encoding:DeprecationWarning")
BASE = ["--image-size", "32", "--batch-size", "4", "--workers", "0", "--print-freq", "1"]
BASE += ["--epochs", "2", "--output-dir", "out", "--arch", "squeezenet1_1"]  # without BatchNorm


def shown(line: str) -> str:
    """A line as the table shows it: without the folders of a test."""
    return re.sub(r"/(tmp|home)/\S*/", "", line)


# ---------------------------------------------------------------------------------------- the disk


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 24 MiB; a checkpoint takes 6."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=24m", "none", str(disk)]
    if os.geteuid() or subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("needs root, to mount a small disk")
    yield disk
    subprocess.run(["umount", "-l", str(disk)], check=True)


@contextlib.contextmanager
def filled(chapter: ModuleType, ballast: Path) -> Iterator[None]:
    """When the second epoch is evaluated the disk is full but for 256 KiB."""
    evaluate, calls = chapter.evaluate, []

    def second(*args: object) -> object:
        calls.append(args)
        if len(calls) == 2:
            with contextlib.suppress(OSError), ballast.open("wb", buffering=0) as file:
                while file.write(bytes(4096)):
                    pass
            os.truncate(ballast, ballast.stat().st_size - (256 << 10))
        return evaluate(*args)

    with mock.patch.object(chapter, "evaluate", second):
        yield


def test_full_disk(crew: Crew, small_disk: Path, fault_table: FaultTable) -> None:
    """The run ends and says why, the files of the first epoch are whole, and nothing is left of the
    new one. With room again it goes on."""
    out, ballast = small_disk / "out", small_disk / "ballast"
    argv = [*BASE, "--synthetic", "40"]
    (answer,) = crew.run(call, HUB, argv, small_disk, partial(filled, ballast=ballast))
    line = one_line(answer)
    says = r"error: cannot save out/(best|checkpoint).pt: \[Errno 28\] No space left on device"
    assert re.fullmatch(says, line), answer
    assert load_state(out / "checkpoint.pt")["epoch"] == load_state(out / "best.pt")["epoch"] == 1
    assert not list(out.glob("*.tmp"))

    ballast.unlink()
    runs_well(crew, HUB, [*argv, "--resume"], small_disk, nullcontext)
    assert [row["epoch"] for row in rows(out, "start")] == [0, 1]
    assert load_state(out / "checkpoint.pt")["epoch"] == 2
    outcome = f"{shown(line)}; the files before are whole, --resume goes on"
    fault_table("full disk while saving (tmpfs)", HUB, outcome, None)


def test_a_link_in_the_place_of_a_save(crew: Crew, tmp_path: Path) -> None:
    """The file that it leads to stays as it was, and the checkpoint is a file of its own."""
    (tmp_path / "out").mkdir()
    (tmp_path / "notes.txt").write_text("mine")
    (tmp_path / "out/checkpoint.tmp").symlink_to(tmp_path / "notes.txt")
    runs_well(crew, HUB, [*BASE, "--synthetic", "16"], tmp_path)
    assert (tmp_path / "notes.txt").read_text() == "mine"
    assert not (tmp_path / "out/checkpoint.pt").is_symlink()


def damage(path: Path, how: str) -> None:
    """What a disk or a transfer does to a file."""
    data = bytearray(path.read_bytes())
    middle = len(data) // 2
    if how == "flipped bits":
        data[middle : middle + 64] = bytes(byte ^ 1 for byte in data[middle : middle + 64])
    path.write_bytes({"empty": b"", "half": data[:middle]}.get(how, data))


@pytest.mark.parametrize("how", ["empty", "half", "flipped bits"])
def test_damaged_checkpoint(crew: Crew, how: str, tmp_path: Path, fault_table: FaultTable) -> None:
    """It is named, and nothing is saved over it; best.pt goes on in a new folder. (What else is no
    checkpoint: test_errors.py.)"""
    argv = [*BASE, "--synthetic", "16"]
    runs_well(crew, HUB, argv, tmp_path, nullcontext)
    path = tmp_path / "out/checkpoint.pt"
    damage(path, how)
    kept = path.read_bytes()
    argv += ["--epochs", "3"]
    (answer,) = crew.run(call, HUB, [*argv, "--resume"], tmp_path, nullcontext)
    line = one_line(answer)
    assert line.startswith("error: cannot load out/checkpoint.pt, "), line
    assert path.read_bytes() == kept
    again = [*argv, "--resume", "out/best.pt", "--output-dir", "new"]
    runs_well(crew, HUB, again, tmp_path, nullcontext)
    assert load_state(tmp_path / "new/checkpoint.pt")["epoch"] == 3
    fault_table(f"checkpoint.pt: {how}", HUB, f"{line}; best.pt goes on", None)


def call_by_rank(chapter: str, argvs: list[list[str]], cwd: Path) -> dict:
    """call, with words of its own for each rank."""
    return call(chapter, argvs[int(os.environ["CREW_RANK"])], cwd)


def test_started_differently(crew: Crew, tmp_path: Path, fault_table: FaultTable) -> None:
    """Two machines, and one line was edited. (Each flag, and images: test_errors.py.)"""
    argvs = [[*BASE, "--synthetic", "16", "--lr", lr] for lr in ("0.1", "0.2")]
    lines = {
        one_line(answer) for answer in crew.run(call_by_rank, HUB, argvs, tmp_path, world_size=2)
    }
    assert lines == {"error: ranks differ in --lr: 0.1 and 0.2"}
    fault_table("ranks started with --lr 0.1 and 0.2", HUB, lines.pop(), None)


# Chapter 02 with the tiny model, in a process that sees a /dev/shm of its own.
TINY_HUB = f"""
import ctypes, subprocess, sys
sys.path.insert(0, {str(ROOT / "tests/support")!r})
assert ctypes.CDLL(None, use_errno=True).unshare(0x20000) == 0, "CLONE_NEWNS"
subprocess.run(["mount", "--make-rprivate", "/"], check=True)
subprocess.run(["mount", "-t", "tmpfs", "-o", "size=32m", "none", "/dev/shm"], check=True)
from harness import load_chapter
from with_tiny_model import tiny_float32
chapter = load_chapter({HUB!r})
chapter.build_model = tiny_float32
chapter.main()
"""


def test_little_shared_memory(tmp_path: Path, fault_table: FaultTable) -> None:
    """A container of Docker has 64 MB of it by default, here a half for each of two ranks. Batches
    of 3 MB, of which each of 4 workers holds two: training fills 24 MB, and the validation set must
    take none meanwhile."""
    if os.geteuid() or subprocess.run(["unshare", "-m", "true"]).returncode:
        pytest.skip("needs root, to mount a small /dev/shm")
    folder, picture = tmp_path / "data", tmp_path / "picture.jpg"
    Image.effect_noise((128, 128), 50).convert("RGB").save(picture)
    for split in ("train", "val"):
        for name in "ab":
            (folder / split / name).mkdir(parents=True)
            for number in range(640):
                (folder / split / name / f"{number}.jpg").symlink_to(picture)
    (tmp_path / "tiny.py").write_text(TINY_HUB)
    words = ["tiny.py", "--data", "data", "--image-size", "128", "--batch-size", "128"]
    words += ["--workers", "4", "--epochs", "1", "--output-dir", "out"]
    codes, _, errors = run_warm(words, tmp_path, 2, cwd=tmp_path)
    assert codes == [0, 0], errors
    assert [row["images"] for row in rows(tmp_path / "out", "eval")] == [1280]
    fault_table(
        "/dev/shm of 32 MB for each of 2 ranks, 4 workers", HUB, "trains and evaluates", None
    )


# -------------------------------------------------------------------------------------- the images


def encoded(image: Image.Image, kind: str) -> bytes:
    file = io.BytesIO()
    image.save(file, kind)
    return file.getvalue()


# More of what load_image refuses or takes: test_check_imagenet.py.
UNREADABLE = {
    "truncated": encoded(Image.effect_noise((64, 64), 50), "JPEG")[:1000],
    "sixteen_bits": encoded(Image.fromarray(np.full((16, 16), 9999, np.uint16)), "PNG"),
}


@pytest.mark.parametrize(
    ("kind", "split", "workers"),
    [
        ("sixteen_bits", "train", 0),
        ("truncated", "val", 1),
        ("failing disk", "train", 1),
        ("pipe", "train", 0),
    ],
)
def test_unreadable_image(
    crew: Crew, kind: str, split: str, workers: int, tmp_path: Path, fault_table: FaultTable
) -> None:
    """The last line holds the path of the file, also when a loader's worker met it. (load_image is
    the same everywhere.)"""
    image_tree(tmp_path / "data", "ab", "ab")
    bad = tmp_path / "data" / split / "a/bad.jpg"
    if kind in UNREADABLE:
        bad.write_bytes(UNREADABLE[kind])
    elif kind == "pipe":
        os.mkfifo(bad)
    else:
        bad.symlink_to("/proc/self/mem")  # to read it is a real I/O error
    # One batch is the whole of train/, or the file might be in the rest that is dropped.
    batch = str(len(list(tmp_path.glob("data/train/*/*"))))
    argv = [*BASE, "--data", "data", "--workers", str(workers), "--batch-size", batch]
    (answer,) = crew.run(call, HUB, argv, tmp_path)
    assert str(bad.relative_to(tmp_path)) in last_words(answer)
    assert kind != "failing disk" or "Input/output error" in last_words(answer)
    saved = ["checkpoint.pt"] if split == "val" else []  # before the evaluation
    assert [path.name for path in tmp_path.glob("out/*.pt*")] == saved
    outcome = "the run ends, its last line has the path"
    fault_table(f"{kind} image in {split}/, --workers {workers}", HUB, outcome, None)
