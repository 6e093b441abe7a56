"""Parts of tools/benchmark/benchmark.py: its pictures, and what is measured inside one process."""

import contextlib
import importlib.util
import io
import json
import os
import statistics
import sys
import time
from argparse import Namespace
from collections.abc import Callable, Sequence
from itertools import islice
from pathlib import Path
from types import ModuleType

import numpy as np
import reference
import torch
import torch.distributed as dist
from PIL import Image, ImageDraw
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.data import DataLoader
from torch.utils.flop_counter import FlopCounterMode
from torchvision.datasets import ImageFolder

ROOT = Path(__file__).resolve().parents[2]
GRAIN = {(500, 375): 14.0, (1600, 1200): 3.0}  # noise of generated pictures: 90 and 330 KB a file


def load_chapter(name: str) -> ModuleType:
    """A chapter's main.py as a module."""
    spec = importlib.util.spec_from_file_location(f"chapter_{name}", ROOT / name / "main.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def busy_seconds() -> float:
    """CPU seconds that this machine has worked since it was started, taken by other guests too."""
    words = Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]
    user, nice, system, _idle, _waiting, irq, softirq, steal = map(int, words)
    return (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK")


def rotated(items: Sequence, by: int) -> list:
    """The items from another first one each round: what comes first or after whom is nobody's."""
    by %= len(items)
    return [*items[by:], *items[:by]]


# -------------------------------------------------------------------------------------- pictures


def draw_picture(path: Path, number: int, width: int, height: int, grain: float) -> None:
    """A JPEG of shapes on a soft background under noise of this standard deviation (0 to 255)."""
    rng = np.random.default_rng(number)
    coarse = Image.fromarray(rng.integers(0, 256, (6, 8, 3), dtype=np.uint8))
    picture = coarse.resize((width, height), Image.Resampling.BICUBIC)
    pen = ImageDraw.Draw(picture)
    for shape in range(12):
        x, y, dx, dy = rng.uniform((0, 0, 0.05, 0.05), (0.9, 0.9, 0.4, 0.4))
        box = (x * width, y * height, (x + dx) * width, (y + dy) * height)
        draw = pen.rectangle if shape % 2 else pen.ellipse
        draw(box, fill=tuple(rng.integers(0, 256, 3).tolist()))
    noise = rng.normal(0, grain, (height, width, 1)).astype(np.float32)
    pixels = (np.asarray(picture, dtype=np.float32) + noise).clip(0, 255).astype(np.uint8)
    Image.fromarray(pixels).save(path, quality=90)


def draw_pictures(folder: Path, count: int, size: tuple[int, int], portrait: bool) -> list[Path]:
    """Count different JPEGs, with portrait every fourth of them upright."""
    folder.mkdir()
    paths = [folder / f"{number:04d}.jpg" for number in range(count)]
    for number, path in enumerate(paths):
        width, height = size[::-1] if portrait and number % 4 == 3 else size
        draw_picture(path, number, width, height, GRAIN[size])
    return paths


def find_pictures(data: Path, count: int) -> list[Path]:
    """About count pictures of an ImageNet folder, from all of its classes alike."""
    folders = sorted(path for path in (data / "train").glob("*") if path.is_dir())
    each = -(-count // max(1, len(folders)))
    paths = [path for folder in folders for path in islice(sorted(folder.iterdir()), each)]
    return [path.resolve() for path in paths if path.suffix.lower() in (".jpg", ".jpeg", ".png")]


def image_folder(folder: Path, pictures: list[Path], train: int, val: int) -> Path:
    """An ImageFolder of links to the pictures, each of them used as often as it takes."""
    for split, count in (("train", train), ("val", val)):
        for number in range(count):
            source = pictures[number % len(pictures)]
            target = folder / split / f"class{number % min(10, val)}" / f"{number}{source.suffix}"
            target.parent.mkdir(parents=True, exist_ok=True)
            target.symlink_to(source)
    return folder


# -------------------------------------------------------------------------------- input pipeline


def input_pipeline(folder: Path, image_size: int, passes: int, rounds: int) -> dict:
    """CPU seconds of one thread for all images of folder/train, through each way: one sample as a
    training loop gets it, or the decoding alone. And by how many grey levels (0 to 255) the
    samples of our pipeline differ from PIL's with the same crops and flips."""
    chapter = load_chapter("02_distributed")
    torch.set_num_threads(1)
    peers = ImageFolder(folder / "train", reference.train_view(image_size))
    options = Namespace(data=folder, synthetic=None, image_size=image_size)
    ours = chapter.build_datasets(options)[0]
    paths = [path for path, _ in ours.samples]
    ways: dict[str, Callable[[int], object]] = {
        "reference": peers.__getitem__,
        "ours": ours.__getitem__,
        "PIL decode": lambda index: Image.open(paths[index]).convert("RGB"),
        "torchvision decode": lambda index: chapter.load_image(paths[index]),
    }
    largest, means = 0, []
    for index, path in enumerate(paths):  # also the warm-up of both pipelines
        torch.manual_seed(index)
        crop_and_flip = peers.transform.transforms[:2]
        picture = Image.open(path).convert("RGB")
        for step in crop_and_flip:
            picture = step(picture)
        torch.manual_seed(index)  # both draw crop and flip in the same order from this stream
        sample = ours[index][0].permute(1, 2, 0).numpy().astype(np.int16)
        difference = np.abs(sample - np.asarray(picture, dtype=np.int16))
        largest = max(largest, int(difference.max()))
        means.append(float(difference.mean()))
    timed = []
    for number in range(rounds):
        seconds = {}
        for name in rotated(list(ways), number):
            begun = time.thread_time()
            for index in range(passes * len(paths)):
                ways[name](index % len(paths))
            seconds[name] = time.thread_time() - begun
        timed.append({"round": number, "images": passes * len(paths), "seconds": seconds})
    file_kb = statistics.mean(os.path.getsize(path) for path in paths) / 1000
    facts = {"file_kb": round(file_kb), "largest_difference": largest}
    return facts | {"mean_difference": statistics.mean(means), "rounds": timed}


# ------------------------------------------------------------------------------------------ loop


def seconds_of(work: Callable[[], object]) -> dict[str, float]:
    """Wall and CPU seconds (this process, all threads) until the GPU, if any, has done it too, and
    how many CPUs others kept busy meanwhile."""
    synchronize = torch.cuda.synchronize if torch.cuda.is_available() else lambda: None
    synchronize()
    busy, wall, cpu = busy_seconds(), time.perf_counter(), time.process_time()
    work()
    synchronize()
    cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
    return {"wall": wall, "cpu": cpu, "foreign": max(0.0, (busy_seconds() - busy - cpu) / wall)}


def bare_epoch(
    chapter: ModuleType, bf16: bool, model: nn.Module, batches: list, optimizer: torch.optim.SGD
) -> None:
    """The same work without metrics, log, schedule and progress bar."""
    criterion = nn.CrossEntropyLoss()
    device = next(model.train().parameters()).device
    for images, targets in batches:
        images, targets = chapter.to_device(images, targets, device)
        with torch.autocast(device.type, torch.bfloat16, enabled=bf16):
            loss = criterion(model(images), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


class CountBytes(TorchDispatchMode):
    """Bytes that the operators read and write, as if none of them found anything in a cache."""

    total = 0

    def __torch_dispatch__(self, operator, types, args=(), kwargs=None):
        result = operator(*args, **(kwargs or {}))
        if not operator.is_view:
            flat = tree_leaves((args, kwargs, result))
            self.total += sum(x.nbytes for x in flat if isinstance(x, torch.Tensor))
        return result


def limits(device: torch.device, kind: torch.dtype) -> dict[str, float]:
    """The best that this device does: flop/s of a matrix product or of a 3x3 convolution, which
    on CPUs is faster, and bytes/s of a copy, read and written."""
    gpu = device.type == "cuda"
    n, batch = (8192, 256) if gpu else (1024, 8)
    matrix = torch.randn(n, n, device=device, dtype=kind)
    conv = nn.Conv2d(256, 256, 3, padding=1, bias=False).to(device, kind)
    images = torch.randn(batch, 256, 28, 28, device=device, dtype=kind)
    conv, images = (x.to(memory_format=torch.channels_last) for x in (conv, images))
    # 1 GiB, on CPUs an eighth of it: larger than most caches.
    source = torch.empty(2**28 if gpu else 2**25, device=device)
    target = torch.empty_like(source)

    def best(work: Callable[[], object]) -> float:
        with torch.no_grad():
            work()
            return min(seconds_of(work)["wall"] for _ in range(5))

    product = 2 * n**3 / best(lambda: matrix @ matrix)
    convolution = 2 * batch * 28 * 28 * 256 * 256 * 9 / best(lambda: conv(images))
    copied = 2 * source.nbytes / best(lambda: target.copy_(source))
    return {"flop": max(product, convolution), "bytes": copied}


def loop_mode(mode: str, argv: list[str], steps: int, rounds: int) -> dict:
    """Epochs of our train_one_epoch and of a bare loop, in turns, on the same batches, which are
    in memory, and the same model. Chapter 01's loop is that of 02, without a process group."""
    chapter = load_chapter("01_dataparallel")
    args, _ = chapter.parse_args(argv)
    device = chapter.setup_distributed(args)[2]
    gpu, tf32 = device.type == "cuda", "without TF32" not in mode
    if gpu:
        torch.backends.cudnn.allow_tf32 = tf32
        torch.set_float32_matmul_precision("high" if tf32 else "highest")
        torch.cuda.reset_peak_memory_stats()  # of the mode before
    images = chapter.build_datasets(args)[0]
    batches = list(DataLoader(images, args.batch_size, pin_memory=gpu))
    batches = [batches[step % len(batches)] for step in range(steps)]
    raw_model = chapter.build_model(args.arch, 10, False)
    raw_model = raw_model.to(device, memory_format=torch.channels_last)
    optimizer, schedule = chapter.build_optimizer(args, raw_model, steps, {})
    model = chapter.wrap_model(args, raw_model, device)
    log = chapter.RunLog(args, 0, {})
    one_step = lambda: bare_epoch(chapter, args.bf16, model, batches[:1], optimizer)  # noqa: E731
    ways: dict[str, Callable[[], None]] = {
        "ours": lambda: chapter.train_one_epoch(args, model, batches, schedule, log),
        "bare": lambda: bare_epoch(chapter, args.bf16, model, batches, optimizer),
    }
    row = {"mode": mode, "images": steps * args.batch_size, "rounds": []}
    row["first_step"] = seconds_of(one_step)["wall"]
    ways["ours"]()  # warm-up
    for number in range(rounds):
        timed = {name: seconds_of(ways[name]) for name in rotated(list(ways), number)}
        row["rounds"].append({"round": number, **timed})
    row["gpu_memory"] = torch.cuda.max_memory_allocated() >> 20
    if not args.compile:  # neither counter sees into compiled code
        with FlopCounterMode(display=False) as flops, CountBytes() as moved:
            one_step()
        row["flop_per_image"] = flops.get_total_flops() / args.batch_size
        row["bytes_per_image"] = moved.total / args.batch_size
    return row | {"limits": limits(device, torch.bfloat16 if args.bf16 else torch.float32)}


def loop(arch: str, image_size: int, batch_size: int, steps: int, rounds: int, work: Path) -> dict:
    """The loops compared on one device, in every precision that it has."""
    gpu = torch.cuda.is_available()
    torch.set_num_threads(1)
    modes = {"fp32": [], "bf16": ["--bf16"]}
    if gpu:
        modes = {"fp32 without TF32": [], **modes, "bf16 compile": ["--bf16", "--compile"]}
    common = ["--synthetic", str(4 * batch_size), "--arch", arch, "--image-size", str(image_size)]
    common += ["--batch-size", str(batch_size), "--lr", "0.01"] + ["--gpus", "0"] * gpu
    # tqdm is as silent as without a terminal, and the log's lines go into its file alone.
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        rows = []
        for mode, flags in modes.items():
            argv = [*common, *flags, "--output-dir", str(work / mode.replace(" ", "-"))]
            rows.append(loop_mode(mode, argv, steps, rounds))
    return {"device": torch.cuda.get_device_name() if gpu else "cpu", "modes": rows}


# ------------------------------------------------------------------------------------ all-reduce


def measure_collectives(backend: str, out: Path) -> None:
    """One rank: all_reduce of fp32 by size. Rank 0 writes seconds and rates to the file."""
    device = torch.device("cpu")
    if backend == "nccl":
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(device)
    dist.init_process_group(backend)
    world_size, rows = dist.get_world_size(), []
    for size in (4, 1 << 10, 1 << 14, 1 << 18, 1 << 20, 1 << 22, 1 << 24, 47 << 20, 100 << 20):
        tensor = torch.zeros(size // 4, device=device)
        times = []
        for number in range(5 + max(5, min(100, (1 << 28) // size))):
            if number == 5:  # the first ones connect and allocate
                times.clear()
            dist.barrier()  # all begin together, as gradients of equal shares do
            times.append(seconds_of(lambda tensor=tensor: dist.all_reduce(tensor))["wall"])
        seconds = statistics.median(times)
        # What each link carries, whatever the number of ranks: a ring sends 2 (n - 1) / n of it.
        moved = size * 2 * (world_size - 1) / world_size
        rows.append({"bytes": size, "seconds": seconds, "bus_bytes_per_second": moved / seconds})
    if dist.get_rank() == 0:
        out.write_text(json.dumps({"backend": backend, "world_size": world_size, "rows": rows}))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":  # a rank of --collectives, started by tools/benchmark/benchmark.py
    measure_collectives(sys.argv[1], Path(sys.argv[2]))
