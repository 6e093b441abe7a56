"""What the tests share: launching a chapter as a reader does, and reading what it wrote."""

import contextlib
import importlib.util
import json
import os
import random
import re
import signal
import socket
import subprocess
import sys
import time
import uuid
import warnings
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
TOOLS = ROOT / "tools"
# Every chapter that exists, in order; a missing one is found by test_static.py.
CHAPTERS = sorted(path.parent.name for path in ROOT.glob("0[1-8]_*/main.py"))
LAUNCHED_BY_TORCHRUN = ("02_distributed", "04_apex", "07_dist_eval", "08_fsdp2")
HOROVOD, SLURM, FSDP = "05_horovod", "06_slurm", "08_fsdp2"
# The beginnings of what launchers set for the processes that they start.
LAUNCHER_VARIABLES = (
    "RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "WORLD_SIZE", "MASTER_", "TORCHELASTIC", "GROUP_",
    "ROLE_", "SLURM_", "HOROVOD_",
)  # fmt: skip
CHECKPOINT_KEYS = {"model", "optimizer", "epoch", "step", "best", "model_name", "metric"}
CHECKPOINT_KEYS |= {"classes", "images"}
OWN_KEYS = {"04_apex": {"scaler"}}
# What has a chapter compute as the others do: 04 is in 16 bits unless told otherwise.
AS_OTHERS = {"04_apex": ["--amp-dtype", "fp32"]}
# What a process says that has used gloo and aborts while Python ends, its work done: a race in
# torch, see docs/en/troubleshooting.md#end.
GLOO_ABORT = "terminate called without an active exception"
# Warnings that are not our programs' doing: `import torch` imports the old package pynvml where it
# finds one, and from 2.8 to 2.11 torch's own DataLoader calls what will go away
# (https://github.com/pytorch/pytorch/issues/174546).
NOT_OURS = [
    "ignore:The pynvml package is deprecated:FutureWarning",
    "ignore:The argument 'device' of Tensor.pin_memory() is deprecated:DeprecationWarning",
    "ignore:The argument 'device' of Tensor.is_pinned() is deprecated:DeprecationWarning",
]
# Any other warning of torch or torchvision that one of its calls will go away is an error, or seen.
WARNINGS = ",".join(["error::FutureWarning", *NOT_OURS])
STRICT = {"PYTHONWARNINGS": ",".join(["default::DeprecationWarning", WARNINGS])}
# Seconds within which whatever a test starts must end: far more than it takes, as the machine may
# be busy.
PATIENCE = float(os.environ.get("TEST_PATIENCE", 540))
# A tiny run: 40 images of 32 pixels, 5 steps an epoch.
TINY = ["--arch", "shufflenet_v2_x0_5", "--image-size", "32", "--batch-size", "8", "--workers", "0"]


def default_processes() -> int:
    """Ranks of a smoke test: 2 on CPUs (gloo), else one on every GPU (nccl)."""
    import torch  # not above: the controller of pytest-xdist needs none

    return torch.cuda.device_count() or 2


def clean_environment() -> dict[str, str]:
    """The environment of a fresh shell: no rank, no launcher, one thread, loopback only."""
    env = {k: v for k, v in os.environ.items() if not k.startswith(LAUNCHER_VARIABLES)}
    return env | {
        "OMP_NUM_THREADS": "1",
        "GLOO_SOCKET_IFNAME": "lo",
        "PYTHONUNBUFFERED": "1",
        # torch's own "this will go away" stops a test; other packages' imports are not ours.
        "PYTHONWARNINGS": WARNINGS,
    }


