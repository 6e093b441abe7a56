"""Say whether a folder is an ImageNet tree that the chapters can train on, and what to mend.

    python tools/check_imagenet.py DIR                    # folders, counts, every file's header
    python tools/check_imagenet.py DIR --decode           # also decodes every image, as training
    python tools/check_imagenet.py DIR --move-bad DIR2    # sets unusable files aside
    python tools/check_imagenet.py DIR --sort-val FILE    # sorts a flat val/ into class folders

DIR holds train/ and val/, one folder a class in each. The chapters read it with ImageFolder and
decode_image(path, RGB), and stop at what is not 3xHxW uint8; what they cannot use is an `error:`
here, what is odd but harmless is a `note:`. Exit code: 0 usable, 1 not usable, 2 bad arguments.

FILE of --sort-val is one of
    ILSVRC2012_validation_ground_truth.txt   of the devkit; needs the meta.mat beside it (and scipy
                                             to read that), or --meta with `id wnid` lines
    LOC_val_solution.csv                     Kaggle's
    any list of `image class` lines          separated by blanks, a tab, a semicolon or a comma
"""

import argparse
import csv
import functools
import io
import multiprocessing
import os
import re
import shlex
import shutil
import signal
import stat
import statistics
import sys
import tempfile
import warnings
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, NamedTuple

try:
    from PIL import Image
    from tqdm import tqdm
except ImportError as missing:
    raise SystemExit(f"check_imagenet: {missing}; pip install -r requirements.txt") from None

COMMAND = "python tools/check_imagenet.py"
SPLITS = ("train", "val")
# torchvision.datasets.folder.IMG_EXTENSIONS, repeated: importing torch takes seconds, and without
# --decode nothing else needs it. A test compares the two.
IMAGE_EXTENSIONS = (".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp")
EXTENSION_FORMATS = {".jpg": "JPEG", ".jpeg": "JPEG", ".png": "PNG", ".webp": "WEBP"}
IMAGENET_CLASSES = 1000
IMAGENET_IMAGES = {"train": 1_281_167, "val": 50_000}
VAL_IMAGES_PER_CLASS = 50
ARCHIVES = {"train": "ILSVRC2012_img_train.tar", "val": "ILSVRC2012_img_val.tar"}
CLASS_ARCHIVE = re.compile(r"n\d{8}\.tar")
WNID = re.compile(r"n\d{8}")
# Where Kaggle's archive of the challenge keeps train/ and val/.
KAGGLE_FOLDER = Path("ILSVRC", "Data", "CLS-LOC")
# Pillow's own limit (Image.MAX_IMAGE_PIXELS): a quarter of a gigabyte as RGB.
MAX_MEGAPIXELS = 89.5
SHOWN = 10
# Small enough for an even progress bar, large enough to hide the messaging.
FILES_PER_BATCH = 64


class CheckError(Exception):
    """The check or the sorting cannot go on; the message is the line that the user sees."""


class Kind(NamedTuple):
    """What can be found in a file: how bad, in words, and what to do about it."""

    level: str
    what: str
    advice: str


FETCH = "copy or unpack them again, or set them aside with --move-bad DIR2"
CONVERT = "convert them to 8-bit RGB JPEG, or set them aside with --move-bad DIR2"
# fmt: off
KINDS = {
    "empty": Kind("error", "empty (0 bytes)", FETCH),
    "dangling": Kind("error", "links to nothing",
                     "mend the links, or set them aside with --move-bad DIR2"),
    "denied": Kind("error", "cannot be read", "look at the permissions (ls -l) and the disk"),
    "special": Kind("error", "neither file nor link to one", "remove them"),
    "name": Kind("error", "name is not UTF-8, so torchvision cannot open it", "rename them"),
    "not-image": Kind("error", "no image inside, whatever the name says", FETCH),
    "format": Kind("error", "decode_image takes only JPEG, PNG, WebP and GIF", CONVERT),
    "undecodable": Kind("error", "cut short or damaged", FETCH),
    "crash": Kind("error", "crashes the decoder, and would kill the training process", FETCH),
    "16-bit": Kind("error", "16 bits a channel, so decode_image gives uint16", CONVERT),
    "animated": Kind("error", "animated, so there is not one picture to decode", CONVERT),
    "shape": Kind("error", "does not decode to 3xHxW uint8", CONVERT),
    "huge": Kind("error", "absurdly large, and costs 3 bytes a pixel in every loader worker",
                 "shrink them, set them aside with --move-bad DIR2, or allow them with "
                 "--max-megapixels"),
    "complaint": Kind("note", "decodes, but the decoder complains of damage",
                      "training takes them as they are; look at them, and fetch them again if "
                      "that matters"),
    "mode": Kind("note", "not RGB", "nothing to do, decode_image converts them"),
    # Its one PNG: https://github.com/pytorch/vision/issues/2294
    "renamed": Kind("note", "another format than the name says",
                    "nothing to do, decode_image goes by the content (ImageNet-1k has one: "
                    "n02105855_2933.JPEG is a PNG)"),
    "frames": Kind("note", "several pictures in one file",
                   "nothing to do, decode_image takes the first"),
}
# fmt: on
# A file that cannot be read may be a good one behind a bad disk or wrong permissions.
NOT_MOVED = ("denied",)


class Found(NamedTuple):
    """One thing found in one file; `kind` is a key of KINDS."""

    path: str
    kind: str
    detail: str = ""


