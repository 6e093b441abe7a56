"""Measure the chapters side by side, against a plain DDP script.

    python tools/benchmark/benchmark.py                   # the chapters and the reference
    python tools/benchmark/benchmark.py --variants 'reference,02,02 --bf16,02 --synthetic'
    python tools/benchmark/benchmark.py --input           # images a second of one core
    python tools/benchmark/benchmark.py --collectives     # all-reduce: latency, bandwidth
    python tools/benchmark/benchmark.py --all --out docs/assets/results/NAME.json

A variant is `reference` (tools/benchmark/reference.py) or a chapter by its number, with any of its
flags after it; `02 doctor` is 02 under the doctor, and `--synthetic` alone has as many images as
the files. Each round runs every variant once, each in another order, so that what disturbs the
machine meets all of them. The result holds every run, machine, versions and commit, and the tables
are made from it alone.
"""

import argparse
import json
import os
import platform
import re
import runpy
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from argparse import Namespace
from collections.abc import Callable, Iterator
from datetime import datetime, timezone
from functools import partial
from importlib.metadata import version
from pathlib import Path

import reference
import torch
from processes import HOROVODRUN, PYTHON, ROOT, end_on_signals, launcher, run_bounded, torchrun
from table import tables
from torchvision.datasets import ImageFolder

sys.path.append(str(ROOT / "tools"))
from run_log import Run, read_run
from toy_imagenet import write_toy_imagenet

TIMEOUT = 1200  # seconds for a run
HERE = ROOT / "tools/benchmark"
Works = dict[str, Callable[[], dict]]  # what is compared, by name; each returns its figures


def in_rounds(works: Works, rounds: int) -> Iterator[dict]:
    """What each work finds in each round, which begins with another one than that before."""
    names = list(works)
    for count in range(rounds):
        first = count % len(names)
        for name in names[first:] + names[:first]:
            yield {"round": count, "variant": name} | works[name]()


