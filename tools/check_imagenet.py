"""Say whether a folder is an ImageNet tree that the chapters can train on, and what to mend.

    python tools/check_imagenet.py DIR                    # folders, counts, every file's header
    python tools/check_imagenet.py DIR --decode           # also decodes every image, as training
    python tools/check_imagenet.py DIR --move-bad DIR2    # sets unusable files aside
    python tools/check_imagenet.py DIR --sort-val FILE    # sorts a flat val/ into class folders

DIR holds train/ and val/, one folder a class in each. What would stop a chapter is an `error:`
here, what is odd but harmless is a `note:`. Exit code: 0 usable, 1 not usable, 2 bad arguments.

FILE of --sort-val is one of
    ILSVRC2012_validation_ground_truth.txt   of the devkit, its meta.mat beside it (needs scipy)
    LOC_val_solution.csv                     Kaggle's
    any list of `image class` lines          separated by blanks, a tab, a semicolon or a comma

Nothing is ever overwritten. After Ctrl-C or an error the same command goes on where it stopped.
"""

import argparse
import functools
import io
import multiprocessing
import os
import re
import shlex
import signal
import stat
import statistics
import sys
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
JPEG_END = b"\xff\xd9"
# What decode_image takes, by Pillow's names, and how such a file ends. MPO is a JPEG with more
# pictures behind the first, which is the one decoded. Of a WebP, Pillow reads all to open it.
ENDS = {"JPEG": JPEG_END, "MPO": JPEG_END, "PNG": b"IEND\xaeB`\x82", "GIF": b";", "WEBP": b""}
SHOWN = 10
# Those that this process may use: fewer than the machine has in a container or a job.
CPUS = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
# Files sent to a worker at once: enough to hide the messaging, few enough for an even bar.
BATCH = 32
# What can be wrong with a file.
KINDS = {
    "empty": "empty (0 bytes)",
    "no file": "neither a file nor a link to one",
    "unreadable": "cannot be read: look at the permissions (ls -l) and the disk",
    "format": "decode_image takes only JPEG, PNG, WebP and GIF: convert them to JPEG",
    "shape": "not one picture of 3 x 8 bits: convert them to JPEG",
    "undecodable": "cut short, damaged or no image",
    "crash": "crashes the decoder, and would kill the training process",
}


class CheckError(Exception):
    """The check or the sorting cannot go on; the message is the line that the user sees."""


class Found(NamedTuple):
    """What is wrong with a file; `kind` is a key of KINDS, or "doubt" where pixels must tell."""

    path: str
    kind: str
    detail: str = ""


class Report:
    """Prints findings as they come, one a line, and counts the errors."""

    def __init__(self) -> None:
        self.errors = 0

    def error(self, text: str, paths: Iterable[str] = ()) -> None:
        """A finding that keeps the chapters from training."""
        self.errors += 1
        self.note(text, paths, "error")

    def note(self, text: str, paths: Iterable[str] = (), level: str = "note") -> None:
        """A finding that does not; the first few paths stand below it."""
        lines = [f"{level}: {text}"] + [f"    {path}" for path in sorted(paths)]
        if len(lines) > SHOWN + 1:
            lines[SHOWN + 1 :] = [f"    ... and {len(lines) - SHOWN - 1:,} more"]
        for line in lines:
            print(line.replace("\n", "\\n"))


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
            report.error(
                f"{root / name} is not a folder: DIR is the one that holds train/ and val/ "
                "(ILSVRC/Data/CLS-LOC in Kaggle's archive)"
            )
    train, val = set(splits["train"]), set(splits["val"])
    # Classes are numbered by the order of their names: one that is missing shifts the others.
    if train and val - train:
        report.error("class folders in val/ and not in train/", val - train)
    if val and train - val:
        report.error("class folders in train/ and not in val/", train - val)
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
        report.note(f"ImageFolder passes over {counted(len(others), 'file')}: {what}", others)
    if not classes:
        return classes
    empty = [label for label, images in classes.items() if not images]
    if empty:
        report.error(f"classes without an image in {name}/", empty)
    sizes = [len(images) for images in classes.values()]
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
    except FileNotFoundError:
        return Found(path, "no file")
    except OSError as error:
        return Found(path, "unreadable", error.strerror or str(error))
    if found and found.kind != "doubt":
        return found
    return check_pixels(path) if found or decode else None


def check_header(path: str) -> Found | None:
    """What can be told without decoding. Raises OSError."""
    status = os.stat(path)
    if not stat.S_ISREG(status.st_mode):
        # Opening a pipe would wait for its other end for ever.
        return Found(path, "no file")
    if not status.st_size:
        return Found(path, "empty")
    with open(path, "rb") as file:
        start = file.read(25)
        file.seek(max(0, status.st_size - 8))
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


