"""Full disks, odd images, files and networks that are not to be trusted: each ends as it is
promised, and what was seen goes into tests/FAULTS.md. (Mistakes of the command line:
test_errors.py.)"""

from __future__ import annotations

import contextlib
import math
import os
import re
import resource
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
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
    HOROVOD,
    alive,
    command_for,
    events,
    kill_all,
    load_chapter,
    load_state,
    rows,
    start,
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
    last_words,
    ranks_of,
    runs_well,
    snapshot,
    tiny,
)
from run_log import read_run
from tiers import table
from torch import nn
from warm import run_warm

# torchvision 0.29 announces that decode_image will move to TorchCodec; the chapters use it.
pytestmark = pytest.mark.filterwarnings("ignore:The image decoding and encoding:DeprecationWarning")
# One epoch is 2 steps of 4 images, one validation 2 images.
BASE = ["--image-size", "8", "--batch-size", "4", "--workers", "0", "--print-freq", "1"]
BASE += ["--synthetic", "8", "--epochs", "2", "--output-dir", "out"]
# A model of torchvision: without BatchNorm, and a checkpoint of 6 MB.
SMALL = [*BASE, "--arch", "squeezenet1_1", "--image-size", "32"]


def shown(line: str) -> str:
    """A line as the table shows it: without the folders of a test."""
    return re.sub(r"/(tmp|home)/\S*/", "", line)


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


def fill(ballast: Path, free: int) -> None:
    """Write a file until its disk is full, then give back so many bytes."""
    with contextlib.suppress(OSError), ballast.open("wb", buffering=0) as file:
        while file.write(bytes(4096)):
            pass
    os.truncate(ballast, ballast.stat().st_size - free)


def limit(size: int | None) -> None:
    """As `ulimit -f` does it, which some clusters set; None: to what it may be at most."""
    most = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
    resource.setrlimit(resource.RLIMIT_FSIZE, (most if size is None else size, most))


@contextlib.contextmanager
def spoiled(
    chapter: ModuleType, spoil: Callable, phase: str = "evaluate", model: Callable = nullcontext
) -> Iterator[None]:
    """Rank 0 meets a fault at the start of a phase of the second epoch."""
    own, calls = getattr(chapter, phase), []

    def second(*args: object) -> object:
        calls.append(args)
        if len(calls) == 2 and os.environ["CREW_RANK"] == "0":
            spoil()
        return own(*args)

    with model(chapter), mock.patch.object(chapter, phase, second):
        try:
            yield
        finally:
            limit(None)


def fails_to_save(
    crew: Crew, chapter: str, folder: Path, spoil: Callable, mend: Callable = list
) -> str:
    """The second epoch cannot be saved: torch says so, the files of the first epoch are whole;
    mended, the run goes on and overwrites the half file. Returns the last line."""
    out = folder / "out"
    change, ranks = partial(spoiled, spoil=spoil), ranks_of(chapter)
    answer = crew.run(call, chapter, SMALL, folder, change, world_size=ranks)[0]
    # torch speaks of a position in the file; the reason stands above.
    assert "save_checkpoint" in answer["exit"] and not answer["stderr"], answer
    (line,) = {text for text in answer["exit"].splitlines() if text.startswith("OSError: ")}
    for name in ("checkpoint.pt", "best.pt"):
        assert load_state(out / name)["epoch"] == 1

    mend()
    runs_well(crew, chapter, [*SMALL, "--resume", "auto"], folder, nullcontext, ranks=ranks)
    assert rows(out, "start")[-1]["resumed_from_step"] == 2
    assert load_state(out / "checkpoint.pt")["epoch"] == 2 and not list(out.glob("*.tmp"))
    return line


def test_full_disk(crew: Crew, small_disk: Path, fault_table: FaultTable) -> None:
    """The disk is full when the second epoch is saved."""
    ballast = small_disk / "ballast"
    line = fails_to_save(crew, HUB, small_disk, partial(fill, ballast, 256 << 10), ballast.unlink)
    outcome = f"{shown(line)}; the files before are whole, nothing half is left"
    fault_table("full disk while saving (tmpfs)", HUB, outcome, None)


def test_file_size_limit(crew: Crew, tmp_path: Path, fault_table: FaultTable) -> None:
    """A limit on the size of files ends a run the same way."""
    line = fails_to_save(crew, ALONE, tmp_path, partial(limit, 1 << 20))
    outcome = f"{shown(line)}; the files before are whole, nothing half is left"
    fault_table("limit on the size of a file (ulimit -f)", ALONE, outcome, None)


