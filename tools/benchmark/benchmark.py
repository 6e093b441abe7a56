"""Measure the chapters side by side, against a plain DDP script and a bare loop.

    python tools/benchmark/benchmark.py  # training and validation: chapters and reference
    python tools/benchmark/benchmark.py --input  # the input pipeline on one core, against PIL's
    python tools/benchmark/benchmark.py --loop  # train_one_epoch against a bare loop, one process
    python tools/benchmark/benchmark.py --collectives  # all-reduce: latency and bandwidth by size
    python tools/benchmark/benchmark.py --options  # single measures (bf16, fused SGD...), each alone
    python tools/benchmark/benchmark.py --smoke  # how long `pytest -m smoke` takes
    python tools/benchmark/benchmark.py --all --out docs/assets/results/NAME
    python tools/benchmark/benchmark.py --quick  # a bit of each, see `make bench`
    python tools/benchmark/benchmark.py --render docs/assets/results/NAME/benchmark.json --force

Writes benchmark.json (every run, machine, versions, commit, commands), and made from it alone
RESULT, SUMMARY (.en.md, .zh.md) and chart (.en.svg, .zh.svg). Variants of the training comparison:

    reference     tools/benchmark/reference.py, a plain DDP script: what the ratios are to
    02, 02 bf16   a chapter by its number, then its flags: bf16, compile
    2 x 01        one process of chapter 01 for each rank, at once, without DDP (N x 01 for N)
    03 spawned    chapter 03 with its loader workers spawned, not forked

Each round runs every variant once, each round in another order, so that what disturbs the machine
meets all of them. A run's CPU seconds are those of all its processes that ended, orphans included;
a process that had to be killed at the end counts until then. `foreign` is how many CPUs others
kept busy meanwhile: runs above 0.35 are marked, and wall figures come from the others if any.
"""

import argparse
import contextlib
import ctypes
import datetime
import importlib.metadata
import json
import os
import platform
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from itertools import pairwise
from pathlib import Path
from resource import RUSAGE_CHILDREN, RUSAGE_SELF, getrusage

import parts
import report
import torch
import torchvision
from parts import ROOT, busy_seconds, draw_pictures, find_pictures, image_folder, rotated

sys.path.append(str(ROOT / "tools"))
from run_log import Run, RunLogError, read_run
from toy_imagenet import usable_cpus

# --quick leaves the last two out.
PARTS = ("train", "input", "loop", "collectives", "options", "smoke")
FLAGS = ("bf16", "compile")
QUICK_VARIANTS = ["reference", "02", "02 bf16", "03", "03 spawned"]
# The beginnings of what launchers set: a benchmark inside a job must not be taken for a part of it.
LAUNCHERS = ("RANK", "LOCAL_", "WORLD_SIZE", "MASTER_", "TORCHELASTIC", "GROUP_", "ROLE_", "SLURM_",
             "HOROVOD_", "CPUS_PER_RANK")  # fmt: skip
HOROVODRUN = Path(sys.executable).with_name("horovodrun")


def refuse_if(mistake: object, line: str) -> None:
    """If there is a mistake, end with one line, status 1 and no traceback."""
    if mistake:
        raise SystemExit(f"benchmark: error: {line}")


# ------------------------------------------------------------------------------------- processes


def cpu_seconds(who: int) -> float:
    """Of this process, or of all its descendants that have ended (RUSAGE_SELF, _CHILDREN)."""
    usage = getrusage(who)
    return usage.ru_utime + usage.ru_stime


def marked(mark: str) -> list[int]:
    """Living processes that have inherited this mark. Launchers put their children into groups
    and sessions of their own, where no signal to a group reaches them; the mark they keep."""
    found = []
    for entry in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):  # it has just ended, or is another user's
            if mark.encode() in entry.read_bytes():
                found.append(int(entry.parent.name))
    return found


def end_all(mark: str, patience: float) -> None:
    """Let what a run has started end by itself for so many seconds, then kill it; bury it all."""
    deadline = time.monotonic() + patience
    while left := marked(mark):
        for pid in left if time.monotonic() >= deadline else []:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.05)
    with contextlib.suppress(ChildProcessError):  # the orphans came to us, see measure
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def wait_for(processes: list[subprocess.Popen], timeout: float) -> tuple[bool, float]:
    """Whether all ended in time, and the MiB of the largest of them and their descendants."""
    deadline, largest = time.monotonic() + timeout, 0.0
    while waiting := [process for process in processes if process.returncode is None]:
        if time.monotonic() > deadline:
            return False, largest
        for process in waiting:
            pid, status, usage = os.wait4(process.pid, os.WNOHANG)
            if pid:
                process.returncode = os.waitstatus_to_exitcode(status)
                largest = max(largest, usage.ru_maxrss / 1024)
        time.sleep(0.02)
    return True, largest


