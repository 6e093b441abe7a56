"""Does everything work on this GPU box, exactly, and how fast? It fetches and installs nothing.

    python tools/gpu_check.py                # all of it
    python tools/gpu_check.py --machine      # the machine and its links alone: first on a new box
    python tools/gpu_check.py --device cpu   # the same code on two CPU processes, small

Five parts: the machine, its links, the smoke tests, one training by all GPUs against a plain loop,
images a second. Each prints a line as it ends (ok, FAILED, not here), and gpu.md and gpu.json in
--out, which are to be sent, are written anew, so a run that is cut off keeps what it has found. It
ends with status 1 if a part failed.
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
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime, timezone
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path
from statistics import median

sys.path.append(str(Path(__file__).with_name("benchmark")))
from processes import PYTHON, ROOT, end_all, marked, torchrun

PROBE = [Path(__file__).resolve(), "probe"]
QUIET = 120  # seconds without output after which a program hangs
# pytest is silent during a test, the benchmark during a run.
QUIET_TESTS, QUIET_BENCHMARK = 900, 400
INSTALL = "see https://pytorch.org/get-started/locally/"
SIGNALS: list[int] = []  # that have come


class NotHere(Exception):
    """This machine has not what the part is about."""


class Failed(Exception):
    """What the part found wrong, in one line."""


class Kit:
    """What a part may use, and leaves for the report."""

    def __init__(self, device: str, folder: Path) -> None:
        self.device, self.folder = device, folder
        self.gpus, self.rows = 0, []
        self.output, self.table, self.data = "", [], {}

    def run(
        self, words: list, quiet: float, env: dict[str, str] | None = None, shown: bool = False
    ) -> str:
        """The output of a command, which must end well, not be quiet for so many seconds, and leave
        no process behind; shown while it comes, if that is wanted."""
        words, mark = list(map(str, words)), uuid.uuid4().hex
        environment = {"GLOO_SOCKET_IFNAME": "lo"} | os.environ | {"GPU_CHECK": mark} | (env or {})
        if self.device == "cpu":
            environment["CUDA_VISIBLE_DEVICES"] = ""
        heard, size, late, left = time.monotonic(), 0, False, []
        with tempfile.TemporaryFile() as log:
            process = subprocess.Popen(
                words, stdout=log, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, cwd=ROOT,
                env=environment, start_new_session=True,
            )  # fmt: skip
            try:
                over = False
                while not over and not late:
                    over = process.poll() is not None
                    look_for_signals()
                    if more := os.pread(log.fileno(), 1 << 20, size):
                        heard, size = time.monotonic(), size + len(more)
                        if shown:
                            print(more.decode(errors="replace"), end="", flush=True)
                    late = not over and time.monotonic() > heard + quiet
                    time.sleep(0.05)
                patience = time.monotonic() + (0 if late else 10)
                while (left := marked(mark)) and time.monotonic() < patience:
                    look_for_signals()
                    time.sleep(0.05)
            finally:
                end_all(mark, 0)
                process.wait()
                self.output = os.pread(log.fileno(), 1 << 30, 0).decode(errors="replace")
        if late:
            raise Failed(f"hangs: no output for {quiet} s")
        if process.returncode and shown:
            raise Failed(f"status {process.returncode}")
        if process.returncode:
            lines = [line for line in self.output.splitlines() if "rror" in line] or ["silent"]
            own = [line for line in lines if "error: " in line]  # a chapter's; torchrun's follow
            raise Failed(f"status {process.returncode}: {(own or lines)[-1].strip()[:200]}")
        if left:
            raise Failed(f"leaves {len(left)} processes behind")
        return self.output

    def look_at_machine(self) -> None:
        """In a process of its own, as to ask torch for GPUs takes memory of them."""
        try:
            output = self.run([*PYTHON, *PROBE, "machine", self.device], QUIET)
            found = json.loads(re.findall(r"^PROBE (.*)$", output, re.MULTILINE)[-1])
            self.gpus, self.rows = found["gpus"], found["rows"]
        except Failed as why:
            self.rows = [["torch", f"does not start: {why}", f"install it: {INSTALL}"]]


# ---- signals ----
def note_signals() -> None:
    """Ctrl-C, SIGTERM and the end of a terminal are only noted: `run` looks for them, so that none
    interrupts the writing of a file or the killing of what runs."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:  # as nohup has it
            signal.signal(number, lambda number, _frame: SIGNALS.append(number))


