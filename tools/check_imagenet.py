"""Say whether a folder is an ImageNet tree that the chapters can train on, and what to mend.

    python tools/check_imagenet.py DIR                    # folders, counts, every file's header
    python tools/check_imagenet.py DIR --decode           # also decodes every image, as training
    python tools/check_imagenet.py DIR --move-bad DIR2    # sets unusable files aside
    python tools/check_imagenet.py DIR --sort-val FILE    # sorts a flat val/ into class folders

DIR holds train/ and val/, one folder a class in each. What would stop a chapter is an `error:`
here, what is odd but harmless is a `note:`. Exit code: 0 usable, 1 not usable, 2 bad arguments.

FILE of --sort-val is Kaggle's LOC_val_solution.csv, the devkit's
ILSVRC2012_validation_ground_truth.txt with its meta.mat beside it (needs scipy), or a list of
`image class` lines. Nothing is ever overwritten; after Ctrl-C the same command goes on.
"""

import argparse
import functools
import multiprocessing
import os
import re
import shlex
import signal
import statistics
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import NamedTuple

try:
    from PIL import Image
    from tqdm import tqdm
except ImportError as missing:
    raise SystemExit(f"check_imagenet: {missing}; pip install pillow tqdm") from None

COMMAND = "python tools/check_imagenet.py"
# torchvision.datasets.folder.IMG_EXTENSIONS, repeated: importing torch takes seconds, and a check
# of headers does without it. A test compares the two.
IMAGE_EXTENSIONS = (".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp")
# What decode_image takes, by Pillow's names, and how such a file ends. MPO is a JPEG with more
# pictures behind the first, which is the one decoded. Of a WebP, Pillow reads all to open it.
ENDS = {"JPEG": b"\xff\xd9", "PNG": b"IEND\xaeB`\x82", "GIF": b";", "WEBP": b""}
ENDS["MPO"] = ENDS["JPEG"]
SHOWN = 10
# Those that this process may use: fewer than the machine has in a container or a job.
CPUS = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
# Files sent to a worker at once: enough to hide the messaging, few enough for an even bar.
BATCH = 32
# What can be wrong with a file.
KINDS = {
    "empty": "empty (0 bytes)",
    "unreadable": "cannot be read: look at links, permissions (ls -l) and the disk",
    "format": "decode_image takes only JPEG, PNG, WebP and GIF: convert them to JPEG",
    "shape": "not one picture of 3 x 8 bits: convert them to JPEG",
    "undecodable": "cut short, damaged or no image",
    "crash": "crashes the decoder, and would kill the training process",
}


class Found(NamedTuple):
    """What is wrong with a file; `kind` is a key of KINDS, or "doubt" where pixels must tell."""

    path: str
    kind: str
    detail: str = ""


class Report:
    """Prints findings as they come, and counts the errors."""

    def __init__(self) -> None:
        self.errors = 0

    def error(self, text: str, paths: Iterable[str] = ()) -> None:
        """A finding that keeps the chapters from training; the first few paths stand below it."""
        self.errors += 1
        print(f"error: {text}")
        paths = sorted(paths)
        for path in paths[:SHOWN]:
            print(f"    {path}")
        if len(paths) > SHOWN:
            print(f"    ... and {len(paths) - SHOWN:,} more")


def counted(number: int, noun: str) -> str:
    """A number and its noun: `1 class`, `1,000 classes`."""
    plural = noun + ("es" if noun.endswith("s") else "s")
    return f"{number:,} {noun if number == 1 else plural}"


def is_image_name(name: str) -> bool:
    """Whether ImageFolder takes a file of this name."""
    return name.lower().endswith(IMAGE_EXTENSIONS)


# ---- folders ----


def list_split(folder: Path) -> tuple[dict[str, list[str]], list[str]]:
    """The images of every class, as ImageFolder lists them, and the files that it passes over."""
    classes: dict[str, list[str]] = {}
    others = []
    entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
    for entry in tqdm(entries, desc=f"listing {folder}", disable=None, leave=False):
        if not entry.is_dir():
            others.append(entry.path)
            continue
        images = classes[entry.name] = []
        for root, _, names in os.walk(entry.path, followlinks=True):
            for name in sorted(names):
                (images if is_image_name(name) else others).append(os.path.join(root, name))
    return classes, others


