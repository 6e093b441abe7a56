"""What gpu_check.py looks at in processes of their own: gpu_probes.py NAME cuda|cpu [WORD ...]

Each prints a line `PROBE {json}`; one that takes long prints others before it, as a program that
is quiet for long is taken to hang. Those that take a chapter's main.py and its words run it with
something changed.
"""

import ast
import importlib.util
import json
import os
import resource
import shutil
import socket
import subprocess
import sys
import time
import traceback
import warnings
from functools import partial
from pathlib import Path
from types import ModuleType

import torch
import torch.distributed as dist
from torch.utils._python_dispatch import TorchDispatchMode

ROOT = Path(__file__).resolve().parents[1]


def tell(**data: object) -> None:
    if os.environ.get("RANK", "0") == "0":
        print("PROBE " + json.dumps(data), flush=True)


def load(path: str) -> ModuleType:
    sys.path.insert(0, str(Path(path).parent))
    return importlib.import_module("main")


def join(device: str) -> torch.device:
    """As chapter 02 does it."""
    place = torch.device("cpu")
    if device == "cuda":
        place = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(place)
    dist.init_process_group("nccl" if device == "cuda" else "gloo")
    return place


def versions(device: str) -> None:
    gpus = [f"GPU {n}" for n in range(torch.cuda.device_count())]
    if torch.cuda.is_available():  # otherwise asking for their names would raise
        gpus = [torch.cuda.get_device_name(n) for n in range(len(gpus))]
    nccl = ".".join(map(str, torch.cuda.nccl.version())) if torch.cuda.is_available() else None
    driver = None
    if shutil.which("nvidia-smi"):
        query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
        driver = subprocess.run(query, capture_output=True, text=True, timeout=20).stdout.strip()
    tell(torch=torch.__version__, cuda=torch.version.cuda, nccl=nccl, gpus=gpus, driver=driver,
         bf16=bool(gpus) and torch.cuda.is_bf16_supported(including_emulation=False),
         usable=torch.cuda.is_available(), cpus=len(os.sched_getaffinity(0)))  # fmt: skip


