r"""Train on images that may show several classes at once: chapter 02 with changes.

Its own are the data set, the model, the loss, the metric and the optimizer. DIR holds
train.csv and val.csv, in which each line names an image and its labels:

    file,labels
    images/0001.jpg,circle|square
    images/0002.jpg,

    torchrun --standalone --nproc-per-node gpu multilabel.py --data DIR

Explained in docs/en/own-project.md and docs/zh/own-project.md, #another-metric.
"""

import argparse
import csv
import json
import math
import os
import platform
import random
import zlib
from argparse import Namespace
from datetime import timedelta
from functools import cache
from pathlib import Path
from time import perf_counter, sleep, time
from typing import Any, NoReturn

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.elastic.multiprocessing.errors import record
from torch.nn.parallel import DistributedDataParallel
from torch.optim import AdamW, Optimizer
from torch.utils.data import DataLoader, Dataset, DistributedSampler
from torchvision.io import ImageReadMode, decode_image
from torchvision.transforms import v2
from tqdm import tqdm

CHAPTER = Path(__file__).resolve().parent.name
# What `evaluate` returns under this name decides which epoch is best.pt: the largest.
METRIC = "f1"
# ImageNet's red, green and blue, where white is 1.
MEAN = [0.485, 0.456, 0.406]
STD = [0.229, 0.224, 0.225]


def fail(line: str) -> NoReturn:
    """End this process with one line that says what to do, and status 1."""
    raise SystemExit(f"{CHAPTER}: error: {line}")


# ---- command line ----
def build_parser() -> argparse.ArgumentParser:
    """The flags, with their defaults."""
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0],
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
        allow_abbrev=False,
    )
    cpus = os.cpu_count()
    if hasattr(os, "sched_getaffinity"):  # Linux: those that this process may use
        cpus = len(os.sched_getaffinity(0))
    cpus //= int(os.environ.get("LOCAL_WORLD_SIZE", 1))  # [dist] ranks share them
    workers = max(1, min(16, cpus))

    parser.add_argument("--data", metavar="DIR", required=True, help="with train.csv")
    parser.add_argument("--image-size", type=int, default=224, help="pixels a side")
    parser.add_argument("--epochs", type=int, default=90, help="passes over the images")
    parser.add_argument("--batch-size", type=int, default=256, help="of all ranks")
    parser.add_argument(
        "--lr", type=float, nargs=2, default=[1e-3, 1e-2], help="of backbone and head"
    )
    parser.add_argument("--warmup-epochs", type=float, help="None: min(5, epochs / 10)")
    parser.add_argument("--weight-decay", type=float, default=0.01, help="of AdamW")
    parser.add_argument("--workers", type=int, default=workers, help="per rank")
    parser.add_argument("--bf16", action="store_true", help="bfloat16 autocast")
    parser.add_argument("--compile", action="store_true", help="by torch.compile")
    parser.add_argument("--sync-bn", action="store_true", help="on GPUs only")
    parser.add_argument("--output-dir", default=f"runs/{CHAPTER}", help="folder")
    parser.add_argument("--resume", metavar="PATH|auto", help="auto: from --output-dir")
    parser.add_argument("--evaluate", action="store_true", help="do not train")
    parser.add_argument("--seed", type=int, default=0, help="of weights, order, views")
    parser.add_argument("--print-freq", type=int, default=20, help="steps between rows")
    parser.add_argument("--dist-timeout", type=int, default=600, help="in seconds")
    return parser


def check_flags(args: Namespace, world_size: int) -> None:
    """Refuse a batch that the ranks cannot share, and the folder of another run."""
    if args.batch_size % world_size:  # [dist] gradients are averaged over ranks
        smaller = args.batch_size // world_size * world_size or world_size
        sizes = f"use {smaller} or {smaller + world_size}"
        fail(f"--batch-size must be a multiple of {world_size} ranks: {sizes}")

    if args.evaluate or args.resume == "auto":
        return
    folder = Path(args.output_dir)
    for name in ("metrics.jsonl", "checkpoint.pt"):
        if (folder / name).exists():
            fail(f"{folder} holds a run: use --resume auto or another --output-dir")