@dataclass
class Report:
    """Prints findings as they come and counts the errors."""

    errors: int = 0

    def error(self, text: str, paths: Iterable[str] = ()) -> None:
        """A finding that keeps the chapters from training."""
        self.errors += 1
        self.show(f"error: {text}", list(paths))

    def note(self, text: str, paths: Iterable[str] = ()) -> None:
        """A finding that does not."""
        self.show(f"note: {text}", list(paths))

    def show(self, line: str, paths: list[str]) -> None:
        """The line, and the first few paths below it."""
        print(printable(line))
        for path in paths[:SHOWN]:
            print(f"    {printable(path)}")
        if len(paths) > SHOWN:
            print(f"    ... and {len(paths) - SHOWN:,} more")


@dataclass
class Split:
    """What lies under train/ or val/."""

    folder: str
    classes: dict[str, list[str]] = field(default_factory=dict)
    loose: list[str] = field(default_factory=list)
    archives: list[str] = field(default_factory=list)
    ignored: list[str] = field(default_factory=list)
    dangling: list[str] = field(default_factory=list)
    loops: list[str] = field(default_factory=list)
    closed: list[str] = field(default_factory=list)

    def images(self) -> list[str]:
        """Every image that ImageFolder would list."""
        return [path for paths in self.classes.values() for path in paths]


def printable(text: str) -> str:
    """`text` as it can be printed: a file name may hold any bytes but NUL and the slash."""
    known = text.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
    return known.replace("\n", "\\n").replace("\r", "\\r")


def quoted(path: str | Path) -> str:
    """`path` as it can be pasted into a shell."""
    return shlex.quote(str(path))


def named(names: Iterable[str]) -> str:
    """The first few names, and how many more there are."""
    names = sorted(names)
    more = f", ... and {len(names) - SHOWN:,} more" if len(names) > SHOWN else ""
    return ", ".join(names[:SHOWN]) + more


def counted(number: int, noun: str) -> str:
    """A number and its noun: `1 class`, `1,000 classes`."""
    plural = noun + ("es" if noun.endswith("s") else "s")
    return f"{number:,} {noun if number == 1 else plural}"


def is_image_name(name: str) -> bool:
    """Whether ImageFolder takes a file of this name."""
    return name.lower().endswith(IMAGE_EXTENSIONS)


# --------------------------------------------------------------------------------------- folders


def list_split(folder: str) -> Split:
    """Everything under train/ or val/, as ImageFolder sees it and where it does not look."""
    split = Split(folder)
    try:
        entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
    except OSError as error:
        split.closed.append(f"{folder} ({error.strerror})")
        return split
    bar = tqdm(entries, desc=f"listing {os.path.basename(folder)}", disable=None, leave=False)
    for entry in bar:
        if entry.is_dir():
            split.classes[entry.name] = list_class(entry.path, split)
        elif is_image_name(entry.name):
            split.loose.append(entry.path)
        elif CLASS_ARCHIVE.fullmatch(entry.name) or entry.name in ARCHIVES.values():
            split.archives.append(entry.path)
        elif entry.is_symlink() and not os.path.exists(entry.path):
            split.dangling.append(entry.path)
    return split


def list_class(folder: str, split: Split) -> list[str]:
    """The images below one class folder, links followed; what is skipped goes to `split`."""

    def closed(error: OSError) -> None:
        # os.walk, and so ImageFolder, passes over such a folder without a word.
        split.closed.append(f"{error.filename} ({error.strerror})")

    images = []
    for root, folders, names in os.walk(folder, onerror=closed, followlinks=True):
        for name in list(folders):
            path = os.path.join(root, name)
            if os.path.islink(path) and is_below(root, path):
                split.loops.append(path)
                folders.remove(name)
        for name in sorted(names):
            (images if is_image_name(name) else split.ignored).append(os.path.join(root, name))
    return images


def is_below(path: str | Path, folder: str | Path) -> bool:
    """Whether `path` is `folder` or lies in it, links resolved."""
    return Path(os.path.realpath(path)).is_relative_to(os.path.realpath(folder))


def unpack_command(archive: str | Path, folder: str | Path) -> str:
    """The shell command that unpacks one of the two official archives."""
    target = quoted(folder)
    return f"mkdir -p {target} && tar -xf {quoted(archive)} -C {target}"


def unpack_classes_command(folder: str | Path) -> str:
    """The shell command that unpacks n01440764.tar and its like, each into its own folder."""
    each = 'mkdir -p "${t%.tar}" && tar -xf "$t" -C "${t%.tar}" && rm "$t"'
    return f"for t in {quoted(folder)}/n*.tar; do {each}; done"


def find_tree(root: Path) -> Path | None:
    """A folder near `root` that has train/ or val/, for someone who named the wrong one."""
    if WNID.fullmatch(root.resolve().name) or root.resolve().name in SPLITS:
        near = [root.resolve().parent, root.resolve().parent.parent]
    else:
        below = sorted(path for path in root.iterdir() if path.is_dir())
        near = [root / KAGGLE_FOLDER, root / Path(*KAGGLE_FOLDER.parts[1:]), *below]
    return next((path for path in near if all((path / split).is_dir() for split in SPLITS)), None)


def check_root(root: Path, report: Report) -> list[str]:
    """The splits that are there; says what to do about those that are not."""
    if not root.is_dir():
        what = "is not a folder" if os.path.lexists(root) else "does not exist"
        report.error(f"{root} {what}: name the folder that holds train/ and val/")
        return []
    present = [split for split in SPLITS if (root / split).is_dir()]
    try:
        elsewhere = None if present else find_tree(root)
    except OSError as error:
        report.error(f"{root}: {error.strerror}: look at its permissions (ls -ld {quoted(root)})")
        return []
    if elsewhere:
        report.error(f"{root} has no train/ and val/, but {elsewhere} has: name that folder")
        return []
    for split in SPLITS:
        folder, archive = root / split, root / ARCHIVES[split]
        if split in present:
            continue
        if os.path.lexists(folder):
            report.error(f"{folder} is not a folder: put the folder of that name in its place")
        elif archive.is_file():
            report.error(f"{archive} is still packed: {unpack_command(archive, folder)}")
        else:
            report.error(
                f"{folder} does not exist: put a folder with one folder a class there, or the "
                f"official {ARCHIVES[split]} in {root} and run this again for what to type"
            )
    return present


