"""Parts of benchmark.py: its pictures, and what is measured inside one process or between ranks."""

import contextlib
import importlib.util
import io
import json
import os
import sys
import time
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path
from statistics import mean, median
from types import ModuleType

import numpy as np
import reference
import torch
import torch.distributed as dist
from PIL import Image
from processes import ROOT
from torch import nn
from torch.utils.data import DataLoader
from torchvision.datasets import ImageFolder

Works = dict[str, Callable]  # what is compared, by name
# Standard deviation of the noise, of 255, by the size of a picture: files of 90 and of 330 KB.
GRAIN = {(500, 375): 14.0, (1600, 1200): 3.0}
SIZES = (4, 1 << 10, 1 << 14, 1 << 18, 1 << 20, 1 << 22, 1 << 24, 47 << 20, 100 << 20)


def load_chapter(name: str) -> ModuleType:
    """A chapter's main.py as a module."""
    spec = importlib.util.spec_from_file_location(f"chapter_{name}", ROOT / name / "main.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def seconds_of(work: Callable[[], object]) -> dict[str, float]:
    """Wall and CPU seconds (this process, all threads) until the GPU, if any, has done it too."""
    synchronize = torch.cuda.synchronize if torch.cuda.is_available() else lambda: None
    synchronize()
    wall, cpu = time.perf_counter(), time.process_time()
    work()
    synchronize()
    return {"wall": time.perf_counter() - wall, "cpu": time.process_time() - cpu}


def rotated(items: list, by: int) -> list:
    """The items from another first one each round: what comes first or after whom is nobody's."""
    by %= len(items)
    return items[by:] + items[:by]


def in_turns(works: Works, rounds: int, clock: Callable = seconds_of) -> list[dict]:
    """What the clock says of each work, by name, in each round."""
    orders = [rotated(list(works), number) for number in range(rounds)]
    return [{name: clock(works[name]) for name in order} for order in orders]


# -------------------------------------------------------------------------------------- pictures


def draw_pictures(folder: Path, count: int, width: int, height: int) -> list[Path]:
    """Count different JPEGs of soft colours under noise."""
    folder.mkdir()
    paths = [folder / f"{number:04d}.jpg" for number in range(count)]
    for number, path in enumerate(paths):
        rng = np.random.default_rng(number)
        coarse = Image.fromarray(rng.integers(0, 256, (6, 8, 3), dtype=np.uint8))
        picture = coarse.resize((width, height), Image.Resampling.BICUBIC)
        noise = rng.normal(0, GRAIN[width, height], (height, width, 1)).astype(np.float32)
        pixels = np.asarray(picture, dtype=np.float32) + noise
        pixels = pixels.clip(0, 255).astype(np.uint8)
        Image.fromarray(pixels).save(path, quality=90)
    return paths


def image_folder(folder: Path, pictures: list[Path], count: int) -> Path:
    """An ImageFolder, train/ and val/ of count links to the pictures, used as often as it takes."""
    for number in range(count):
        for split in ("train", "val"):
            link = folder / split / f"class{number % min(10, count)}" / f"{number}.jpg"
            link.parent.mkdir(parents=True, exist_ok=True)
            link.symlink_to(pictures[number % len(pictures)])
    return folder


# -------------------------------------------------------------------------------- input pipeline


def input_pipeline(folder: Path, image_size: int, passes: int, rounds: int) -> dict:
    """CPU seconds of one thread for all images of folder/train, through each way: one sample as a
    training loop gets it, or the decoding alone. And by how many grey levels (0 to 255) the
    samples of our pipeline differ from PIL's with the same crops and flips."""
    chapter = load_chapter("02_distributed")
    torch.set_num_threads(1)
    theirs = ImageFolder(folder / "train", reference.train_view(image_size))
    options = Namespace(data=folder, image_size=image_size, evaluate=False)
    ours = chapter.build_datasets(options)[0]
    paths = [path for path, _ in ours.samples]
    differences = []
    for index, path in enumerate(paths):  # also the warm-up of both pipelines
        torch.manual_seed(index)
        picture = Image.open(path).convert("RGB")
        for crop_or_flip in theirs.transform.transforms[:2]:
            picture = crop_or_flip(picture)
        torch.manual_seed(index)  # both draw crop and flip in the same order from this stream
        sample = ours[index][0].permute(1, 2, 0).numpy().astype(np.int16)
        differences.append(np.abs(sample - np.asarray(picture, dtype=np.int16)))
    ways: Works = {
        "reference": theirs.__getitem__,
        "ours": ours.__getitem__,
        "PIL decode": lambda index: Image.open(paths[index]).convert("RGB"),
        "torchvision decode": lambda index: chapter.load_image(paths[index]),
    }

    def clock(way: Callable[[int], object]) -> float:
        begun = time.thread_time()
        for index in range(passes * len(paths)):
            way(index % len(paths))
        return time.thread_time() - begun

    timed = in_turns(ways, rounds, clock)
    return {
        "file_kb": round(mean(os.path.getsize(path) for path in paths) / 1000),
        "largest_difference": max(int(difference.max()) for difference in differences),
        "mean_difference": mean(float(difference.mean()) for difference in differences),
        "rounds": [{"images": passes * len(paths), "seconds": seconds} for seconds in timed],
    }


# ------------------------------------------------------------------------------------------ loop


def has_bf16() -> bool:
    """Whether the hardware computes in bfloat16. Where torch emulates it, on CPUs up to AVX2 and
    on GPUs before Ampere, bf16 is slower than fp32, and nothing here times it."""
    if torch.cuda.is_available():
        return torch.cuda.is_bf16_supported(including_emulation=False)
    return torch.backends.cpu.get_cpu_capability() not in ("DEFAULT", "AVX2")


def bare_epoch(
    chapter: ModuleType, bf16: bool, model: nn.Module, batches: list, optimizer: torch.optim.SGD
) -> None:
    """The work of train_one_epoch without metrics, log, schedule and progress bar."""
    criterion = nn.CrossEntropyLoss()
    device = next(model.train().parameters()).device
    for images, targets in batches:
        images, targets = chapter.to_device(images, targets, device)
        with torch.autocast(device.type, torch.bfloat16, enabled=bf16):
            loss = criterion(model(images), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def loop_mode(argv: list[str], steps: int, rounds: int) -> dict:
    """Epochs of our train_one_epoch and of a bare loop, in turns, on the same batches, which are
    in memory, and the same model. Chapter 01's loop is that of 02, without a process group."""
    chapter = load_chapter("01_dataparallel")
    args = chapter.build_parser().parse_args(argv)
    device = chapter.setup_device(args)
    images = chapter.build_datasets(args)[0]
    batches = list(DataLoader(images, args.batch_size, pin_memory=device.type == "cuda"))
    batches = [batches[step % len(batches)] for step in range(steps)]
    raw_model = chapter.build_model(args, 10, False)
    raw_model.to(device, memory_format=torch.channels_last)
    optimizer = chapter.build_optimizer(args, raw_model)
    model = chapter.wrap_model(args, raw_model)
    works = {
        "ours": lambda: chapter.train_one_epoch(args, model, batches, optimizer, 0, 0, 0),
        "bare": lambda: bare_epoch(chapter, args.bf16, model, batches, optimizer),
    }
    in_turns(works, 1)  # warm-up
    return {"images": steps * args.batch_size, "rounds": in_turns(works, rounds)}


def loop(arch: str, image_size: int, batch_size: int, steps: int, rounds: int, work: Path) -> dict:
    """The loops compared on one device, in every precision that it has itself."""
    gpu = torch.cuda.is_available()
    torch.set_num_threads(1)
    modes = {"fp32": [], "bf16": ["--bf16"]}
    if gpu:
        modes["bf16 compile"] = ["--bf16", "--compile"]
    if not has_bf16():
        modes = {"fp32": []}
    common = ["--synthetic", 4 * batch_size, "--arch", arch, "--image-size", image_size]
    common += ["--batch-size", batch_size, "--lr", 0.01] + ["--gpus", 0] * gpu
    rows = []
    # tqdm is as silent as without a terminal, and the log's lines go into its file alone.
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        for mode, flags in modes.items():
            argv = [*common, *flags, "--output-dir", work / mode.replace(" ", "-")]
            measured = loop_mode([str(word) for word in argv], steps, rounds)
            rows.append({"mode": mode} | measured)
    return {"device": torch.cuda.get_device_name() if gpu else "cpu", "modes": rows}


# -------------------------------------------------------------------------------- between ranks


def measure_collectives(backend: str, out: Path, sizes: tuple[int, ...] = SIZES) -> None:
    """One rank: all_reduce of fp32 tensors of so many bytes. Rank 0 writes the file, as JSON."""
    device = torch.device("cpu")
    if backend == "nccl":
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(device)
    dist.init_process_group(backend)
    world_size, rows = dist.get_world_size(), []
    for size in sizes:
        tensor = torch.zeros(size // 4, device=device)
        times = []
        for _ in range(5 + max(5, min(100, (1 << 28) // size))):
            dist.barrier()  # all begin together, as gradients of equal shares do
            times.append(seconds_of(lambda tensor=tensor: dist.all_reduce(tensor))["wall"])
        seconds = median(times[5:])  # the first ones connect and allocate
        # What each link carries, whatever the number of ranks: a ring sends 2 (n - 1) / n of it.
        moved = size * 2 * (world_size - 1) / world_size
        rows.append({"bytes": size, "seconds": seconds, "bus_bytes_per_second": moved / seconds})
    if dist.get_rank() == 0:
        out.write_text(json.dumps({"backend": backend, "world_size": world_size, "rows": rows}))
    dist.destroy_process_group()


if __name__ == "__main__":  # a rank of --collectives, started by benchmark.py
    measure_collectives(sys.argv[1], Path(sys.argv[2]))