# ---- processes ----
def setup_device(local_rank: int) -> torch.device:
    """The GPU of this process, made its current one, or the CPU."""
    # An old driver counts GPUs that torch cannot open.
    if torch.cuda.device_count() and not torch.cuda.is_available():
        fail("torch cannot use the GPUs of this machine: its driver may be too old")
    if not torch.accelerator.is_available():
        return torch.device("cpu")
    kind = torch.accelerator.current_accelerator().type
    if kind == "mps":
        return torch.device("cpu")  # no backend connects processes on Apple's GPUs

    gpus = torch.accelerator.device_count()
    if local_rank >= gpus:
        fail(f"more processes than GPUs on this machine: start {gpus}")
    torch.accelerator.set_device_index(local_rank)  # [dist] or all ranks open GPU 0
    torch.set_float32_matmul_precision("high")  # TF32, as convolutions have it anyway
    # cuDNN tries which algorithm is fastest: two runs may differ in their last bits.
    torch.backends.cudnn.benchmark = True
    return torch.device(kind, local_rank)


def setup_distributed(args: Namespace, device: torch.device) -> None:
    """Join the other ranks. This waits for all of them."""
    # NVIDIA's GPUs use nccl, CPUs use gloo. Given its device, nccl connects now and not
    # in the first step of training.
    dist.init_process_group(  # [dist]
        backend=dist.get_default_backend_for_device(device),
        timeout=timedelta(seconds=args.dist_timeout),
        device_id=None if device.type == "cpu" else device,
    )


def wrap_model(args: Namespace, model: nn.Module) -> nn.Module:
    """What training steps call. It shares its weights with `model`."""
    if args.sync_bn:
        # Puts new layers into `model`, with the same parameters and statistics.
        model = nn.SyncBatchNorm.convert_sync_batchnorm(model)  # [dist]
    # Rank 0 gives all ranks its weights now, and BatchNorm statistics in each step.
    # backward() averages the gradients; gradient_as_bucket_view spares a copy of them.
    # (device_ids would say where the model is to go: it is there already.)
    model = DistributedDataParallel(model, gradient_as_bucket_view=True)  # [dist]
    return torch.compile(model) if args.compile else model


def check_same(numbers: list[int], device: torch.device) -> None:
    """Fail, on all ranks, if a rank has other numbers than the rest."""
    both = torch.tensor([numbers, [-number for number in numbers]], device=device)
    dist.all_reduce(both, dist.ReduceOp.MAX)  # [dist]
    if not torch.equal(both[0], -both[1]):  # the largest numbers, and the smallest
        fail(f"other ranks have different data or a different checkpoint: {numbers}")


# ---- data ----
def load_image(path: str) -> Tensor:
    """The picture as uint8 RGB (3, height, width). Raises ValueError with the path."""
    try:
        # Not decode_image(path), which maps the file into memory: where a disk fails,
        # that ends the process by a "Bus error" that names no file.
        data = bytearray(Path(path).read_bytes())
        if not data:
            raise ValueError("the file is empty")
        data = torch.frombuffer(data, dtype=torch.uint8)
        image = decode_image(data, ImageReadMode.RGB)
    except (OSError, RuntimeError, ValueError) as error:
        raise ValueError(f"cannot read {path}: {error}") from error

    if image.dtype != torch.uint8 or image.ndim != 3:
        raise ValueError(f"not a single 8-bit image: {path}")
    return image


class LabelledImages(Dataset):
    """The images that a CSV file names. Each has any number of labels, or none."""

    def __init__(self, table: Path, view: v2.Transform) -> None:
        with table.open(newline="", encoding="utf-8") as file:
            rows = list(csv.DictReader(file))
        labels = [set(row["labels"].split("|")) - {""} for row in rows]
        self.classes = sorted(set().union(*labels))

        self.paths = [str(table.parent / row["file"]) for row in rows]
        self.targets = torch.zeros(len(rows), len(self.classes))
        for number, names in enumerate(labels):
            for name in names:
                self.targets[number, self.classes.index(name)] = 1
        self.view = view

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return self.view(load_image(self.paths[index])), self.targets[index]