def check_split(root: Path, split: Split, report: Report) -> None:
    """What is wrong with the folders of train/ or val/."""
    name = os.path.basename(split.folder)
    check_archives(root, split, report)
    if split.closed:
        report.error(
            "folders that cannot be listed: look at their permissions (ls -ld)", split.closed
        )
    if split.dangling:
        report.error(f"links in {name}/ to nothing: mend or remove them", split.dangling)
    if split.loops:
        report.error(
            "links to a folder that they lie in, which ImageFolder follows until it fails: "
            "remove them",
            split.loops,
        )
    if name == "val" and split.loose:
        kind = "half sorted" if split.classes else "flat"
        report.error(
            f"val/ is {kind}: {counted(len(split.loose), 'image')} directly in it and "
            f"{counted(len(split.classes), 'class folder')}; sort it: {COMMAND} {quoted(root)} "
            "--sort-val FILE (FILE: LOC_val_solution.csv, the devkit's "
            "ILSVRC2012_validation_ground_truth.txt, or lines `image class`)",
            split.loose,
        )
    elif split.loose:
        text = "images directly in train/, which ImageFolder ignores: sort them into class folders"
        (report.note if split.classes else report.error)(text, split.loose)
    elif not split.classes and not split.archives and not split.closed:
        report.error(f"{split.folder} has no class folders: put one folder a class there")
    hidden = [label for label in split.classes if label.startswith(".")]
    if hidden:
        folders = [os.path.join(split.folder, label) for label in hidden]
        report.note("hidden folders are classes for ImageFolder: remove them (rm -r)", folders)
    empty = [label for label, images in split.classes.items() if not images]
    if empty:
        report.error(
            f"{counted(len(empty), 'class')} without an image in {name}/: unpack or copy again, "
            f"or remove the folder from train/ and val/: {named(empty)}"
        )
    if split.ignored:
        endings = Counter(os.path.splitext(path)[1] or "no extension" for path in split.ignored)
        most = ", ".join(f"{count:,} {ending}" for ending, count in endings.most_common(5))
        report.note(
            f"{counted(len(split.ignored), 'file')} in {name}/ ignored by ImageFolder for the "
            f"extension ({most}): if they are images, rename or convert them to .jpg",
            split.ignored,
        )


def check_archives(root: Path, split: Split, report: Report) -> None:
    """Official archives that lie where their content should."""
    folder, name = split.folder, os.path.basename(split.folder)
    whole = [path for path in split.archives if os.path.basename(path) in ARCHIVES.values()]
    packed = [path for path in split.archives if path not in whole]
    unpacked = [path for path in packed if split.classes.get(os.path.basename(path)[:-4])]
    waiting = [path for path in packed if path not in unpacked]
    beside = root / ARCHIVES[name]
    nothing = not (split.classes or split.loose or packed)
    for path in [*whole, *([str(beside)] if nothing and not whole and beside.is_file() else [])]:
        command = unpack_command(path, folder)
        if nothing:
            report.error(f"{path} is still packed: {command}")
        else:
            report.note(f"{path} lies among the classes: delete it if all of it is unpacked")
    if waiting:
        report.error(
            f"{counted(len(waiting), 'class archive')} in {name}/ still packed: "
            + unpack_classes_command(folder),
            waiting,
        )
    elif unpacked:
        report.note(
            f"{counted(len(unpacked), 'class archive')} in {name}/ beside the unpacked folders: "
            f"delete them, or if unpacking was interrupted: {unpack_classes_command(folder)}",
            unpacked,
        )


def check_classes(splits: dict[str, Split], report: Report) -> None:
    """Whether train/ and val/ hold the same class folders."""
    train, val = (set(splits[name].classes) for name in SPLITS)
    if not train or not val or train == val:
        return
    for name, only, other in (("train", train - val, "val"), ("val", val - train, "train")):
        if only:
            report.error(
                f"{counted(len(only), 'class folder')} in {name}/ and not in {other}/, so the "
                f"labels would differ: add to {other}/ or remove from {name}/: {named(only)}"
            )


def show_counts(splits: dict[str, Split], report: Report) -> None:
    """Images per class, and how that compares with ImageNet-1k."""
    for name, split in splits.items():
        sizes = [len(images) for images in split.classes.values()]
        total = sum(sizes)
        if not sizes:
            continue
        print(
            f"{name}: {counted(len(sizes), 'class')}, {counted(total, 'image')}; a class has "
            f"{min(sizes):,} to {max(sizes):,}, median {statistics.median(sizes):g}"
        )
        official = IMAGENET_IMAGES[name]
        if len(sizes) != IMAGENET_CLASSES:
            continue
        if total != official:
            much = f"{abs(official - total):,} {'fewer' if total < official else 'more'}"
            report.note(
                f"{name}/ has {IMAGENET_CLASSES:,} classes but {much} images than ImageNet-1k's "
                f"{official:,}: if this is to be ImageNet-1k, unpack {ARCHIVES[name]} again"
            )
        elif name == "val" and set(sizes) != {VAL_IMAGES_PER_CLASS}:
            report.note(
                f"val/ has not {VAL_IMAGES_PER_CLASS} images in every class, as ImageNet-1k has: "
                "unpack it again and sort it with the official list (--sort-val)"
            )


# ----------------------------------------------------------------------------------------- files