@functools.cache
def load_decoder() -> Callable:
    """The chapters' decoder. Raises CheckError: a broken install must not blame every file."""
    try:
        import torch
        from torchvision.io import ImageReadMode, decode_image, encode_jpeg

        decode_image(encode_jpeg(torch.zeros(3, 8, 8, dtype=torch.uint8)))
    except (ImportError, RuntimeError) as error:
        reason = str(error).splitlines()[0]
        raise CheckError(f"torchvision cannot decode images here: {reason}") from None
    return functools.partial(decode_image, mode=ImageReadMode.RGB)


def check_pixels(path: str) -> Found | None:
    """What decoding brings to light; the rule is that of every chapter's load_image."""
    decode = load_decoder()
    try:
        image = decode(path)
    except RuntimeError as error:
        # torchvision puts the place in its own sources before the reason.
        reason = re.sub(r"^.*\.cpp:\d+, ", "", str(error).splitlines()[0])
        return Found(path, "undecodable", reason)
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


def start_pool(workers: int) -> ProcessPoolExecutor:
    """A pool that has worked once. Raises BrokenProcessPool here, where it blames no file."""
    methods = multiprocessing.get_all_start_methods()
    context = multiprocessing.get_context("forkserver" if "forkserver" in methods else "spawn")
    pool = ProcessPoolExecutor(workers, context, prepare_worker)
    pool.submit(os.getpid).result()
    return pool


def check_files(
    paths: list[str], check: Callable[[str], Found | None], workers: int, batch: int
) -> Iterator[Found | None]:
    """`check` of every path, in order, in worker processes; names a file that kills its worker."""
    while paths:
        done = 0
        pool = start_pool(workers)
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


def report_files(found: list[Found], report: Report) -> None:
    """Print what was found in files, kind by kind."""
    for kind, what in KINDS.items():
        items = [item for item in found if item.kind == kind]
        lines = [f"{item.path} ({item.detail})" if item.detail else item.path for item in items]
        if items:
            report.error(f"{counted(len(items), 'file')}: {what}", lines)


def write_list(bad: list[Found], target: Path, report: Report) -> None:
    """Write the paths of bad files, one a line, into a new file. Raises OSError."""
    paths = [item.path for item in bad if "\n" not in item.path]
    if len(paths) < len(bad):
        report.note("names with a line break are left out of the list: rename them")
    with open(target, "xb") as file:
        file.writelines(os.fsencode(path) + b"\n" for path in paths)
    print(f"wrote the paths of {counted(len(paths), 'bad file')} to {target}")


def move_files(moves: list[tuple[str, str]], dry_run: bool, report: Report) -> str:
    """Rename files, never onto another; returns how many in words."""
    moved, failed = 0, []
    for source, target in tqdm(moves, desc="moving", unit="file", disable=None, leave=False):
        if dry_run:
            print(f"mv {shlex.quote(source)} {shlex.quote(target)}".replace("\n", "\\n"))
            continue
        try:
            os.makedirs(os.path.dirname(target), exist_ok=True)
            if os.path.lexists(target):
                raise FileExistsError(f"{target} exists")
            # Not shutil.move: its copy into another file system can stop half-way.
            os.rename(source, target)
            moved += 1
        except OSError as error:
            failed.append(f"{source}: {error}")
    if failed:
        report.error("not moved: mend this and type the same again", failed)
    if dry_run:
        return f"would move {counted(len(moves), 'file')}"
    return f"moved {counted(moved, 'file')}"


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
    report_files(bad, report)
    if args.list_bad:
        write_list(bad, args.list_bad, report)
    if args.move_bad:
        # What cannot be read may be a sound file behind a failing disk.
        movable = [item.path for item in bad if item.kind != "unreadable"]
        moves = [(p, os.path.join(args.move_bad, os.path.relpath(p, args.dir))) for p in movable]
        print(f"{move_files(moves, args.dry_run, report)} to {args.move_bad}; then check again")
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


def read_truth(path: Path, classes: set[str]) -> dict[str, str]:
    """The class of every image, by its name less the extension, which Kaggle's list leaves out."""
    text = path.read_text("utf-8-sig", "surrogateescape")
    numbered = [(number, line.strip()) for number, line in enumerate(text.split("\n"), 1)]
    lines = [(number, line) for number, line in numbered if line]
    if lines and all(line.isdecimal() for _, line in lines):
        wnids = read_meta(path.with_name("meta.mat"))
        # An id that is not in meta.mat stays, and so is a class that train/ has not.
        return {f"ILSVRC2012_val_{n:08d}": wnids.get(int(line), line) for n, line in lines}
    truth: dict[str, str] = {}
    for number, line in lines:
        cells = [cell.strip('"/') for cell in re.split(r"\s*[,;\t]\s*|\s+", line, maxsplit=1)]
        if len(cells) < 2:
            raise CheckError(f"{path}:{number}: not `image class`: {line[:80]}")
        # In Kaggle's list the corners of boxes follow the class.
        label = cells[1] if cells[1] in classes else re.split(r'[\s,;"/]', cells[1])[0]
        image = os.path.basename(cells[0])
        if number == 1 and label not in classes and not re.search(r"[\d.]", image):
            # The titles of columns.
            continue
        stem = os.path.splitext(image)[0] if is_image_name(image) else image
        if truth.setdefault(stem, label) != label:
            raise CheckError(f"{path}:{number}: {image} is listed above with another class")
    return truth