def test_full_disk_for_the_log(crew: Crew, small_disk: Path, fault_table: FaultTable) -> None:
    """The disk becomes full between two saves: the run ends, says why, and the checkpoint is
    whole. With room again, the line that is cut off in metrics.jsonl costs no other one."""
    out, ballast = small_disk / "out", small_disk / "ballast"
    # So many steps an epoch that the lines of the second one need another page of the disk.
    argv = [*BASE, "--synthetic", "80"]
    spoil = partial(fill, ballast, 0)
    change = partial(spoiled, spoil=spoil, phase="train_one_epoch", model=tiny)
    (answer,) = crew.run(call, ALONE, argv, small_disk, change)
    line = last_words(answer)
    assert_says(line, "No space left on device")
    assert load_state(out / "checkpoint.pt")["epoch"] == load_state(out / "best.pt")["epoch"] == 1
    fault_table("full disk while logging (tmpfs)", ALONE, shown(line), None)

    ballast.unlink()
    runs_well(crew, ALONE, [*argv, "--resume", "auto"], small_disk)
    seen = read_run(out)
    assert [row["resumed_from_step"] for row in seen.starts] == [0, 20] and seen.end
    assert [row["step"] for row in seen.train] == list(range(1, 41))


DIES = """
import os, signal, torch
from harness import load_chapter
from refusals import Tiny
chapter, own, calls = load_chapter("01_dataparallel"), torch.save, []
chapter.build_model = lambda arch, classes, pretrained: Tiny(classes)
def save(state, file):
    calls.append(state)
    if len(calls) <= 2:  # best.pt and checkpoint.pt of the first epoch
        return own(state, file)
    file.write(b"half a checkpoint")
    file.flush()
    os.kill(os.getpid(), signal.SIGKILL)
torch.save = save
chapter.main()
"""


def test_killed_while_saving(crew: Crew, tmp_path: Path, fault_table: FaultTable) -> None:
    """What is left is half a file under another name, and the checkpoint before it: the next start
    goes on from there and uses up that half."""
    (tmp_path / "dies.py").write_text(DIES)
    statuses, _, errors = run_warm([tmp_path / "dies.py", *BASE], tmp_path, cwd=tmp_path)
    out = tmp_path / "out"
    assert statuses == [-9] and "Traceback" not in errors[0], errors
    assert len(list(out.glob("*.tmp*"))) == 1
    assert load_state(out / "checkpoint.pt")["epoch"] == load_state(out / "best.pt")["epoch"] == 1
    runs_well(crew, ALONE, [*BASE, "--resume", "auto"], tmp_path)
    assert [row["resumed_from_step"] for row in rows(out, "start")] == [0, 2]
    assert load_state(out / "checkpoint.pt")["epoch"] == 2 and events(out)[-1]["event"] == "end"
    assert {path.name for path in out.iterdir()} == {"checkpoint.pt", "best.pt", "metrics.jsonl"}
    outcome = "the checkpoint before it is whole; --resume auto goes on and leaves no *.tmp"
    fault_table("SIGKILL in the middle of torch.save", ALONE, outcome, None)


def test_read_only_disk(crew: Crew, small_disk: Path, fault_table: FaultTable) -> None:
    """An --output-dir that nobody can write to, root neither, is refused before any training."""
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    argv = [*BASE, "--output-dir", str(small_disk / "new/out")]
    (answer,) = crew.run(call, HUB, argv, small_disk)
    line = last_words(answer)
    assert_says(line, "Read-only file system")
    fault_table("--output-dir on a read-only disk", HUB, shown(line), None)


# ---------------------------------------------------------------------------------------- the data

COLOUR = (200, 60, 30)
GRAY = (98, 98, 98)  # its luminance


def plain(mode: str = "RGB", size: tuple[int, int] = (40, 30)) -> Image.Image:
    return Image.new("RGB", size, COLOUR).convert(mode)


