"""Say whether a folder is an ImageNet tree that the chapters can train on, and what to mend.

    python tools/check_imagenet.py DIR                             # folders and names
    python tools/check_imagenet.py DIR --decode                    # every image, as training does

DIR holds train/ and val/, one folder a class in each. What would stop a chapter, be passed over in
silence, or be trained on as what it is not, is an `error:` here. Exit code: 0 usable, 1 not usable,
2 bad arguments.
"""

import argparse
import filecmp
import multiprocessing
import os
import re
import runpy
import signal
import statistics
import sys
from collections import defaultdict
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path

from PIL import Image
from torchvision.datasets.folder import is_image_file
from tqdm import tqdm
from workers import end_with_parent

CHAPTER = Path(__file__).parents[1] / "02_distributed/main.py"
# The rule of every chapter.
load_image = runpy.run_path(str(CHAPTER))["load_image"]
# torchvision lists them as images, and cannot decode them.
NEVER_DECODED = (".bmp", ".ppm", ".pgm", ".tif", ".tiff")
# What may lie beside images, and folders that systems make.
NO_IMAGES = (".txt", ".xml", ".json", ".csv", ".md", ".ds_store", "thumbs.db", "desktop.ini")
OF_SYSTEMS = r"\..*|__MACOSX|@eaDir|lost\+found"
LONGEST = 1000  # times its width: validation makes the short side 256 pixels


def shown(text: str) -> str:
    """Text with names of files, which may hold anything: what would move a terminal's cursor, its
    colours or the direction of writing, escaped."""
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


class Report:
    """Prints findings as they come, and counts them."""

    def __init__(self) -> None:
        self.errors = 0

    def error(self, text: str, details: Iterable[str], most: int = 10) -> None:
        """What is wrong, unless there are no details; below it so many of them at most."""
        details = sorted(details)
        if not details:
            return
        self.errors += 1
        print(f"error: {shown(text)}")
        for line in details[:most]:
            print(f"    {shown(line)}")
        if len(details) > most:
            print(f"    ... and {len(details) - most:,} more")


# ---- folders ----


def check_split(split: Path, report: Report) -> dict[str, list[str]]:
    """The images of train/ or val/ by class, counted; none if there are no class folders."""
    if not split.is_dir():
        what = "DIR is the one with train/ and val/ (ILSVRC/Data/CLS-LOC in Kaggle's archive)"
        report.error(f"{split} is not a folder", [what])
        return {}

    images, passed_over = defaultdict(list), defaultdict(list)  # by folder, and by suffix
    real, twice, closed = {}, [], []
    root = os.path.realpath(split)
    for folder, folders, files in os.walk(split, followlinks=True, onerror=closed.append):
        here = os.path.realpath(folder)
        first = real.setdefault(here, folder)
        if first != folder or root.startswith(here.rstrip("/") + "/"):
            twice.append(f"{folder} is {first if first != folder else here}")
            folders.clear()  # a link to a folder above would have no end, one to / the whole disk
            continue
        folders.sort()
        for path in (os.path.join(folder, name) for name in files):
            if is_image_file(path):
                images[folder].append(path)
            elif not path.lower().endswith(NO_IMAGES):
                passed_over[Path(path).suffix].append(path)

    report.error(f"folders of {split} that links show twice", twice)
    report.error("folders that cannot be read", [f"{e.filename}: {e.strerror}" for e in closed])
    of_systems = [path for path in real.values() if re.fullmatch(OF_SYSTEMS, Path(path).name)]
    report.error("folders that a system has made: no classes, and not parts of one", of_systems)
    told = [f"{len(files):,} {kind!r}, such as {files[0]}" for kind, files in passed_over.items()]
    report.error("files whose suffix is none of an image: training passes them over", told)
    paths = [path for files in images.values() for path in files]
    of_macos = [path for path in paths if Path(path).name.startswith("._")]
    report.error("notes of macOS under the names of images: delete them", of_macos)
    never = [path for path in paths if path.lower().endswith(NEVER_DECODED)]
    report.error("images that no chapter can decode: make them JPEG or PNG", never)
    return check_classes(split, images, report)