def check_folders(root: Path, report: Report) -> dict[str, dict[str, list[str]]]:
    """The images of train/ and val/ by class; what is wrong with the folders goes to `report`."""
    splits: dict[str, dict[str, list[str]]] = {"train": {}, "val": {}}
    for name in splits:
        if (root / name).is_dir():
            splits[name] = check_split(root, name, report)
        else:
            what = "DIR is the one with train/ and val/ (ILSVRC/Data/CLS-LOC in Kaggle's archive)"
            report.error(f"{root / name} is not a folder: {what}")
    train, val = set(splits["train"]), set(splits["val"])
    # Classes are numbered by the order of their names: one that is missing shifts the others.
    if train and val and train != val:
        report.error("class folders not in both train/ and val/", train ^ val)
    return splits


def check_split(root: Path, name: str, report: Report) -> dict[str, list[str]]:
    """The images of train/ or val/ by class, counted; what is wrong goes to `report`."""
    folder = root / name
    classes, others = list_split(folder)
    flat = [path for path in others if is_image_name(path)]
    if name == "val" and flat:
        report.error(
            f"val/ is flat: {counted(len(flat), 'image')} directly in it; sort it: {COMMAND} "
            f"{shlex.quote(str(root))} --sort-val FILE (FILE: LOC_val_solution.csv, the devkit's "
            "ILSVRC2012_validation_ground_truth.txt, or lines `image class`)",
            flat,
        )
    elif not classes:
        what = "put one folder a class there, and unpack what is still an archive"
        report.error(f"{folder} has no class folders: {what}", others)
    elif others:
        what = "no image by its extension, or not in a class folder"
        print(f"note: ImageFolder passes over {counted(len(others), 'file')}: {what}: {others[0]}")
    if empty := [label for label, images in classes.items() if not images]:
        report.error(f"classes without an image in {name}/", empty)
    if sizes := [len(images) for images in classes.values()]:
        print(
            f"{name}: {counted(len(sizes), 'class')}, {counted(sum(sizes), 'image')}; a class has "
            f"{min(sizes):,} to {max(sizes):,}, median {statistics.median(sizes):g}"
        )
    return classes


# ---- files ----


def check_file(path: str, decode: bool) -> Found | None:
    """What is wrong with one file: its header tells, or if asked or in doubt the decoder."""
    try:
        found = check_header(path)
    except OSError as error:
        return Found(path, "unreadable", error.strerror or str(error))
    if found and found.kind != "doubt":
        return found
    return check_pixels(path) if found or decode else None


def check_header(path: str) -> Found | None:
    """What can be told without decoding. Raises OSError."""
    size = os.path.getsize(path)
    if not size:
        return Found(path, "empty")
    with open(path, "rb") as file:
        start = file.read(25)
        file.seek(max(0, size - 8))
        end = file.read()
        file.seek(0)
        try:
            image = Image.open(file)
            # Reads no pixels, but of an animation it may read the headers of the frames.
            frames = getattr(image, "n_frames", 1)
        except Exception as error:
            # A damaged header can make Pillow raise anything; an errno means that the disk failed.
            if isinstance(error, OSError) and error.errno:
                raise
            return Found(path, "doubt")
    if image.format not in ENDS:
        return Found(path, "format", image.format or "")
    if image.format == "PNG" and start[24] == 16:
        return Found(path, "shape", "16 bits a channel")
    if image.format in ("GIF", "WEBP") and frames > 1:
        return Found(path, "shape", f"{image.format} of {frames} frames")
    # An interrupted copy has a sound header. Bytes after the end are harmless, so no verdict yet.
    return None if end.endswith(ENDS[image.format]) else Found(path, "doubt")


def check_pixels(path: str) -> Found | None:
    """What decoding brings to light; the rule is that of every chapter's load_image."""
    from torchvision.io import ImageReadMode, decode_image

    try:
        image = decode_image(path, ImageReadMode.RGB)
    except RuntimeError as error:
        reason = str(error).splitlines()[0]
        if reason.startswith("Couldn't load"):
            # A broken install of torchvision must not blame every file.
            raise ImportError(reason) from None
        # torchvision puts the place in its own sources before the reason.
        return Found(path, "undecodable", re.sub(r"^.*\.cpp:\d+, ", "", reason))
    if str(image.dtype) != "torch.uint8" or image.ndim != 3 or image.shape[0] != 3:
        return Found(path, "shape", f"{image.dtype} {tuple(image.shape)}")
    return None


def end_with_parent() -> None:
    """Ends this worker when the tool is killed: it would wait for work for ever."""
    multiprocessing.parent_process().join()
    os._exit(1)