# The name of the file below a split, the picture, and the colour that is decoded.
USABLE: dict[str, tuple[str, Image.Image, tuple]] = {
    "CMYK JPEG": ("a/cmyk.jpg", plain("CMYK"), COLOUR),
    "grayscale JPEG": ("a/gray.jpg", plain("L"), GRAY),
    "RGBA PNG": ("a/rgba.png", plain("RGBA"), COLOUR),
    "JPEG of 1x1 pixel": ("a/one.jpg", plain(size=(1, 1)), COLOUR),
    "JPEG of 6000x6000 pixels": ("a/large.jpg", plain(size=(6000, 6000)), COLOUR),
    "Chinese names": ("中文/图.jpg", plain(), COLOUR),
}
DATA = [*BASE[:8], "--data", "data", "--epochs", "1", "--output-dir", "out"]


def test_odd_image_is_used(
    crew: Crew, tmp_path: Path, capsys: pytest.CaptureFixture[str], fault_table: FaultTable
) -> None:
    """Odd but sound pictures are decoded to their colours, trained on and evaluated; the checker
    has no error to tell of them."""
    for name, picture, colour in USABLE.values():
        for split in ("train", "val"):
            path = tmp_path / "data" / split / name
            path.parent.mkdir(parents=True, exist_ok=True)
            picture.save(path)
        image = load_chapter(HUB).load_image(str(path)).float()
        assert (image.mean((1, 2)) - torch.tensor(colour)).abs().max() < 2, name
    runs_well(crew, HUB, [*DATA, "--batch-size", "6"], tmp_path, ranks=2)
    (trained,), (evaluated,) = rows(tmp_path / "out", "train"), rows(tmp_path / "out", "eval")
    assert trained["step"] == 1 and evaluated["images"] == len(USABLE) == 6
    assert math.isfinite(trained["loss"]) and math.isfinite(evaluated["loss"])
    assert check_imagenet.main([str(tmp_path / "data"), "--decode"]) == 0
    assert "error: " not in capsys.readouterr().out
    for kind in USABLE:
        outcome = "decoded, trains and evaluates among 6 images, loss finite"
        fault_table(f"image: {kind}", HUB, outcome, None)


def test_unusable_image_is_named(
    crew: Crew, tmp_path: Path, capsys: pytest.CaptureFixture[str], fault_table: FaultTable
) -> None:
    """What is not one picture ends the run in one line with its path, and the checker names it.
    (Files that are no pictures at all: test_errors.py.)"""
    image_tree(tmp_path / "data", "ab", "ab")
    bad = tmp_path / "data/train/a/x.jpg"
    # Three pictures, as a picture has three channels.
    others = [Image.new("RGB", (40, 30), colour) for colour in ((0, 255, 0), (0, 0, 255))]
    plain().save(bad, "GIF", save_all=True, append_images=others)
    (answer,) = crew.run(call, HUB, [*DATA, "--batch-size", "9"], tmp_path)
    assert_says(last_words(answer), "not a single 8-bit image: data/train/a/x.jpg")
    assert not list(tmp_path.glob("out/*.pt*"))
    assert check_imagenet.main([str(tmp_path / "data"), "--decode"]) == 1
    assert str(bad) in capsys.readouterr().out
    outcome = "refused with its path; check_imagenet.py names it"
    fault_table("image: animated GIF named .jpg", HUB, outcome, None)


# ------------------------------------------------------------------------------------------- trust


@contextlib.contextmanager
def counting_fetches(chapter: ModuleType, folder: Path) -> Iterator[None]:
    """Who asks torchvision for weights leaves a file, and each rank its weights, when it trains."""
    rank = os.environ["CREW_RANK"]

    def get_model(name: str, weights: object = None, num_classes: int = 10) -> nn.Module:
        model = Tiny(num_classes)
        if weights:
            (folder / f"fetched-by-{rank}").touch()
            for parameter in model.parameters():
                parameter.data.fill_(7.0)
        return model

    def train_one_epoch(args: object, model: nn.Module, *rest: object) -> None:
        torch.save([p.detach().clone() for p in model.parameters()], folder / f"weights-of-{rank}")

    with (
        mock.patch("torchvision.models.get_model", get_model),
        mock.patch.object(chapter, "train_one_epoch", train_one_epoch),
    ):
        yield


