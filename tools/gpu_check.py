"""Does everything work on this GPU box, and how fast? Offline, with the torch that is there.

    python tools/gpu_check.py                            # all of it, in 10 minutes
    python tools/gpu_check.py --machine                  # the machine alone: first on a new box
    python tools/gpu_check.py --only speed --minutes 5   # one group
    python tools/gpu_check.py --device cpu --minutes 20  # the same code on two CPU processes, small

Prints a line for each check (ok, FAILED, cut short, not here: why) and writes gpu.json into --out
after each of them, so a run that is cut off has kept what it found. Ends with status 1 if a check
failed, or else with 3 if the minutes did not suffice for all. Minutes are shared out by group: a
slow group takes nothing from those after it.
"""

import argparse
import json
import os
import platform
import re
import shlex
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from statistics import median

sys.path.append(str(Path(__file__).with_name("benchmark")))
from processes import HOROVODRUN, PYTHON, ROOT, end_all, end_on_signals, launcher, marked, torchrun
from table import table

PROBES, BENCHMARK = ROOT / "tools/gpu_probes.py", ROOT / "tools/benchmark/benchmark.py"
SHARES = {"machine": 1, "chapters": 3, "exactness": 3, "speed": 3}  # of --minutes
QUIET = 90  # seconds without output after which a program hangs; slow ones go on talking
SOON = 60  # seconds after which a run that is told to stop should have done so
# What torch or nccl say where a chapter has done something wrong, and go on.
COMPLAINTS = ("Grad strides do not match", "destroy_process_group() was not called")
# cuBLAS and cuDNN compute float32 in full. In TF32, which the chapters choose, a batch of another
# size may move a guess.
NO_TF32 = {"NVIDIA_TF32_OVERRIDE": "0"}


class NotHere(Exception):
    """This machine has not what the check is about."""


class Failed(Exception):
    """What the check found wrong, in one line."""


class CutShort(Exception):
    """The group's minutes are over; nothing was found wrong."""


@dataclass
class Result:
    group: str
    name: str
    status: str = "cut short"  # or ok, FAILED, not here
    text: str = "not begun, no minutes left"
    seconds: float = 0.0
    data: dict = field(default_factory=dict)
    command: str = ""
    output: str = ""  # the end of it, if the check failed or was cut short