def check_classes(split: Path, images: dict[str, list], report: Report) -> dict[str, list[str]]:
    """images: by folder. Returned by class."""
    flat = images.pop(str(split), [])
    how = "; how to sort them: docs/en/imagenet.md, A flat val" * (split.name == "val")
    report.error(f"{split}: {len(flat):,} images outside of class folders{how}", flat)
    classes = {label: [] for label in next(os.walk(split), ("", [], []))[1]}
    if not classes:
        what = "put one there for each class, and unpack what is an archive"
        report.error(f"no class folder in {split}", [] if flat else [what])
        return {}

    folders = defaultdict(list)
    for folder, files in sorted(images.items()):
        label = Path(folder).relative_to(split).parts[0]
        classes[label] += sorted(files)
        folders[label].append(folder)
    if len(classes) == 1:
        report.error(f"one class only in {split}: unpacked a folder too deep?", classes)
    empty = [label for label, files in classes.items() if not files]
    report.error(f"classes without an image in {split}", empty)
    merged = [f"{label}: {', '.join(where)}" for label, where in folders.items() if where[1:]]
    report.error("classes made of several folders", merged)
    sizes = [len(files) for files in classes.values()]
    print(
        f"{split.name}: {len(sizes):,} classes, {sum(sizes):,} images; a class has "
        f"{min(sizes):,} to {max(sizes):,}, median {statistics.median(sizes):g}"
    )
    return classes


# ---- files ----


def refusal(path: str) -> str:
    """Why a chapter would refuse an image, or be hurt by it; empty if neither."""
    try:
        height, width = load_image(path).shape[-2:]
    except ValueError as error:
        if not error.__cause__:
            with Image.open(path) as image:
                frames = getattr(image, "n_frames", 1)
                return f"not a single 8-bit image: mode {image.mode}, frames {frames}"
        reason = str(error.__cause__).splitlines()[0]
        # torchvision puts the place in its own sources before the reason.
        return re.sub(r"^.*\.cpp:\d+, ", "", reason) or "cannot be decoded"
    if max(height, width) > LONGEST * min(height, width):
        return f"{width} x {height} pixels: validation enlarges the short side to 256"
    return ""


def begin_worker() -> None:
    # Ctrl-C reaches the whole process group; the parent alone ends the run.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    end_with_parent()


def refusals(paths: list[str], workers: int, batch: int = 32) -> list[str]:
    """What is wrong with each image, in order, found by worker processes, which it may kill."""
    found = []
    while len(found) < len(paths):
        left = paths[len(found) :]
        pool = ProcessPoolExecutor(workers, multiprocessing.get_context("fork"), begin_worker)
        said = pool.map(refusal, left, chunksize=batch)
        try:
            for reason in tqdm(said, total=len(left), unit="file", disable=None, leave=False):
                found.append(reason)
        except BrokenProcessPool:
            if workers == batch == 1:
                found.append("crashes the decoder, and would kill the training process")
            else:
                # Most likely one of these; else the rest breaks again, and the next are tried.
                found += refusals(left[: 4 * workers * batch], 1, 1)
        finally:
            pool.shutdown(cancel_futures=True)
    return found


def in_both(train: Iterable[str], val: Iterable[str]) -> list[str]:
    """The validation images that train/ holds as well, byte for byte."""
    same_size = defaultdict(list)
    for path in train:
        same_size[os.path.getsize(path)].append(path)
    pairs = ((path, other) for path in val for other in same_size[os.path.getsize(path)])
    # Files that differ do so in their first block: no more of them is read.
    return [f"{path} is {other}" for path, other in pairs if filecmp.cmp(path, other, False)]


def check_tree(args: argparse.Namespace) -> int:
    """The whole check; returns the exit code."""
    report = Report()
    train, val = (check_split(args.dir.expanduser() / name, report) for name in ("train", "val"))
    if train and val:
        # Classes are numbered by the order of their names: one that is missing shifts the others.
        # In ASCII, as names may look alike.
        report.error("class folders only in train/", map(ascii, train.keys() - val.keys()))
        report.error("class folders only in val/", map(ascii, val.keys() - train.keys()))

    if args.decode and (train or val):
        paths = [path for split in (train, val) for files in split.values() for path in files]
        said = zip(paths, refusals(paths, args.workers), strict=True)
        bad = [f"{path} ({reason})" for path, reason in said if reason]
        report.error(f"{len(bad):,} files that no chapter can read", bad, len(bad))
        there = [filter(os.path.exists, sum(split.values(), [])) for split in (train, val)]
        report.error("images of val/ that train/ has as well", in_both(*there))

    if report.errors:
        print(f"not usable, errors: {report.errors}")
        return 1
    print("usable: " + ("every image decoded" if args.decode else "--decode reads every image"))
    return 0


# ---- main ----


def parse_args(argv: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("dir", type=Path, metavar="DIR", help="the folder with train/ and val/")
    add("--decode", action="store_true", help="decode every image, as training does")
    cpus = len(os.sched_getaffinity(0))
    add("--workers", type=int, default=cpus, metavar="N", help="processes, here %(default)s")
    args = parser.parse_args(argv)
    if args.workers < 1:
        parser.error(f"--workers {args.workers} is too small: use 1 or more")
    return args


def main(argv: list[str] | None = None) -> int:
    args = parse_args(argv)
    sys.stdout.reconfigure(errors="backslashreplace")  # names that are not UTF-8
    return check_tree(args)


if __name__ == "__main__":
    raise SystemExit(main())
