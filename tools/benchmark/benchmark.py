"""Measure the chapters side by side, against a plain DDP script and a bare loop.

    python tools/benchmark/benchmark.py                # the chapters and the reference
    python tools/benchmark/benchmark.py --input        # the input pipeline, against PIL's
    python tools/benchmark/benchmark.py --loop         # train_one_epoch against a bare loop
    python tools/benchmark/benchmark.py --collectives  # all-reduce: latency, bandwidth
    python tools/benchmark/benchmark.py --all --out docs/assets/results/NAME
    python tools/benchmark/benchmark.py --render docs/assets/results/NAME/benchmark.json

Writes benchmark.json (every run, machine, versions, commit), and made from it alone RESULT,
SUMMARY (.en.md, .zh.md). Variants of the training comparison:

    reference     tools/benchmark/reference.py, a plain DDP script: what the ratios are to
    02, 02 bf16   a chapter by its number, then its flags: bf16, fp16 (04), compile
    02 doctor     the same under the doctor: what it costs
    2 x 01        one process of chapter 01 for each rank, at once, without DDP (N x 01 for N)

Each round runs every variant once, each round in another order, so that what disturbs the machine
meets all of them. A run's CPU seconds are those of all its processes, orphans included. `foreign`
is how many CPUs others kept busy meanwhile: runs above 0.35 are marked, and wall figures come from
the others if any.
"""

import argparse
import contextlib
import importlib.metadata
import json
import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from datetime import datetime, timezone
from pathlib import Path

import parts
import report
import torch
from parts import rotated
from processes import ROOT, end_on_signals, run_timed

sys.path.append(str(ROOT / "tools"))
from run_log import Run, read_run

TIMEOUT = 1200  # seconds for a run
INSTRUCTIONS = ["avx2", "avx512f", "avx512_bf16", "amx_bf16"]  # by which speed differs most
HERE = Path("tools", "benchmark")
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node"]
HOROVODRUN = Path(sys.executable).with_name("horovodrun")


def fail(line: str) -> None:
    """End with one line, status 1 and no traceback."""
    raise SystemExit(f"benchmark: error: {line}")


# --------------------------------------------------------------------------- training comparison


def choose_variants(args: argparse.Namespace) -> list[str]:
    """The variants to run, each of them one that can run here."""
    alone = [f"{args.processes} x 01"] * (args.processes > 1)
    names = ["reference", "02", "02 bf16", "01", "03", "04", "05", "06", "07", *alone]
    if torch.cuda.is_available():
        names.append("02 bf16 compile")
    if not parts.has_bf16():
        names = [name for name in names if "bf16" not in name]
    if not HOROVODRUN.is_file():
        names = [name for name in names if name != "05"]
    if args.variants:
        names = list(dict.fromkeys(args.variants.split(",")))
    flags = r"0[1-7]( bf16)?( compile)?"
    known = "|".join(["reference", flags, "02 doctor", "04 fp16( compile)?", *alone])
    for name in names:
        if not re.fullmatch(known, name):
            fail(f"--variants: no {name!r} with --processes {args.processes}, see --help")
        if name.startswith("05") and not HOROVODRUN.is_file():
            fail("05 needs Horovod: bash 05_horovod/install.sh")
    return names


def command_of(variant: str, args: argparse.Namespace, work: Path, copy: int) -> list:
    """The command line of one of a variant's processes; its log goes to work/run-COPY."""
    number, *flags = variant.split()
    alone = variant.endswith("x 01")
    ranks = 1 if alone else args.processes
    words = ["--data", work / ("data-alone" if alone else "data"), "--arch", args.arch]
    words += ["--image-size", args.image_size, "--batch-size", args.batch_size_per_rank * ranks]
    words += ["--workers", args.workers, "--output-dir", work / f"run-{copy}"]
    if variant == "reference":
        return [*TORCHRUN, ranks, HERE / "reference.py", *words]
    words += ["--epochs", 1, "--print-freq", 10**6]
    if number == "04":  # which knows no --bf16
        [kind] = [flag for flag in flags if flag in ("bf16", "fp16")] or ["fp32"]
        words += ["--amp-dtype", kind]
        flags = [flag for flag in flags if flag != kind]
    words += [f"--{flag}" for flag in flags if flag in ("bf16", "compile")]
    [script] = ROOT.glob(f"{'01' if alone else number}_*/main.py")
    script = script.relative_to(ROOT)
    if alone and torch.cuda.is_available():
        words += ["--gpus", copy]
    if alone or number == "01":
        return [sys.executable, script, *words]
    if number == "03":
        return [sys.executable, script, *words, "--nprocs", ranks]
    if number == "05":
        start = [HOROVODRUN, "-np", ranks, "--gloo", "-H", f"localhost:{ranks}", sys.executable]
        return [*start, script, *words]
    # 06 too: in torchrun's environment it takes its ranks from there, and needs no Slurm.
    doctor = [sys.executable, "doctor"] if "doctor" in flags else []
    return [*doctor, *TORCHRUN, ranks, script, *words]