def rows_of(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


class Box:
    """What a check may use: programs that are bounded, a folder, how many GPUs there are."""

    def __init__(self, device: str, folder: Path, processes: int) -> None:
        self.device, self.folder, self.deadline = device, folder, float("inf")
        self.command, self.output, self.data, self.patience = "", "", {}, 1
        found = {"gpus": [], "bf16": False, "nccl": None}
        if device == "cuda":
            found = self.probe("versions")
        self.gpus, self.nccl = len(found["gpus"]), found["nccl"]
        # GPUs before Ampere emulate bf16, slowly: chapter 04 has fp16 for them.
        self.fast = "02 --bf16" if found["bf16"] else "04 --amp-dtype fp16"
        self.ranks = self.gpus or processes
        # Processes that share a core take longer to say something.
        self.patience = 1 if self.gpus else max(1, processes // len(os.sched_getaffinity(0)))

    def run(
        self, words: list, status: int = 0, env: dict | None = None, quiet: float = 0,
        when: Callable[[subprocess.Popen], None] = lambda process: None,
    ) -> str:  # fmt: skip
        """The output of a command, which must end with this status, not be quiet for so many
        seconds, and leave no process behind. `when` is called again and again."""
        words, mark = list(map(str, words)), uuid.uuid4().hex
        self.command = shlex.join(words).replace(sys.executable, "python").replace(f"{ROOT}/", "")
        environment = os.environ | {"BENCHMARK_RUN": mark} | (env or {})
        if self.device == "cpu":
            environment["CUDA_VISIBLE_DEVICES"] = ""
        quiet, size, heard = self.patience * (quiet or QUIET), 0, time.monotonic()
        with tempfile.TemporaryFile("w+", errors="replace") as log:
            process = subprocess.Popen(
                words, stdout=log, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL,
                cwd=self.folder, env=environment, start_new_session=True,
            )  # fmt: skip
            try:
                while late := process.poll() is None:
                    if (now := time.monotonic()) >= min(heard + quiet, self.deadline):
                        break
                    when(process)
                    time.sleep(0.05)
                    if (grown := os.fstat(log.fileno()).st_size) > size:
                        size, heard = grown, now
                patience = time.monotonic() + (0 if late else 10)
                while (left := marked(mark)) and time.monotonic() < patience:
                    time.sleep(0.05)
            finally:
                end_all(mark, 0)
                process.wait()
                log.seek(0)
                self.output = log.read()
        if late:
            if now >= heard + quiet:
                raise Failed(f"hangs: no output for {quiet} s")
            raise CutShort(f"by --minutes, {now - heard:.0f} s after its last output")
        if process.returncode != status:
            lines = [line for line in self.output.splitlines() if "rror" in line] or ["silent"]
            own = [line for line in lines if ": error: " in line]  # a chapter's; torchrun's follow
            lines = own or lines
            raise Failed(f"status {process.returncode}, not {status}: {lines[-1].strip()[:200]}")
        if left:
            raise Failed(f"leaves {len(left)} processes behind")
        return self.output

    def probe(self, name: str, *words: object, ranks: int = 0) -> dict:
        """A function of gpu_probes.py in a process of its own, or in some by torchrun."""
        launcher = torchrun(ranks) if ranks else PYTHON
        self.run([*launcher, PROBES, name, self.device, *words])
        return self.told()

    def told(self) -> dict:
        """The JSON that a probe has printed."""
        return json.loads(re.findall(r"^PROBE (.*)$", self.output, re.MULTILINE)[-1])

    def chapter(
        self, chapter: str, *flags: object, out: str, ranks: int = 0, through: str = "",
        start: list | None = None, status: int = 0, env: dict | None = None, peak: float = 0.0125,
        quiet: float = 0,
        when: Callable[[subprocess.Popen], None] = lambda process: None,
    ) -> list[dict]:  # fmt: skip
        """Start a chapter as its page says, or otherwise, or through a probe; the rows of its log.
        An epoch has 20 steps and learns at the same rate with any number of ranks, unless flags
        say otherwise."""
        ranks, number = ranks or self.ranks, chapter[:2]
        main = [ROOT / chapter / "main.py"]
        if through:
            main = [PROBES, through, self.device, *main]
        if number == "05" and not HOROVODRUN.is_file():
            raise NotHere("Horovod is not installed: bash 05_horovod/install.sh")
        before, own, slurm = launcher(number, ranks)
        cpu = self.device == "cpu"
        batch = (8 if cpu else 32) * ranks
        sizes = ["--arch", "shufflenet_v2_x0_5" if cpu else "resnet18", "--workers", 2]
        sizes += ["--batch-size", batch, "--epochs", 1, "--print-freq", 1]
        sizes += ["--image-size", 32 if cpu else 64, "--lr", peak * 256 / batch]
        if "--data" not in flags:
            sizes += ["--synthetic", 20 * batch]
        words = [*(start or before), *main, *sizes, *own, "--output-dir", out, *flags]
        try:
            self.run(words, status, slurm | (env or {}), quiet, when)
        except Failed:
            if "this Horovod has no nccl" in self.output:
                raise NotHere("Horovod has no nccl: bash 05_horovod/install.sh --nccl") from None
            raise
        for complaint in COMPLAINTS:
            if complaint in self.output:
                raise Failed(f"it says: {complaint}")
        log = "evaluate.jsonl" if "--evaluate" in flags else "metrics.jsonl"
        path = self.folder / out / log
        return rows_of(path) if path.exists() else []


CHECKS: list[tuple[str, str, Callable[[Box], str]]] = []


def check(group: str, name: str) -> Callable:
    def register(function: Callable[[Box], str]) -> Callable[[Box], str]:
        CHECKS.append((group, name, function))
        return function

    return register


# ---- machine ----
@check("machine", "GPUs, driver and torch")
def torch_and_gpus(box: Box) -> str:
    box.data = found = box.probe("versions")
    if box.device == "cpu":
        return f"torch {found['torch']}, {found['cpus']} CPUs"
    if not found["gpus"]:
        raise Failed("torch sees no GPU: is the driver installed, and is this a build with CUDA?")
    if not found["usable"]:
        raise Failed("torch cannot use the GPUs that it counts: the driver is too old for it")
    return "{torch}, CUDA {cuda}, nccl {nccl}, driver {driver}, {gpus}".format(**found)


@check("machine", "TF32")
def tf32(box: Box) -> str:
    box.data = box.probe("tf32")
    if box.data["warnings"]:
        raise Failed(box.data["warnings"][0])
    if not (box.data["products"] and box.data["convolutions"]):
        raise Failed(f"torch.set_float32_matmul_precision does not choose it: {box.data}")
    return "chosen, for products and convolutions"


@check("machine", "limits")
def limits(box: Box) -> str:
    box.data = box.probe("limits")
    if box.data["wrong"]:
        raise Failed("; ".join(box.data["wrong"]))
    return box.data["text"]


# ---- chapters ----
def falls(losses: list[float]) -> bool:
    """Whether the last five are well below the first five, on average."""
    return len(losses) >= 10 and sum(losses[-5:]) < 0.9 * sum(losses[:5])


def trains(chapter: str, *flags: object) -> Callable[[Box], str]:
    def function(box: Box) -> str:
        out = chapter + "".join(map(str, flags))
        box.chapter(chapter, *flags, out=out)
        rows = box.chapter(chapter, *flags, "--epochs", 2, "--resume", out=out)
        more = ["--evaluate", "--resume", f"{out}/checkpoint.pt"]
        evaluated = box.chapter(chapter, *flags, *more, out=out)
        before, again = (
            [row["acc1"] for row in log if row["event"] == "eval"][-1] for log in (rows, evaluated)
        )
        starts = [row for row in rows if row["event"] == "start"]
        trained = [row for row in rows if row["event"] == "train"]
        losses, rate = [row["loss"] for row in trained], trained[-1]["images_per_second"]
        box.data = {"acc1": before, "evaluated": again, "images_per_second": rate, "losses": losses}
        if [row["epoch"] for row in starts] != [0, 1]:
            raise Failed("the second epoch did not resume the first")
        if not falls(losses):
            raise Failed(f"the loss does not fall: from {losses[0]:.2f} to {losses[-1]:.2f}")
        if abs(again - before) > 1:  # the same weights; bf16 may sum in another order
            raise Failed(f"the checkpoint evaluates to {again} %, and did to {before} %")
        return f"trains, resumes, evaluates to {before:.1f} %"

    return function


KINDS = {"04_apex": [["--amp-dtype", kind] for kind in ("bf16", "fp16", "fp32")]}
for _chapter in sorted(path.parent.name for path in ROOT.glob("0[1-7]_*/main.py")):
    for _flags in KINDS.get(_chapter, [[]]):
        check("chapters", " ".join([_chapter, *_flags]))(trains(_chapter, *_flags))


@check("chapters", "01 on one GPU twice")
def twice(box: Box) -> str:
    if box.gpus != 1:
        raise NotHere("for machines with one GPU")
    return trains("01_dataparallel", "--gpus", "0,0")(box)


@check("chapters", "04 with Apex")
def apex(box: Box) -> str:
    if box.device == "cpu" or not box.probe("apex")["here"]:
        raise NotHere("no apex.amp, or no GPU")
    for level in ("O1", "O2"):
        rows = box.chapter("04_apex", "--apex", level, out=f"apex{level}")
        box.data[level] = [row["loss"] for row in rows if row["event"] == "train"][-1]
    rows = box.chapter("04_apex", out="native")
    box.data["native"] = [row["loss"] for row in rows if row["event"] == "train"][-1]
    if max(box.data.values()) > 1.3 * min(box.data.values()):
        raise Failed(f"the last losses differ: {box.data}")
    return f"last losses {box.data}"


# ---- exactness ----
@check("exactness", "waits in an ordinary step")
def waits(box: Box) -> str:
    box.chapter("02_distributed", "--print-freq", 1000, out="waits", through="waits")
    box.data = box.told()
    if box.data["waits"]:
        raise Failed(box.data["waits"][0])
    return "none"


@check("exactness", "memory over many all-reduces")
def memory(box: Box) -> str:
    box.data = box.probe("memory", ranks=box.ranks)
    if box.data["grown_mib"] > 8:
        raise Failed("grew by {grown_mib} MiB in {count}".format(**box.data))
    return f"flat over {box.data['count']}"


@check("exactness", "resume bit for bit")
def resume(box: Box) -> str:
    """As saved, and with the momentum in another order in memory, which is all the same."""
    flags = ["--epochs", 2]
    for out, more in (
        ("whole", []),
        ("saved", ["--resume", "whole/after1.pt"]),
        ("contiguous", ["--resume", "whole/contiguous.pt"]),
    ):
        box.chapter("02_distributed", *flags, *more, out=out, through="deterministic")
        found = box.probe("difference", "whole/checkpoint.pt", f"{out}/checkpoint.pt")
        box.data[out] = found["largest"]
    if max(box.data.values()) != 0:
        raise Failed(f"weights differ by up to {max(box.data.values()):.2g}")
    return "equal to the uninterrupted run, by deterministic algorithms and DDP's first buckets"


@check("exactness", "one process too many")
def too_many(box: Box) -> str:
    if box.device == "cpu":
        raise NotHere("no GPU")
    box.chapter("03_multiprocessing", out="many", ranks=box.gpus + 1, status=1)
    if "more processes than GPUs" not in box.output:
        raise Failed("refused, but not by the line that says so")
    return "refused in one line"


@check("exactness", "06 stops on SIGUSR1 and goes on")
def stops(box: Box) -> str:
    log, sent = box.folder / "stop/metrics.jsonl", []

    def ask(process: subprocess.Popen) -> None:
        if sent and time.monotonic() > sent[0] + box.patience * SOON:
            raise Failed(f"still trains {box.patience * SOON} s after the signal")
        if not sent and log.exists() and '"train"' in log.read_text():
            sent.append(time.monotonic())
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGUSR1)

    # Epochs without end, or on a fast machine the signal might come after it. One has 105 steps,
    # and the ranks ask each other every 10: they stop inside it.
    flags = ["--synthetic", 105 * (8 if box.device == "cpu" else 32) * box.ranks]
    box.chapter("06_slurm", *flags, "--epochs", 1000, out="stop", status=75, when=ask)
    stopped = [row for row in rows_of(log) if row["event"] == "train"][-1]
    again = ["--epochs", stopped["epoch"] + 1, "--resume"]
    rows = box.chapter("06_slurm", *flags, *again, out="stop")
    start = [row for row in rows if row["event"] == "start"][-1]
    box.data = {"step": start["step"], "steps": start["steps_per_epoch"]}
    if not 0 < box.data["step"] < box.data["steps"]:
        raise Failed("it did not stop inside an epoch")
    return "stopped after step {step} of {steps} of an epoch, and went on".format(**box.data)


@check("exactness", "07 at two batch sizes")
def evaluation(box: Box) -> str:
    """Of a number of images that no number of ranks divides, and the guesses of every image."""
    data = ["--synthetic", 4 * (box.ranks * max(80, 320 // box.ranks) + 1)]
    box.chapter("07_dist_eval", *data, out="exact")
    evaluate = [*data, "--evaluate", "--resume", "exact/checkpoint.pt", "--compare-naive"]
    other = {}
    for kind, more in (("fp32", []), ("bf16", ["--bf16"])):
        guesses = []
        for size in (8 * box.ranks, 64 * box.ranks):
            file = box.folder / f"{kind}-{size}.csv"
            flags = [*evaluate, *more, "--batch-size", size, "--save-predictions", file]
            rows = box.chapter("07_dist_eval", *flags, out="exact", env=NO_TF32)
            acc1 = [row["acc1"] for row in rows if row["event"] == "eval"][-1]
            box.data[f"{kind} {size}"] = acc1
            guesses.append([line.split(",")[2] for line in file.read_text().splitlines()[1:]])
        other[kind] = sum(a != b for a, b in zip(*guesses, strict=True))
    box.data["other guesses"] = other
    if other["fp32"]:
        one, two, *_ = box.data.values()
        raise Failed(f"fp32: {other['fp32']} guesses differ, {one} and {two} %")
    return f"fp32 equal, in bf16 {other['bf16']} of {len(guesses[0])} guesses differ"


@check("exactness", "a broken JPEG")
def broken_jpeg(box: Box) -> str:
    """02 on files, with all cores; then one of them is cut in half."""
    if not box.probe("pictures")["here"]:
        raise NotHere("drawing the pictures needs Pillow and NumPy")
    folder, each = box.folder / "toy", (4 if box.device == "cpu" else 16) * box.ranks
    toy = [*PYTHON, ROOT / "tools/toy_imagenet.py", folder, "--classes", 4, "--size", 160]
    box.run([*toy, "--per-class", each, "--val-per-class", 3])
    cores = len(os.sched_getaffinity(0))
    flags = ["--data", folder, "--workers", max(1, min(16, cores // box.ranks))]
    rows = box.chapter("02_distributed", *flags, out="files")
    path = sorted((folder / "train").rglob("*.jpg"))[0]
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    box.chapter("02_distributed", *flags, out="broken", status=1)
    if f"cannot read {path}" not in box.output:
        raise Failed("it ends, but does not name the file")
    images = [row["images"] for row in rows if row["event"] == "eval"][-1]
    return f"{images} whole ones evaluated; one cut in half ends the run, which names it"


@check("exactness", "compiled once")
def compiled(box: Box) -> str:
    """--compile in the first epoch, and never again."""
    flags = ["--compile", "--epochs", 3]
    how = {"env": {"TORCH_LOGS": "recompiles"}, "quiet": 400}  # compiling says nothing
    box.chapter("02_distributed", *flags, out="compiled", **how)
    _, *later = re.split(r"^eval  epoch \d", box.output, flags=re.MULTILINE)
    found = [line for text in later for line in text.splitlines() if "Recompiling" in line]
    box.data = {"recompiled": found}
    if len(later) != 3 or found:
        raise Failed("; ".join(found[:1]) or "it did not evaluate three epochs")
    return "nothing is compiled after the first epoch"


@check("exactness", "two ranks on one device, over gloo")
def shared_device(box: Box) -> str:
    rows = box.chapter("02_distributed", out="gloo", ranks=2, through="over_gloo")
    return f"{[row['images'] for row in rows if row['event'] == 'eval'][-1]} images evaluated"


@check("exactness", "two ranks on one device, over nccl")
def shared_nccl(box: Box) -> str:
    """Newer nccl can be told to allow it (on CPUs this is gloo). No chapter needs it, so where it
    does not work nothing is wrong."""
    if box.gpus > 1:
        raise NotHere("for machines with one GPU")
    if box.gpus and tuple(map(int, box.nccl.split("."))) < (2, 30):
        raise NotHere(f"nccl {box.nccl} has no such switch")
    try:
        rows = box.chapter("02_distributed", out="nccl", ranks=2, start=PYTHON, through="by_hand")
    except Failed as why:
        if box.device == "cpu":
            raise
        refused = "Multiple Ranks" in box.output or "Duplicate GPU" in box.output
        said = "nccl refuses it" if refused else why
        raise NotHere(f"two ranks on one GPU do not work here: {said}") from None
    return f"{[row['images'] for row in rows if row['event'] == 'eval'][-1]} images evaluated"


# ---- speed ----
def benchmark(box: Box, part: str, ranks: int, *words: object) -> list[dict]:
    """The runs of a part of the benchmark. The whole result goes to box.data."""
    out = Path(tempfile.mkdtemp(dir=box.folder), "result.json")
    small = ["--steps", 2, "--image-size", 32, "--batch-size-per-rank", 8, "--arch", "resnet18"]
    words = [*words, *(small if box.device == "cpu" else ["--steps", 20]), "--processes", ranks]
    words = [f"--{part}", "--rounds", 2, *words, "--out", out]
    box.run([*PYTHON, BENCHMARK, *words], quiet=400)  # it says nothing during a run
    box.data[ranks] = json.loads(out.read_text())
    [runs] = box.data[ranks]["runs"].values()
    return runs


def shown(runs: list[dict]) -> str:
    head, _, *lines = table(runs, "en")
    return "; ".join(line.strip("| ") for line in (head, *lines) if line)


@check("speed", "02 against a plain DDP script")
def training(box: Box) -> str:
    kinds = ["reference", "02"]
    if box.device != "cpu":
        # Without files: what loading costs, and 02's step against a plain one.
        bf16 = " --bf16" * ("bf16" in box.fast)
        kinds += [f"{name} --synthetic{bf16}" for name in ("reference", "02")]
        kinds += [box.fast, f"{box.fast} --compile", "04 --amp-dtype fp16"]
    variants = ",".join(dict.fromkeys(kinds))
    return shown(benchmark(box, "train", box.ranks, "--variants", variants))


@check("speed", "JPEG images a second, one core")
def jpegs(box: Box) -> str:
    return shown(benchmark(box, "input", box.ranks))


@check("speed", "all-reduce, ms and GB/s")
def all_reduce(box: Box) -> str:
    if box.gpus == 1:
        raise NotHere("one GPU")
    return shown(benchmark(box, "collectives", box.ranks))


@check("speed", "from one rank to all")
def scaling(box: Box) -> str:
    if box.gpus == 1:
        raise NotHere("one GPU")
    said = []
    for ranks in sorted({1, 2, box.ranks // 2, box.ranks}):
        runs = benchmark(box, "train", ranks, "--variants", box.fast)
        rate = median(row["training images/s"] for row in runs)
        said.append(f"{ranks}: {rate:.0f} images/s")
    return ", ".join(said)


# ---- the run ----
def write(out: Path, head: dict, results: list[Result]) -> None:
    """A whole file at any time: it is renamed into place."""
    data = head | {"checks": [asdict(result) for result in results]}
    (out / "gpu.json.tmp").write_text(json.dumps(data, indent=1) + "\n")
    os.replace(out / "gpu.json.tmp", out / "gpu.json")


def perform(box: Box, result: Result, function: Callable[[Box], str]) -> None:
    start = time.monotonic()
    box.command, box.output, box.data = "", "", {}
    try:
        result.status, result.text = "ok", function(box)
    except Exception as error:  # one of ours, or a log that is not as it should be
        statuses = {NotHere: "not here", CutShort: "cut short"}
        result.status = statuses.get(type(error), "FAILED")
        kind = "" if type(error) in (*statuses, Failed) else f"{type(error).__name__}: "
        result.text, result.output = f"{kind}{error}", box.output[-4000:]
    result.seconds = round(time.monotonic() - start, 1)
    result.data, result.command = box.data, box.command


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0], allow_abbrev=False)
    add = parser.add_argument
    add("--minutes", type=float, default=10, help="for all groups together (10)")
    add("--only", choices=SHARES, help="one group")
    add("--machine", dest="only", action="store_const", const="machine", help="--only machine")
    add("--device", choices=["cuda", "cpu"], default="cuda", help="(cuda)")
    add("--processes", type=int, help="with --device cpu (2); there is one on each GPU")
    dated = Path("runs", time.strftime("gpu-check-%Y%m%d-%H%M%S"))
    add("--out", type=Path, default=dated, help="for the results; else runs/gpu-check-DATE")
    args = parser.parse_args()
    if (args.out / "gpu.json").exists():
        parser.error(f"--out {args.out} holds a gpu.json: name another folder")
    if args.processes is not None and (args.device == "cuda" or args.processes < 1):
        parser.error("--processes is for --device cpu, 1 at least")
    return args


def main() -> None:
    args = parse_args()
    groups = [args.only] if args.only else list(SHARES)
    args.out.mkdir(parents=True, exist_ok=True)
    date = datetime.now(timezone.utc).isoformat(timespec="seconds")
    command = shlex.join(["python", "tools/gpu_check.py", *sys.argv[1:]])
    head = {"date": date, "python": platform.python_version(), "command": command}
    results, start, given = [], time.monotonic(), 0.0
    with tempfile.TemporaryDirectory(prefix="g-") as folder:
        try:
            box = Box(args.device, Path(folder), args.processes or 2)
        except Failed as why:
            sys.exit(f"gpu_check: error: torch does not start: {why}")
        if args.device == "cuda" and not box.gpus and groups != ["machine"]:
            sys.exit("gpu_check: error: torch sees no GPU: try --machine, or --device cpu")
        for group in groups:
            given += 60 * args.minutes * SHARES[group] / sum(SHARES[name] for name in groups)
            box.deadline = start + given  # what earlier groups have left over is this one's too
            for _, name, function in [row for row in CHECKS if row[0] == group]:
                result = Result(group, name)
                if time.monotonic() < box.deadline:
                    perform(box, result, function)
                results.append(result)
                write(args.out, head, results)
                print(f"{result.status:<11} {group}: {name}: {result.text}", flush=True)
    failed, cut = (sum(r.status == status for r in results) for status in ("FAILED", "cut short"))
    print(f"{failed} of {len(results)} failed, {cut} cut short; all of it is in {args.out}/")
    sys.exit(1 if failed else 3 if cut else 0)


if __name__ == "__main__":
    end_on_signals()
    main()