def tf32(device: str) -> None:
    """What the chapters' setup_device leads to, and what it warns of."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        torch.set_float32_matmul_precision("high")
        products = torch.get_float32_matmul_precision() == "high"
        if hasattr(torch.backends.cudnn, "conv"):  # the way of newer torch
            convolutions = torch.backends.cudnn.conv.fp32_precision == "tf32"
        else:
            convolutions = torch.backends.cudnn.allow_tf32
    said = [str(warning.message) for warning in caught]
    tell(products=products, convolutions=convolutions, warnings=said)


def limits(device: str) -> None:
    """What containers and new machines often have too little of."""
    wrong = []
    shm = shutil.disk_usage("/dev/shm").free / 2**30
    if shm < 1:
        wrong.append(f"{shm:.2f} GiB free in /dev/shm, by which loader workers hand over batches: "
                     "start the container with --shm-size=16g or --ipc=host")  # fmt: skip
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if files < 4096:
        wrong.append(f"{files} open files at most: type `ulimit -n 65536`")
    name, address = socket.gethostname(), None
    try:
        address = socket.gethostbyname(name)
    except OSError:
        wrong.append(f"the host name {name} has no address: add it to /etc/hosts, or "
                     "export GLOO_SOCKET_IFNAME=lo if all ranks are here")  # fmt: skip
    text = f"{shm:.1f} GiB free in /dev/shm, {files} open files, {name} is {address}"
    tell(wrong=wrong, text=text)


def apex(device: str) -> None:
    here = importlib.util.find_spec("apex") and importlib.util.find_spec("apex.amp")
    tell(here=bool(here))


def pictures(device: str) -> None:
    tell(here=all(importlib.util.find_spec(name) for name in ("PIL", "numpy")))


def memory(device: str) -> None:
    """What many of 02's all-reduces leave behind, in MiB."""
    place = join(device)
    count, used = (20_000 if device == "cuda" else 3_000), []
    for step in range(count):
        dist.all_reduce(torch.zeros(2, dtype=torch.float64, device=place))
        if step % 500 == 0:
            print(step, flush=True)
        if step in (count // 5, count - 1):
            pages = int(Path("/proc/self/statm").read_text().split()[1])
            own = torch.cuda.memory_allocated() if device == "cuda" else 0
            used.append(own + (0 if device == "cuda" else pages * os.sysconf("SC_PAGE_SIZE")))
    dist.destroy_process_group()
    tell(count=count, grown_mib=(used[1] - used[0]) >> 20)


def difference(device: str, one: str, other: str) -> None:
    models = [torch.load(p, map_location="cpu", weights_only=True)["model"] for p in (one, other)]
    tell(largest=max((models[0][k].double() - models[1][k].double()).abs().max().item()
                     for k in models[0]))  # fmt: skip


def ordinary_lines(path: str) -> set[int]:
    """The lines of the training loop, without the branch that writes a log line."""
    tree = ast.parse(Path(path).read_text())
    (train,) = [n for n in tree.body if getattr(n, "name", "") == "train_one_epoch"]
    (loop,) = [n for n in train.body if isinstance(n, ast.For)]
    nodes = [n for n in loop.body if not isinstance(n, ast.If)]
    return {line for n in nodes for line in range(n.lineno, n.end_lineno + 1)}


def waits(device: str, path: str, *words: str) -> None:
    """Run a chapter, and tell where an ordinary step of training waits for the device."""
    lines, found = ordinary_lines(path), set()

    def note(what: object) -> None:
        for frame in traceback.extract_stack():
            if frame.filename == path and frame.lineno in lines:
                found.add(f"line {frame.lineno}: {frame.line} ({str(what).splitlines()[0][:80]})")

    class Reads(TorchDispatchMode):  # on a CPU, where nothing waits: what would
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            if func is torch.ops.aten._local_scalar_dense.default:
                note(func)
            return func(*args, **(kwargs or {}))

    chapter = load(path)
    if device == "cpu":
        with Reads():
            chapter.main(list(words))
    else:
        warnings.simplefilter("always")
        warnings.showwarning = lambda message, *_, **__: note(message)
        own = chapter.train_one_epoch

        def watched(*given: object) -> None:
            torch.cuda.set_sync_debug_mode("warn")
            try:
                own(*given)
            finally:
                torch.cuda.set_sync_debug_mode("default")

        chapter.train_one_epoch = watched
        chapter.main(list(words))
    tell(waits=sorted(found))


def deterministic(device: str, path: str, *words: str) -> None:
    """Run a chapter so that equal input gives equal bits; keep the first epoch's checkpoint, and
    one that differs in memory only."""
    os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"
    os.environ["NCCL_ALGO"] = "Ring"  # others leave the order of a sum to a switch
    torch.use_deterministic_algorithms(True)
    chapter = load(path)
    own_setup, own_save = chapter.setup_device, chapter.save_checkpoint

    def setup(local_rank: int) -> torch.device:
        place = own_setup(local_rank)
        torch.backends.cudnn.benchmark = False  # which may choose otherwise in each run
        return place

    def save(state: dict, path: Path) -> None:
        own_save(state, path)
        if state["epoch"] == 1 and path.name == "checkpoint.pt":
            shutil.copy(path, path.with_name("after1.pt"))
            for slot in state["optimizer"]["state"].values():
                slot["momentum_buffer"] = slot["momentum_buffer"].contiguous()
            torch.save(state, path.with_name("contiguous.pt"))

    # After the first step of every start DDP fills its buckets anew, in another order, and with
    # three ranks and more sums are then taken in another order. Like this it keeps the first ones.
    keeps = partial(chapter.DistributedDataParallel, find_unused_parameters=True)
    chapter.DistributedDataParallel = keeps
    chapter.setup_device, chapter.save_checkpoint = setup, save
    chapter.main(list(words))


def over_gloo(device: str, path: str, *words: str) -> None:
    """Run a chapter with all ranks on the first GPU; nccl wants one for each, gloo does not."""
    chapter = load(path)
    place = torch.device("cuda", 0) if device == "cuda" else torch.device("cpu")
    chapter.setup_device = lambda local_rank: place
    own = dist.init_process_group
    dist.init_process_group = lambda backend, device_id: own("gloo")
    chapter.main(list(words))


def by_hand(device: str, path: str, *words: str) -> None:
    """Start a chapter as two ranks that both take the first GPU, without a launcher."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    shared = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "LOCAL_RANK": "0"}
    shared |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    shared |= {"NCCL_MULTI_RANK_GPU_ENABLE": "1", "NCCL_NVLS_ENABLE": "0", "NCCL_MAX_CTAS": "1"}
    command = [sys.executable, "-u", path, *words]
    ranks = [subprocess.Popen(command, env=os.environ | shared | {"RANK": n}) for n in "01"]
    while not any(statuses := [rank.poll() for rank in ranks]) and None in statuses:
        time.sleep(0.1)
    for rank in ranks:  # one that is left alone would wait for the other
        rank.kill()
        rank.wait()
    sys.exit(max(map(abs, filter(None, statuses)), default=0))


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
