"""tools/check_imagenet.py: every finding is found, sorting val/ is safe, nothing is overwritten."""

import faulthandler
import importlib.util
import io
import multiprocessing
import os
import re
import shutil
import signal
import struct
import subprocess
import sys
import tarfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision.datasets import ImageFolder
from torchvision.datasets.folder import IMG_EXTENSIONS
from torchvision.io import ImageReadMode, decode_image

TOOL = Path(__file__).resolve().parents[2] / "tools" / "check_imagenet.py"
sys.path.insert(0, str(TOOL.parent))
import check_imagenet as tool  # noqa: E402

# torchvision 0.29 announces that decode_image will move to TorchCodec; the chapters use it.
pytestmark = pytest.mark.filterwarnings("ignore:The image decoding and encoding:DeprecationWarning")

CLASSES = ("n01440764", "n01443537", "n02119789")
VAL_NAMES = [f"ILSVRC2012_val_{number:08d}.JPEG" for number in range(1, 7)]
# Of the six images above, in order; the ids are those of META.
VAL_LABELS = [CLASSES[index] for index in (2, 0, 1, 1, 0, 2)]
VAL_IDS = [1, 2, 3, 3, 2, 1]
META = {1: CLASSES[2], 2: CLASSES[0], 3: CLASSES[1]}

Check = Callable[..., tuple[int, list[str]]]


@pytest.fixture(scope="module", autouse=True)
def torchvision_in_the_workers() -> None:
    """Workers come from one server process: with torch in it they start at once."""
    multiprocessing.get_context("forkserver").set_forkserver_preload(
        ["torchvision.io", "tqdm", "PIL.Image"]
    )


def picture(
    mode: str = "RGB", size: tuple[int, int] = (24, 16), kind: str = "JPEG", **options: object
) -> bytes:
    """A noisy picture as the bytes of a file."""
    noise = Image.frombytes("RGB", size, os.urandom(size[0] * size[1] * 3))
    file = io.BytesIO()
    noise.convert(mode).save(file, kind, **options)
    return file.getvalue()


def write(path: Path, content: bytes | None = None) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(picture() if content is None else content)
    return path


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A sound tree: 3 classes, 2 + 3 + 4 training and 3 x 1 validation images."""
    root = tmp_path / "imagenet"
    for count, label in enumerate(CLASSES, 2):
        for number in range(count):
            write(root / "train" / label / f"{label}_{number}.JPEG")
        write(root / "val" / label / f"{label}_val.JPEG")
    return root


@pytest.fixture
def flat(tmp_path: Path) -> Path:
    """A tree whose val/ is as it comes out of the official archive."""
    root = tmp_path / "flat"
    for label in CLASSES:
        write(root / "train" / label / "0.JPEG")
    for name in VAL_NAMES:
        write(root / "val" / name)
    return root


@pytest.fixture
def check(capsys: pytest.CaptureFixture[str]) -> Check:
    """Runs the tool's main; returns the exit code and the lines on stdout."""

    def run(*argv: object) -> tuple[int, list[str]]:
        capsys.readouterr()
        code = tool.main([*map(str, argv)] + ([] if "--sort-val" in argv else ["--workers", "1"]))
        return code, capsys.readouterr().out.splitlines()

    return run


def findings(lines: list[str], level: str = "error") -> list[str]:
    return [line for line in lines if line.startswith(f"{level}: ")]


def snapshot(root: Path) -> dict[str, bytes | str]:
    """Every file's content and every link's target below `root`."""
    return {
        str(path.relative_to(root)): os.readlink(path) if path.is_symlink() else path.read_bytes()
        for path in sorted(root.rglob("*"))
        if path.is_symlink() or path.is_file()
    }


def chapters_take(path: Path) -> bool:
    """The rule of every chapter's load_image."""
    try:
        image = decode_image(str(path), mode=ImageReadMode.RGB)
    except (RuntimeError, OSError):
        return False
    return image.dtype == torch.uint8 and image.ndim == 3 and image.shape[0] == 3


# --------------------------------------------------------------------------------- sound trees


def test_sound_tree(tree: Path, check: Check) -> None:
    code, lines = check(tree)
    assert code == 0
    assert lines == [
        "train: 3 classes, 9 images; a class has 2 to 4, median 3",
        "val: 3 classes, 3 images; a class has 1 to 1, median 1",
        "usable: 3 classes, 9 training and 3 validation images "
        "(headers checked; --decode reads all of it)",
    ]