def content_format(start: bytes) -> str | None:
    """What decode_image makes of a file's first bytes; None where it gives up."""
    if start.startswith(b"\xff\xd8\xff"):
        return "JPEG"
    if start.startswith(b"\x89PNG"):
        return "PNG"
    if start.startswith((b"GIF87a", b"GIF89a")):
        return "GIF"
    if start.startswith(b"RIFF") and start[8:15] == b"WEBPVP8":
        return "WEBP"
    return None


def is_whole(file: io.BufferedReader, content: str, size: int) -> bool:
    """Whether the file ends as its format should; if not, only decoding can tell.

    Cheap, and finds an interrupted copy: the header of such a file is sound. Bytes after the end
    of a JPEG are harmless, so this alone is no verdict.
    """
    file.seek(max(0, size - 12))
    end = file.read()
    return {
        "JPEG": end.endswith(b"\xff\xd9"),
        "PNG": end[4:8] == b"IEND",
        "GIF": end.endswith(b";"),
        # Pillow has read all of it to open it.
        "WEBP": True,
    }[content]


def check_file(path: str, decode: bool, max_pixels: float) -> list[Found]:
    """Everything found in one file."""
    try:
        path.encode()
    except UnicodeEncodeError:
        return [Found(path, "name")]
    try:
        status = os.stat(path)
        if not stat.S_ISREG(status.st_mode):
            # Opening a pipe would wait for its other end for ever.
            return [Found(path, "special")]
        if not status.st_size:
            return [Found(path, "empty")]
        with open(path, "rb") as file:
            found, decode = check_header(path, file, status.st_size, decode, max_pixels)
    except OSError as error:
        if os.path.islink(path) and not os.path.exists(path):
            return [Found(path, "dangling", f"-> {os.readlink(path)}")]
        return [Found(path, "denied", error.strerror or str(error))]
    pixels = check_pixels(path) if decode else []
    if any(KINDS[item.kind].level == "error" for item in pixels):
        return pixels
    return found + pixels


def check_header(
    path: str, file: io.BufferedReader, size: int, decode: bool, max_pixels: float
) -> tuple[list[Found], bool]:
    """What the header tells, and whether to decode the file too (always when in doubt)."""
    start = file.read(32)
    content = content_format(start)
    file.seek(0)
    try:
        image = Image.open(file)
        # Reads no pixels, but for an animation it may read the headers of its frames.
        several = bool(getattr(image, "is_animated", False))
    except Exception as error:
        # A damaged header can make Pillow raise anything; an errno means that the disk failed.
        if isinstance(error, OSError) and error.errno:
            raise
        if content:
            return [], True
        sidecar = os.path.basename(path).startswith("._")
        detail = "a macOS sidecar file" if sidecar else f"begins with {start[:12]!r}"
        return [Found(path, "not-image", detail)], False
    if content is None:
        return [Found(path, "format", image.format or "")], False
    if image.width * image.height > max_pixels:
        return [Found(path, "huge", f"{image.width}x{image.height}")], False
    if content == "PNG" and start[12:16] == b"IHDR" and start[24] == 16:
        return [Found(path, "16-bit")], False
    if several and content in ("GIF", "WEBP"):
        return [Found(path, "animated", content)], False

    notes = []
    if several:
        notes.append(Found(path, "frames", image.format or ""))
    if image.mode != "RGB":
        notes.append(Found(path, "mode", image.mode))
    if content != EXTENSION_FORMATS.get(os.path.splitext(path)[1].lower()):
        notes.append(Found(path, "renamed", content))
    return notes, decode or not is_whole(file, content, size)


@functools.cache
def load_decoder() -> Callable[[str], Any]:
    """The chapters' decoder, tried out: a broken install must not make every file look bad."""
    try:
        import torch
        from torchvision.io import ImageReadMode, decode_image

        jpeg = io.BytesIO()
        Image.new("RGB", (8, 8)).save(jpeg, "JPEG")
        decode_image(
            torch.frombuffer(bytearray(jpeg.getvalue()), dtype=torch.uint8), ImageReadMode.RGB
        )
    except (ImportError, RuntimeError, OSError) as error:
        first = str(error).splitlines()[0]
        raise CheckError(
            f"torchvision cannot decode images here ({first}): pip install -r requirements.txt"
        ) from None
    return functools.partial(decode_image, mode=ImageReadMode.RGB)


def check_pixels(path: str) -> list[Found]:
    """What decoding the file as the chapters do brings to light."""
    decoder = load_decoder()
    take_complaint()
    try:
        image = decoder(path)
    except Exception as error:
        # torchvision puts the place in its own sources before the reason.
        reason = re.sub(r"^.*\.cpp:\d+, ", "", str(error).splitlines()[0])
        return [Found(path, "undecodable", reason)]
    if str(image.dtype) != "torch.uint8" or image.ndim != 3 or image.shape[0] != 3:
        return [Found(path, "shape", f"{image.dtype} {tuple(image.shape)}")]
    complaint = take_complaint()
    return [Found(path, "complaint", complaint)] if complaint else []


# ----------------------------------------------------------------------------------- the workers


def keep_complaints() -> None:
    """Send this process's stderr to a nameless file, where take_complaint finds it.

    libjpeg and libpng write there, without a path, what they find wrong but decode all the same.
    """
    with tempfile.TemporaryFile() as file:
        os.dup2(file.fileno(), 2)


def take_complaint() -> str:
    """What the decoders have written to stderr since the last call; empty if nothing."""
    size = os.fstat(2).st_size
    if not size:
        return ""
    os.lseek(2, 0, os.SEEK_SET)
    text = os.read(2, size).decode("utf-8", "replace")
    os.ftruncate(2, 0)
    os.lseek(2, 0, os.SEEK_SET)
    # libpng's warnings are about metadata, such as a colour profile that it does not like.
    lines = [line for line in text.splitlines() if not line.startswith("libpng warning")]
    return lines[0] if lines else ""