def measures(run: Run, begun: float) -> dict[str, float]:
    """What the log of an epoch tells: images/s without the first step, its second, MiB. Its rows
    are the first step and the last one."""
    first, last = run.train
    [validated] = run.eval
    images = (last["step"] - first["step"]) * run.starts[0]["global_batch_size"]
    return {
        "train": images / last["seconds"],
        "val": validated["images"] / (validated["time"] - last["time"]),
        "first_step": first["time"] - begun,
        "memory": max(first["max_memory"], last["max_memory"]),
    }


def run_variant(variant: str, args: argparse.Namespace, work: Path) -> dict:
    """One run of a variant; rates of processes that run at once are added up."""
    copies = args.processes if variant.endswith("x 01") else 1
    commands = [command_of(variant, args, work, copy) for copy in range(copies)]
    # All variants use as many CPUs as there are ranks.
    threads = args.processes if variant.startswith("01") else 1
    environment = {"OMP_NUM_THREADS": str(threads)}
    row = run_timed(commands, environment, TIMEOUT, work / "output.txt")
    logs = [work / f"run-{copy}" for copy in range(len(commands))]
    if not row["failed"]:
        found = [measures(read_run(log), row["begun"]) for log in logs]
        for name in found[0]:
            join = sum if name in ("train", "val") else max
            row[name] = round(join(one[name] for one in found), 4)
    for log in logs:
        shutil.rmtree(log, ignore_errors=True)
    return {"variant": variant, "loaded": report.is_loaded(row)} | row


def compare_training(args: argparse.Namespace, work: Path, result: dict) -> None:
    """The rounds of the training comparison, saved after each."""
    count = args.batch_size_per_rank * args.steps
    pictures = parts.draw_pictures(work / "pictures", min(128, count), 500, 375)
    # As many for validation, which has to start its workers: a smaller share of it.
    parts.image_folder(work / "data", pictures, count * args.processes)
    parts.image_folder(work / "data-alone", pictures, count)
    for number in range(args.rounds):
        for variant in rotated(result["settings"]["variants"], number):
            row = {"round": number} | run_variant(variant, args, work)
            result["runs"].append(row)
            told = row["failed"] or f"{row['train']} images/s, {row['cpu']} CPU s"
            print(f"round {number + 1}, {variant}: {told}", flush=True)
        report.save(result, args.out)


# --------------------------------------------------------------------------------- other parts


def measure_input(args: argparse.Namespace, work: Path, result: dict) -> None:
    """The input pipeline, for pictures as large as ImageNet's and for larger ones."""
    for width, height, count, passes in ((500, 375, 40, 5), (1600, 1200, 10, 6)):
        name = f"{width}x{height}"
        pictures = parts.draw_pictures(work / name, count, width, height)
        folder = parts.image_folder(work / f"folder-{name}", pictures, count)
        measured = parts.input_pipeline(folder, args.image_size, passes, args.rounds)
        result["input"].append({"size": name} | measured)


def measure_loop(args: argparse.Namespace, work: Path, result: dict) -> None:
    sizes = (args.arch, args.image_size, args.batch_size_per_rank, args.steps)
    result["loop"] = parts.loop(*sizes, args.rounds, work / "loop")


def measure_collectives(args: argparse.Namespace, work: Path, result: dict) -> None:
    """All-reduce: gloo between two or more processes on CPUs, nccl between the GPUs."""
    gpus = torch.cuda.device_count()
    backends = {"gloo": max(2, args.processes)} | ({"nccl": gpus} if gpus > 1 else {})
    for backend, ranks in backends.items():
        out = work / f"{backend}.json"
        command = [*TORCHRUN, ranks, HERE / "parts.py", backend, out]
        row = run_timed([command], {"OMP_NUM_THREADS": "1"}, TIMEOUT, work / "output.txt")
        if not row["failed"]:
            row |= json.loads(out.read_text())
        result["collectives"].append({"backend": backend} | row)


MEASURES = {
    "train": compare_training,
    "input": measure_input,
    "loop": measure_loop,
    "collectives": measure_collectives,
}