def build_datasets(args: Namespace) -> tuple[Dataset, Dataset, int]:
    """Training set, validation set and number of classes. An item is a uint8 image
    (3, size, size) and a number for each class: 1 if the image shows it, 0 if not."""
    size = args.image_size
    root = Path(args.data).expanduser()
    for split in ["val"] if args.evaluate else ["train", "val"]:
        if not (root / f"{split}.csv").is_file():
            fail(f"--data {args.data} has no file {split}.csv")

    train_view = v2.Compose([v2.RandomResizedCrop(size), v2.RandomHorizontalFlip()])
    val_view = v2.Compose([v2.Resize(size * 8 // 7), v2.CenterCrop(size)])
    val_set = LabelledImages(root / "val.csv", val_view)
    if args.evaluate:
        return val_set, val_set, len(val_set.classes)  # nobody trains
    train_set = LabelledImages(root / "train.csv", train_view)

    odd = sorted(set(train_set.classes) ^ set(val_set.classes))
    if odd:
        fail(f"{root}: only one of train.csv and val.csv has {odd[:3]!a}")
    return train_set, val_set, len(val_set.classes)


def check_data(args: Namespace, checkpoint: dict, images: int, classes: int) -> None:
    """Refuse data that does not fit the checkpoint, or is less than one batch."""
    saved = checkpoint.get("num_classes", classes)
    if saved != classes:
        fail(f"--resume {args.resume} has {saved} classes, the data {classes}")
    if images < args.batch_size and not args.evaluate:
        fail(f"--batch-size {args.batch_size} is more than all {images} images")


class RandomViews(Dataset):
    """A training set whose random crops and flips depend on seed, epoch and image: not
    on ranks, workers or a resumed run. Numbers drawn from numpy do not keep to this."""

    def __init__(self, dataset: Dataset, seed: int) -> None:
        self.dataset = dataset
        self.seed = seed
        # Workers have a copy of this object, but see what is written into this memory.
        self.epoch = torch.zeros((), dtype=torch.int64).share_memory_()

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: int) -> Any:
        number = zlib.crc32(f"{self.seed} {self.epoch.item()} {index}".encode())
        python_state = random.getstate()
        with torch.random.fork_rng(devices=[]):  # dropout uses this generator as well
            # Not torch.manual_seed, which is slow, because it seeds GPUs too.
            torch.default_generator.manual_seed(number)
            random.seed(number)
            item = self.dataset[index]
        random.setstate(python_state)
        return item


def build_loaders(
    args: Namespace, train_set: Dataset, val_set: Dataset, rank: int, world_size: int
) -> tuple[DataLoader, DataLoader]:
    """Batches of this rank's share of both sets. Loader workers start here."""
    seed = args.seed * 1_000_003  # far from that of the next --seed, in all epochs
    options = {
        "batch_size": args.batch_size // world_size,  # [dist] --batch-size is global
        "num_workers": args.workers,
        "persistent_workers": args.workers > 0,
        "multiprocessing_context": "fork" if args.workers else None,
        # Seeds each worker, numpy too: other numbers on each rank.
        "generator": torch.Generator().manual_seed(seed + rank),  # [dist]
    }

    # All ranks shuffle alike, and each takes every world_size-th image: together they
    # have the next batch. drop_last gives all ranks the same number of steps.
    sampler = DistributedSampler(  # [dist]
        train_set, world_size, rank, seed=seed, drop_last=True
    )
    train_loader = DataLoader(
        RandomViews(train_set, args.seed),
        sampler=sampler,
        drop_last=True,
        pin_memory=torch.accelerator.is_available(),
        **options,
    )
    share: list[int] = []  # of the validation images: filled below
    val_loader = DataLoader(val_set, sampler=share, **options)

    # iter() forks a loader's workers, which live for the whole run: every loop over the
    # loader uses them, and drops what they have loaded so far. Once ranks communicate
    # there are threads, whose locks a fork would copy as they are. Pinning memory takes
    # a thread as well, so only the loader that starts last does it.
    iter(val_loader)
    if not args.evaluate:
        iter(train_loader)

    # Only now, or workers would load images that nobody wants before the epoch's end.
    # A DistributedSampler repeats or drops images; these ranks take each once.
    share += range(rank, len(val_set), world_size)  # [dist]
    return train_loader, val_loader


# ---- model ----
def build_model(args: Namespace, num_classes: int) -> nn.Module:
    """From images (N, 3, H, W) to logits (N, num_classes)."""
    layers = []
    channels = 3
    for width in (16, 32, 64):
        layers.append(nn.Conv2d(channels, width, 3, padding=1, bias=False))
        layers += [nn.BatchNorm2d(width), nn.ReLU(), nn.MaxPool2d(2)]
        channels = width
    layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, num_classes)]
    return nn.Sequential(*layers)