def read_meta(path: Path) -> dict[int, str]:
    """The class folder of every ILSVRC2012 id, as torchvision.datasets.ImageNet reads it."""
    try:
        from scipy.io import loadmat

        # Fields: id, wnid, words, gloss, number of children, ...: the 1000 classes have none.
        synsets = loadmat(path, squeeze_me=True)["synsets"]
        return {int(row[0]): str(row[1]) for row in synsets if int(row[4]) == 0}
    except Exception as error:
        # loadmat has no error of its own: a damaged file makes it raise anything.
        raise CheckError(
            f"the devkit's list needs {path}, and scipy to read it (pip install scipy): {error}"
        ) from None


def plan_sort(
    truth: dict[str, str], val: Path, classes: set[str], report: Report
) -> list[tuple[str, str]]:
    """The renames to make, as (from, to); every reason against moving goes to `report`."""
    where: dict[str, list[Path]] = {}
    for path in [*val.glob("*"), *val.glob("*/*")]:
        if is_image_name(path.name):
            where.setdefault(path.stem, []).append(path)
    moves, missing, misplaced = [], [], []
    for stem, label in sorted(truth.items()):
        paths = where.pop(stem, [])
        if not paths:
            missing.append(stem)
        elif len(paths) == 1 and paths[0].parent == val:
            moves.append((str(paths[0]), str(val / label / paths[0].name)))
        elif len(paths) > 1 or paths[0].parent != val / label:
            misplaced.append(f"{', '.join(sorted(map(str, paths)))}: listed as {label}")
    unlisted = [str(path) for paths in where.values() for path in paths]
    problems = {
        "images listed but not in val/: unpack val/ again": missing,
        "images in val/ that the list has not: take them out": unlisted,
        "images in another place than listed, or in two: move or delete them": misplaced,
        "classes of the list without a folder in train/": set(truth.values()) - classes,
    }
    for text, names in problems.items():
        if names:
            report.error(text, names)
    return moves


def sort_val(args: argparse.Namespace) -> int:
    """Sort a flat val/ into class folders, after the whole list has been checked."""
    report = Report()
    classes = {entry.name for entry in os.scandir(args.dir / "train") if entry.is_dir()}
    truth = read_truth(args.sort_val, classes)
    moves = plan_sort(truth, args.dir / "val", classes, report)
    if report.errors:
        print(f"not sorted, nothing was moved: {counted(report.errors, 'error')}")
        return 1
    print(f"{move_files(moves, args.dry_run, report)} of {len(moves):,}")
    return 1 if report.errors else 0


# ---- main ----


def parse_args(argv: list[str] | None = None) -> argparse.Namespace:
    """The command line; what cannot be meant is refused before anything is read."""
    parser = argparse.ArgumentParser(
        prog=COMMAND, description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    # fmt: off
    add = parser.add_argument
    add("dir", type=Path, metavar="DIR", help="the folder with train/ and val/")
    add("--decode", action="store_true",
        help="decode every image fully, as training does (several ms an image and CPU)")
    add("--workers", type=int, default=CPUS, metavar="N",
        help="processes (default: the CPUs this process may use, here %(default)s)")
    add("--list-bad", type=Path, metavar="FILE",
        help="write the paths of unusable files there, one a line; FILE must be new")
    add("--move-bad", type=Path, metavar="DIR2",
        help="move unusable files to DIR2/train/CLASS/NAME, on the same file system")
    add("--sort-val", type=Path, metavar="FILE",
        help="instead of a check: sort a flat val/ by this list")
    add("--dry-run", action="store_true",
        help="with --sort-val or --move-bad: only print what would be moved")
    # fmt: on
    args = parser.parse_args(argv)
    if args.workers < 1:
        parser.error("--workers must be at least 1")
    if args.dry_run and not (args.sort_val or args.move_bad):
        parser.error("--dry-run goes with --sort-val or --move-bad")
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
    if isinstance(sys.stdout, io.TextIOWrapper):
        # A terminal that is not UTF-8 shall not end the check at the first name it cannot show.
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        return sort_val(args) if args.sort_val else check_tree(args)
    except (CheckError, OSError, BrokenProcessPool) as error:
        print(f"error: {error}")
        return 1
    except KeyboardInterrupt:
        print("interrupted: type the same again")
        return 130


if __name__ == "__main__":
    raise SystemExit(main())