def prepare_worker() -> None:
    """Runs first in every worker process."""
    # Ctrl-C reaches the whole process group; the parent alone ends the run.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    warnings.simplefilter("ignore")
    # The chapters' decoder knows no such limit.
    Image.MAX_IMAGE_PIXELS = None
    threading.Thread(target=end_with_parent, daemon=True).start()


def check_files(
    paths: list[str], check: Callable[[str], Found | None], workers: int, batch: int
) -> Iterator[Found | None]:
    """`check` of every path, in order, in worker processes; names a file that kills its worker."""
    methods = multiprocessing.get_all_start_methods()
    context = multiprocessing.get_context("forkserver" if "forkserver" in methods else "spawn")
    while paths:
        done = 0
        pool = ProcessPoolExecutor(workers, context, prepare_worker)
        # Where workers cannot even start, the pool breaks here, which blames no file.
        pool.submit(os.getpid).result()
        try:
            for found in pool.map(check, paths, chunksize=batch):
                yield found
                done += 1
        except BrokenProcessPool:
            if workers == batch == 1:
                yield Found(paths[done], "crash")
                done += 1
            else:
                # Most likely one of these; else the rest breaks again, and the next are tried.
                suspects = paths[done : done + 4 * workers * batch]
                yield from check_files(suspects, check, 1, 1)
                done += len(suspects)
        finally:
            pool.shutdown(cancel_futures=True)
        paths = paths[done:]


def move_files(moves: list[tuple[str, str]], report: Report) -> str:
    """Rename files, never onto another; returns how many in words."""
    failed = []
    for source, target in tqdm(moves, desc="moving", unit="file", disable=None, leave=False):
        try:
            os.makedirs(os.path.dirname(target), exist_ok=True)
            if os.path.lexists(target):
                raise FileExistsError(f"{target} exists")
            # Not shutil.move: its copy into another file system can stop half-way.
            os.rename(source, target)
        except OSError as error:
            failed.append(f"{source}: {error}")
    if failed:
        report.error("not moved: mend this and type the same again", failed)
    return f"moved {counted(len(moves) - len(failed), 'file')} of {len(moves):,}"


def check_tree(args: argparse.Namespace) -> int:
    """The whole check; returns the exit code."""
    report = Report()
    splits = check_folders(args.dir, report)
    train, val = ([path for paths in split.values() for path in paths] for split in splits.values())
    if args.decode:
        # Imports torch once for all workers, so that replacing one that crashed is cheap.
        multiprocessing.set_forkserver_preload(["__main__", "torchvision.io"])
    check = functools.partial(check_file, decode=args.decode)
    checks = check_files(train + val, check, args.workers, BATCH)
    bar = tqdm(checks, total=len(train + val), unit="file", disable=None, leave=False)
    bad = [found for found in bar if found]
    for kind, what in KINDS.items():
        lines = [f"{x.path} ({x.detail})" if x.detail else x.path for x in bad if x.kind == kind]
        if lines:
            report.error(f"{counted(len(lines), 'file')}: {what}", lines)
    if args.list_bad:
        with open(args.list_bad, "x", errors="surrogateescape") as file:
            file.writelines(f"{item.path}\n" for item in bad)
        print(f"wrote the paths of {counted(len(bad), 'bad file')} to {args.list_bad}")
    if args.move_bad:
        # What cannot be read may be a sound file behind a failing disk.
        movable = [item.path for item in bad if item.kind != "unreadable"]
        moves = [(p, os.path.join(args.move_bad, os.path.relpath(p, args.dir))) for p in movable]
        print(f"{move_files(moves, report)} to {args.move_bad}; then check again")
    if report.errors:
        print(f"not usable: {counted(report.errors, 'error')}")
        return 1
    depth = "every image decoded" if args.decode else "headers checked; --decode reads all of it"
    print(
        f"usable: {counted(len(splits['train']), 'class')}, {len(train):,} training and "
        f"{len(val):,} validation images ({depth})"
    )
    return 0


# ---- sorting val/ ----