def free_port() -> int:
    """A TCP port that nobody uses on this machine right now. It is none of those that Linux gives
    to whoever asks for any, as gloo does: one of them might be gone before it is bound."""
    known = Path("/proc/sys/net/ipv4/ip_local_port_range")
    below = int(known.read_text().split()[0]) if known.exists() else 49152  # IANA's, as on macOS
    while True:
        port = random.SystemRandom().randrange(below // 2, below)
        with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port


class Result(subprocess.CompletedProcess):
    """A finished process: its command, exit status, and what it printed."""

    @property
    def output(self) -> str:
        command = " ".join(map(str, self.args))
        return f"$ {command}\n[{self.returncode}]\n{self.stdout}\n{self.stderr}"

    @property
    def said(self) -> list[str]:
        """The lines of stdout, without the "[0]<stdout>:" that horovodrun puts before them."""
        return [re.sub(r"^\[\d+\]<stdout>:", "", line) for line in self.stdout.splitlines()]

    def lines(self, word: str) -> list[str]:
        """Lines of stdout or stderr that hold the word."""
        return [line for line in (self.stdout + self.stderr).splitlines() if word in line]


SESSION = uuid.uuid4().hex  # marks whatever this test session has started


def start(command: list, cwd: Path, env: dict[str, str] | None = None) -> subprocess.Popen:
    """Start a command. Its processes are known by a mark in their environment: launchers put
    their children into groups and sessions of their own, where no group's signal reaches them."""
    mark = f"{SESSION}-{uuid.uuid4().hex}"
    process = subprocess.Popen(
        [str(word) for word in command],
        cwd=cwd,
        env=clean_environment() | (env or {}) | {"LAUNCHED_BY_TEST": mark},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    process.mark = mark
    return process


def marked(mark: str) -> list[int]:
    """Living processes whose mark begins like this."""
    wanted, members = b"\0LAUNCHED_BY_TEST=" + mark.encode(), []
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it may end while we look
            if wanted in b"\0" + (entry / "environ").read_bytes():
                members.append(int(entry.name))
    return members


def alive(process: subprocess.Popen) -> list[int]:
    """Processes that live and descend from a started command, itself included."""
    return marked(process.mark)


def left_behind() -> list[int]:
    """Living processes that descend from any command of this session: there must be none."""
    return marked(SESSION)


def kill_all(process: subprocess.Popen) -> None:
    """Kill a started command and whatever it has started."""
    while members := alive(process):
        for pid in members:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        process.poll()
        time.sleep(0.05)


def kill_with_workers(process: subprocess.Popen, begun: Callable[[], object]) -> None:
    """Kill a started command, and it alone, once it has begun: what it has started must end."""
    try:
        for ready in (begun, lambda: not alive(process)):
            deadline = time.monotonic() + PATIENCE
            while not ready():
                assert time.monotonic() < deadline, alive(process)
                time.sleep(0.2)
            if ready is begun:
                assert len(alive(process)) > 1
                process.kill()
                process.wait()
    finally:
        kill_all(process)


def finish(process: subprocess.Popen, timeout: float = PATIENCE) -> Result:
    """Wait for a started command. Nothing of it is left behind, on success neither."""
    try:
        stdout, stderr = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        kill_all(process)
        result = Result(process.args, -9, *process.communicate())
        raise AssertionError(f"no end within {timeout} s\n{result.output}") from None
    result = Result(process.args, process.returncode, stdout, stderr)
    deadline = time.monotonic() + 60  # a worker may take a moment to follow its parent
    while (left := alive(process)) and time.monotonic() < deadline:
        time.sleep(0.1)
    if left:
        kill_all(process)
        raise AssertionError(f"left behind: {left}\n{result.output}")
    return result


def run(
    command: list, cwd: Path, timeout: float = PATIENCE, env: dict[str, str] | None = None
) -> Result:
    """Run a command to its end."""
    return finish(start(command, cwd, env), timeout)


def run_short(
    command: list, cwd: Path, timeout: float = PATIENCE, env: dict[str, str] | None = None
) -> Result:
    """As run, for scripts so short that gloo's threads are still at work when Python ends: after
    GLOO_ABORT again, up to twice, told among pytest's warnings. No other failure is forgiven."""
    for _ in range(2):
        result = run(command, cwd, timeout, env)
        if result.returncode == 0 or GLOO_ABORT not in result.output:
            return result
        warnings.warn(f"aborted while Python ended, run again: {command[-1]}", stacklevel=2)
    return run(command, cwd, timeout, env)


def command_for(chapter: str, argv: list, processes: int, script: Path | None = None) -> list:
    """The command line of a chapter's docstring; script stands in for its main.py. For 06 a Slurm
    on this machine is started where that is possible; elsewhere it runs under torchrun."""
    script = script or ROOT / chapter / "main.py"
    if chapter == "03_multiprocessing":
        return [sys.executable, script, *argv, "--nprocs", str(processes)]
    if chapter == HOROVOD:
        horovodrun = [Path(sys.executable).with_name("horovodrun"), "-np", str(processes)]
        horovodrun += ["-H", f"localhost:{processes}", "--gloo"]
        return [*horovodrun, sys.executable, script, *argv]
    if chapter == SLURM:
        from slurm import shared_cluster  # which is built on this module

        if cluster := shared_cluster():
            srun = cluster.user("srun", "-K", "--ntasks", str(processes))
            return [*srun, sys.executable, script, *argv]
    if chapter in (*LAUNCHED_BY_TORCHRUN, SLURM):
        torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
        return [*torchrun, "--nproc-per-node", str(processes), script, *argv]
    return [sys.executable, script, *argv]


def launch(
    chapter: str,
    argv: list[str],
    cwd: Path,
    processes: int | None = None,
    timeout: float = PATIENCE,
    env: dict[str, str] | None = None,
) -> Result:
    """Run a chapter the way its docstring says, with cwd as the working directory."""
    return run(command_for(chapter, argv, processes or default_processes()), cwd, timeout, env)


def events(run_dir: Path, name: str = "metrics.jsonl") -> list[dict[str, Any]]:
    """The lines of a run's log; each must be JSON, and JSON that every reader knows (no NaN)."""

    def no_constant(word: str) -> None:
        raise AssertionError(f"{word} is not JSON")

    text = (run_dir / name).read_text()
    return [json.loads(line, parse_constant=no_constant) for line in text.splitlines()]


def rows(run_dir: Path, event: str, name: str = "metrics.jsonl") -> list[dict[str, Any]]:
    """The events of one kind."""
    return [row for row in events(run_dir, name) if row["event"] == event]


def load_state(path: Path) -> dict[str, Any]:
    """A checkpoint, loaded as strictly as the chapters do."""
    import torch

    return torch.load(path, map_location="cpu", weights_only=True)


def assert_same(a: Any, b: Any, at: str = "checkpoint") -> None:
    """Two nested structures are equal, tensors bit for bit."""
    import torch

    if isinstance(a, dict):
        assert a.keys() == b.keys(), f"{at}: {a.keys() ^ b.keys()}"
        for key in a:
            assert_same(a[key], b[key], f"{at}[{key!r}]")
    elif isinstance(a, (list, tuple)):
        assert_same(dict(enumerate(a)), dict(enumerate(b)), at)
    else:
        same = torch.equal(a, b) if isinstance(a, torch.Tensor) else a == b
        assert same, f"{at}: {a!r} is not {b!r}"


def load_chapter(chapter: str) -> ModuleType:
    """A chapter's main.py as a module, imported once a process."""
    name = "chapter_" + chapter
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, ROOT / chapter / "main.py")
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        spec.loader.exec_module(module)
    return sys.modules[name]


def flags_of(chapter: str) -> list[str]:
    """The option strings of a chapter in the order in which it declares them."""
    actions = load_chapter(chapter).build_parser()._actions
    return [a.option_strings[-1] for a in actions if a.dest != "help"]


def launch_lines(chapter: str) -> list[str]:
    """The command lines of a chapter's docstring, continued lines joined."""
    text = re.sub(r"\\\n\s*", "", load_chapter(chapter).__doc__)
    found = [line.strip() for line in text.splitlines() if " main.py" in line]
    launchers = ("torchrun", "python", "horovodrun", "srun")
    found = [line for line in found if line.split()[0] in launchers]
    assert found, f"no launch line in {chapter}"
    return found


def download(words: list[str], folder: Path) -> None:
    """What a reader of the site has for this command: the doctor, and scripts that pages offer."""
    if "doctor.pyz" in words:
        make = ["make", "-s", "-C", ROOT, "doctor.pyz", f"PYTHON={sys.executable}"]
        assert run([*make, f"PYZ={folder / 'doctor.pyz'}"], folder).returncode == 0
        for kind in ("convert", "tools"):
            for script in (ROOT / "docs/examples" / kind).glob("*.py"):
                (folder / script.name).symlink_to(script)