def look_for_signals() -> None:
    if SIGNALS:
        raise SystemExit(128 + SIGNALS[0])


# ---- the machine ----
def probe_machine(device: str) -> None:
    """Rows of: what, what was found, and what to do where that is wrong."""
    import resource
    import shutil
    import socket
    import warnings

    import torch

    rows, gpu = [], device == "cuda"

    def row(name: str, found: object, wrong: bool = False, do: str = "") -> None:
        rows.append([name, str(found), do if wrong else ""])

    cuda, count, usable = torch.version.cuda, torch.cuda.device_count(), torch.cuda.is_available()
    old = tuple(map(int, torch.__version__.split(".")[:2])) < (2, 6)
    row("torch", torch.__version__, old, f"the chapters need 2.6: {INSTALL}")
    row("CUDA", cuda or "none", gpu and not cuda, f"install a torch with CUDA: {INSTALL}")
    row("nccl", ".".join(map(str, torch.cuda.nccl.version())) if usable else "-")
    driver = ""
    with suppress(OSError, subprocess.TimeoutExpired):
        query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
        driver = subprocess.run(query, capture_output=True, text=True, timeout=30).stdout
    hint = "install NVIDIA's driver; start a container with --gpus all"
    row("driver", (driver.splitlines() or ["none"])[0], gpu and not driver and not usable, hint)
    names = Counter(torch.cuda.get_device_name(n) for n in range(count)) if usable else {}
    said = ", ".join(f"{n} x {name}" for name, n in names.items()) or count or "none"
    row("GPUs", said, gpu and not count, "type nvidia-smi; is CUDA_VISIBLE_DEVICES empty?")
    hint = f"the driver is too old for CUDA {cuda}: update it, or install another torch: {INSTALL}"
    row("torch can use them", "yes" if usable else "no", count > 0 and not usable, hint)
    bf16 = usable and torch.cuda.is_bf16_supported(including_emulation=False)
    row("bf16", "yes" if bf16 else "no: 04 with --amp-dtype fp16 is faster" if usable else "-")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        torch.set_float32_matmul_precision("high")  # as the chapters choose it
    said = str(caught[0].message) if caught else "does not warn"
    row("TF32 switch", said, bool(caught), "send this: the chapters use it")
    shm = shutil.disk_usage("/dev/shm").free / 2**30
    hint = "loader workers need it: start the container with --shm-size=16g or --ipc=host"
    row("/dev/shm", f"{shm:.1f} GiB free", shm < 1, hint)
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    row("open files", files, 0 <= files < 4096, "type ulimit -n 65536")
    address, name = "no address", socket.gethostname()
    with suppress(OSError):
        address = socket.gethostbyname(name)
    hint = "add it to /etc/hosts, or type export GLOO_SOCKET_IFNAME=lo if all ranks are here"
    row("host name", f"{name}: {address}", address == "no address", hint)
    print("PROBE " + json.dumps({"gpus": count if usable else 0, "rows": rows}))


def machine(kit: Kit) -> str:
    kit.table = [["machine", "found", "what to do"], *kit.rows]
    if wrong := [name for name, _, do in kit.rows if do]:
        raise Failed(f"to put right: {', '.join(wrong)}")
    return "fit for training"


# ---- the links ----
# What nvidia-smi topo -m calls a way, in words. (`nvidia-smi topo --help` says what they mean.)
WAYS = {
    "PIX": "one PCIe switch",
    "PXB": "several PCIe switches",
    "PHB": "PCIe, through the CPU",
    "NODE": "PCIe, through the CPU's own links",
    "SYS": "PCIe and the link between two CPUs: the slowest way",
}
# GB a second in one direction: 16 lanes of PCIe 5 (PCI-SIG: 32 GT/s a lane, 128b/130b; PCIe 4 gives
# half), and a link of NVLink 3 and 4 (NVIDIA: 50 GB/s both ways).
PCIE, NVLINK = 63.0, 25.0


def topology(text: str) -> dict[str, str]:
    """What `nvidia-smi topo -m` prints: pairs of GPUs -> the way between them."""
    found = {}
    lines = [re.sub(r"\x1b\[\d*m", "", line).split() for line in text.splitlines()]
    head = next((line for line in lines if line[:1] == ["GPU0"]), [])
    names = [name for name in head if re.fullmatch(r"GPU\d+", name)]
    for name, *cells in [line for line in lines if line and line[0] in names]:
        for other, way in list(zip(names, cells, strict=False)):
            if names.index(name) < names.index(other):
                found[f"{name} {other}"] = way
    return found