def receive(connection: Connection) -> list[str]:
    """The next paths to check; none when the parent has no more work, or is gone."""
    try:
        return connection.recv()
    except (EOFError, OSError):
        return []


def serve(connection: Connection, decode: bool, max_pixels: float) -> None:
    """A worker's life: lists of paths come in, lists of Found go out; a str means it gave up."""
    # Ctrl-C reaches the whole process group; the parent alone ends the run.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    warnings.simplefilter("ignore")
    Image.MAX_IMAGE_PIXELS = None
    keep_complaints()
    try:
        if decode:
            load_decoder()
        connection.send("ready")
        while paths := receive(connection):
            found = [found for path in paths for found in check_file(path, decode, max_pixels)]
            connection.send(found)
    except CheckError as error:
        connection.send(str(error))
    except Exception as error:
        connection.send(f"a worker failed, which is a fault of this tool: {error!r}")


@dataclass
class Worker:
    """A worker process, and the paths that it has been given and not answered for."""

    process: Any
    connection: Connection
    paths: list[str] = field(default_factory=list)
    ready: bool = False


def start_worker(decode: bool, max_pixels: float) -> Worker:
    """A fresh worker. Not forked from this process, which may have threads."""
    methods = multiprocessing.get_all_start_methods()
    context = multiprocessing.get_context("forkserver" if "forkserver" in methods else "spawn")
    if decode and "forkserver" in methods:
        # Imports torch once for all workers, so that replacing one that crashed is cheap.
        context.set_forkserver_preload(["__main__", "torchvision.io"])
    here, there = context.Pipe()
    process = context.Process(target=serve, args=(there, decode, max_pixels), daemon=True)
    process.start()
    there.close()
    return Worker(process, here)


def after_crash(worker: Worker) -> tuple[list[Found], list[list[str]]]:
    """What a worker's death tells: a file that kills the decoder, or batches to try one by one."""
    worker.process.join()
    code = worker.process.exitcode
    name = signal.Signals(-code).name if code is not None and code < 0 else f"exit code {code}"
    if not worker.ready:
        raise CheckError(f"a worker process did not start ({name})")
    if name in ("SIGKILL", "SIGTERM"):
        raise CheckError(f"a worker was killed ({name}; out of memory?): try fewer --workers")
    if len(worker.paths) == 1:
        return [Found(worker.paths[0], "crash", name)], []
    return [], [[path] for path in worker.paths]


def check_files(
    paths: list[str], decode: bool, max_pixels: float, workers: int
) -> Iterator[tuple[int, list[Found]]]:
    """Check `paths` in `workers` processes; yields how many are done and what was found in them.

    Processes of our own and no pool: a corrupt PNG can crash torchvision's decoder, and after a
    crash a pool neither goes on nor says which file it was.
    """
    batches = deque(
        paths[first : first + FILES_PER_BATCH] for first in range(0, len(paths), FILES_PER_BATCH)
    )
    team: dict[Connection, Worker] = {}

    def hire() -> None:
        worker = start_worker(decode, max_pixels)
        team[worker.connection] = worker

    try:
        for _ in range(min(workers, len(batches))):
            hire()
        while team:
            for connection in wait(list(team)):
                worker = team[connection]
                try:
                    answer = connection.recv()
                except (EOFError, OSError):
                    del team[connection]
                    found, again = after_crash(worker)
                    yield len(found), found
                    batches.extendleft(again)
                    if batches:
                        hire()
                    continue
                if isinstance(answer, str) and answer != "ready":
                    raise CheckError(answer)
                if worker.ready:
                    yield len(worker.paths), answer
                worker.ready = True
                if not batches:
                    del team[connection]
                    connection.close()
                    continue
                worker.paths = batches.popleft()
                try:
                    connection.send(worker.paths)
                except OSError:
                    # It has just died: the next recv says so.
                    continue
    finally:
        for worker in team.values():
            worker.process.terminate()


def report_files(found: list[Found], report: Report) -> list[Found]:
    """Print what was found in files, kind by kind; returns the errors."""
    groups: dict[str, list[Found]] = {kind: [] for kind in KINDS}
    for item in sorted(found):
        groups[item.kind].append(item)
    for name, items in groups.items():
        if not items:
            continue
        kind = KINDS[name]
        lines = [f"{item.path} ({item.detail})" if item.detail else item.path for item in items]
        what = kind.what
        if name == "mode":
            modes = Counter(item.detail for item in items)
            what += f" ({', '.join(f'{count:,} {mode}' for mode, count in modes.most_common())})"
        text = f"{counted(len(items), 'file')}: {what}; {kind.advice}"
        (report.error if kind.level == "error" else report.note)(text, lines)
    return [item for item in sorted(found) if KINDS[item.kind].level == "error"]


def write_list(bad: list[Found], target: Path, report: Report) -> None:
    """Write the paths of the bad files, one a line, into a new file."""
    paths = [item.path for item in bad]
    broken = [path for path in paths if "\n" in path]
    if broken:
        report.note("names with a line break, left out of the list: rename them", broken)
    try:
        with open(target, "xb") as file:
            file.writelines(os.fsencode(path) + b"\n" for path in paths if path not in broken)
    except OSError as error:
        report.error(f"{target} was not written ({error.strerror}): name another --list-bad FILE")
        return
    print(f"wrote the paths of {counted(len(paths) - len(broken), 'bad file')} to {target}")