def build_optimizer(args: Namespace, model: nn.Module) -> Optimizer:
    """The last layer, the head, has a rate of its own."""
    # Not multiplied by the size of the batch: that is a rule for SGD.
    backbone_lr, head_lr = args.lr
    groups = [
        {"params": model[:-1].parameters(), "lr": backbone_lr},
        {"params": model[-1].parameters(), "lr": head_lr},
    ]
    return AdamW(groups, weight_decay=args.weight_decay)


def lr_factor(args: Namespace, epochs: float) -> float:
    """What each rate is multiplied by after so many epochs (2.5: in the middle of the
    third one). It warms up linearly (Goyal et al. 2017), then falls along a cosine
    (Loshchilov & Hutter 2017, arXiv:1608.03983)."""
    warmup = args.warmup_epochs
    if warmup is None:
        warmup = min(5, args.epochs / 10)

    if epochs < warmup:
        return epochs / warmup
    progress = (epochs - warmup) / (args.epochs - warmup)
    return (1 + math.cos(math.pi * progress)) / 2


# ---- checkpoint ----
def load_checkpoint(args: Namespace) -> dict:
    """What --resume names, on the CPU; {} to begin anew."""
    path = Path(args.output_dir, "checkpoint.pt")
    if args.resume is None or (args.resume == "auto" and not path.exists()):
        if args.evaluate:
            fail("--evaluate needs --resume PATH")
        return {}
    if args.resume != "auto":
        path = Path(args.resume)

    # Without these two arguments every rank loads onto GPU 0, and a file can run code.
    try:
        checkpoint = torch.load(path, map_location="cpu", weights_only=True)
        arch = checkpoint["args"].get("arch")  # .get: your program may have no --arch
    except Exception as error:
        fail(f"--resume {path} is not a checkpoint that can be loaded: {error!r}")
    if arch != vars(args).get("arch"):
        fail(f"--resume {path} is a {arch}: type --arch {arch}")
    if checkpoint.get("step_in_epoch") and not args.evaluate:
        fail(f"--resume {path} was saved inside an epoch: resume it by its own program")
    return checkpoint


def save_checkpoint(folder: Path, state: dict, is_best: bool) -> None:
    """Write checkpoint.pt, and best.pt. A crash leaves the old file or the new one."""
    # best.pt first: a run killed between the two repeats its epoch and writes both.
    for name in ["best.pt", "checkpoint.pt"] if is_best else ["checkpoint.pt"]:
        temporary = folder / "saving.tmp"
        with temporary.open("wb") as file:
            torch.save(state, file)
            file.flush()
            os.fsync(file.fileno())  # or a power cut could leave the name without bytes
        temporary.replace(folder / name)


# ---- log ----
def log(args: Namespace, rank: int, event: str, fields: dict) -> None:
    """Rank 0 appends a row to metrics.jsonl, and prints it."""
    if rank != 0:  # [dist] not local_rank, which is 0 once on each machine
        return
    folder = Path(args.output_dir)
    folder.mkdir(parents=True, exist_ok=True)
    name = "evaluate.jsonl" if args.evaluate else "metrics.jsonl"
    with (folder / name).open("a") as file:
        row = {"event": event, "time": time(), **fields}
        file.write(json.dumps(row) + "\n")

    words = [event]
    for name, value in fields.items():
        text = f"{value:.4g}" if isinstance(value, float) else value
        if name != "args":  # which are long
            words.append(f"{name} {text}")
    tqdm.write("  ".join(words))


# ---- training ----
@cache
def mean_and_std(device: torch.device) -> tuple[Tensor, Tensor]:
    """Of the bytes of an image, (3, 1, 1) each. They are copied to the device once."""
    mean = 255 * torch.tensor(MEAN, device=device).view(3, 1, 1)
    std = 255 * torch.tensor(STD, device=device).view(3, 1, 1)
    return mean, std


def to_device(images: Tensor, targets: Tensor, device: torch.device) -> tuple:
    """uint8 images (N, 3, H, W) as normalised float32, channels_last; targets as is."""
    # Images are bytes until here: a quarter of what floats would take on their way.
    images = images.to(device, non_blocking=True)
    images = images.float(memory_format=torch.channels_last)
    mean, std = mean_and_std(device)
    return images.sub_(mean).div_(std), targets.to(device, non_blocking=True)