def in_words(way: str) -> str:
    if found := re.fullmatch(r"NV(\d+)", way):
        return f"{found[1]} links of NVLink"
    return WAYS.get(way, way)


def usual(way: str) -> float | None:
    """GB a second in one direction that such a way gives at most; None: nobody can tell."""
    if found := re.fullmatch(r"NV(\d+)", way):
        return NVLINK * int(found[1])
    return PCIE if way in WAYS else None


def links(kit: Kit) -> str:
    """Known numbers from each GPU to each, bit by bit, and how fast."""
    ranks = kit.gpus or 2
    if ranks == 1:
        raise NotHere("one GPU has no links")
    file = kit.folder / "links.json"
    kit.run([*torchrun(ranks), ROOT / "tools/links.py", file], QUIET)
    found = json.loads(file.read_text())
    kit.data = found | {"rows": [row for row in found["rows"] if row["wrong"]][:100]}
    text = ""
    with suppress(OSError, subprocess.TimeoutExpired):
        words = ["nvidia-smi", "topo", "-m"]
        text = subprocess.run(words, capture_output=True, text=True, timeout=30).stdout
    told = topology(text) if kit.gpus else {}
    kit.table = [["between", "way", "P2P", "GB/s", "at most"], *rows_of_links(found, told)]
    if wrong := [row for row in found["rows"] if row["wrong"]]:
        first = wrong[0]
        path = "-".join(map(str, first["ranks"]))
        where = f"{first['what']} {path}, {first['size']} bytes, round {first['round'] + 1}"
        count = f"{first['wrong']} of {first['size'] // 4} numbers are wrong"
        raise Failed(
            f"data are lost: {where}: {count} on rank {first['rank']} ({len(wrong)} such);"
            " train with NCCL_P2P_DISABLE=1 until the machine is mended"
        )
    return f"{len(found['rows'])} transfers by {ranks} ranks, no bit is wrong"


def rows_of_links(found: dict, told: dict[str, str]) -> list[list[str]]:
    largest = max(row["size"] for row in found["rows"])

    def pace(what: str, ranks: list[int]) -> float:
        """GB a second in the last round: the slowest rank's."""
        seconds = [
            row["seconds"] for row in found["rows"]
            if (row["what"], row["ranks"], row["size"]) == (what, ranks, largest)
            and row["round"] == 1 and (what != "send" or row["rank"] in ranks)
        ]  # fmt: skip
        return largest / max(seconds) / 1e9

    world = 1 + max(row["rank"] for row in found["rows"])
    table = []
    for one in range(world):
        for other in range(one + 1, world):
            way = told.get(f"GPU{one} GPU{other}", "")
            peers = "on" if [one, other] in found["peers"] else "off"
            peers = "-" if found["device"] == "cpu" else peers
            paces = f"{pace('send', [one, other]):.3g}, {pace('send', [other, one]):.3g}"
            most = usual(way)
            row = [f"{one} and {other}", in_words(way) or "-", peers, paces]
            table.append([*row, f"{most:g}" if most else "-"])
    together = pace("all_reduce", list(range(world))) * 2 * (world - 1) / world
    return [*table, ["all, all_reduce", "-", "-", f"{together:.3g}", "-"]]


# ---- the smoke tests ----
def smoke_tests(kit: Kit) -> str:
    if not find_spec("pytest"):
        raise NotHere("pytest is not installed: python -m pip install pytest")
    words = [*PYTHON, "-m", "pytest", "-v", "-m", "smoke", "-p", "no:cacheprovider"]
    # A launch that hangs is ended by the tests, here within minutes.
    env = {"TEST_PATIENCE": os.environ.get("TEST_PATIENCE", "240")}
    why = ""
    try:
        kit.run([*words, "tests/chapters"], QUIET_TESTS, env, shown=True)
    except Failed as error:
        why = f", {error}"
    ends = re.findall(r"^=+ (.*) in [\d.]+s.* =+$", kit.output, re.MULTILINE)
    found = re.findall(r"\d+ (?:passed|failed|skipped|error)", ends[-1] if ends else "")
    kit.data["passed"] = re.findall(r"::(\S+) PASSED", kit.output)  # for tools/site/ran.py
    numbers, kit.output = ", ".join(found) or "no test ran", ""  # the rest has been shown
    if why:
        raise Failed(numbers + why)
    return numbers