def move_bad(
    bad: list[Found], root: Path, target: Path, dry_run: bool, splits: dict[str, Split]
) -> Iterator[str]:
    """Move bad files to `target`, sub-folders kept; yields what did not go as asked."""
    moved = set()
    for item in bad:
        if item.kind in NOT_MOVED:
            yield f"{item.path} stays, it may be a good file: {KINDS[item.kind].advice}"
            continue
        goal = os.path.join(target, os.path.relpath(item.path, root))
        if os.path.lexists(goal):
            yield f"{item.path} stays, {goal} exists: move one of the two yourself"
            continue
        if dry_run:
            print(printable(f"mv {quoted(item.path)} {quoted(goal)}"))
        else:
            try:
                os.makedirs(os.path.dirname(goal), exist_ok=True)
                # A rename within a file system, a copy into another; a link stays a link.
                shutil.move(item.path, goal)
            except OSError as error:
                yield f"{item.path} was not moved: {error}"
                continue
        moved.add(item.path)
    verb = "would move" if dry_run else "moved"
    print(f"{verb} {counted(len(moved), 'bad file')} to {target}; then check again")
    for name, split in splits.items():
        bare = [label for label, images in split.classes.items() if images and moved >= set(images)]
        if bare:
            yield (
                f"that leaves {counted(len(bare), 'class')} of {name}/ without an image; refill "
                f"them or remove the folders from train/ and val/: {named(bare)}"
            )


def check_tree(args: argparse.Namespace) -> int:
    """The whole check; returns the exit code."""
    report = Report()
    present = check_root(args.dir, report)
    splits = {name: list_split(str(args.dir / name)) for name in present}
    for split in splits.values():
        check_split(args.dir, split, report)
    if len(splits) == len(SPLITS):
        check_classes(splits, report)
    show_counts(splits, report)

    paths = [path for split in splits.values() for path in split.images()]
    found: list[Found] = []
    what = "decoding" if args.decode else "headers"
    with tqdm(total=len(paths), desc=what, unit="file", disable=None, leave=False) as bar:
        for done, new in check_files(paths, args.decode, args.max_megapixels * 1e6, args.workers):
            bar.update(done)
            found += new
    bad = report_files(found, report)
    if args.list_bad and args.dry_run:
        print(f"would write the paths of {counted(len(bad), 'bad file')} to {args.list_bad}")
    elif args.list_bad:
        write_list(bad, args.list_bad, report)
    if args.move_bad:
        for problem in move_bad(bad, args.dir, args.move_bad, args.dry_run, splits):
            report.error(problem)

    if report.errors:
        print(f"not usable: {counted(report.errors, 'error')}")
        return 1
    train, val = (len(splits[name].images()) for name in SPLITS)
    depth = "every image decoded" if args.decode else "headers checked; --decode reads all of it"
    print(
        f"usable: {counted(len(splits['train'].classes), 'class')}, {train:,} training and "
        f"{val:,} validation images ({depth})"
    )
    return 0


# ----------------------------------------------------------------------------------- sorting val/


class Entry(NamedTuple):
    """A line of a ground-truth list: the image and its class folder."""

    line: int
    image: str
    label: str


@dataclass
class ValFolder:
    """The images of val/: those directly in it, and the class folders that hold the others."""

    flat: set[str] = field(default_factory=set)
    placed: dict[str, set[str]] = field(default_factory=dict)
    folders: dict[str, str] = field(default_factory=dict)
    stems: dict[str, set[str]] = field(default_factory=dict)

    def find(self, listed: str) -> str | None:
        """The image that a list means; Kaggle's leaves the extension out."""
        name = listed.replace("\\", "/").rsplit("/", 1)[-1]
        if name in self.flat or name in self.placed:
            return name
        same_stem = self.stems.get(name, set())
        return next(iter(same_stem)) if len(same_stem) == 1 else None


def read_lines(path: Path) -> list[tuple[int, str]]:
    """The lines of a text file that are not blank, with their numbers from 1."""
    try:
        text = path.read_bytes().decode("utf-8-sig", "surrogateescape")
    except OSError as error:
        raise CheckError(f"{path}: {error.strerror}") from None
    if "\0" in text:
        raise CheckError(f"{path} is not a text file: see --help for the lists that are understood")
    lines = [(number, line.strip()) for number, line in enumerate(text.split("\n"), 1)]
    lines = [(number, line) for number, line in lines if line]
    if not lines:
        raise CheckError(f"{path} is empty: see --help for the lists that are understood")
    return lines


def read_truth(path: Path, meta: Path | None) -> list[Entry]:
    """A ground-truth list in any of the forms that the module's docstring names."""
    lines = read_lines(path)
    if all(re.fullmatch("[0-9]+", line) for _, line in lines):
        meta = meta or path.with_name("meta.mat")
        wnids = read_meta(meta)
        unknown = next((pair for pair in lines if int(pair[1]) not in wnids), None)
        if unknown:
            raise CheckError(f"{path}:{unknown[0]}: {meta} has no class with the id {unknown[1]}")
        return [
            Entry(number, f"ILSVRC2012_val_{number:08d}.JPEG", wnids[int(line)])
            for number, line in lines
        ]
    first = lines[0][1]
    separator = next((sign for sign in ",\t;" if sign in first), None)
    return [read_columns(path, number, line, separator) for number, line in lines]


def read_columns(path: Path, number: int, line: str, separator: str | None) -> Entry:
    """One line of a list with an image and its class."""
    try:
        cells = next(csv.reader([line], delimiter=separator)) if separator else line.rsplit(None, 1)
    except csv.Error as error:
        raise CheckError(f"{path}:{number}: {error}") from None
    cells = [cell.strip() for cell in cells]
    if len(cells) < 2 or not cells[0] or not cells[1]:
        raise CheckError(f"{path}:{number}: not `image class`: {line[:80]}")
    label = cells[1].rstrip("/")
    words = label.split()
    # Kaggle's form: class and four corners of a box, once for each object in the image.
    boxes = [word for place, word in enumerate(words) if place % 5]
    if boxes and len(words) % 5 == 0 and all(re.fullmatch(r"-?\d+", word) for word in boxes):
        if len(set(words[::5])) > 1:
            raise CheckError(f"{path}:{number}: objects of several classes: {line[:80]}")
        label = words[0]
    return Entry(number, cells[0], label)


