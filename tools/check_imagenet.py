"""Say whether a folder is an ImageNet tree that the chapters can train on, and what to mend.

    python tools/check_imagenet.py DIR                             # folders and counts
    python tools/check_imagenet.py DIR --decode                    # every image, as training does

DIR holds train/ and val/, one folder a class in each. What would stop a chapter, or would be passed
over in silence, is an `error:` here. Exit code: 0 usable, 1 not usable, 2 bad arguments.
"""

import argparse
import multiprocessing
import os
import re
import runpy
import signal
import statistics
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path

from torchvision.datasets import ImageFolder
from torchvision.datasets.folder import is_image_file
from tqdm import tqdm

CHAPTER = Path(__file__).parents[1] / "02_distributed/main.py"
# The rule of every chapter.
load_image = runpy.run_path(str(CHAPTER))["load_image"]


class Report:
    """Prints findings as they come, and counts them."""

    def __init__(self) -> None:
        self.errors = 0

    def error(self, text: str, details: Iterable[str] = (), most: int = 10) -> None:
        """What keeps the chapters from training; below it so many details at most."""
        self.errors += 1
        print(f"error: {text}")
        details = sorted(details)
        for line in details[:most]:
            print(f"    {line}")
        if len(details) > most:
            print(f"    ... and {len(details) - most:,} more")


# ---- folders ----


def check_split(root: Path, name: str, report: Report) -> ImageFolder | None:
    """The images of train/ or val/, counted; none if they are not in class folders."""
    folder = root / name
    if not folder.is_dir():
        what = "DIR is the one with train/ and val/ (ILSVRC/Data/CLS-LOC in Kaggle's archive)"
        report.error(f"{folder} is not a folder: {what}")
        return None

    flat = [path.name for path in folder.iterdir() if is_image_file(path.name)]
    if name == "val" and flat:
        how = "sort them into class folders: docs/en/getting-started.md, A flat val"
        report.error(f"val/ is flat: {len(flat):,} images directly in it; {how}", flat)
    elif flat:
        report.error(f"{folder} has images outside of its class folders", flat)

    try:
        images = ImageFolder(folder, allow_empty=True)
    except FileNotFoundError as error:
        if not flat:
            report.error(f"{error} Put one there for each class, and unpack what is an archive")
        return None

    sizes = dict.fromkeys(images.classes, 0)
    for label in images.targets:
        sizes[images.classes[label]] += 1
    if empty := [label for label, size in sizes.items() if not size]:
        report.error(f"classes without an image in {name}/", empty)
    print(
        f"{name}: {len(sizes):,} classes, {len(images):,} images; a class has "
        f"{min(sizes.values()):,} to {max(sizes.values()):,}, "
        f"median {statistics.median(sizes.values()):g}"
    )
    return images


# ---- files ----


def refusal(path: str) -> str:
    """Why a chapter would refuse an image; empty if it would not."""
    try:
        load_image(path)
    except ValueError as error:
        reason = str(error.__cause__ or error).splitlines()[0]
        # torchvision puts the place in its own sources before the reason.
        return re.sub(r"^.*\.cpp:\d+, ", "", reason) or "cannot be decoded"
    return ""


def refusals(paths: list[str], workers: int, batch: int = 32) -> list[str]:
    """What is wrong with each image, in order, found by worker processes, which it may kill."""
    found = []
    while len(found) < len(paths):
        left = paths[len(found) :]
        # Ctrl-C reaches the whole process group; the parent alone ends the run.
        ignore = {"initializer": signal.signal, "initargs": (signal.SIGINT, signal.SIG_IGN)}
        pool = ProcessPoolExecutor(workers, multiprocessing.get_context("fork"), **ignore)
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


def check_tree(args: argparse.Namespace) -> int:
    """The whole check; returns the exit code."""
    report = Report()
    splits = [check_split(args.dir, name, report) for name in ("train", "val")]
    splits = [images for images in splits if images]
    # Classes are numbered by the order of their names: one that is missing shifts the others.
    if len(splits) == 2 and splits[0].classes != splits[1].classes:
        alone = set(splits[0].classes) ^ set(splits[1].classes)
        report.error("class folders not in both train/ and val/", alone)

    if args.decode and splits:
        paths = [path for images in splits for path, _ in images.samples]
        said = zip(paths, refusals(paths, args.workers), strict=True)
        bad = {path: reason for path, reason in said if reason}
        if bad:
            lines = [f"{path} ({reason})" for path, reason in bad.items()]
            report.error(f"{len(bad):,} files that no chapter can read", lines, len(lines))

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
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> int:
    return check_tree(parse_args(argv))


if __name__ == "__main__":
    raise SystemExit(main())