def train_one_epoch(
    args: Namespace,
    model: nn.Module,
    loader: DataLoader,
    optimizer: Optimizer,
    rank: int,
    epoch: int,
    first_step: int,
) -> None:
    """Train on this rank's share of the images. In an ordinary step nothing waits for
    the device, where loss and hits add up. (With --sync-bn every BatchNorm waits.)"""
    device = next(model.parameters()).device
    criterion = nn.BCEWithLogitsLoss()
    sums = torch.zeros(3, dtype=torch.float64, device=device)  # since the last row
    loss_sum, hits, count = sums  # each is a view: what is added to it is in sums
    start = perf_counter()

    model.train()
    # disable=None: a bar in a terminal only
    bar = tqdm(loader, f"epoch {epoch}", leave=False, disable=rank > 0 or None)
    for step, (images, targets) in enumerate(bar, start=1):
        images, targets = to_device(images, targets, device)
        factor = lr_factor(args, epoch + (step - 0.5) / len(loader))  # mid-step
        for group in optimizer.param_groups:
            # At the first step of this start "lr" is what build_optimizer has set.
            peak = group.setdefault("initial_lr", group["lr"])
            group["lr"] = peak * factor

        with torch.autocast(device.type, torch.bfloat16, enabled=args.bf16):
            logits = model(images)
            loss = criterion(logits, targets)

        optimizer.zero_grad()
        loss.backward()  # [dist] averages the gradients over the ranks as it goes
        optimizer.step()

        loss_sum += loss.detach() * len(targets)
        hits += ((logits.detach() > 0) == targets).all(1).sum()  # all labels right
        count += len(targets)

        if step % args.print_freq == 0 or step in (1, len(loader)):
            # Not in every step, because this waits for the device and for all ranks.
            dist.all_reduce(sums)  # [dist]
            all_loss, all_hits, all_count = sums.tolist()
            if not math.isfinite(all_loss):  # on all ranks: it is the same
                at = f"{all_loss} at step {first_step + step}"
                fail(f"the loss is {at}: use a lower --lr and --resume auto")
            seconds = perf_counter() - start
            row = {
                "epoch": epoch,
                "step": first_step + step,
                "loss": all_loss / all_count,
                "exact_match": 100 * all_hits / all_count,
                "lr": optimizer.param_groups[0]["lr"],
                "seconds": seconds,
                "images_per_second": all_count / seconds,
                "max_memory": torch.cuda.max_memory_allocated() >> 20,  # MiB of rank 0
            }
            log(args, rank, "train", row)
            sums.zero_()
            start = perf_counter()


@torch.inference_mode()
def evaluate(args: Namespace, model: nn.Module, loader: DataLoader, rank: int) -> dict:
    """Loss, macro F1 and exact match on the validation set, by name, the same on all
    ranks. Exact for any number of images and ranks: sums over all, divided once."""
    for buffer in model.buffers():  # of BatchNorm: ranks differ after their last step
        dist.broadcast(buffer, src=0)  # [dist] all evaluate the model that rank 0 saves
    device = next(model.parameters()).device
    criterion = nn.BCEWithLogitsLoss(reduction="sum")
    classes = len(loader.dataset.classes)
    sums = torch.zeros(3 + 3 * classes, dtype=torch.float64, device=device)
    totals, tp, fp, fn = sums.split([3, classes, classes, classes])
    loss_sum, hits, count = totals  # views, as above

    model.eval()
    for images, targets in tqdm(loader, "val", leave=False, disable=rank > 0 or None):
        images, targets = to_device(images, targets, device)
        with torch.autocast(device.type, torch.bfloat16, enabled=args.bf16):
            logits = model(images).double()
        labels = targets > 0
        guesses = logits > 0
        loss_sum += criterion(logits, targets.double())
        tp += (guesses & labels).sum(0)
        fp += (guesses & ~labels).sum(0)
        fn += (~guesses & labels).sum(0)
        hits += (guesses == labels).all(1).sum()
        count += len(targets)

    # The loop has no collective and no DDP: ranks may have unequal numbers of batches.
    dist.all_reduce(sums)  # [dist]
    all_loss, all_hits, all_count = totals.tolist()
    f1 = 2 * tp / (2 * tp + fp + fn).clamp(min=1)  # of each class, 0 if it has none
    return {
        "loss": all_loss / (all_count * classes),
        "f1": 100 * f1.mean().item(),
        "exact_match": 100 * all_hits / all_count,
        "images": int(all_count),
    }


