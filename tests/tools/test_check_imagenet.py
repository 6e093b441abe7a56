"""tools/check_imagenet.py: every finding is found, and moving loses and overwrites nothing."""

from __future__ import annotations

import io
import os
import re
import shutil
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import check_imagenet as tool
import pytest
from harness import load_chapter
from PIL import Image
from torchvision.datasets import ImageFolder
from torchvision.datasets.folder import IMG_EXTENSIONS
from warm import CONTEXT, start_warm

pytestmark = [
    # torchvision 0.29 announces that decode_image will move to TorchCodec; the chapters use it.
    pytest.mark.filterwarnings("ignore:The image decoding and encoding:DeprecationWarning"),
    # The tool's workers come from one server, which imports torch once.
    pytest.mark.xdist_group("check_imagenet"),
]

CLASSES = ("n01440764", "n01443537", "n02119789")
VAL_NAMES = [f"ILSVRC2012_val_{number:08d}.JPEG" for number in range(1, 7)]
# Of the six images above, in order; and the official ids of their classes.
VAL_LABELS = [CLASSES[index] for index in (2, 0, 1, 1, 0, 2)]
VAL_IDS = [1, 2, 3, 3, 2, 1]
ROWS = list(zip(VAL_NAMES, VAL_LABELS, strict=True))
LAST, LABEL = ROWS[-1]

Check = Callable[..., tuple[int, list[str]]]
Patch = pytest.MonkeyPatch


@pytest.fixture(scope="module", autouse=True)
def warm_workers() -> None:
    """The tool's workers are forked from the tests' server, started here as `warm` starts it."""
    first = CONTEXT.Process(target=os.getpid)
    start_warm(first)
    first.join()


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


@pytest.fixture
def flat(tree: Path) -> Path:
    """A tree whose val/ is as it comes out of the official archive."""
    shutil.rmtree(tree / "val")
    for name in VAL_NAMES:
        write(tree / "val" / name)
    return tree


@pytest.fixture
def check(capsys: pytest.CaptureFixture[str]) -> Check:
    """Runs the tool's main; returns the exit code and the lines on stdout."""

    def call(*argv: object) -> tuple[int, list[str]]:
        capsys.readouterr()
        code = tool.main([*map(str, argv), "--workers", "1"])
        return code, capsys.readouterr().out.splitlines()

    return call


def snapshot(root: Path) -> dict[str, bytes]:
    """Every file's content below `root`."""
    files = [path for path in sorted(root.rglob("*")) if path.is_file()]
    return {str(path.relative_to(root)): path.read_bytes() for path in files}


# ---- folders ----


def test_sound_tree(tree: Path, check: Check) -> None:
    counts = [
        "train: 3 classes, 9 images; a class has 2 to 4, median 3",
        "val: 3 classes, 3 images; a class has 1 to 1, median 1",
    ]
    usable = "usable: 3 classes, 9 training and 3 validation images "
    depth = "(headers checked; --decode reads all of it)"
    assert check(tree) == (0, [*counts, usable + depth])
    assert check(tree, "--decode") == (0, [*counts, usable + "(every image decoded)"])


def test_lists_what_imagefolder_lists(tree: Path, tmp_path: Path) -> None:
    linked = tmp_path / "elsewhere" / "n09999999"
    write(linked / "deep" / "er" / "x.jpg")
    write(linked / "y.PNG", picture(kind="PNG"))
    write(linked / "ignored.gif")
    (tree / "train" / linked.name).symlink_to(linked, target_is_directory=True)
    assert tool.IMAGE_EXTENSIONS == IMG_EXTENSIONS
    classes, others = tool.list_split(tree / "train")
    images = [path for paths in classes.values() for path in paths]
    assert sorted(images) == sorted(path for path, _ in ImageFolder(tree / "train").samples)
    assert len(images) == 11 and others == [str(tree / "train" / linked.name / "ignored.gif")]


def hide(split: Path) -> None:
    """Class folders that are still archives."""
    shutil.rmtree(split)
    write(split / "a.tar")


