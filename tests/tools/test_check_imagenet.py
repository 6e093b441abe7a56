"""tools/check_imagenet.py: what a training would pass over in silence is found."""

import io
import os
import re
import sys
from collections.abc import Callable
from pathlib import Path

import check_imagenet as tool
import pytest
from harness import TOOLS, alive, kill_with_workers, run, start
from PIL import Image
from torchvision.datasets import ImageFolder

# torchvision 0.29 announces that decode_image will move to TorchCodec; the chapters use it.
pytestmark = pytest.mark.filterwarnings("ignore:The image decoding and encoding:DeprecationWarning")

CLASSES = ("n01440764", "n01443537", "n02119789")

Capture = pytest.CaptureFixture[str]


def picture(
    mode: str = "RGB", kind: str = "JPEG", size: tuple = (24, 16), **options: object
) -> bytes:
    """A noisy picture as the bytes of a file."""
    noise = Image.frombytes("RGB", size, os.urandom(size[0] * size[1] * 3))
    file = io.BytesIO()
    noise.convert(mode).save(file, kind, **options)
    return file.getvalue()


def frames(kind: str) -> bytes:
    """Three pictures in one file."""
    others = [Image.new("RGB", (24, 16), colour) for colour in ("red", "blue")]
    return picture(kind=kind, save_all=True, append_images=others)


def write(path: Path, content: bytes | None = None) -> Path:
    """A new file, a picture if nothing else is given."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(picture() if content is None else content)
    return path


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A sound tree: 3 classes, 2 + 3 + 4 training and 3 x 1 validation images."""
    for count, label in enumerate(CLASSES, 2):
        for number in range(count):
            write(tmp_path / "tree" / "train" / label / f"{number}.JPEG")
        write(tmp_path / "tree" / "val" / label / "val.JPEG")
    return tmp_path / "tree"


def check(told: Capture, *argv: object) -> tuple[int, list[str]]:
    """The tool's exit code, and its lines."""
    code = tool.main([*map(str, argv), "--workers", "2"])
    return code, told.readouterr().out.splitlines()


# ---- folders ----


def test_sound_tree(tree: Path, capsys: Capture) -> None:
    counts = [
        "train: 3 classes, 9 images; a class has 2 to 4, median 3",
        "val: 3 classes, 3 images; a class has 1 to 1, median 1",
    ]
    assert check(capsys, tree) == (0, [*counts, "usable: --decode reads every image"])
    assert check(capsys, tree, "--decode") == (0, [*counts, "usable: every image decoded"])


A, B, C = CLASSES


def deeper(root: Path) -> None:
    """Unpacked once too often: train/train/n01440764."""
    for split in (root / "train", root / "val"):
        split.rename(root / "moved")
        split.mkdir()
        (root / "moved").rename(split / split.name)


# What is done to a sound tree, the line that says so, and what stands below it. (Folders or
# classes that are not there end a training, too: test_errors.py.)
FOLDERS: dict[str, tuple[Callable[[Path], object], str, str]] = {
    "loop": (
        lambda root: (root / "train" / A / "back").symlink_to(root / "train"),
        "folders of .*/train that links show twice", rf".*/{A}/back is .*/train$",
    ),
    "above": (
        lambda root: (root / "val" / A / "up").symlink_to("/"),
        "folders of .*/val that links show twice", rf".*/{A}/up is /$",
    ),
    "one class": (deeper, "one class only in .*/train", "train$"),
    "merged": (
        lambda root: write(root / "train" / A / "dogs/x.jpg"),
        "classes made of several folders", rf"{A}: .*/{A}, .*/{A}/dogs$",
    ),
    "passed over": (
        lambda root: [write(root / "train" / A / f"{n}.GIF") for n in (1, 2)],
        "files whose suffix is none of an image", r"2 '.GIF', such as .*/\d.GIF$",
    ),
    "hidden": (
        lambda root: write(root / "val" / B / ".ipynb_checkpoints/x.jpg"),
        "folders that a system has made", f".*/{B}/.ipynb_checkpoints$",
    ),
    "of macOS": (lambda root: write(root / "val" / B / "._x.jpg"), "notes of macOS", ".*/._x.jpg"),
    "tiff": (lambda root: write(root / "val" / B / "x.TIF"), "images that no chapter", ".*/x.TIF"),
}  # fmt: skip


@pytest.mark.parametrize("case", FOLDERS)
def test_folders(tree: Path, capsys: Capture, case: str) -> None:
    change, pattern, detail = FOLDERS[case]
    change(tree)
    code, lines = check(capsys, tree)
    (row,) = [n for n, line in enumerate(lines) if re.match(f"error: {pattern}", line)]
    assert re.match(f"    {detail}", lines[row + 1]), lines
    assert code == 1 and lines[-1].startswith("not usable, ")