# ---- exactness ----
def probe_exactness(folder: str) -> None:
    """A rank: chapter 02 trains a tiny model for one step, then a plain loop does on this rank's
    device alone, on the whole batch."""
    import torch
    from torch import nn

    spec = spec_from_file_location("chapter", ROOT / "02_distributed/main.py")
    chapter = module_from_spec(spec)
    spec.loader.exec_module(chapter)
    built = []

    def build(args: object, num_classes: int) -> nn.Module:
        """In float64 another order of a sum is a difference of 1e-16, any mistake far more. Without
        BatchNorm, whose statistics are those of a rank's own share."""
        layers = [nn.Conv2d(3, 8, 3, stride=2), nn.Tanh(), nn.Flatten(), nn.Linear(72, num_classes)]
        model = nn.Sequential(*layers).double()
        model.register_forward_pre_hook(lambda _, images: (images[0].double(),))
        built.append(model)
        return model

    batch = 4 * int(os.environ["WORLD_SIZE"])
    words = f"--synthetic {batch} --batch-size {batch} --epochs 1 --image-size 8 --workers 0"
    argv = [*words.split(), "--lr", str(256 / batch), "--output-dir", f"{folder}/run"]
    chapter.build_model = build
    chapter.main(argv)

    args = chapter.build_parser().parse_args(argv)
    weights = list(built[0].parameters())
    device = weights[0].device
    images, targets = (tensor.to(device) for tensor in chapter.build_datasets(args)[0].tensors)
    mean, std = (torch.tensor(v, device=device).view(3, 1, 1) for v in (chapter.MEAN, chapter.STD))
    torch.manual_seed(args.seed)
    model = build(args, 10).to(device)
    first = [p.detach().clone() for p in model.parameters()]
    optimizer = torch.optim.SGD(model.parameters(), chapter.lr_factor(args, 0.5), weight_decay=1e-4)
    logits = model((images.float() - 255 * mean) / (255 * std))
    nn.functional.cross_entropy(logits, targets).backward()
    optimizer.step()

    def largest(others: list) -> float:
        pairs = zip(model.parameters(), others, strict=True)
        return torch.stack([(a - b).detach().abs().max() for a, b in pairs]).max().item()

    found = {"difference": largest(weights), "moved": largest(first)}
    Path(folder, f"rank{os.environ['RANK']}.json").write_text(json.dumps(found))


def exactness(kit: Kit) -> str:
    ranks = kit.gpus or 2
    kit.run([*torchrun(ranks), *PROBE, "exactness", kit.folder], QUIET)
    found = [json.loads(path.read_text()) for path in sorted(kit.folder.glob("rank*.json"))]
    kit.data = {"ranks": found}
    if len(found) != ranks:
        raise Failed(f"{len(found)} of {ranks} ranks told their weights")
    differences = [row["difference"] for row in found]
    text = f"weights differ from a plain loop's by up to {max(differences):.1e}"
    if not all(row["moved"] > 1e-3 for row in found):
        raise Failed("the plain loop did not train")
    if not all(number < 1e-10 for number in differences):  # nan is not
        raise Failed(f"{ranks} ranks: {text}, which must be less than 1e-10")
    alone = " (one rank: nothing was averaged)" if ranks == 1 else ""
    return f"one step by {ranks} rank{'s' * (ranks > 1)}: {text}{alone}"


# ---- speed ----
def speed(kit: Kit) -> str:
    """Of chapter 02 and of a plain DDP script, by the benchmark, in interleaved rounds."""
    rounds, steps = (2, 20) if kit.gpus else (1, 2)
    benchmark = [*PYTHON, "tools/benchmark/benchmark.py", "--rounds", rounds, "--steps", steps]
    benchmark += ["--variants", "reference,02", "--out"]
    first = os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0]
    runs = {"1 GPU": {"CUDA_VISIBLE_DEVICES": first}} if kit.gpus else {"2 CPU processes": {}}
    if kit.gpus > 1:
        runs[f"{kit.gpus} GPUs"] = {}
    kit.table, said = [["images/s", "plain loop", "02", "02 / plain"]], []
    for name, env in runs.items():
        out = kit.folder / f"{name}.json"
        kit.run([*benchmark, out], QUIET_BENCHMARK, env)
        kit.data[name] = json.loads(out.read_text())
        plain, chapter = (
            median(row["training images/s"] for row in kit.data[name]["runs"]["training"]
                   if row["variant"] == variant)
            for variant in ("reference", "02")
        )  # fmt: skip
        said.append(chapter)
        cells = [name, f"{plain:.0f}", f"{chapter:.0f}", f"{chapter / plain:.2f}"]
        kit.table.append(cells)
    more = f", {said[1] / said[0]:.2f} times those of one" if len(said) > 1 else ""
    return f"02 trains {said[-1]:.0f} images/s on {name}{more}"