def read_meta(path: Path) -> dict[int, str]:
    """The class folder of every ILSVRC2012 id, from the devkit's meta.mat or from a text file."""
    if not path.is_file():
        raise CheckError(
            f"{path} does not exist; the list has numbers, and only the devkit's data/meta.mat "
            "says which class each is: name it with --meta, or sort by LOC_val_solution.csv"
        )
    if path.suffix == ".mat":
        return read_mat(path)
    wnids: dict[int, str] = {}
    for number, line in read_lines(path):
        words = line.replace(",", " ").split()[:2]
        digits = [word for word in words if re.fullmatch("[0-9]+", word)]
        labels = [word for word in words if word not in digits]
        if len(digits) != 1 or len(labels) != 1 or int(digits[0]) in wnids:
            raise CheckError(f"{path}:{number}: not a new id and its wnid: {line[:80]}")
        wnids[int(digits[0])] = labels[0]
    return wnids


def read_mat(path: Path) -> dict[int, str]:
    """The ids and wnids of meta.mat's leaves, as torchvision.datasets.ImageNet reads them."""
    try:
        from scipy.io import loadmat
    except ImportError:
        raise CheckError(
            f"{path} is a MATLAB file, which only scipy reads: pip install scipy; or name a text "
            "file of `id wnid` lines with --meta, or sort by LOC_val_solution.csv"
        ) from None
    try:
        synsets = loadmat(path, squeeze_me=True)["synsets"]
        # Fields: id, wnid, words, gloss, number of children, ...: the 1000 classes have none.
        return {int(row[0]): str(row[1]) for row in synsets if int(row[4]) == 0}
    except Exception as error:
        # loadmat has no error of its own: a damaged file makes it raise anything.
        raise CheckError(f"{path} is not the devkit's meta.mat ({error})") from None


def list_val(folder: Path) -> ValFolder:
    """What lies in val/ now."""
    val = ValFolder()
    for entry in os.scandir(folder):
        if entry.is_dir():
            val.folders[entry.name] = entry.path
            for name in filter(is_image_name, os.listdir(entry.path)):
                val.placed.setdefault(name, set()).add(entry.name)
        elif is_image_name(entry.name):
            val.flat.add(entry.name)
    for name in val.flat | set(val.placed):
        val.stems.setdefault(os.path.splitext(name)[0], set()).add(name)
    return val


def without_header(entries: list[Entry], val: ValFolder, classes: set[str]) -> list[Entry]:
    """The entries less a first line of column titles, such as Kaggle's ImageId,PredictionString."""
    first = entries[0]
    titles = not re.search(r"[\d.]", first.image) and first.label not in classes
    return entries[1:] if titles and val.find(first.image) is None else entries


def plan_sort(
    entries: list[Entry], val: ValFolder, classes: set[str], report: Report
) -> list[tuple[str, str]]:
    """The (image, class) moves to make; every reason against any of them goes to `report`."""
    moves, seen = [], set()
    missing, twice, elsewhere, clashes = [], [], [], []
    for entry in entries:
        name = val.find(entry.image)
        where = val.placed.get(name, set()) if name else set()
        if name is None:
            missing.append(f"line {entry.line}: {entry.image}")
        elif name in seen:
            twice.append(f"line {entry.line}: {entry.image}")
        elif where - {entry.label}:
            elsewhere.append(f"{name}: in {named(where)}, listed as {entry.label}")
        elif where and name in val.flat:
            clashes.append(f"{name}: in val/ and in val/{entry.label}/")
        elif not where:
            moves.append((name, entry.label))
        seen.add(name)
    unlisted = sorted((val.flat | set(val.placed)) - seen)
    unknown = sorted({entry.label for entry in entries if entry.label not in classes})
    strangers = sorted(set(val.folders) - classes)

    if missing:
        report.error("images listed but not in val/: unpack val/ again", missing)
    if twice:
        report.error("images listed twice: mend the list", twice)
    if unlisted:
        report.error("images in val/ that the list has not: take them out", unlisted)
    if unknown:
        numbers = all(label.isdigit() for label in unknown)
        hint = "numbers have no agreed order, use a list of folder names" if numbers else "see both"
        report.error(f"classes of the list without a folder in train/: {hint}", unknown)
    if strangers:
        report.error("folders in val/ that train/ has not: remove or move them", strangers)
    if elsewhere:
        report.error("images in another class folder than listed: move them back", elsewhere)
    if clashes:
        report.error("images in both places: compare them and delete one", clashes)
    return moves


def check_targets(folder: Path, moves: list[tuple[str, str]], report: Report) -> None:
    """Whether every class folder can be made, and reached by a rename."""
    device = os.stat(folder).st_dev
    for label in sorted({label for _, label in moves}):
        target = folder / label
        if not target.is_dir() and os.path.lexists(target):
            report.error(f"{target} is not a folder: remove it")
        elif target.is_dir() and os.stat(target).st_dev != device:
            report.error(f"{target} lies on another file system: replace it by a plain folder")


def move_images(folder: Path, moves: list[tuple[str, str]]) -> Iterator[None]:
    """Rename every image into its class folder; yields after each."""
    for name, label in moves:
        target = folder / label / name
        target.parent.mkdir(exist_ok=True)
        if os.path.lexists(target):
            # rename would replace it without a word
            raise FileExistsError(f"{target} has appeared meanwhile")
        os.rename(folder / name, target)
        yield