# What is done to a sound tree, and the line that says so.
FOLDERS: dict[str, tuple[Callable[[Path], object], str]] = {
    "no val": (lambda root: shutil.rmtree(root / "val"), "error: .*/val is not a folder"),
    "flat val": (lambda root: write(root / "val/x.jpg"), "error: val/ is flat: 1 image directly"),
    "no class": (lambda root: hide(root / "train"), "error: .*/train has no class .* unpack"),
    "val only": (lambda root: write(root / "val/b/x.jpg"), "error: class folders not in both"),
    "empty": (
        lambda root: [write(root / x / "n/x.gif", b"") for x in ("train", "val")],
        "error: classes without an image in train/",
    ),
    "loose": (lambda root: write(root / "train/x.jpg"), "note: ImageFolder passes over 1 file"),
}


@pytest.mark.parametrize("case", FOLDERS)
def test_folders(tree: Path, check: Check, case: str) -> None:
    change, pattern = FOLDERS[case]
    change(tree)
    code, lines = check(tree)
    assert any(re.match(pattern, line) for line in lines), lines
    usable = pattern.startswith("note")
    assert code == (0 if usable else 1)
    assert lines[-1].startswith("usable: " if usable else "not usable: ")


# ---- files ----

HALF, SHAPE = "cut short, damaged or no image", "not one picture of 3 x 8 bits"
# What no chapter takes, and what is said of it.
BROKEN: dict[str, tuple[bytes, str]] = {
    "empty.JPEG": (b"", "empty (0 bytes)"),
    "text.JPEG": (b"<!DOCTYPE html>", HALF),
    "header.JPEG": (picture()[:100], HALF),
    "end.JPEG": (picture()[:-2], HALF),
    "cut.png": (picture(kind="PNG")[:-40], HALF),
    "cut.webp": (picture(kind="WEBP")[:-40], HALF),
    "bitmap.JPEG": (picture(kind="BMP"), "decode_image takes only"),
    "16 bits.png": (picture("I;16", "PNG"), SHAPE),
    "gif.JPEG": (frames("GIF"), SHAPE),
    "frames.webp": (frames("WEBP"), SHAPE),
}
# What looks odd, and is decoded all the same.
USABLE = {
    "cmyk.jpg": picture("CMYK"),
    "png.JPEG": picture("P", "PNG"),
    "frames.png": frames("PNG"),
    "mpo.jpg": frames("MPO"),
    "more.jpg": picture() + b"appended",
}


@pytest.mark.parametrize("depth", [[], ["--decode"]], ids=["headers", "decode"])
def test_broken_files(tree: Path, tmp_path: Path, check: Check, depth: list[str]) -> None:
    """What the chapters refuse is found without --decode already; nothing else is blamed."""
    folder = tree / "train" / CLASSES[1]
    load_image = load_chapter("02_distributed").load_image
    for name, content in USABLE.items():
        assert load_image(str(write(folder / name, content))).shape[0] == 3
    for name, (content, _) in BROKEN.items():
        with pytest.raises(ValueError):
            load_image(str(write(folder / name, content)))
    (folder / "link.jpg").symlink_to("nowhere")
    wanted = {name: what for name, (_, what) in BROKEN.items()} | {"link.jpg": "cannot be read"}

    code, lines = check(tree, *depth, "--list-bad", tmp_path / "bad.txt")
    said, heading = {}, ""
    for line in lines:
        heading = line if line.startswith("error: ") else heading
        if line.startswith("    "):
            said[line.removeprefix(f"    {folder}/").split(" (")[0]] = heading
    assert code == 1 and said.keys() == wanted.keys()
    assert all(what in said[name] for name, what in wanted.items()), said
    listed = (tmp_path / "bad.txt").read_text().splitlines()
    assert sorted(listed) == sorted(str(folder / name) for name in wanted)