@pytest.mark.parametrize("chapter", table(RANKED, [HUB, HOROVOD]))
def test_one_rank_fetches_weights(
    crew: Crew, chapter: str, tmp_path: Path, fault_table: FaultTable
) -> None:
    """--pretrained on three ranks: one of them fetches, and all of them train on what it got."""
    argv = [*BASE, "--batch-size", "3", "--epochs", "1", "--pretrained", "--arch", "resnet18"]
    change = partial(counting_fetches, folder=tmp_path)
    runs_well(crew, chapter, argv, tmp_path, change, ranks=3)
    assert [path.name for path in tmp_path.glob("fetched-by-*")] == ["fetched-by-0"]
    for rank in range(3):
        weights = load_state(tmp_path / f"weights-of-{rank}")
        assert len(weights) == 2 and all((weight == 7.0).all() for weight in weights), rank
    outcome = "1 of 3 ranks fetches, all 3 have the weights"
    fault_table("--pretrained on several ranks", chapter, outcome, None)


def test_pickle_that_runs_code(crew: Crew, tmp_path: Path, fault_table: FaultTable) -> None:
    """It is not run, and --resume auto does not begin afresh over it."""
    (tmp_path / "out").mkdir()
    torch.save({"bomb": Bomb()}, tmp_path / "out/checkpoint.pt")
    before = snapshot(tmp_path)
    (answer,) = crew.run(call, HUB, [*BASE, "--resume", "auto"], tmp_path)
    assert "is not a checkpoint" in answer["exit"] and "Unpickling" in answer["exit"], answer
    assert snapshot(tmp_path) == before
    outcome = "refused by torch.load, not run, not changed"
    fault_table("pickle that runs code as checkpoint.pt", HUB, outcome, None)


# As /proc/net has them: 127.0.0.1, ::ffff:127.0.0.1 and ::1; 0.0.0.0 and ::.
LOOPBACK = {"0100007F", "0000000000000000FFFF00000100007F", "0" * 24 + "01000000"}
EVERYWHERE = {"0" * 8, "0" * 32}


def listening(pids: list[int]) -> set[str]:
    """The addresses at which processes accept TCP connections."""
    sockets = set()
    for pid in pids:
        for entry in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(FileNotFoundError):  # it may be closed while we look
                sockets.add(os.readlink(entry))
    tables = Path("/proc/net/tcp").read_text() + Path("/proc/net/tcp6").read_text()
    rows = [line.split() for line in tables.splitlines()]
    own = [row for row in rows if f"socket:[{row[9]}]" in sockets]
    return {row[1].split(":")[0] for row in own if row[3] == "0A"}


@pytest.mark.proof
@pytest.mark.parametrize("chapter", [SPAWNS, HUB])
def test_who_listens(chapter: str, tmp_path: Path, fault_table: FaultTable) -> None:
    """While two ranks train: their own processes on loopback only (gloo's addresses are what
    GLOO_SOCKET_IFNAME says, here lo). The store of torchrun --standalone listens on all interfaces,
    which no chapter can change: if a release of torch does, say so."""
    began, log = time.monotonic(), tmp_path / "out/metrics.jsonl"
    command = command_for(chapter, [*SMALL, "--epochs", "1000"], 2)
    process = start(command, tmp_path, {"CUDA_VISIBLE_DEVICES": ""})
    try:
        while not (log.exists() and '"train"' in log.read_text()):
            assert time.monotonic() < began + 90 and process.poll() is None, "it does not train"
            time.sleep(0.1)
        pids = alive(process)
        torchrun = [p for p in pids if "distributed.run" in Path(f"/proc/{p}/cmdline").read_text()]
        found = listening([pid for pid in pids if pid not in torchrun])
        store = listening(torchrun)
    finally:
        kill_all(process)
        process.communicate()
    assert found and found <= LOOPBACK, found
    outcome = "all its processes listen on loopback only"
    if chapter == HUB:
        assert store & EVERYWHERE, store
        outcome = "its processes listen on loopback only, torchrun's own store on all interfaces"
    fault_table("who may reach the rendezvous", chapter, outcome, time.monotonic() - began)


def test_taken_port(crew: Crew, tmp_path: Path, fault_table: FaultTable) -> None:
    """03 is told to meet at a port that another program uses: Python says so, and no process is
    started."""
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = str(other.getsockname()[1])
        argv = [*SMALL, "--nprocs", "2", "--master-port", port]
        (answer,) = crew.run(call_entry, SPAWNS, argv, tmp_path)
    line = last_words(answer)
    assert "Address already in use" in line
    assert not list(tmp_path.iterdir())
    fault_table("--master-port that is in use", SPAWNS, shown(line).replace(port, "PORT"), None)