def test_of_what_training_takes(tree: Path, capsys: Capture) -> None:
    """ImageFolder finds as many; links to folders elsewhere, folders in classes and what else
    lies there are no faults."""
    (tree / "train" / A).rename(tree / "elsewhere")
    (tree / "train" / A).symlink_to(tree / "elsewhere")
    (tree / "train" / B).rename(tree / "images")
    (tree / "images").rename((tree / "train" / B).mkdir() or tree / "train" / B / "images")
    write(tree / "train" / B / "boxes.txt", b"")
    write(tree / "train" / B / ".DS_Store", b"")
    code, lines = check(capsys, tree)
    taken = ImageFolder(tree / "train")
    assert code == 0 and lines[0].startswith(f"train: 3 classes, {len(taken)} images"), lines


@pytest.mark.proof
def test_killed(tree: Path, tmp_path: Path) -> None:
    """As the toy ImageNet's, its workers end with it, forks though they are."""
    large = write(tree / "train" / A / "large.png", picture(kind="PNG", size=(1000, 1000)))
    for number in range(3000):
        large.with_name(f"{number}.png").hardlink_to(large)
    command = [sys.executable, TOOLS / "check_imagenet.py", tree, "--workers", 2, "--decode"]
    work = start(command, tmp_path)
    kill_with_workers(work, lambda: len(alive(work)) == 3)


def test_too_few_workers(tree: Path, capsys: Capture) -> None:
    with pytest.raises(SystemExit, match="2"):
        tool.main([str(tree), "--decode", "--workers", "0"])
    assert "--workers 0 is too small: use 1 or more" in capsys.readouterr().err


# ---- files ----

# In torchvision 0.29 it kills the process: all others are checked nevertheless.
DAMAGED = bytearray(picture(kind="PNG"))
DAMAGED[len(DAMAGED) // 2] ^= 255
# What no chapter takes, and what is said of it.
BROKEN: dict[str, tuple[bytes, str]] = {
    "empty.JPEG": (b"", r"buffer length \(0\)"),
    "text.JPEG": (b"<!DOCTYPE html>", "Unsupported image file"),
    "end.JPEG": (picture()[:-2], ""),
    "cut.png": (picture(kind="PNG")[:-40], ""),
    "bitmap.JPEG": (picture(kind="BMP"), "Only jpeg, png, webp and gif"),
    "frames.webp": (frames("WEBP"), ""),
    "gif.JPEG": (frames("GIF"), "not a single 8-bit image: mode P, frames 3"),
    "damaged.png": (bytes(DAMAGED), ""),
    "damaged too.png": (bytes(DAMAGED), ""),
    "16 bits.png": (picture("I;16", "PNG"), "not a single 8-bit image: mode I;16, frames 1"),
    "line.png": (picture(kind="PNG", size=(1, 2000)), "1 x 2000 pixels: validation enlarges"),
}
# What looks odd, and is decoded all the same.
USABLE = {"cmyk.jpg": picture("CMYK"), "png.JPEG": picture("P", "PNG"), "mpo.jpg": frames("MPO")}


def test_broken_files(tree: Path, tmp_path: Path) -> None:
    """A real launch. What the chapters refuse is found, and nothing else is blamed."""
    folder = tree / "train" / CLASSES[1]
    for name, content in USABLE.items():
        image = tool.load_image(str(write(folder / name, content)))
        assert len(image) == 3, name
    for name, (content, _) in BROKEN.items():
        write(folder / name, content)
    (folder / "link.jpg").symlink_to("nowhere")
    os.mkfifo(folder / "pipe.jpg")  # to read it would wait for ever
    write(folder / "\x1b[2J\u202e\n\x9b31m.jpg", b"")
    known = next((tree / "val" / CLASSES[0]).iterdir())
    write(folder / "known.jpg", known.read_bytes())
    wanted = {name: what for name, (_, what) in BROKEN.items()}
    wanted |= {"link.jpg": "not a file", "pipe.jpg": "not a file"}
    # A terminal that printed this name would be cleared, and write from right to left.
    wanted |= {re.escape(r"\x1b[2J\u202e\n\x9b31m.jpg"): ""}

    command = [sys.executable, TOOLS / "check_imagenet.py", tree, "--workers", 2, "--decode"]
    result = run(command, tmp_path)
    assert result.returncode == 1
    assert f"error: {len(wanted)} files that no chapter can read\n" in result.stdout
    both = rf"error: images of val/ that train/ has as well.*\n +{known} is {folder}/known.jpg\n"
    assert re.search(both, result.stdout), result.output
    assert all(line.isprintable() for line in result.output.splitlines())
    for name, what in wanted.items():
        assert re.search(f"/{name} .*{what}", result.stdout), result.output