def run_timed(commands: list[list], environment: dict[str, str], timeout: float, log: Path) -> dict:
    """Run the commands at once to their end, their output into the log, and leave no process.

    Returns begun (Unix time), wall and cpu (seconds), host_memory (MiB of the largest process),
    foreign (CPUs that others kept busy), load (average of a minute, before) and failed: why, or
    None.
    """
    mark = uuid.uuid4().hex
    env = {k: v for k, v in os.environ.items() if not k.startswith(LAUNCHERS)}
    env = {"GLOO_SOCKET_IFNAME": "lo"} | env | environment | {"BENCHMARK_RUN": mark}
    options = {"stdin": subprocess.DEVNULL, "stderr": subprocess.STDOUT, "cwd": ROOT, "env": env}
    row = {"begun": time.time(), "load": round(os.getloadavg()[0], 2), "failed": None}
    busy, before = busy_seconds(), (cpu_seconds(RUSAGE_CHILDREN), cpu_seconds(RUSAGE_SELF))
    clock, processes, in_time = time.monotonic(), [], False
    try:
        with log.open("wb") as file:
            for command in commands:
                words = [str(word) for word in command]
                started = subprocess.Popen(words, stdout=file, start_new_session=True, **options)
                processes.append(started)
        in_time, largest = wait_for(processes, timeout)
        row["wall"] = round(time.monotonic() - clock, 3)
    finally:
        end_all(mark, patience=5.0 if in_time else 0.0)
    used = cpu_seconds(RUSAGE_CHILDREN) - before[0]
    others = busy_seconds() - busy - used - (cpu_seconds(RUSAGE_SELF) - before[1])
    row |= {"cpu": round(used, 3), "host_memory": round(largest)}
    row["foreign"] = round(max(0.0, others / (time.monotonic() - clock)), 2)
    statuses = [process.returncode for process in processes if process.returncode]
    if not in_time:
        row["failed"] = f"no end within {timeout:g} s"
    elif statuses:
        lines = [line for line in log.read_text(errors="replace").splitlines() if line.strip()]
        told = next((line for line in lines if "error" in line.lower()), (lines or ["silent"])[-1])
        row["failed"] = f"status {statuses[0]}: {told.strip()[:200]}"
    return row


# --------------------------------------------------------------------------- training comparison


def variants_of(args: argparse.Namespace, gpu: bool) -> list[str]:
    """The variants to run, each of them one that can run here."""
    independent = f"{args.processes} x 01"
    numbers = {path.name[:2]: path.name for path in ROOT.glob("0[0-9]_*") if path.is_dir()}
    chosen = args.chapters.split(",") if args.chapters else []
    unknown = set(chosen) - set(numbers)
    refuse_if(unknown, f"--chapters {args.chapters}: give some of {','.join(sorted(numbers))}")
    horovod = HOROVODRUN.is_file()
    without_horovod = "05 needs Horovod: bash 05_horovod/install.sh"
    refuse_if("05" in chosen and not horovod, without_horovod)
    default = ["reference", "02", "02 bf16", "01", "03", "03 spawned", "04", "05", "06", "07"]
    default += ["02 bf16 compile"] * gpu + [independent] * (args.processes > 1)
    if args.quick and not chosen:
        default = QUICK_VARIANTS + [independent] * (args.processes > 1)
    if not horovod:
        default = [name for name in default if not name.startswith("05")]
    if chosen:
        default = [n for n in default if n == "reference" or set(n.split()) & set(chosen)]
    names = [name.strip() for name in args.variants.split(",")] if args.variants else default
    for name in names:
        number, *flags = name.split() or [""]
        known = name in ("reference", independent, "03 spawned")
        known |= number in numbers and set(flags) <= set(FLAGS)
        known_names = f"{', '.join(default)}, or a chapter with bf16, compile"
        refuse_if(not known, f"--variants: no {name!r} here: give some of {known_names}")
        refuse_if(number == "05" and not horovod, without_horovod)
    return list(dict.fromkeys(names))