def test_pixels_decide_with_decode(tree: Path, check: Check) -> None:
    """Damage that no header shows; in torchvision 0.29 it kills the process."""
    damaged = bytearray(picture(kind="PNG"))
    damaged[len(damaged) // 2] ^= 255
    bad = write(tree / "train" / CLASSES[0] / "damaged.png", bytes(damaged))
    assert check(tree)[0] == 0
    code, lines = check(tree, "--decode")
    assert code == 1 and lines[-1] == "not usable: 1 error"
    assert lines[-2].split(" (")[0] == f"    {bad}"


def dies_of_some(path: str, decode: bool) -> tool.Found | None:
    """In place of check_file."""
    if os.path.basename(path).startswith("deadly"):
        os.kill(os.getpid(), signal.SIGKILL)
    return tool.check_file(path, decode)


def test_files_that_kill_their_worker_are_named(
    tree: Path, check: Check, monkeypatch: Patch
) -> None:
    """Two of more files than are sent at once; all others are checked nevertheless."""
    monkeypatch.setattr(tool, "BATCH", 4)
    monkeypatch.setattr(tool, "check_file", dies_of_some)
    folder = tree / "train" / CLASSES[0]
    deadly = [write(folder / f"deadly{number}.jpg") for number in range(2)]
    for number in range(20):
        write(folder / f"empty{number}.jpg", b"")
    code, lines = check(tree)
    assert code == 1 and lines[-1] == "not usable: 2 errors"
    assert "error: 20 files: empty (0 bytes)" in lines and "    ... and 10 more" in lines
    first = lines.index(f"error: 2 files: {tool.KINDS['crash']}")
    assert lines[first + 1 : -1] == [f"    {path}" for path in deadly]


def test_workers_that_cannot_start_blame_no_file(
    tree: Path, check: Check, monkeypatch: Patch
) -> None:
    monkeypatch.setattr(tool, "prepare_worker", sys.exit)
    code, lines = check(tree, "--move-bad", tree / "aside")
    assert code == 1 and lines[-1].startswith("error: A process in the process pool")
    assert not (tree / "aside").exists()


def test_a_broken_torchvision_blames_no_file(tmp_path: Path, monkeypatch: Patch) -> None:
    monkeypatch.setattr("torchvision.io.image._has_image_ops", lambda: False)
    with pytest.raises(ImportError, match="Couldn't load the image extension"):
        tool.check_file(str(write(tmp_path / "x.jpg")), decode=True)


# ---- --move-bad ----


def test_move_bad(tree: Path, tmp_path: Path, check: Check) -> None:
    """It moves the bad ones alone, overwrites nothing, and goes on when it is run again."""
    bad = [f"train/{CLASSES[0]}/empty.jpg", f"val/{CLASSES[1]}/sub/śmieć.jpg"]
    for name in bad:
        write(tree / name, b"")
    # Where reading fails, the file may be sound and the disk at fault: it stays.
    unreadable = tree / "train" / CLASSES[0] / "loop.jpg"
    unreadable.symlink_to("loop.jpg")
    aside, before = tmp_path / "aside", snapshot(tree)
    kept = write(aside / bad[0], b"precious")
    code, lines = check(tree, "--move-bad", aside)
    assert code == 1 and f"    {tree / bad[0]}: {kept} exists" in lines
    assert snapshot(aside) == {bad[0]: b"precious", bad[1]: b""}
    assert snapshot(tree) == {name: data for name, data in before.items() if name != bad[1]}

    kept.unlink()
    assert check(tree, "--move-bad", aside)[0] == 1
    assert snapshot(aside) == dict.fromkeys(bad, b"") and unreadable.is_symlink()
    unreadable.unlink()
    assert check(tree)[0] == 0


# ---- --sort-val ----

LISTS = {
    "kaggle": "ImageId,PredictionString\n"
    + "".join(f"{name[:-5]},{c} 10 1 499 272 {c} 0 0 9 9 \n" for name, c in ROWS),
    "devkit": "".join(f"{number}\n" for number in VAL_IDS),
    "own": "".join(f"{name} {label}\n" for name, label in ROWS),
}


def assert_sorted(root: Path, before: dict[str, bytes]) -> None:
    """Every image of VAL_NAMES in its class folder, unchanged; nothing else has changed."""
    goal = dict(before)
    for name, label in ROWS:
        goal[f"val/{label}/{name}"] = goal.pop(f"val/{name}")
    assert snapshot(root) == goal


def write_list(path: Path, text: str) -> Path:
    return write(path / "truth", text.encode())


@pytest.fixture
def scipy(monkeypatch: Patch) -> None:
    """The devkit's meta.mat as scipy reads it: the last row is no class, as it has children."""
    wnids = dict(zip(VAL_IDS, VAL_LABELS, strict=True)) | {4: "n00001740"}
    synsets = [(float(i), wnid, "", "", 2.0 * (i == 4)) for i, wnid in sorted(wnids.items())]
    module = SimpleNamespace(loadmat=lambda path, squeeze_me: {"synsets": synsets})
    monkeypatch.setitem(sys.modules, "scipy", SimpleNamespace(io=module))
    monkeypatch.setitem(sys.modules, "scipy.io", module)


@pytest.mark.parametrize("form", LISTS)
def test_sort_val(flat: Path, tmp_path: Path, check: Check, scipy: None, form: str) -> None:
    truth = write_list(tmp_path, LISTS[form])
    before = snapshot(flat)
    assert check(flat, "--sort-val", truth) == (0, ["moved 6 files of 6"])
    assert_sorted(flat, before)
    assert check(flat, "--sort-val", truth) == (0, ["moved 0 files of 0"])
    assert_sorted(flat, before)


def test_sort_val_goes_on_where_it_stopped(flat: Path, tmp_path: Path, check: Check) -> None:
    truth = write_list(tmp_path, LISTS["own"])
    before, rename, calls = snapshot(flat), os.rename, []

    def stops(source: str, target: str) -> None:
        calls.append(source)
        if len(calls) > 3:
            raise KeyboardInterrupt
        rename(source, target)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "rename", stops)
        assert check(flat, "--sort-val", truth)[0] == 130
    assert sorted(path.name for path in (flat / "val").glob("*.JPEG")) == VAL_NAMES[3:]
    assert check(flat, "--sort-val", truth) == (0, ["moved 3 files of 3"])
    assert_sorted(flat, before)