def sort_val(args: argparse.Namespace) -> int:
    """Sort a flat val/ into class folders, after everything has been checked."""
    report, folder = Report(), args.dir / "val"
    for split in SPLITS:
        if not (args.dir / split).is_dir():
            raise CheckError(
                f"{args.dir / split} is not there; for what to do: {COMMAND} {quoted(args.dir)}"
            )
    classes = {entry.name for entry in os.scandir(args.dir / "train") if entry.is_dir()}
    if not classes:
        raise CheckError(
            f"{args.dir / 'train'} has no class folders to sort by; for what to do: "
            f"{COMMAND} {quoted(args.dir)}"
        )
    val = list_val(folder)
    entries = without_header(read_truth(args.sort_val, args.meta), val, classes)
    moves = plan_sort(entries, val, classes, report)
    check_targets(folder, moves, report)
    if report.errors:
        print(f"not sorted, nothing was moved: {counted(report.errors, 'error')}")
        return 1

    bare = classes - {entry.label for entry in entries}
    if bare:
        report.note(f"classes of train/ that get no image: see the list: {named(bare)}")
    whole = counted(len(moves), "image")
    if args.dry_run:
        for name, label in moves:
            print(printable(f"mv {quoted(folder / name)} {quoted(folder / label / name)}"))
        print(f"would sort {whole} into {counted(len({label for _, label in moves}), 'class')}")
        return 0
    done = 0
    try:
        with tqdm(total=len(moves), desc="sorting", unit="file", disable=None, leave=False) as bar:
            for _ in move_images(folder, moves):
                done += 1
                bar.update()
    except (OSError, KeyboardInterrupt) as error:
        why = str(error) or "interrupted"
        print(f"error: {printable(why)}: type the same again to go on")
        print(f"not sorted: {done:,} of {whole} moved")
        return 1 if isinstance(error, OSError) else 130
    print(f"sorted: {whole} moved; now check: {COMMAND} {quoted(args.dir)}")
    return 0


# ------------------------------------------------------------------------------------------ main


def usable_cpus() -> int:
    """CPUs that this process may use: fewer than the machine has in a container or a job."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:
        return os.cpu_count() or 1


def parse_args(argv: list[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog=COMMAND, description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    # fmt: off
    add = parser.add_argument
    add("dir", type=Path, metavar="DIR", help="the folder with train/ and val/")
    add("--decode", action="store_true",
        help="decode every image fully, as training does (several ms an image and CPU)")
    add("--workers", type=int, default=usable_cpus(), metavar="N",
        help="processes (default: the CPUs this process may use, here %(default)s)")
    add("--max-megapixels", type=float, default=MAX_MEGAPIXELS, metavar="M",
        help="larger images are an error (default: %(default)s)")
    add("--list-bad", type=Path, metavar="FILE",
        help="write the paths of unusable files there, one a line; FILE must be new")
    add("--move-bad", type=Path, metavar="DIR2",
        help="move unusable files there, as DIR2/train/CLASS/NAME; nothing is overwritten")
    add("--sort-val", type=Path, metavar="FILE",
        help="instead of a check: sort a flat val/ by this list")
    add("--meta", type=Path, metavar="FILE",
        help="with --sort-val and the official list: meta.mat, or a text file of `id wnid` lines")
    add("--dry-run", action="store_true",
        help="with --sort-val or --move-bad: only print what would be done")
    # fmt: on
    args = parser.parse_args(argv)
    check_args(args, parser)
    return args


def check_args(args: argparse.Namespace, parser: argparse.ArgumentParser) -> None:
    """Refuse what cannot be meant, before anything is read."""
    if args.workers < 1:
        parser.error("--workers must be at least 1")
    if not args.max_megapixels > 0:
        parser.error("--max-megapixels must be more than 0")
    if args.dry_run and not (args.sort_val or args.move_bad):
        parser.error("--dry-run goes with --sort-val or --move-bad")
    if args.meta and not args.sort_val:
        parser.error("--meta goes with --sort-val")
    if args.sort_val and (args.decode or args.list_bad or args.move_bad):
        parser.error("--sort-val only sorts: sort first, then check")
    for flag, path in (("--sort-val", args.sort_val), ("--meta", args.meta)):
        if path and not path.is_file():
            parser.error(f"{flag} {path}: no such file")
    if args.list_bad and os.path.lexists(args.list_bad):
        parser.error(f"--list-bad {args.list_bad} exists: name a new file, or delete it first")
    if args.list_bad and not args.list_bad.absolute().parent.is_dir():
        parser.error(f"--list-bad {args.list_bad}: its folder does not exist")
    if args.move_bad:
        if os.path.lexists(args.move_bad) and not args.move_bad.is_dir():
            parser.error(f"--move-bad {args.move_bad} is not a folder")
        if os.path.realpath(args.move_bad) == os.path.realpath(args.dir):
            parser.error("--move-bad DIR2 must be another folder than DIR")
        for split in SPLITS:
            if is_below(args.move_bad, args.dir / split):
                parser.error(f"--move-bad {args.move_bad} lies in {split}/: name one elsewhere")


def main(argv: list[str] | None = None) -> int:
    """Check or sort; returns the exit code."""
    args = parse_args(argv)
    if isinstance(sys.stdout, io.TextIOWrapper):
        # A terminal that is not UTF-8 shall not end the check at the first name it cannot show.
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        return sort_val(args) if args.sort_val else check_tree(args)
    except (CheckError, OSError) as error:
        print(f"error: {printable(str(error))}")
        print(
            "not sorted, nothing was moved" if args.sort_val else "not known: not all was checked"
        )
        return 1
    except KeyboardInterrupt:
        print("not known: interrupted")
        return 130


if __name__ == "__main__":
    raise SystemExit(main())