def command_of(variant: str, args: argparse.Namespace, work: Path, copy: int = 0) -> list:
    """The command line of one of a variant's processes; its log goes to work/run-COPY."""
    number, *flags = variant.split()
    alone = variant.endswith("x 01")
    world_size = 1 if alone else args.processes
    batch_size = args.batch_size_per_rank * world_size
    train_images = batch_size * args.steps
    chapter = next((p.name for p in ROOT.glob("0*_*") if p.name[:2] == number), "01_dataparallel")
    script = ROOT / chapter / "main.py"
    words: list = ["--synthetic", train_images]
    if not args.synthetic:
        words = ["--data", work / ("data-alone" if alone else "data")]
    words += ["--arch", args.arch, "--image-size", args.image_size, "--epochs", 1]
    words += ["--batch-size", batch_size, "--workers", args.workers, "--print-freq", 10**6]
    words += ["--output-dir", work / f"run-{copy}"]
    if number == "04":  # which knows no --bf16
        words += ["--amp-dtype", "bf16" if "bf16" in flags else "fp32"]
        flags = [flag for flag in flags if flag != "bf16"]
    words += [f"--{flag}" for flag in flags if flag in FLAGS]
    if variant == "reference":
        script = ROOT / "tools/benchmark/reference.py"
    if variant == "03 spawned":
        script = work / chapter / "main.py"
    if alone and torch.cuda.is_available():
        words += ["--gpus", copy]
    if alone or number == "01":
        return [sys.executable, script, *words]
    if number == "03":
        return [sys.executable, script, *words, "--nprocs", world_size]
    if number == "05":
        horovodrun = [HOROVODRUN, "-np", world_size, "--gloo"]
        return [*horovodrun, "-H", f"localhost:{world_size}", sys.executable, script, *words]
    # 06 too: in torchrun's environment it takes its ranks from there, and needs no Slurm.
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    return [*torchrun, "--nproc-per-node", world_size, script, *words]


def threads_of(variant: str, args: argparse.Namespace) -> int:
    """OpenMP threads a process: all use as many CPUs as there are ranks."""
    return args.processes if variant.split()[0] == "01" else 1


def as_typed(command: list, work: Path) -> str:
    """A command line as a reader would type it, without the places of this machine."""
    line = shlex.join(str(word) for word in command)
    line = line.replace(f"{sys.executable} -m torch.distributed.run", "torchrun")
    for old, new in ((f"{work}/", "WORK/"), (f"{ROOT}/", ""), (sys.executable, "python")):
        line = line.replace(old, new)
    return line.replace(str(Path(sys.executable).parent) + "/", "")


def measures(run: Run, begun: float) -> dict[str, float]:
    """What a log tells: images/s without the first step, its second, MiB, share of waiting."""
    batch_size = run.starts[-1]["global_batch_size"]
    images = seconds = waited = 0.0
    for before, row in pairwise(run.train):
        if row["epoch"] == before["epoch"]:  # the first row of an epoch is its first step
            images += (row["step"] - before["step"]) * batch_size
            seconds += row["seconds"]
            waited += row["seconds"] * row["data_wait"]
    trained = {row["epoch"]: row["time"] for row in run.train}
    val_seconds = sum(row["time"] - trained[row["epoch"]] for row in run.eval)
    found = {"train": images / seconds, "val": sum(r["images"] for r in run.eval) / val_seconds}
    found |= {"first_step": run.train[0]["time"] - begun, "data_wait": waited / seconds}
    return found | {"memory": max(row["max_memory"] for row in run.train)}


def run_variant(variant: str, args: argparse.Namespace, work: Path) -> dict:
    """One run of a variant; rates of processes that run at once are added up."""
    copies = range(args.processes if variant.endswith("x 01") else 1)
    commands = [command_of(variant, args, work, copy) for copy in copies]
    environment = {"OMP_NUM_THREADS": str(threads_of(variant, args))}
    row = run_timed(commands, environment, args.timeout, work / "output.txt")
    try:
        if not row["failed"]:
            found = [measures(read_run(work / f"run-{copy}"), row["begun"]) for copy in copies]
            for name in found[0]:
                values = [one[name] for one in found]
                join = sum if name in ("train", "val") else max
                row[name] = round(join(values), 4)
    except (RunLogError, KeyError, IndexError, ZeroDivisionError) as error:
        row["failed"] = f"its log cannot be used: {error!r:.150}"
    for copy in copies:
        shutil.rmtree(work / f"run-{copy}", ignore_errors=True)
    return {"variant": variant, "loaded": report.is_loaded(row)} | row