def read_truth(path: Path) -> dict[str, str]:
    """The class of every image, by its name less the extension, which Kaggle's list leaves out."""
    lines = path.read_text("utf-8").splitlines()
    if all(line.strip().isdecimal() for line in lines):
        from scipy.io import loadmat

        # The ids that torchvision.datasets.ImageNet takes. Fields: id, wnid, words, gloss, number
        # of children, ...: the 1000 classes have none. Any other id is a class train/ has not.
        synsets = loadmat(path.with_name("meta.mat"), squeeze_me=True)["synsets"]
        wnids = {int(row[0]): str(row[1]) for row in synsets if int(row[4]) == 0}
        labels = [wnids.get(int(line), line) for line in lines]
        return {f"ILSVRC2012_val_{n:08d}": label for n, label in enumerate(labels, 1)}
    truth: dict[str, str] = {}
    for number, line in enumerate(lines, 1):
        # In Kaggle's list the corners of boxes follow the class.
        cells = re.split(r"[\s,]+", line.strip())
        if not line.strip() or cells[0] == "ImageId":
            continue
        if len(cells) < 2:
            raise ValueError(f"{path}:{number}: not `image class`: {line[:80]}")
        stem = os.path.splitext(cells[0])[0]
        if truth.setdefault(stem, cells[1]) != cells[1]:
            raise ValueError(f"{path}:{number}: {stem} is listed above with another class")
    return truth


def plan_sort(truth: dict[str, str], val: Path, report: Report) -> list[tuple[str, str]]:
    """The renames to make, as (from, to); every reason against moving goes to `report`."""
    where: dict[str, list[Path]] = {}
    for path in [*val.glob("*"), *val.glob("*/*")]:
        if is_image_name(path.name):
            where.setdefault(path.stem, []).append(path)
    moves, wrong = [], []
    for stem, label in sorted(truth.items()):
        paths = where.pop(stem, [])
        if len(paths) != 1 or paths[0].parent not in (val, val / label):
            places = ", ".join(sorted(map(str, paths))) or "nowhere"
            wrong.append(f"{stem}: listed as {label}, found: {places}")
        elif paths[0].parent == val:
            moves.append((str(paths[0]), str(val / label / paths[0].name)))
    if wrong:
        report.error("images of the list that are not where they should be, once", wrong)
    if where:
        unlisted = [str(path) for paths in where.values() for path in paths]
        report.error("images in val/ that the list has not: take them out", unlisted)
    return moves


def sort_val(args: argparse.Namespace) -> int:
    """Sort a flat val/ into class folders, after the whole list has been checked."""
    report = Report()
    classes = {entry.name for entry in os.scandir(args.dir / "train") if entry.is_dir()}
    truth = read_truth(args.sort_val)
    if unknown := set(truth.values()) - classes:
        report.error("classes of the list without a folder in train/", unknown)
    moves = plan_sort(truth, args.dir / "val", report)
    if report.errors:
        print(f"not sorted, nothing was moved: {counted(report.errors, 'error')}")
        return 1
    print(move_files(moves, report))
    return 1 if report.errors else 0


# ---- main ----


def parse_args(argv: list[str] | None = None) -> argparse.Namespace:
    """The command line; what cannot be meant is refused before anything is read."""
    parser = argparse.ArgumentParser(
        prog=COMMAND, description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("dir", type=Path, metavar="DIR", help="the folder with train/ and val/")
    add("--decode", action="store_true", help="decode every image, as training does")
    add("--workers", type=int, default=CPUS, metavar="N", help="processes, here %(default)s")
    add("--list-bad", type=Path, metavar="FILE", help="write paths of unusable files; must be new")
    add("--move-bad", type=Path, metavar="DIR2", help="move them there, on the same file system")
    add("--sort-val", type=Path, metavar="FILE", help="only sort a flat val/, by this list")
    args = parser.parse_args(argv)
    if args.workers < 1:
        parser.error("--workers must be at least 1")
    if args.sort_val and (args.decode or args.list_bad or args.move_bad):
        parser.error("--sort-val only sorts: sort first, then check")
    new = args.list_bad
    if new and (os.path.lexists(new) or not new.absolute().parent.is_dir()):
        parser.error(f"--list-bad {new}: name a new file in a folder that exists")
    for split in ("train", "val") if args.move_bad else ():
        if args.move_bad.resolve().is_relative_to((args.dir / split).resolve()):
            parser.error(f"--move-bad {args.move_bad} lies in {split}/: name a folder elsewhere")
    return args


def main(argv: list[str] | None = None) -> int:
    """Check or sort; returns the exit code."""
    args = parse_args(argv)
    try:
        return sort_val(args) if args.sort_val else check_tree(args)
    except (ImportError, OSError, ValueError, BrokenProcessPool) as error:
        print(f"error: {error}")
        return 1
    except KeyboardInterrupt:
        print("interrupted: type the same again")
        return 130


if __name__ == "__main__":
    raise SystemExit(main())