def git(*words: str) -> str:
    """What git says of this checkout; nothing if it is none."""
    found = subprocess.run(["git", "-C", ROOT, *words], capture_output=True, text=True)
    return found.stdout.strip()


def describe(args: argparse.Namespace, argv: list[str]) -> dict:
    """The result so far: machine, versions, commit, settings, and nothing measured."""
    versions = {"python": platform.python_version()}
    for name in ("torch", "torchvision", "pillow", "numpy", "horovod"):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            versions[name] = importlib.metadata.version(name)
    if torch.cuda.is_available():
        versions["cuda"] = torch.version.cuda
    cpu = Path("/proc/cpuinfo").read_text()
    model = re.search(r"^model name\s*: (.*)", cpu, re.MULTILINE)
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    machine = {
        "cpu": model[1] if model else platform.machine(),
        "instructions": [name for name in INSTRUCTIONS if re.search(rf"\b{name}\b", cpu)],
        "bf16": parts.has_bf16(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(memory / 2**30),
        "gpus": [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())],
    }
    wanted = "rounds arch image_size batch_size_per_rank steps processes workers parts"
    settings = {name: getattr(args, name) for name in wanted.split()}
    settings["variants"] = choose_variants(args) if "train" in args.parts else []
    argv = [re.sub(r"(^|=)/.*", r"\1DIR", word) for word in argv]  # places are nobody's business
    return {
        "format": 1,
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "commit": git("rev-parse", "HEAD") or "unknown",
        "dirty": bool(git("status", "--porcelain", "--untracked-files=no")),
        "machine": machine,
        "versions": versions,
        "settings": settings,
        "command": shlex.join(["python", "tools/benchmark/benchmark.py", *argv]),
        "runs": [],
        "input": [],
        "loop": None,
        "collectives": [],
    }


# ---------------------------------------------------------------------------------- command line


def parse_args(argv: list[str]) -> argparse.Namespace:
    gpus = torch.cuda.device_count()
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add = parser.add_argument
    for part in MEASURES:
        add(f"--{part}", dest="parts", action="append_const", const=part)
    add("--all", dest="parts", action="store_const", const=list(MEASURES), help="all of these")
    add("--render", type=Path, metavar="JSON", help="make the tables anew, measure nothing")
    add("--out", type=Path, metavar="DIR", help="for the results; else runs/benchmark-DATE")
    add("--variants", metavar="'reference,02 bf16'", help="of the training comparison, see above")
    add("--arch", default="resnet50" if gpus else "resnet18", help="resnet18, on GPUs resnet50")
    add("--image-size", type=int, default=224, help="pixels a side")
    add("--rounds", type=int, default=5, help="(5)")
    add("--steps", type=int, default=50 if gpus else 20, help="an epoch (20, on GPUs 50)")
    add("--batch-size-per-rank", type=int, default=256 if gpus else 16, help="16, on GPUs 256")
    add("--processes", type=int, default=gpus or 2, help="2, or all GPUs")
    add("--workers", type=int, help="loading processes a rank; the CPUs by --processes")
    args = parser.parse_args(argv)
    if args.workers is None:
        args.workers = max(1, min(16, len(os.sched_getaffinity(0)) // args.processes))
    args.parts = list(dict.fromkeys(args.parts or ["train"]))
    if not args.out:
        dated = Path("runs", time.strftime("benchmark-%Y%m%d-%H%M%S"))
        args.out = args.render.parent if args.render else dated
    return args


def main(argv: list[str] | None = None) -> None:
    argv = sys.argv[1:] if argv is None else argv
    args = parse_args(argv)
    if args.render:
        result = json.loads(args.render.read_text(encoding="utf-8"))
        return print(report.render(result, args.out))
    if (args.out / report.JSON_NAME).exists():
        fail(f"{args.out} holds a {report.JSON_NAME}: give another --out")
    result = describe(args, argv)
    args.out.mkdir(parents=True, exist_ok=True)
    report.save(result, args.out)  # now, not after an hour, it fails where nothing can be kept
    end_on_signals()
    with tempfile.TemporaryDirectory(prefix="benchmark-") as work:
        for part in args.parts:
            print(f"{part} ...", flush=True)
            MEASURES[part](args, Path(work), result)
            report.save(result, args.out)
    print(f"\n{report.render(result, args.out)}\nall of it is in {args.out}/")
    rows = result["runs"] + result["collectives"]
    if failed := [row["failed"] for row in rows if row["failed"]]:
        fail(f"{len(failed)} runs failed; {failed[0]}")


if __name__ == "__main__":
    main()