def compare_training(args: argparse.Namespace, work: Path, result: dict, keep) -> None:
    """The rounds of the training comparison, kept after each."""
    total = args.batch_size_per_rank * args.processes * args.steps
    sizes = {"data": total, "data-alone": total // args.processes}
    if not args.synthetic:
        if args.data:
            pictures = find_pictures(args.data, total)
            refuse_if(not pictures, f"--data {args.data}: no .jpg, .jpeg or .png in train/CLASS/")
        else:
            pictures = draw_pictures(work / "pictures", min(128, total), (500, 375), portrait=True)
        for name, count in sizes.items():
            # As many for validation, which has to start its workers: a smaller share of it.
            image_folder(work / name, pictures, count, count)
    variants = result["settings"]["variants"]
    if "03 spawned" in variants:
        text = (ROOT / "03_multiprocessing" / "main.py").read_text()
        there = text.count('"fork"')
        refuse_if(there != 1, f'03_multiprocessing/main.py says "fork" {there} times, not once')
        (work / "03_multiprocessing").mkdir()
        (work / "03_multiprocessing" / "main.py").write_text(text.replace('"fork"', '"spawn"'))
    for variant in variants:
        copies = range(args.processes if variant.endswith("x 01") else 1)
        lines = [as_typed(command_of(variant, args, work, copy), work) for copy in copies]
        threads = f"OMP_NUM_THREADS={threads_of(variant, args)}"
        result["commands"][variant] = [f"{threads} {line}" for line in lines]
    for number in range(args.rounds):
        for variant in rotated(variants, number):
            row = {"round": number} | run_variant(variant, args, work)
            result["runs"].append(row)
            print(f"round {number + 1}: {report.row_as_line(row)}", flush=True)
        keep()


# --------------------------------------------------------------------------------- other parts


def measure_by_ranks(
    script: str, name: str, ranks: int, words: list, timeout: float, work: Path, commands: dict
) -> dict:
    """Start tools/SCRIPT NAME OUT WORDS by torchrun: its run, with what rank 0 wrote to OUT."""
    out = work / f"{name}.json"
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node"]
    command = [*torchrun, ranks, ROOT / "tools/benchmark" / script, name, out, *words]
    # A cache of its own: or a first step would find what an earlier run compiled.
    environment = {"OMP_NUM_THREADS": "1", "TORCHINDUCTOR_CACHE_DIR": str(work / "inductor")}
    row = run_timed([command], environment, timeout, work / "output.txt")
    commands[name] = [as_typed(command, work)]
    return row if row["failed"] else row | json.loads(out.read_text())


def measure_collectives(args: argparse.Namespace, work: Path, result: dict) -> None:
    """All-reduce: gloo between two or more processes on CPUs, nccl between the GPUs."""
    gpus = torch.cuda.device_count()
    backends = {"gloo": max(2, args.processes)} | ({"nccl": gpus} if gpus > 1 else {})
    for backend, world_size in backends.items():
        where = (args.timeout, work, result["commands"])
        row = measure_by_ranks("parts.py", backend, world_size, [], *where)
        result["collectives"].append({"backend": backend} | row)


def measure_options(args: argparse.Namespace, work: Path, result: dict) -> None:
    """Single measures, each against the same step without it. Between ranks the step is small on
    purpose: that is where communication shows."""
    ranks, steps, size = max(2, args.processes), args.steps, args.image_size
    batch = args.batch_size_per_rank
    groups = {"step": (1, size, batch, max(2, steps // 4)), "optimizer": (1, 32, 2, 5 * steps)}
    groups["evaluation"] = (1, size, batch, max(2, steps // 2))
    if not torch.cuda.is_available() or ranks <= torch.cuda.device_count():
        groups["ddp"] = (ranks, max(32, size // 2), max(2, batch // 4), steps)
    for group, (world_size, *numbers) in groups.items():
        words = [args.arch, *numbers, args.rounds]
        where = (args.timeout * args.rounds, work, result["commands"])
        row = measure_by_ranks("options.py", group, world_size, words, *where)
        result["options"].append({"group": group, "world_size": world_size} | row)


def measure_input(args: argparse.Namespace, work: Path, result: dict) -> None:
    """The input pipeline, for pictures as large as ImageNet's and for larger ones."""
    for size, count, passes in (((500, 375), 40, 5), ((1600, 1200), 10, 6)):
        name = "x".join(map(str, size))
        pictures = draw_pictures(work / name, count, size, portrait=False)
        folder = image_folder(work / f"folder-{name}", pictures, count, count)
        measured = parts.input_pipeline(folder, args.image_size, passes, args.rounds)
        result["input"].append({"size": name} | measured)


def describe(args: argparse.Namespace, argv: list[str], gpu: bool) -> dict:
    """The result so far: machine, versions, commit, settings."""
    names = ("torch", "torchvision", "pillow", "numpy", "horovod")
    versions = {"python": platform.python_version()}
    for name in names:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            versions[name] = importlib.metadata.version(name)
    versions |= {"cuda": torch.version.cuda} if gpu else {}
    model = re.search(r"^model name\s*: (.*)", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    machine = {"cpu": model[1] if model else platform.machine()}
    machine |= {"cores": usable_cpus(), "memory_gib": round(memory)}
    machine["gpus"] = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]

    def git(*words: str) -> str | None:
        found = subprocess.run(["git", "-C", ROOT, *words], capture_output=True, text=True)
        return found.stdout.strip() if found.returncode == 0 else None

    dirty = bool(git("status", "--porcelain", "--untracked-files=no"))
    wanted = "rounds arch image_size batch_size_per_rank steps processes workers"
    settings = {name: getattr(args, name) for name in wanted.split()}
    images = "synthetic" if args.synthetic else "own pictures" if args.data else "generated JPEGs"
    settings |= {"images": images, "device": "cuda" if gpu else "cpu", "parts": args.parts}
    settings["variants"] = variants_of(args, gpu) if "train" in args.parts else []
    now = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")
    argv = [re.sub(r"(^|=)/.*", r"\1DIR", word) for word in argv]  # places are nobody's business
    facts = {"format": 1, "date": now, "commit": git("rev-parse", "HEAD"), "dirty": dirty}
    facts |= {"machine": machine, "versions": versions, "settings": settings}
    facts["command"] = shlex.join(["python", "tools/benchmark/benchmark.py", *argv])
    empty = {"commands": {}, "runs": [], "input": [], "loop": None, "collectives": [],
             "options": []}  # fmt: skip
    return facts | empty | {"smoke": None}


# ---------------------------------------------------------------------------------- command line


def parse_args(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    for part in PARTS:
        add(f"--{part}", dest="parts", action="append_const", const=part)
    add("--all", dest="parts", action="store_const", const=list(PARTS), help="all of these")
    add("--quick", action="store_true", help="a bit of all but the last two")
    add("--render", type=Path, metavar="JSON", help="make tables and charts anew, measure nothing")
    add("--out", type=Path, metavar="DIR", help="for the results; else runs/benchmark-DATE")
    add("--force", action="store_true", help="replace results in that folder")
    add("--rounds", type=int, help="of each comparison (5; --quick: 2)")
    add("--chapters", metavar="02,03", help="of the training comparison, by their numbers")
    add("--variants", metavar="'reference,02 bf16'", help="of the training comparison, see above")
    add("--arch", help="resnet18, on GPUs resnet50")
    add("--image-size", type=int, default=224, help="pixels a side")
    add("--batch-size-per-rank", type=int, help="16, on GPUs 256")
    add("--steps", type=int, help="an epoch (20, on GPUs 50; --quick: 6)")
    add("--processes", type=int, help="2, or all GPUs")
    add("--workers", type=int, help="loading processes a rank; the CPUs by --processes")
    add("--data", type=Path, metavar="DIR", help="use some of an ImageNet folder's pictures")
    add("--synthetic", action="store_true", help="no files: images held in memory")
    add(
        "--timeout",
        type=float,
        default=600,
        help="seconds for a run, or for a round of --options",
    )
    args = parser.parse_args(argv)
    gpus = torch.cuda.device_count()
    parts = args.parts or (PARTS[:-2] if args.quick else ("train",))
    args.parts = list(dict.fromkeys(parts))
    quick = {"rounds": 2, "steps": 6} if args.quick else {}
    usual = {"rounds": 5, "steps": 50 if gpus else 20, "processes": gpus or 2} | quick
    arch, batch_size = ("resnet50", 256) if gpus else ("resnet18", 16)
    usual |= {"arch": arch, "batch_size_per_rank": batch_size}
    for name, value in usual.items():
        setattr(args, name, value if getattr(args, name) is None else getattr(args, name))
    if args.workers is None:
        args.workers = max(1, min(16, usable_cpus() // max(1, args.processes)))
    least = {"rounds": 1, "steps": 2, "processes": 1, "batch_size_per_rank": 1, "workers": 0}
    for name, lowest in (least | {"image_size": 8, "timeout": 1}).items():
        flag, value = "--" + name.replace("_", "-"), getattr(args, name)
        refuse_if(not lowest <= value < 10**6, f"{flag} {value} is out of range: {lowest} or more")
    refuse_if(args.data and args.synthetic, "give --data DIR or --synthetic, not both")
    refuse_if(args.chapters and args.variants, "give --chapters or --variants, not both")
    no_gpu = gpus and args.processes > gpus
    refuse_if(no_gpu, f"--processes {args.processes}: this machine has {gpus} GPUs")
    known = args.arch in torchvision.models.list_models(module=torchvision.models)
    refuse_if(not known, f"--arch {args.arch}: no model of torchvision")
    refuse_if(args.data and not args.data.is_dir(), f"--data {args.data} is not a folder")
    return args


def main(argv: list[str] | None = None) -> int:
    argv = sys.argv[1:] if argv is None else argv
    args, gpu = parse_args(argv), torch.cuda.is_available()
    default = Path("runs", time.strftime("benchmark-%Y%m%d-%H%M%S"))
    out = args.out or (args.render.parent if args.render else default)
    made = [report.JSON_NAME] * (args.render is None) + list(report.MADE)
    refuse_if(not args.render and sys.platform != "linux", "it reads /proc: it needs Linux")
    try:
        taken = next((name for name in made if (out / name).exists()), None)
        refuse_if(taken and not args.force, f"{out} holds a {taken}: --force or another --out")
        if args.render:
            result = report.load(args.render)
        else:
            result = describe(args, argv, gpu)
        out.mkdir(parents=True, exist_ok=True)
        refuse_if(not os.access(out, os.W_OK), f"{out} cannot be written to")
        if not args.render:
            measure(args, result, out)
        print(report.write(result, out))
    except (OSError, report.NotAResultError) as error:  # a full disk too
        refuse_if(True, str(error))
    options = result.get("options", [])  # older results have none
    failed = [f"{row['variant']}: {row['failed']}" for row in result["runs"] if row["failed"]]
    failed += [f"{r['backend']}: {r['failed']}" for r in result["collectives"] if r["failed"]]
    failed += [f"options {r['group']}: {r['failed']}" for r in options if r["failed"]]
    failed += [f"smoke: {r['failed']}" for r in [result["smoke"]] if r and r["failed"]]
    refuse_if(failed, f"{len(failed)} runs failed; {failed[0] if failed else ''}")
    return 0


def measure(args: argparse.Namespace, result: dict, out: Path) -> None:
    """Measure the parts; benchmark.json is written after each, and after each round."""

    def stop(signum: int, _frame: object) -> None:
        """What runs is killed and the temporary folder removed, whoever presses Ctrl-C again."""
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_IGN)
        raise SystemExit("benchmark: told to end" if signum == signal.SIGTERM else 130)

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, stop)
    # Orphans of the launchers come to us, so their CPU seconds count and no zombie is left.
    ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)  # PR_SET_CHILD_SUBREAPER

    def keep() -> None:
        report.save(result, out)

    with tempfile.TemporaryDirectory(prefix="benchmark-") as folder:
        work = Path(folder)
        sizes = (args.arch, args.image_size, args.batch_size_per_rank, args.steps)
        for part in args.parts:
            print(f"{part} ...", flush=True)
            if part == "train":
                compare_training(args, work, result, keep)
            elif part == "collectives":
                measure_collectives(args, work, result)
            elif part == "options":
                measure_options(args, work, result)
            elif part == "smoke":
                command = [sys.executable, "-m", "pytest", "-q", "-m", "smoke"]
                result["smoke"] = run_timed([command], {}, args.timeout, work / "output.txt")
            elif part == "input":
                measure_input(args, work, result)
            else:
                result["loop"] = parts.loop(*sizes, args.rounds, work / "loop")
            keep()


if __name__ == "__main__":
    try:
        raise SystemExit(main())
    except KeyboardInterrupt:
        raise SystemExit(130) from None