# ---- the report ----
PARTS: dict[str, Callable[[Kit], str]] = {
    "machine": machine, "links": links, "smoke tests": smoke_tests, "exactness": exactness,
    "speed": speed,
}  # fmt: skip


def markdown(table: list[list[str]]) -> str:
    lines = [f"| {' | '.join(row)} |" for row in table]
    return "\n".join([lines[0], "| --- " * len(table[0]) + "|", *lines[1:], ""])


def write(out: Path, head: dict, results: list[dict]) -> None:
    """Whole files at any time: they are renamed into place."""
    lines = ["# GPU check", "", f"{head['date']}, Python {head['python']}, `{head['command']}`", ""]
    table = [["part", "result", "", "seconds"]]
    for row in results:
        table.append([row["part"], row["status"], row["text"], str(row["seconds"])])
    lines.append(markdown(table))
    for row in results:
        if row["table"]:
            lines.append(markdown(row["table"]))
        if row["output"]:
            lines += [f"{row['part']} ended with:", "", "~~~text", row["output"], "~~~", ""]
    files = {"gpu.json": json.dumps(head | {"parts": results}, indent=1) + "\n"}
    for name, text in (files | {"gpu.md": "\n".join(lines)}).items():
        temporary = out / f"{name}.tmp"
        temporary.write_text(text)
        temporary.replace(out / name)


def perform(kit: Kit, result: dict, part: Callable[[Kit], str]) -> None:
    begun = time.monotonic()
    kit.output, kit.table, kit.data = "", [], {}
    try:
        result["status"], result["text"] = "ok", part(kit)
    except NotHere as why:
        result |= {"status": "not here", "text": str(why)}
    except Exception as why:  # one of ours, or a file that is not as it should be
        kind = "" if isinstance(why, Failed) else f"{type(why).__name__}: "
        result |= {"status": "FAILED", "text": f"{kind}{why}", "output": kit.output[-4000:]}
    seconds = round(time.monotonic() - begun, 1)
    result |= {"seconds": seconds, "table": kit.table, "data": kit.data}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0], allow_abbrev=False)
    add = parser.add_argument
    add("--machine", action="store_true", help="look at the machine and its links alone")
    add("--device", choices=["cuda", "cpu"], default="cuda", help="(cuda)")
    dated = Path("runs", time.strftime("gpu-check-%Y%m%d-%H%M%S"))
    add("--out", type=Path, default=dated, help="for the results; else runs/gpu-check-DATE")
    args = parser.parse_args()
    if (args.out / "gpu.json").exists():
        parser.error(f"--out {args.out} holds a gpu.json: name another folder")
    date = datetime.now(timezone.utc).isoformat(timespec="seconds")
    command = shlex.join(["python", "tools/gpu_check.py", *sys.argv[1:]])
    head = {"date": date, "python": platform.python_version(), "command": command}
    results = []
    with tempfile.TemporaryDirectory(prefix="gpu-check-") as folder:
        kit = Kit(args.device, Path(folder))
        kit.look_at_machine()
        if args.device == "cuda" and not kit.gpus and not args.machine:
            sys.exit("error: torch sees no GPU: try --machine, or --device cpu")
        args.out.mkdir(parents=True, exist_ok=True)
        for name, part in list(PARTS.items())[: 2 if args.machine else None]:
            results.append({"part": name, "status": "cut off", "text": "", "output": ""})
            results[-1] |= {"seconds": 0.0, "table": [], "data": {}}
            write(args.out, head, results)
            perform(kit, results[-1], part)
            write(args.out, head, results)
            if kit.table:
                print(markdown(kit.table))
            print(f"{results[-1]['status']:<9} {name}: {results[-1]['text']}", flush=True)
            look_for_signals()
    failed = sum(row["status"] == "FAILED" for row in results)
    print(f"{failed} of {len(results)} failed; to send: gpu.md and gpu.json in {args.out}/")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    if sys.argv[1:2] == ["probe"]:  # started by a part
        {"machine": probe_machine, "exactness": probe_exactness}[sys.argv[2]](*sys.argv[3:])
    else:
        note_signals()
        main()