# ---- the run ----
def run(args: Namespace) -> None:
    """The whole run of one rank."""
    rank = int(os.environ["RANK"])  # [dist] of this process, across all machines
    local_rank = int(os.environ["LOCAL_RANK"])  # [dist] on this machine
    world_size = int(os.environ["WORLD_SIZE"])  # [dist] processes on all machines
    check_flags(args, world_size)
    checkpoint = load_checkpoint(args)
    train_set, val_set, num_classes = build_datasets(args)
    check_data(args, checkpoint, len(train_set), num_classes)

    # In this order: the loaders pin memory for the current device, and fork workers,
    # which use no GPU, before the ranks meet.
    device = setup_device(local_rank)
    train_loader, val_loader = build_loaders(args, train_set, val_set, rank, world_size)
    setup_distributed(args, device)  # [dist]

    first_epoch = checkpoint.get("epoch", 0)
    step = checkpoint.get("global_step", 0)  # steps done, in all epochs
    best = checkpoint.get(f"best_{METRIC}")
    check_same([len(train_set), len(val_set), step], device)  # [dist]

    torch.manual_seed(args.seed)
    raw_model = build_model(args, num_classes)
    raw_model.to(device, memory_format=torch.channels_last)
    optimizer = build_optimizer(args, raw_model)
    if checkpoint:
        raw_model.load_state_dict(checkpoint["model"])
        state = optimizer.state_dict()  # with the settings of this command line
        state["state"] = checkpoint["optimizer"]["state"]  # the momentum
        optimizer.load_state_dict(state)
    model = wrap_model(args, raw_model)  # [dist] the same parameters

    on_cuda = device.type == "cuda"
    # What JSON and torch.load(weights_only=True) can read, whatever flags you add.
    settings = json.loads(json.dumps(vars(args), default=str))
    start = {
        "epoch": first_epoch,
        "step": step,
        "chapter": CHAPTER,
        "torch": torch.__version__,
        "host": platform.node(),
        "device": torch.cuda.get_device_name() if on_cuda else device.type,
        "world_size": world_size,
        "global_batch_size": args.batch_size,
        "per_rank_batch_size": args.batch_size // world_size,
        "train_images": len(train_set),
        "steps_per_epoch": len(train_loader),
        "resumed_from_step": step,
        "args": settings,
    }
    log(args, rank, "start", start)
    has_bf16 = not on_cuda or torch.cuda.is_bf16_supported(including_emulation=False)
    if args.bf16 and not has_bf16:
        log(args, rank, "warning", {"text": "--bf16 is emulated here, slowly: drop it"})

    if args.evaluate:
        results = evaluate(args, raw_model, val_loader, rank)
        log(args, rank, "eval", {"epoch": first_epoch, "step": step, **results})
    for epoch in range(first_epoch, 0 if args.evaluate else args.epochs):
        train_loader.sampler.set_epoch(epoch)  # [dist] gives each epoch its own order
        train_loader.dataset.epoch.fill_(epoch)  # and its own crops and flips
        # Dropout differs by rank and epoch, and repeats after a resume.
        torch.manual_seed(args.seed * 1_000_003 + epoch * world_size + rank)  # [dist]
        train_one_epoch(args, model, train_loader, optimizer, rank, epoch, step)
        step += len(train_loader)
        results = evaluate(args, raw_model, val_loader, rank)
        if not math.isfinite(results["loss"]):  # the last step has broken the weights
            at = f"{results['loss']} at step {step}"
            fail(f"the loss is {at}: use a lower --lr and --resume auto")
        log(args, rank, "eval", {"epoch": epoch, "step": step, **results})

        is_best = best is None or results[METRIC] > best
        best = results[METRIC] if is_best else best
        state = {
            "model": raw_model.state_dict(),
            "optimizer": optimizer.state_dict(),
            "epoch": epoch + 1,
            "global_step": step,
            f"best_{METRIC}": best,
            "num_classes": num_classes,
            "args": settings,
        }
        if rank == 0:  # [dist] one writer for one file
            save_checkpoint(Path(args.output_dir), state, is_best)
    log(args, rank, "end", {"step": step, f"best_{METRIC}": best})
    sleep(0.1)  # gloo frees its last tensors: until then torch 2.6 may hang below
    dist.destroy_process_group()  # [dist] or a process may abort as it ends


@record  # [dist] torchrun shows the traceback of the rank that failed
def main(argv: list[str] | None = None) -> None:
    args = build_parser().parse_args(argv)
    if "RANK" not in os.environ:  # [dist] torchrun has set it
        fail(f"start it with torchrun --standalone --nproc-per-node 2 {__file__} ...")
    run(args)


if __name__ == "__main__":
    main()
