"""Full disks, broken images and what else a run may meet: each ends as it is promised, and what was
seen goes into tests/FAULTS.md. (Mistakes of the command line: test_errors.py.)"""

import contextlib
import io
import os
import re
import subprocess
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from types import ModuleType
from unittest import mock

import numpy as np
import pytest
from crew import Crew
from fault_table import FaultTable
from harness import HOROVOD, load_state
from PIL import Image
from refusals import (
    HUB,
    RANKED,
    call,
    image_tree,
    last_words,
    runs_well,
)
from run_log import read_run
from tiers import table
from torch import nn
from with_tiny_model import TinyModel

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
def filled(chapter: ModuleType, phase: str, ballast: Path, free: int) -> Iterator[None]:
    """At the start of a phase of the second epoch the disk is full but for so many bytes."""
    own, calls = getattr(chapter, phase), []

    def second(*args: object) -> object:
        calls.append(args)
        if len(calls) == 2:
            with contextlib.suppress(OSError), ballast.open("wb", buffering=0) as file:
                while file.write(bytes(4096)):
                    pass
            os.truncate(ballast, ballast.stat().st_size - free)
        return own(*args)

    with mock.patch.object(chapter, phase, second):
        yield


FILLED = {"saving": ("evaluate", 256 << 10), "logging": ("train_one_epoch", 0)}


@pytest.mark.parametrize("during", FILLED)
def test_full_disk(crew: Crew, during: str, small_disk: Path, fault_table: FaultTable) -> None:
    """The run ends and says why, and the files of the first epoch are whole. With room again it
    goes on, overwrites what is half, and a log line that was cut off costs no other one."""
    out, ballast = small_disk / "out", small_disk / "ballast"
    # So many steps an epoch that the lines of the second one need another page of the disk.
    argv = [*BASE, "--synthetic", "80"]
    phase, free = FILLED[during]
    change = partial(filled, phase=phase, ballast=ballast, free=free)
    (answer,) = crew.run(call, HUB, argv, small_disk, change)
    # Of a save, torch speaks of a position in the file; the reason stands above.
    (line,) = {text for text in answer["exit"].splitlines() if text.startswith("OSError: ")}
    assert "No space left on device" in line and not answer["stderr"], answer
    assert ("save_checkpoint" in answer["exit"]) == (during == "saving"), answer
    assert load_state(out / "checkpoint.pt")["epoch"] == load_state(out / "best.pt")["epoch"] == 1

    ballast.unlink()
    runs_well(crew, HUB, [*argv, "--resume", "auto"], small_disk, nullcontext)
    seen = read_run(out)
    assert [row["resumed_from_step"] for row in seen.starts] == [0, 20] and seen.end
    assert [row["step"] for row in seen.train] == list(range(1, 41))
    assert load_state(out / "checkpoint.pt")["epoch"] == 2 and not list(out.glob("*.tmp"))
    outcome = f"{shown(line)}; the files before are whole, --resume auto goes on"
    fault_table(f"full disk while {during} (tmpfs)", HUB, outcome, None)


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
        ("truncated", "train", 0),
        ("sixteen_bits", "train", 0),
        ("truncated", "val", 1),
        ("failing disk", "train", 1),
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
    else:
        bad.symlink_to("/proc/self/mem")  # to read it is a real I/O error
    # One batch is the whole of train/, or the file might be in the rest that is dropped.
    batch = str(len(list(tmp_path.glob("data/train/*/*"))))
    argv = [*BASE, "--data", "data", "--workers", str(workers), "--batch-size", batch]
    (answer,) = crew.run(call, HUB, argv, tmp_path)
    assert str(bad.relative_to(tmp_path)) in last_words(answer)
    assert kind != "failing disk" or "Input/output error" in last_words(answer)
    assert not list(tmp_path.glob("out/*.pt*"))
    outcome = "the run ends, its last line has the path"
    fault_table(f"{kind} image in {split}/, --workers {workers}", HUB, outcome, None)


# ------------------------------------------------------------------------------------- the network


def counting_fetches(chapter: ModuleType, folder: Path) -> AbstractContextManager:
    """Who asks torchvision for weights leaves a file, and gets nothing but sevens."""

    def get_model(name: str, weights: object = None, num_classes: int = 1000) -> nn.Module:
        model = TinyModel(num_classes)
        if weights:
            (folder / f"fetched-by-{os.environ['CREW_RANK']}").touch()
            for parameter in model.parameters():
                nn.init.constant_(parameter, 7.0)
        return model

    return mock.patch("torchvision.models.get_model", get_model)


@pytest.mark.parametrize("chapter", table(RANKED, [HUB, HOROVOD]))
def test_one_rank_fetches_weights(
    crew: Crew, chapter: str, tmp_path: Path, fault_table: FaultTable
) -> None:
    """--pretrained on three ranks: one of them fetches, and the training starts from what it got.
    (All ranks take rank 0's: test_equivalence.py.)"""
    argv = [*BASE, "--synthetic", "8", "--batch-size", "3", "--pretrained", "--lr", "0"]
    runs_well(crew, chapter, argv, tmp_path, partial(counting_fetches, folder=tmp_path), ranks=3)
    assert [path.name for path in tmp_path.glob("fetched-by-*")] == ["fetched-by-0"]
    saved = load_state(tmp_path / "out/checkpoint.pt")["model"]
    assert (saved["conv.weight"] == 7.0).all()
    assert not (saved["head.weight"] == 7.0).any()  # of another number of classes
    fault_table("--pretrained on several ranks", chapter, "1 of 3 ranks fetches", None)