def picture_folder(folder: Path, size: int, drawn: int, count: int) -> Path:
    """An ImageFolder, train/ and val/ of count links to pictures, used as often as it takes."""
    toy = folder.with_name(f"{folder.name}-drawn")
    cpus = len(os.sched_getaffinity(0))
    write_toy_imagenet(toy, 8, max(1, drawn // 8), 1, size, workers=cpus)
    pictures = sorted(toy.glob("train/*/*.jpg"))
    for number in range(count):
        picture = pictures[number % len(pictures)]
        for split in ("train", "val"):
            link = folder / split / picture.parent.name / f"{number}.jpg"
            link.parent.mkdir(parents=True, exist_ok=True)
            link.symlink_to(picture)
    return folder


# ---- training ----
def measures(run: Run, begun: float) -> dict[str, float]:
    """What the log of an epoch tells. It has a row for each half of the steps: the first holds the
    start of loaders and libraries, the second one the speed."""
    first, last = run.train
    [validated] = run.eval
    rate = last["images_per_second"]
    images = first["step"] * run.starts[0]["args"]["batch_size"]
    found = {
        "training images/s": rate,
        "validation images/s": validated["images"] / (validated["time"] - last["time"]),
        "start s": first["time"] - begun - images / rate,
    }
    return {name: round(value, 4) for name, value in found.items()}


def run_variant(variant: str, args: Namespace, work: Path) -> dict:
    """The figures of one run of a variant, or why it failed."""
    number, *flags = variant.split()
    batch = args.batch_size_per_rank * args.processes
    if "--synthetic" in flags:
        place = flags.index("--synthetic")
        images = ["--synthetic", batch * args.steps]
        flags[place : place + 1] = []
    else:
        images = ["--data", work / "data"]
    words = ["--arch", args.arch, "--image-size", args.image_size, "--batch-size", batch]
    words += ["--workers", args.workers, "--output-dir", work / "run", *images]
    before, own, environment = launcher(number, args.processes)
    if number == "reference":
        script = HERE / "reference.py"
    else:
        [script] = ROOT.glob(f"{number}_*/main.py")
        own = [*own, "--epochs", 1, "--print-freq", max(1, args.steps // 2)]
    doctor = [*PYTHON, "doctor"] if "doctor" in flags else []
    flags = [flag for flag in flags if flag != "doctor"]
    threads = len(os.sched_getaffinity(0)) // (1 if number == "01" else args.processes)
    environment |= {"OMP_NUM_THREADS": str(max(1, threads))}
    begun = time.time()
    command = [*doctor, *before, script, *words, *own, *flags]
    failed = run_bounded(command, environment, TIMEOUT, work / "output.txt")
    found = {"failed": failed} if failed else measures(read_run(work / "run"), begun)
    shutil.rmtree(work / "run", ignore_errors=True)
    return found


def training(args: Namespace, work: Path) -> Works:
    count = args.batch_size_per_rank * args.steps * args.processes
    # As many for validation, which has to start its workers: a smaller share of it.
    picture_folder(work / "data", 500, min(128, count), count)
    return {name: partial(run_variant, name, args, work) for name in args.variants}


# ---- the input pipeline ----
def input_pipeline(args: Namespace, work: Path) -> Works:
    """Samples as a training loop gets them, by one thread: as the reference has them from PIL, with
    torchvision's decoder alone, and as 02 has them. Pictures as large as ImageNet's, and larger."""
    torch.set_num_threads(1)
    chapter = runpy.run_path(str(ROOT / "02_distributed/main.py"))
    sets: dict[str, dict] = {"reference": {}, "reference, decode_image": {}, "02": {}}
    for name, size, drawn, count in (("500x375", 500, 40, 200), ("1600x1200", 1600, 8, 40)):
        folder = picture_folder(work / name, size, drawn, count)
        options = Namespace(data=folder, image_size=args.image_size, evaluate=False)
        view = reference.train_view(args.image_size)
        sets["reference"][name] = ImageFolder(folder / "train", view)
        of_torchvision = reference.decoded_by_torchvision(folder / "train", args.image_size)
        sets["reference, decode_image"][name] = of_torchvision
        sets["02"][name] = chapter["build_datasets"](options)[0]

    def rates(of: dict) -> dict:
        found = {}
        for name, images in of.items():
            images[0], images[1]  # warm-up
            begun = time.thread_time()
            for index in range(len(images)):
                images[index]
            found[f"{name} images/s"] = len(images) / (time.thread_time() - begun)
        return found

    return {name: partial(rates, of) for name, of in sets.items()}


# ---- between ranks ----
def run_collectives(backend: str, ranks: int, work: Path) -> dict:
    log = work / "output.txt"
    command = [*torchrun(ranks), HERE / "allreduce.py", backend]
    if failed := run_bounded(command, {"OMP_NUM_THREADS": "1"}, TIMEOUT, log):
        return {"failed": failed}
    return json.loads(re.findall(r"^\{.*\}$", log.read_text(), re.MULTILINE)[-1])


def collectives(args: Namespace, work: Path) -> Works:
    """gloo between two or more processes on CPUs, nccl between the GPUs."""
    gpus = torch.cuda.device_count()
    backends = {"gloo": max(2, args.processes)} | ({"nccl": gpus} if gpus > 1 else {})
    works = {(name, n): partial(run_collectives, name, n, work) for name, n in backends.items()}
    return {f"{name} x {n}": run for (name, n), run in works.items()}


PARTS = {"train": training, "input": input_pipeline, "collectives": collectives}
NAMES = {"train": "training", "input": "input, one core", "collectives": "all-reduce"}  # in results


# ---- the result ----
def git(*words: str) -> str:
    """What git says of this checkout; nothing if it is none."""
    found = subprocess.run(["git", "-C", ROOT, *words], capture_output=True, text=True)
    return found.stdout.strip()


def describe(args: Namespace, argv: list[str]) -> dict:
    """Machine, versions, commit, settings, and nothing measured."""
    found = re.search(r"^model name\s*: (.*)", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    model = found[1] if found else platform.machine()
    model += f" ({torch.backends.cpu.get_cpu_capability()})"  # what bf16's speed depends on
    gpus = [torch.cuda.get_device_name(n) for n in range(torch.cuda.device_count())]
    changed = " with changes" * bool(git("status", "--porcelain", "--untracked-files=no"))
    wanted = "rounds arch image_size batch_size_per_rank steps processes workers".split()
    argv = [re.sub(r"(^|=)/.*", r"\1FILE", word) for word in argv]  # places are nobody's business
    return {
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "commit": (git("rev-parse", "--short=9", "HEAD") or "unknown") + changed,
        "machine": {"cpu": model, "cores": len(os.sched_getaffinity(0)), "gpus": gpus},
        "versions": {name: version(name) for name in ("torch", "torchvision", "pillow")}
        | {"python": platform.python_version(), "cuda": torch.version.cuda},
        "settings": {name: getattr(args, name) for name in wanted},
        "command": shlex.join(["python", "tools/benchmark/benchmark.py", *argv]),
        "runs": {},
    }


def save(result: dict, out: Path) -> None:
    """One run a line."""
    text = json.dumps(result, indent=1, ensure_ascii=False)
    row = re.compile(r'\{\s+"round": [^}]*\}')
    text = row.sub(lambda found: re.sub(r"\s+", " ", found[0]), text)
    out.write_text(text + "\n", encoding="utf-8")


def parse_args(argv: list[str]) -> Namespace:
    gpus, cpus = torch.cuda.device_count(), len(os.sched_getaffinity(0))
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    # 04 is here by its flags alone: its default, bf16, is emulated on many CPUs.
    chapters = ["01", "02", "03", *["05"] * HOROVODRUN.is_file(), "06", "07", "08"]
    add = parser.add_argument
    for part in PARTS:
        add(f"--{part}", dest="parts", action="append_const", const=part)
    add("--all", dest="parts", action="store_const", const=list(PARTS), help="all of these")
    dated = Path("runs", time.strftime("benchmark-%Y%m%d-%H%M%S.json"))
    add("--out", type=Path, default=dated, metavar="FILE", help="else runs/benchmark-DATE.json")
    add("--variants", default=",".join(["reference", *chapters]), help="to train, see above")
    add("--arch", default="resnet50" if gpus else "resnet18", help="resnet18, on GPUs resnet50")
    add("--image-size", type=int, default=224, help="pixels a side")
    add("--rounds", type=int, default=5, help="(5)")
    add("--steps", type=int, default=50 if gpus else 20, help="an epoch (20, on GPUs 50)")
    add("--batch-size-per-rank", type=int, default=256 if gpus else 16, help="16, on GPUs 256")
    add("--processes", type=int, default=gpus or 2, help="2, or all GPUs")
    add("--workers", type=int, help="loading processes a rank; the CPUs by --processes")
    args = parser.parse_args(argv)
    if args.workers is None:
        args.workers = max(1, min(16, cpus // args.processes))
    args.parts = args.parts or ["train"]
    args.variants = args.variants.split(",")
    if wrong := [name for name in args.variants if not re.match("(reference|0[1-9])( |$)", name)]:
        parser.error(f"--variants: what is {wrong[0]!r}?")
    if not HOROVODRUN.is_file() and any(name.startswith("05") for name in args.variants):
        parser.error("05 needs Horovod: bash 05_horovod/install.sh")
    if args.out.exists():
        parser.error(f"{args.out} is there: give another --out")
    return args


def main(argv: list[str] | None = None) -> None:
    argv = sys.argv[1:] if argv is None else argv
    args = parse_args(argv)
    result = describe(args, argv)
    args.out.parent.mkdir(parents=True, exist_ok=True)
    save(result, args.out)  # now, not after an hour, it fails where nothing can be kept
    end_on_signals()
    with tempfile.TemporaryDirectory(prefix="benchmark-") as work:
        for part in args.parts:
            rows = result["runs"][NAMES[part]] = []
            for row in in_rounds(PARTS[part](args, Path(work)), args.rounds):
                rows.append(row)
                print(json.dumps(row), flush=True)
                save(result, args.out)
    print("", *tables(args.out, "en"), f"all of it is in {args.out}", sep="\n")
    failed = [row["failed"] for rows in result["runs"].values() for row in rows if "failed" in row]
    if failed:
        raise SystemExit(f"benchmark: error: {len(failed)} runs failed; {failed[0]}")


if __name__ == "__main__":
    main()