OTHERS = LISTS["own"].removesuffix(f"{LAST} {LABEL}\n")
# A list, and what is said of it.
WRONG_LISTS = {
    "unknown class": (f"{OTHERS}{LAST} n09999999", "without a folder in train/"),
    "unlisted": (OTHERS, "images in val/ that the list has not"),
    "not there": (LISTS["own"] + f"x.jpg {LABEL}", "not where they should be"),
    "two classes": (LISTS["own"] + f"{LAST} {CLASSES[0]}", "listed above with another class"),
    "no class": (OTHERS + LAST, "truth:6: not `image class`"),
}


@pytest.mark.parametrize("case", [*WRONG_LISTS, "twice"])
def test_sort_val_refuses(flat: Path, tmp_path: Path, check: Check, case: str) -> None:
    """Whatever is wrong with the list or with val/: it says so and moves nothing."""
    text, words = WRONG_LISTS.get(case, (LISTS["own"], "not where they should be"))
    if case == "twice":
        write(flat / "val" / LABEL / LAST, b"precious")
    before = snapshot(flat)
    code, lines = check(flat, "--sort-val", write_list(tmp_path, text))
    assert code == 1 and snapshot(flat) == before
    assert any(line.startswith("error: ") and words in line for line in lines), lines


def test_sort_val_overwrites_nothing_that_appears_meanwhile(
    flat: Path, tmp_path: Path, check: Check, monkeypatch: Patch
) -> None:
    target = flat / "val" / LABEL / LAST
    monkeypatch.setattr(tool, "tqdm", lambda moves, **_: write(target, b"precious") and moves)
    code, lines = check(flat, "--sort-val", write_list(tmp_path, LISTS["own"]))
    assert code == 1 and lines[-1] == "moved 5 files of 6"
    assert target.read_bytes() == b"precious" and (flat / "val" / LAST).exists()


# ---- the command line ----

ARGUMENTS = [
    ("--workers 0", "--workers must be"),
    ("--sort-val file --decode", "--sort-val only sorts"),
    ("--list-bad file", "name a new file"),
    ("--move-bad val/bad", "lies in val/"),
]


@pytest.mark.parametrize(("flags", "words"), ARGUMENTS)
def test_bad_arguments(tree: Path, capsys, monkeypatch: Patch, flags: str, words: str) -> None:
    monkeypatch.chdir(tree)
    write(tree / "file", b"precious")
    before = snapshot(tree)
    with pytest.raises(SystemExit) as stop:
        tool.main([".", *flags.split()])
    assert stop.value.code == 2 and snapshot(tree) == before
    assert words in capsys.readouterr().err