def test_sound_tree_decoded_by_two_workers(tree: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert tool.main([str(tree), "--decode", "--workers", "2"]) == 0
    last = capsys.readouterr().out.splitlines()[-1]
    assert last.endswith("9 training and 3 validation images (every image decoded)")


def test_lists_what_imagefolder_lists(tree: Path, tmp_path: Path, check: Check) -> None:
    linked = tmp_path / "elsewhere" / "n09999999"
    write(linked / "deep" / "er" / "x.jpg")
    write(linked / "y.PNG", picture(kind="PNG"))
    write(linked / "ignored.gif")
    write(tmp_path / "further" / "z.jpg")
    (linked / "deep" / "link").symlink_to(tmp_path / "further", target_is_directory=True)
    for split in ("train", "val"):
        (tree / split / linked.name).symlink_to(linked, target_is_directory=True)
    write(tree / "train" / CLASSES[0] / "ünïcode 猫.webp", picture(kind="WEBP"))

    assert tool.IMAGE_EXTENSIONS == IMG_EXTENSIONS
    split = tool.list_split(str(tree / "train"))
    assert sorted(split.images()) == sorted(path for path, _ in ImageFolder(tree / "train").samples)
    assert len(split.images()) == 13
    code, lines = check(tree)
    assert code == 0 and lines[-1].startswith("usable: 4 classes, 13 training and 6 validation")


def test_command_line_with_names_that_the_terminal_cannot_show(tmp_path: Path) -> None:
    root = tmp_path / "bildnetz 图像 ü"
    for split in ("train", "val"):
        write(root / split / "Füchse" / "ok.jpg")
    bad = write(root / "train" / "Füchse" / "śmieć.jpg", b"no image")
    env = {**os.environ, "PYTHONIOENCODING": "ascii"}
    command = [sys.executable, str(TOOL), str(root), "--workers", "2"]

    run = subprocess.run(command, env=env, capture_output=True, text=True, timeout=120)
    assert run.returncode == 1 and "Traceback" not in run.stderr
    assert run.stdout.splitlines()[-1] == "not usable: 1 error"
    assert r"\u015bmie\u0107.jpg (begins with b'no image')" in run.stdout

    bad.unlink()
    run = subprocess.run(command, env=env, capture_output=True, timeout=120)
    assert run.returncode == 0 and not run.stderr
    assert run.stdout.startswith(b"train: 1 class, 1 image;")


# ------------------------------------------------------------------------------------- folders


def test_dir_missing_or_a_file(tmp_path: Path, check: Check) -> None:
    code, lines = check(tmp_path / "nowhere")
    assert code == 1 and lines[-1] == "not usable: 1 error"
    assert f"{tmp_path / 'nowhere'} does not exist" in findings(lines)[0]
    code, lines = check(write(tmp_path / "file"))
    assert code == 1 and "is not a folder" in findings(lines)[0]


@pytest.mark.parametrize("split", ["train", "val"])
def test_split_missing(tree: Path, check: Check, split: str) -> None:
    shutil.rmtree(tree / split)
    code, lines = check(tree)
    assert code == 1 and len(findings(lines)) == 1
    assert f"{tree / split} does not exist" in findings(lines)[0]


def test_split_is_a_file(tree: Path, check: Check) -> None:
    shutil.rmtree(tree / "val")
    write(tree / "val")
    code, lines = check(tree)
    assert code == 1 and f"{tree / 'val'} is not a folder" in findings(lines)[0]


def test_tree_near_the_folder_named(tree: Path, tmp_path: Path, check: Check) -> None:
    kaggle = tmp_path / "kaggle"
    (kaggle / "ILSVRC" / "Data").mkdir(parents=True)
    shutil.copytree(tree, kaggle / "ILSVRC" / "Data" / "CLS-LOC")
    cases = [
        (tmp_path, tree),
        (tree / "train", tree),
        (tree / "train" / CLASSES[0], tree),
        (kaggle, kaggle / "ILSVRC" / "Data" / "CLS-LOC"),
    ]
    for given, meant in cases:
        code, lines = check(given)
        assert code == 1 and len(findings(lines)) == 1
        assert f"{meant} has: name that folder" in findings(lines)[0]


def pack(archive: Path, folder: Path) -> None:
    """The content of `folder`, as the official archives hold it."""
    with tarfile.open(archive, "w") as tar:
        for path in sorted(folder.iterdir()):
            tar.add(path, path.name)
    shutil.rmtree(folder)


def test_packed_archives_and_the_commands_printed(tree: Path, tmp_path: Path, check: Check) -> None:
    before = snapshot(tree)
    root = tmp_path / "a folder's name"
    for label in CLASSES:
        pack(tree / "train" / f"{label}.tar", tree / "train" / label)
    root.mkdir()
    pack(root / "ILSVRC2012_img_train.tar", tree / "train")
    pack(root / "ILSVRC2012_img_val.tar", tree / "val")
    shutil.rmtree(tree)

    for errors in (2, 1):
        code, lines = check(root)
        assert code == 1 and len(findings(lines)) == errors
        for line in findings(lines):
            command = line.split(" still packed: ")[1]
            subprocess.run(["bash", "-c", command], check=True, timeout=60)
    code, lines = check(root)
    assert code == 0 and not findings(lines, "note")
    after = snapshot(root)
    assert before == {name: data for name, data in after.items() if not name.endswith(".tar")}


def test_archives_inside_the_splits(tree: Path, check: Check) -> None:
    write(tree / "val" / "ILSVRC2012_img_val.tar", b"-")
    spare = write(tree / "train" / f"{CLASSES[0]}.tar", b"-")
    code, lines = check(tree)
    assert code == 0
    notes = findings(lines, "note")
    assert len(notes) == 2
    assert "1 class archive in train/ beside the unpacked folders" in notes[0]
    assert "ILSVRC2012_img_val.tar lies among the classes" in notes[1]
    assert f"    {spare}" in lines

    shutil.rmtree(tree / "train" / CLASSES[0])
    code, lines = check(tree)
    assert code == 1
    assert "1 class archive in train/ still packed: for t in" in findings(lines)[0]

    shutil.rmtree(tree / "val")
    archive = write(tree / "val" / "ILSVRC2012_img_val.tar", b"-")
    code, lines = check(tree)
    assert any(f"{archive} is still packed: mkdir -p" in line for line in findings(lines))


def test_different_classes(tree: Path, check: Check) -> None:
    for number in range(13):
        write(tree / "train" / f"extra{number:02d}" / "x.jpg")
    write(tree / "val" / "stranger" / "x.jpg")
    code, lines = check(tree)
    assert code == 1 and len(findings(lines)) == 2
    assert "13 class folders in train/ and not in val/" in findings(lines)[0]
    assert findings(lines)[0].endswith(
        "extra00, "
        + ", ".join(f"extra{number:02d}" for number in range(1, 10))
        + ", ... and 3 more"
    )
    assert "1 class folder in val/ and not in train/" in findings(lines)[1]
    assert findings(lines)[1].endswith(": stranger")


def test_empty_class(tree: Path, check: Check) -> None:
    for path in (tree / "train" / CLASSES[1]).iterdir():
        path.rename(path.with_suffix(".gif"))
    code, lines = check(tree)
    assert code == 1 and len(findings(lines)) == 1
    assert "1 class without an image in train/" in findings(lines)[0]
    assert findings(lines)[0].endswith(f": {CLASSES[1]}")
    note = findings(lines, "note")[0]
    assert "3 files in train/ ignored by ImageFolder" in note and "(3 .gif)" in note
    assert f"    {tree / 'train' / CLASSES[1] / CLASSES[1]}_0.gif" in lines


def test_flat_and_half_sorted_val(flat: Path, check: Check) -> None:
    code, lines = check(flat)
    assert code == 1 and len(findings(lines)) == 1
    assert "val/ is flat: 6 images directly in it and 0 class folders" in findings(lines)[0]
    assert f"python tools/check_imagenet.py {flat} --sort-val FILE" in findings(lines)[0]
    for label in CLASSES:
        write(flat / "val" / label / "x.jpg")
    code, lines = check(flat)
    assert code == 1 and len(findings(lines)) == 1
    assert "val/ is half sorted: 6 images directly in it and 3 class" in findings(lines)[0]


def test_no_class_folders(tmp_path: Path, check: Check) -> None:
    (tmp_path / "train").mkdir()
    write(tmp_path / "val" / "a" / "x.jpg")
    code, lines = check(tmp_path)
    assert code == 1 and f"{tmp_path / 'train'} has no class folders" in findings(lines)[0]
    loose = write(tmp_path / "train" / "x.jpg")
    code, lines = check(tmp_path)
    assert code == 1 and "images directly in train/" in findings(lines)[0]
    assert f"    {loose}" in lines


def test_odd_folders_are_notes(tree: Path, check: Check) -> None:
    loose = write(tree / "train" / "loose.jpg")
    for split in ("train", "val"):
        write(tree / split / ".cache" / "x.jpg")
    code, lines = check(tree)
    assert code == 0
    notes = findings(lines, "note")
    assert "images directly in train/, which ImageFolder ignores" in notes[0]
    assert [note.split(":")[1] for note in notes[1:]] == [
        " hidden folders are classes for ImageFolder"
    ] * 2
    assert f"    {loose}" in lines and f"    {tree / 'val' / '.cache'}" in lines


def test_links_that_lead_nowhere_or_in_a_circle(tree: Path, check: Check) -> None:
    dangling = tree / "train" / "n04000000"
    dangling.symlink_to(tree / "gone")
    loop = tree / "val" / CLASSES[0] / "loop"
    loop.symlink_to(tree / "val")
    code, lines = check(tree)
    assert code == 1 and len(findings(lines)) == 2
    assert "links in train/ to nothing" in findings(lines)[0] and f"    {dangling}" in lines
    assert "links to a folder that they lie in" in findings(lines)[1] and f"    {loop}" in lines


def test_folder_that_cannot_be_listed(
    tree: Path, check: Check, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed = str(tree / "train" / CLASSES[0])
    walk = os.walk

    def denied(top: str, onerror: Callable[[OSError], None], **options: bool) -> Iterator:
        if top == closed:
            onerror(PermissionError(13, "Permission denied", top))
            return iter(())
        return walk(top, onerror=onerror, **options)

    # Not with chmod: root may list every folder.
    monkeypatch.setattr(os, "walk", denied)
    code, lines = check(tree)
    assert code == 1 and f"    {closed} (Permission denied)" in lines


def test_counts_that_are_not_imagenet_1k(capsys: pytest.CaptureFixture[str]) -> None:
    def notes(train: list[int], val: list[int]) -> list[str]:
        splits = {
            name: tool.Split(name, {f"n{i}": ["x"] * size for i, size in enumerate(sizes)})
            for name, sizes in (("train", train), ("val", val))
        }
        tool.show_counts(splits, tool.Report())
        return findings(capsys.readouterr().out.splitlines(), "note")

    official = [1281] * 999 + [1281167 - 999 * 1281]
    assert notes(official, [50] * 1000) == []
    assert notes([1] * 999, [1] * 999) == []
    (fewer,) = notes([*official[:-1], official[-1] - 7], [50] * 1000)
    assert "train/ has 1,000 classes but 7 fewer images than ImageNet-1k's 1,281,167" in fewer
    (more,) = notes(official, [50] * 999 + [51])
    assert "1 more images than ImageNet-1k's 50,000" in more
    (uneven,) = notes(official, [50] * 998 + [49, 51])
    assert "val/ has not 50 images in every class" in uneven


# --------------------------------------------------------------------------------------- files


def damaged_header() -> bytes:
    """A JPEG cut in the middle of its header, where Pillow gives up too."""
    return picture()[:100]


def animation(kind: str) -> bytes:
    more = [Image.new("RGB", (24, 16), colour) for colour in ("red", "blue")]
    return picture(kind=kind, save_all=True, append_images=more)


def grey16() -> bytes:
    file = io.BytesIO()
    Image.new("I;16", (24, 16), 4000).save(file, "PNG")
    return file.getvalue()


@pytest.mark.parametrize(
    ("name", "make", "words"),
    [
        ("x.JPEG", lambda: b"", "empty (0 bytes)"),
        ("x.JPEG", lambda: b"<!DOCTYPE html>", "no image inside"),
        ("._x.JPEG", lambda: b"\0\5\26\7", "no image inside"),
        ("x.bmp", lambda: picture(kind="BMP"), "decode_image takes only"),
        ("x.ppm", lambda: picture(kind="PPM"), "decode_image takes only"),
        ("x.JPEG", lambda: picture(kind="TIFF"), "decode_image takes only"),
        ("x.png", grey16, "16 bits a channel"),
        ("x.JPEG", lambda: animation("GIF"), "animated"),
        ("x.webp", lambda: animation("WEBP"), "animated"),
        ("x.JPEG", damaged_header, "cut short or damaged"),
        ("x.JPEG", lambda: picture()[:-2], "cut short or damaged"),
        ("x.JPEG", lambda: picture(progressive=True)[:-60], "cut short or damaged"),
        ("x.png", lambda: picture(kind="PNG")[:-40], "cut short or damaged"),
        ("x.webp", lambda: picture(kind="WEBP")[:-40], "cut short or damaged"),
        ("x.JPEG", lambda: picture(kind="GIF")[:-40], "cut short or damaged"),
    ],
)
def test_unusable_file(
    tree: Path, check: Check, name: str, make: Callable[[], bytes], words: str
) -> None:
    bad = write(tree / "train" / CLASSES[1] / name, make())
    assert not chapters_take(bad)
    code, lines = check(tree)
    assert code == 1 and lines[-1] == "not usable: 1 error"
    assert findings(lines)[0].startswith(f"error: 1 file: {words}")
    listed = [line for line in lines if line.startswith("    ")]
    assert len(listed) == 1 and listed[0].split(" (")[0] == f"    {bad}"


def test_unusable_things_that_are_no_files(tree: Path, check: Check) -> None:
    folder = tree / "train" / CLASSES[0]
    dangling, pipe = folder / "dangling.jpg", folder / "pipe.jpg"
    dangling.symlink_to("gone.jpg")
    os.mkfifo(pipe)
    latin = os.fsencode(folder) + b"/caf\xe9.jpg"
    os.rename(folder / f"{CLASSES[0]}_0.JPEG", latin)
    code, lines = check(tree)
    assert code == 1 and len(findings(lines)) == 3
    first = lines.index(findings(lines)[0])
    assert [line.split("; ")[0] for line in lines[first:-1]] == [
        "error: 1 file: links to nothing",
        f"    {dangling} (-> gone.jpg)",
        "error: 1 file: neither file nor link to one",
        f"    {pipe}",
        "error: 1 file: name is not UTF-8, so torchvision cannot open it",
        f"    {folder}/caf\\xe9.jpg",
    ]
    with pytest.raises(RuntimeError):
        decode_image(os.fsdecode(latin))


def test_file_that_cannot_be_read_is_not_moved(
    tree: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = str(tree / "train" / CLASSES[0] / f"{CLASSES[0]}_0.JPEG")

    def failing_disk(*_: object) -> None:
        raise OSError(5, "Input/output error", path)

    monkeypatch.setattr("builtins.open", failing_disk)
    found = tool.check_file(path, False, 1e9)
    monkeypatch.undo()
    assert found == [tool.Found(path, "denied", "Input/output error")]
    report = tool.Report()
    bad = tool.report_files(found, report)
    problems = list(tool.move_bad(bad, tree, tree / "bad", False, {}))
    assert report.errors == 1 and len(problems) == 1 and "stays" in problems[0]
    assert os.path.exists(path) and not (tree / "bad").exists()
    assert "cannot be read" in capsys.readouterr().out


def test_absurd_size(tree: Path, check: Check) -> None:
    big = write(tree / "val" / CLASSES[0] / "big.jpg", picture(size=(60, 50)))
    code, lines = check(tree, "--max-megapixels", "0.002999")
    assert code == 1 and "absurdly large" in findings(lines)[0]
    assert f"    {big} (60x50)" in lines
    assert check(tree, "--max-megapixels", "0.003")[0] == 0

    # So large that Pillow would refuse to open it; no pixels are needed to say so.
    bomb = bytearray(picture(kind="PNG"))
    bomb[16:24] = struct.pack(">II", 20000, 30000)
    bomb[29:33] = struct.pack(">I", zlib.crc32(bomb[12:29]))
    big = write(tree / "val" / CLASSES[0] / "bomb.png", bytes(bomb))
    code, lines = check(tree, "--decode")
    assert code == 1 and "absurdly large" in findings(lines)[0]
    assert f"    {big} (20000x30000)" in lines


@pytest.mark.parametrize(
    ("name", "make", "words", "detail"),
    [
        ("x.JPEG", lambda: picture("L"), "not RGB (1 L)", "L"),
        ("x.JPEG", lambda: picture("CMYK"), "not RGB (1 CMYK)", "CMYK"),
        ("x.png", lambda: picture("RGBA", kind="PNG"), "not RGB (1 RGBA)", "RGBA"),
        ("x.png", lambda: picture("P", kind="PNG"), "not RGB (1 P)", "P"),
        ("x.JPEG", lambda: picture(kind="PNG"), "another format than", "PNG"),
        ("x.tif", lambda: picture(), "another format than", "JPEG"),
        ("x.png", lambda: animation("PNG"), "several pictures", "PNG"),
        ("x.JPEG", lambda: animation("MPO"), "several pictures", "MPO"),
    ],
)
def test_odd_but_usable_file(
    tree: Path, check: Check, name: str, make: Callable[[], bytes], words: str, detail: str
) -> None:
    odd = write(tree / "val" / CLASSES[1] / name, make())
    assert chapters_take(odd)
    code, lines = check(tree)
    assert code == 0 and lines[-1].startswith("usable: ")
    (note,) = findings(lines, "note")
    assert note.startswith(f"note: 1 file: {words}")
    assert f"    {odd} ({detail})" in lines


def test_bytes_after_the_end_are_no_finding(tree: Path, check: Check) -> None:
    path = write(tree / "val" / CLASSES[1] / "x.jpg", picture() + b"appended")
    assert chapters_take(path)
    code, lines = check(tree)
    assert code == 0 and not findings(lines, "note")


def test_long_lists_are_shortened(tree: Path, check: Check) -> None:
    for number in range(14):
        write(tree / "train" / CLASSES[0] / f"bad{number:02d}.jpg", b"")
    code, lines = check(tree)
    assert code == 1 and lines[-1] == "not usable: 1 error"
    assert findings(lines)[0].startswith("error: 14 files: empty")
    assert sum("bad" in line and line.endswith(".jpg") for line in lines) == 10
    assert "    ... and 4 more" in lines


# ------------------------------------------------------------------------------------ --decode


def test_decode_finds_a_truncated_jpeg(tree: Path, check: Check) -> None:
    whole = picture(size=(300, 200))
    bad = write(tree / "train" / CLASSES[2] / "cut.JPEG", whole[: len(whole) // 2])
    code, lines = check(tree, "--decode")
    assert code == 1 and lines[-1] == "not usable: 1 error"
    assert findings(lines)[0].startswith("error: 1 file: cut short or damaged")
    assert any(line.startswith(f"    {bad} (") for line in lines)


def test_decode_wants_what_the_chapters_want(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The header tells these too; here the pixels have to, as for a kind that nobody thought of.
    monkeypatch.setattr(tool, "take_complaint", lambda: "")
    deep = str(write(tmp_path / "deep.png", grey16()))
    assert tool.check_pixels(deep) == [tool.Found(deep, "shape", "torch.uint16 (3, 16, 24)")]
    several = str(write(tmp_path / "several.gif", animation("GIF")))
    assert tool.check_pixels(several) == [
        tool.Found(several, "shape", "torch.uint8 (3, 3, 16, 24)")
    ]
    assert tool.check_pixels(str(write(tmp_path / "sound.jpg"))) == []


def test_decode_reports_what_the_decoder_complains_of(tree: Path, check: Check) -> None:
    whole = picture(size=(300, 200))
    hole = whole[: len(whole) // 2] + whole[-2:]
    path = write(tree / "train" / CLASSES[2] / "hole.JPEG", hole)
    sound = write(tree / "train" / CLASSES[2] / "sound.JPEG", whole)
    assert not findings(check(tree)[1], "note")
    code, lines = check(tree, "--decode")
    assert code == 0
    (note,) = findings(lines, "note")
    assert "1 file: decodes, but the decoder complains of damage" in note
    assert any(line.startswith(f"    {path} (Corrupt JPEG data") for line in lines)
    assert not any(str(sound) in line for line in lines)


def test_decode_survives_a_png_that_may_crash_the_decoder(tree: Path, check: Check) -> None:
    # Damaged pixels of a PNG kill the process in torchvision 0.29; a release that raises is fine.
    content = bytearray(picture(kind="PNG"))
    content[len(content) // 2] ^= 255
    crash = write(tree / "train" / CLASSES[0] / "crash.png", bytes(content))
    after = write(tree / "train" / CLASSES[0] / "later.jpg", b"")
    code, lines = check(tree, "--decode")
    assert code == 1 and any(line.startswith(f"    {crash} (") for line in lines)
    assert f"    {after}" in lines
    first = next(line for line in findings(lines) if "empty" not in line)
    assert "crashes the decoder" in first or "cut short or damaged" in first


@pytest.fixture
def forked(monkeypatch: pytest.MonkeyPatch) -> Callable[[str, Callable], None]:
    """Workers that are copies of this process, with a function of the tool replaced."""
    if "fork" not in multiprocessing.get_all_start_methods():
        pytest.skip("this system cannot fork")
    context = multiprocessing.get_context("fork")
    monkeypatch.setattr(multiprocessing, "get_all_start_methods", lambda: ["fork"])
    monkeypatch.setattr(multiprocessing, "get_context", lambda _: context)
    return lambda name, function: monkeypatch.setattr(tool, name, function)


def test_a_crash_is_pinned_on_its_file(
    tree: Path, check: Check, forked: Callable[[str, Callable], None]
) -> None:
    real = tool.check_file

    def crashing(path: str, *options: object) -> list[tool.Found]:
        if os.path.basename(path).startswith("crash"):
            # pytest's handler would print a page about a crash that is meant.
            faulthandler.disable()
            os.abort()
        return real(path, *options)

    forked("check_file", crashing)
    folder = tree / "train" / CLASSES[0]
    crashes = [write(folder / f"crash{number}.jpg") for number in range(2)]
    # More files than a batch holds, and one to be found in each.
    for number in range(tool.FILES_PER_BATCH + 10):
        write(folder / f"empty{number}.jpg", b"")
    code, lines = check(tree)
    assert code == 1 and lines[-1] == "not usable: 2 errors"
    assert f"error: {tool.FILES_PER_BATCH + 10} files: empty" in findings(lines)[0]
    assert findings(lines)[1].startswith("error: 2 files: crashes the decoder")
    assert all(f"    {path} (SIGABRT)" in lines for path in crashes)


def test_a_killed_worker_blames_no_file(
    tree: Path, check: Check, forked: Callable[[str, Callable], None]
) -> None:
    forked("check_file", lambda *_: os.kill(os.getpid(), signal.SIGKILL))
    code, lines = check(tree)
    assert code == 1 and lines[-1] == "not known: not all was checked"
    assert "SIGKILL; out of memory?" in findings(lines)[0]


def test_a_worker_that_cannot_start_blames_no_file(
    tree: Path, check: Check, forked: Callable[[str, Callable], None]
) -> None:
    forked("keep_complaints", lambda: os._exit(7))
    code, lines = check(tree)
    assert code == 1 and "did not start (exit code 7)" in findings(lines)[0]
    assert lines[-1] == "not known: not all was checked"


def test_a_broken_torchvision_blames_no_file(
    tree: Path, check: Check, forked: Callable[[str, Callable], None]
) -> None:
    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("Couldn't load the image extension.\nMore.")

    tool.load_decoder.cache_clear()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("torchvision.io.decode_image", broken)
        code, lines = check(tree, "--decode")
    assert code == 1 and lines[-1] == "not known: not all was checked"
    assert "torchvision cannot decode images here (Couldn't load the image extension.)" in lines[-2]


def test_interrupted_check(tree: Path, check: Check, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(tool, "check_files", interrupt)
    code, lines = check(tree)
    assert code == 130 and lines[-1] == "not known: interrupted"


# ------------------------------------------------------------------------ --list-bad, --move-bad


@pytest.fixture
def bad_files(tree: Path) -> list[Path]:
    """One more file in three places that no chapter can use."""
    link = tree / "val" / CLASSES[0] / "link.jpg"
    link.symlink_to("gone")
    return [
        write(tree / "train" / CLASSES[0] / "empty.jpg", b""),
        write(tree / "train" / CLASSES[1] / "sub" / "śmieć.jpg", b"text"),
        link,
    ]


def test_list_bad(tree: Path, tmp_path: Path, check: Check, bad_files: list[Path]) -> None:
    target = tmp_path / "bad.txt"
    code, lines = check(tree, "--list-bad", target)
    assert code == 1 and f"wrote the paths of 3 bad files to {target}" in lines
    assert sorted(target.read_text("utf-8").splitlines()) == sorted(map(str, bad_files))

    for path in bad_files:
        path.unlink()
    code, lines = check(tree, "--list-bad", tmp_path / "none.txt")
    assert code == 0 and (tmp_path / "none.txt").read_bytes() == b""


def test_list_bad_leaves_out_names_with_a_line_break(
    tree: Path, tmp_path: Path, check: Check
) -> None:
    write(tree / "train" / CLASSES[0] / "a\nb.jpg", b"")
    code, lines = check(tree, "--list-bad", tmp_path / "bad.txt")
    assert code == 1 and (tmp_path / "bad.txt").read_bytes() == b""
    assert f"    {tree / 'train' / CLASSES[0]}/a\\nb.jpg" in lines
    assert "left out of the list" in findings(lines, "note")[0]


def test_list_bad_never_overwrites(tree: Path, tmp_path: Path, bad_files: list[Path]) -> None:
    target = write(tmp_path / "bad.txt", b"precious")
    with pytest.raises(SystemExit) as stop:
        tool.main([str(tree), "--list-bad", str(target)])
    assert stop.value.code == 2 and target.read_bytes() == b"precious"
    # It may also appear while the files are checked.
    report = tool.Report()
    tool.write_list([tool.Found("x", "empty")], target, report)
    assert report.errors == 1 and target.read_bytes() == b"precious"


def test_move_bad(tree: Path, tmp_path: Path, check: Check, bad_files: list[Path]) -> None:
    aside = tmp_path / "aside"
    before = snapshot(tree)
    code, lines = check(tree, "--move-bad", aside, "--dry-run")
    assert code == 1 and snapshot(tree) == before and not aside.exists()
    assert f"mv {bad_files[0]} {aside / 'train' / CLASSES[0] / 'empty.jpg'}" in lines
    assert f"would move 3 bad files to {aside}; then check again" in lines

    code, lines = check(tree, "--move-bad", aside)
    assert code == 1 and f"moved 3 bad files to {aside}; then check again" in lines
    moved = {str(path.relative_to(tree)) for path in bad_files}
    assert set(snapshot(aside)) == moved
    assert snapshot(tree) == {name: data for name, data in before.items() if name not in moved}
    assert check(tree)[0] == 0


def test_move_bad_never_overwrites(tree: Path, check: Check, bad_files: list[Path]) -> None:
    # A folder inside DIR will do, as long as it is not in train/ or val/.
    aside = tree / "aside"
    kept = write(aside / "train" / CLASSES[0] / "empty.jpg", b"precious")
    code, lines = check(tree, "--move-bad", aside)
    assert code == 1 and kept.read_bytes() == b"precious" and bad_files[0].exists()
    assert any(f"{bad_files[0]} stays, {kept} exists" in line for line in findings(lines))
    assert f"moved 2 bad files to {aside}; then check again" in lines


def test_move_bad_says_what_it_empties(tree: Path, tmp_path: Path, check: Check) -> None:
    write(tree / "val" / CLASSES[0] / f"{CLASSES[0]}_val.JPEG", b"")
    code, lines = check(tree, "--move-bad", tmp_path / "aside")
    assert code == 1
    assert findings(lines)[-1].startswith("error: that leaves 1 class of val/ without an image")
    assert findings(lines)[-1].endswith(CLASSES[0])


# ---------------------------------------------------------------------------------- --sort-val


def kaggle_row(name: str, label: str) -> str:
    boxes = " ".join(f"{label} {10 + i} 1 499 272" for i in range(2))
    return f"{name.removesuffix('.JPEG')},{boxes} "


ROWS = list(zip(VAL_NAMES, VAL_LABELS, strict=True))
# scipy is no requirement: without it a stand-in gives what its loadmat gives.
READERS = ["stand-in", *(["scipy"] if importlib.util.find_spec("scipy") else [])]
# fmt: off
LISTS = {
    "blanks": "\n".join(f"{name} {label}" for name, label in ROWS),
    "reversed": "\ufeff" + "\n".join(f"{name}  {label}" for name, label in reversed(ROWS)) + "\n\n",
    "tabs": "filename\tclass\n" + "\n".join(f"{name}\t{label}\tmore" for name, label in ROWS),
    "csv": "image,wnid\r\n" + "\r\n".join(f'"{name}","{label}"' for name, label in ROWS),
    "paths": "\n".join(f"val/{name};{label}/" for name, label in ROWS),
    "kaggle": "ImageId,PredictionString\n" + "\n".join(kaggle_row(*row) for row in ROWS) + "\n",
    "official": "\n".join(map(str, VAL_IDS)) + "\n",
}
# fmt: on


def assert_sorted(root: Path, before: dict[str, bytes | str]) -> None:
    """Every image of VAL_NAMES in its class folder, unchanged; nothing else has changed."""
    goal = dict(before)
    for name, label in zip(VAL_NAMES, VAL_LABELS, strict=True):
        goal[f"val/{label}/{name}"] = goal.pop(f"val/{name}")
    assert snapshot(root) == goal


@pytest.fixture
def meta(tmp_path: Path) -> Path:
    lines = [f"{wnid} {number} words" for number, wnid in META.items()]
    return write(tmp_path / "meta.txt", "\n".join(lines).encode())


@pytest.mark.parametrize("form", LISTS)
def test_sort_val(flat: Path, tmp_path: Path, check: Check, meta: Path, form: str) -> None:
    truth = write(tmp_path / "truth", LISTS[form].encode())
    extra = ["--meta", meta] if form == "official" else []
    before = snapshot(flat)
    code, lines = check(flat, "--sort-val", truth, *extra, "--dry-run")
    assert code == 0 and snapshot(flat) == before
    assert lines[-1] == "would sort 6 images into 3 classes" and len(lines) == 7
    assert f"mv {flat}/val/{VAL_NAMES[0]} {flat}/val/{VAL_LABELS[0]}/{VAL_NAMES[0]}" in lines

    code, lines = check(flat, "--sort-val", truth, *extra)
    assert code == 0 and lines[-1].startswith("sorted: 6 images moved")
    assert_sorted(flat, before)
    code, lines = check(flat, "--sort-val", truth, *extra)
    assert code == 0 and lines[-1].startswith("sorted: 0 images moved")
    assert_sorted(flat, before)
    assert check(flat)[0] == 0


@pytest.mark.parametrize("reader", READERS)
def test_sort_val_with_the_devkit(
    flat: Path, tmp_path: Path, check: Check, monkeypatch: pytest.MonkeyPatch, reader: str
) -> None:
    # The last one has children, so it is a node above the classes: not one of them.
    wnids = [*META.values(), "n00001740"]
    texts = ["words"] * len(wnids)
    synsets = np.rec.fromarrays(
        [np.arange(1.0, 5.0), wnids, texts, texts, np.array([0.0, 0.0, 0.0, 2.0])],
        names=["ILSVRC2012_ID", "WNID", "words", "gloss", "num_children"],
    )
    mat = write(tmp_path / "meta.mat", b"MATLAB, or so it says")
    if reader == "stand-in":
        content = {"synsets": synsets}
        scipy = SimpleNamespace(loadmat=lambda path, squeeze_me: content)
        monkeypatch.setitem(sys.modules, "scipy", SimpleNamespace(io=scipy))
        monkeypatch.setitem(sys.modules, "scipy.io", scipy)
    else:
        importlib.import_module("scipy.io").savemat(mat, {"synsets": synsets})
    assert tool.read_meta(mat) == META
    truth = tmp_path / "ILSVRC2012_validation_ground_truth.txt"
    write(truth, LISTS["official"].encode())
    before = snapshot(flat)
    assert check(flat, "--sort-val", truth)[0] == 0
    assert_sorted(flat, before)

    if reader == "stand-in":
        content.clear()
    else:
        write(mat, b"MATLAB, or so it says")
    code, lines = check(flat, "--sort-val", truth)
    assert code == 1 and "is not the devkit's meta.mat" in findings(lines)[0]


@pytest.mark.parametrize("error", [KeyboardInterrupt(), OSError(28, "No space left on device")])
def test_sort_val_interrupted_and_run_again(
    flat: Path, tmp_path: Path, check: Check, error: BaseException
) -> None:
    truth = write(tmp_path / "truth", LISTS["blanks"].encode())
    before, rename, calls = snapshot(flat), os.rename, []

    def stops(source: object, target: object) -> None:
        calls.append(source)
        if len(calls) == 4:
            raise error
        rename(source, target)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "rename", stops)
        code, lines = check(flat, "--sort-val", truth)
    assert code == (130 if isinstance(error, KeyboardInterrupt) else 1)
    assert lines[-1] == "not sorted: 3 of 6 images moved"
    assert sum(path.is_file() for path in (flat / "val").iterdir()) == 3
    assert "val/ is half sorted: 3 images" in findings(check(flat)[1])[0]

    code, lines = check(flat, "--sort-val", truth)
    assert code == 0 and lines[-1].startswith("sorted: 3 images moved")
    assert_sorted(flat, before)


def test_sort_val_notes_classes_that_get_nothing(flat: Path, tmp_path: Path, check: Check) -> None:
    write(flat / "train" / "n09999999" / "x.jpg")
    code, lines = check(flat, "--sort-val", write(tmp_path / "t", LISTS["csv"].encode()))
    assert code == 0
    assert findings(lines, "note")[0].endswith("n09999999")


def rows(*changed: str) -> str:
    """The list with its last lines replaced."""
    kept = LISTS["blanks"].splitlines()[: 6 - len(changed)]
    return "\n".join([*kept, *changed])


LAST, LABEL = VAL_NAMES[-1], VAL_LABELS[-1]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (rows(f"{LAST} n09999999"), "classes of the list without a folder in train/"),
        (rows(f"{LAST} 65"), "numbers have no agreed order"),
        ("\n".join(rows().splitlines()[:5]), "images in val/ that the list has not"),
        (rows() + f"\nILSVRC2012_val_00000007.JPEG {LABEL}", "images listed but not in val/"),
        (rows() + f"\n{LAST} {LABEL}", "images listed twice"),
        (rows(LAST), "truth:6: not `image class`"),
        ("", "is empty"),
        ("a\0b", "is not a text file"),
        (kaggle_row(LAST, LABEL).replace(f"{LABEL} 11", f"{CLASSES[0]} 11"), "several classes"),
        ("1\n2\n3\n", "images in val/ that the list has not"),
        ("1\n2\n3\n3\n2\n4\n", "truth:6: "),
        ("1\n2\n3\n\n3\n2\n1\n", "images listed but not in val/"),
    ],
)
def test_sort_val_refuses_a_wrong_list(
    flat: Path, tmp_path: Path, check: Check, meta: Path, text: str, words: str
) -> None:
    truth = write(tmp_path / "truth", text.encode())
    before = snapshot(flat)
    code, lines = check(flat, "--sort-val", truth, "--meta", meta)
    assert code == 1 and snapshot(flat) == before
    assert any(words in line for line in findings(lines)), lines
    assert lines[-1].startswith("not sorted, nothing was moved")
    assert [path.name for path in sorted((flat / "val").iterdir())] == VAL_NAMES


def put_elsewhere(root: Path) -> None:
    (root / "val" / CLASSES[0]).mkdir()
    (root / "val" / LAST).rename(root / "val" / CLASSES[0] / LAST)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda root: write(root / "val" / LABEL / LAST, b"other"), "images in both places"),
        (put_elsewhere, "images in another class folder than listed"),
        (lambda root: (root / "val" / "stranger").mkdir(), "folders in val/ that train/ has not"),
        (lambda root: write(root / "val" / LABEL), "is not a folder: remove it"),
        (lambda root: (root / "val" / LABEL).symlink_to("gone"), "is not a folder: remove it"),
        (lambda root: (root / "val" / LABEL).symlink_to("/dev/shm"), "on another file system"),
        (lambda root: write(root / "val" / LABEL / "more.jpg"), "that the list has not"),
        (lambda root: shutil.rmtree(root / "train"), "train is not there"),
        (lambda root: shutil.rmtree(root / "val"), "val is not there"),
        (lambda root: [shutil.rmtree(root / "train" / x) for x in CLASSES], "no class folders"),
    ],
)
def test_sort_val_refuses_a_wrong_tree(
    flat: Path, tmp_path: Path, check: Check, change: Callable[[Path], object], words: str
) -> None:
    if "another file system" in words and (
        not os.path.isdir("/dev/shm") or os.stat("/dev/shm").st_dev == os.stat(flat).st_dev
    ):
        pytest.skip("there is no other file system here")
    truth = write(tmp_path / "truth", LISTS["blanks"].encode())
    change(flat)
    before = snapshot(flat)
    code, lines = check(flat, "--sort-val", truth)
    assert code == 1 and snapshot(flat) == before
    assert any(words in line for line in findings(lines)), lines
    assert lines[-1].startswith("not sorted, nothing was moved")


def test_sort_val_never_overwrites_what_appears_meanwhile(flat: Path) -> None:
    target = write(flat / "val" / LABEL / LAST, b"precious")
    with pytest.raises(FileExistsError):
        list(tool.move_images(flat / "val", [(LAST, LABEL)]))
    assert target.read_bytes() == b"precious" and (flat / "val" / LAST).exists()


def test_official_list_without_its_map(
    flat: Path, tmp_path: Path, check: Check, monkeypatch: pytest.MonkeyPatch
) -> None:
    truth = write(tmp_path / "truth.txt", LISTS["official"].encode())
    before = snapshot(flat)
    code, lines = check(flat, "--sort-val", truth)
    assert code == 1 and f"{tmp_path / 'meta.mat'} does not exist" in findings(lines)[0]

    write(tmp_path / "meta.mat", b"MATLAB")
    monkeypatch.setitem(sys.modules, "scipy", None)
    monkeypatch.setitem(sys.modules, "scipy.io", None)
    code, lines = check(flat, "--sort-val", truth)
    assert code == 1 and "pip install scipy" in findings(lines)[0]

    for text in (f"1 {CLASSES[0]}\n1 {CLASSES[1]}", "1 2", "a b"):
        broken = write(tmp_path / "map.txt", text.encode())
        code, lines = check(flat, "--sort-val", truth, "--meta", broken)
        assert code == 1 and "not a new id and its wnid" in findings(lines)[0]
    assert snapshot(flat) == before


# -------------------------------------------------------------------------------- the command line


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ([], "required: DIR"),
        (["{tree}", "--nonsense"], "unrecognized arguments"),
        (["{tree}", "--workers", "0"], "--workers must be"),
        (["{tree}", "--max-megapixels", "0"], "--max-megapixels must be"),
        (["{tree}", "--max-megapixels", "nan"], "--max-megapixels must be"),
        (["{tree}", "--dry-run"], "--dry-run goes with"),
        (["{tree}", "--meta", "{file}"], "--meta goes with"),
        (["{tree}", "--sort-val", "{tree}/gone"], "no such file"),
        (["{tree}", "--sort-val", "{file}", "--meta", "{tree}/gone"], "no such file"),
        (["{tree}", "--sort-val", "{file}", "--decode"], "--sort-val only sorts"),
        (["{tree}", "--list-bad", "{file}"], "exists"),
        (["{tree}", "--list-bad", "{tree}/gone/bad.txt"], "its folder does not exist"),
        (["{tree}", "--move-bad", "{file}"], "is not a folder"),
        (["{tree}", "--move-bad", "{tree}"], "another folder than DIR"),
        (["{tree}", "--move-bad", "{tree}/val/bad"], "lies in val/"),
        (["{tree}", "--move-bad", "{tree}/train"], "lies in train/"),
    ],
)
def test_bad_arguments(
    tree: Path, capsys: pytest.CaptureFixture[str], flags: list[str], words: str
) -> None:
    file = write(tree / "file", b"content")
    before = snapshot(tree)
    with pytest.raises(SystemExit) as stop:
        tool.main([flag.format(tree=tree, file=file) for flag in flags])
    assert stop.value.code == 2 and snapshot(tree) == before
    assert re.search(f"error: .*{re.escape(words)}", capsys.readouterr().err)
