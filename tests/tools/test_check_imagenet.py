"""tools/check_imagenet.py: every finding is found."""

import io
import os
import re
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import check_imagenet as tool
import pytest
from harness import TOOLS, run
from PIL import Image

# torchvision 0.29 announces that decode_image will move to TorchCodec; the chapters use it.
pytestmark = pytest.mark.filterwarnings("ignore:The image decoding and encoding:DeprecationWarning")

CLASSES = ("n01440764", "n01443537", "n02119789")

Capture = pytest.CaptureFixture[str]


def picture(mode: str = "RGB", kind: str = "JPEG", **options: object) -> bytes:
    """A noisy picture as the bytes of a file."""
    noise = Image.frombytes("RGB", (24, 16), os.urandom(24 * 16 * 3))
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


def hide(split: Path) -> None:
    """Class folders that are still archives."""
    shutil.rmtree(split)
    write(split / "a.tar")


# What is done to a sound tree, and the line that says so.
FOLDERS: dict[str, tuple[Callable[[Path], object], str]] = {
    "no val": (lambda root: shutil.rmtree(root / "val"), ".*/val is not a folder"),
    "flat val": (
        lambda root: [write(root / f"val/{number}.jpg") for number in range(30)],
        "val/ is flat: 30 images directly",
    ),
    "no class": (lambda root: hide(root / "train"), "Couldn't find any class folder .* unpack"),
    "val only": (lambda root: write(root / "val/b/x.jpg"), "class folders not in both"),
    "empty": (
        lambda root: [write(root / x / "n/x.gif", b"") for x in ("train", "val")],
        "classes without an image in train/",
    ),
    "loose": (lambda root: write(root / "train/x.jpg"), ".*/train has images outside"),
}


@pytest.mark.parametrize("case", FOLDERS)
def test_folders(tree: Path, capsys: Capture, case: str) -> None:
    change, pattern = FOLDERS[case]
    change(tree)
    code, lines = check(capsys, tree)
    assert any(re.match(f"error: {pattern}", line) for line in lines), lines
    assert code == 1 and lines[-1].startswith("not usable, ")
    assert sum(line.startswith("    ") for line in lines) <= 11, "10 details, and how many more"


# ---- files ----

# In torchvision 0.29 it kills the process: all others are checked nevertheless.
DAMAGED = bytearray(picture(kind="PNG"))
DAMAGED[len(DAMAGED) // 2] ^= 255
# What no chapter takes, and what is said of it.
BROKEN: dict[str, tuple[bytes, str]] = {
    "empty.JPEG": (b"", "the file is empty"),
    "text.JPEG": (b"<!DOCTYPE html>", "Unsupported image file"),
    "end.JPEG": (picture()[:-2], ""),
    "cut.png": (picture(kind="PNG")[:-40], ""),
    "bitmap.JPEG": (picture(kind="BMP"), "Only jpeg, png, webp and gif"),
    "frames.webp": (frames("WEBP"), ""),
    "gif.JPEG": (frames("GIF"), "not a single 8-bit image"),
    "damaged.png": (bytes(DAMAGED), ""),
    "damaged too.png": (bytes(DAMAGED), ""),
    "16 bits.png": (picture("I;16", "PNG"), "not a single 8-bit image"),
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
    wanted = {name: what for name, (_, what) in BROKEN.items()} | {"link.jpg": "No such file"}

    command = [sys.executable, TOOLS / "check_imagenet.py", tree, "--workers", 2, "--decode"]
    result = run(command, tmp_path)
    assert result.returncode == 1
    assert f"error: {len(wanted)} files that no chapter can read\n" in result.stdout
    for name, what in wanted.items():
        assert re.search(f"/{name} .*{what}", result.stdout), result.output
