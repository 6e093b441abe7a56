r"""Train ImageNet under Slurm: ranks from srun, and a job that survives preemption.

Use it on a cluster that Slurm runs. It asks Slurm who it is, so that nothing is typed
twice. When Slurm says that its time is up, it saves in the middle of the epoch and goes
on after the requeue.

    # two tasks on generated images, with or without GPUs (-K: a failing one ends all)
    srun -K --ntasks 2 python 06_slurm/main.py --synthetic \
        --arch resnet18 --image-size 64 --batch-size 64 --epochs 3
    # ImageNet: a task per GPU; a task per node, which starts a process per GPU
    srun -K --nodes 2 --ntasks-per-node 4 --gres gpu:4 --cpus-per-task 8 \
        python 06_slurm/main.py --data /imagenet
    srun -K --nodes 2 --ntasks-per-node 1 --gres gpu:4 --cpus-per-task 32 \
        python 06_slurm/main.py --data /imagenet
    # a job that is requeued until it is done; the same with torchrun
    sbatch 06_slurm/srun_per_gpu.sbatch --data /imagenet
    sbatch 06_slurm/torchrun_per_node.sbatch --data /imagenet

Changed against 02_distributed:
- `join_slurm` sets what torchrun would have set; --dist-file meets in a shared file;
- SIGUSR1 or SIGTERM to any rank: all agree, rank 0 saves, all exit with status 75;
- the sampler can begin inside an epoch, where the checkpoint's run was stopped.
Explained line by line in
docs/en/chapters/06_slurm.md and docs/zh/chapters/06_slurm.md.
"""

import argparse
import json
import math
import os
import platform
import random
import signal
import subprocess
import traceback
import zlib
from argparse import Namespace
from collections.abc import Iterator
from datetime import timedelta
from functools import cache
from itertools import islice
from pathlib import Path
from time import perf_counter, sleep, time
from typing import Any, NoReturn

import torch
import torch.distributed as dist
import torchvision
from torch import Tensor, nn
from torch import multiprocessing as mp
from torch.distributed.elastic.multiprocessing.errors import record
from torch.nn.parallel import DistributedDataParallel
from torch.optim import SGD, Optimizer
from torch.utils.data import DataLoader, Dataset, DistributedSampler, TensorDataset
from torchvision.datasets import ImageFolder
from torchvision.io import ImageReadMode, decode_image
from torchvision.transforms import v2
from tqdm import tqdm

CHAPTER = Path(__file__).resolve().parent.name
# What `evaluate` returns under this name decides which epoch is best.pt: the largest.
METRIC = "acc1"
# ImageNet's red, green and blue, where white is 1.
MEAN = [0.485, 0.456, 0.406]
STD = [0.229, 0.224, 0.225]
STOP_SIGNALS = [signal.SIGUSR1, signal.SIGTERM]
ASKED_TO_STOP: list[int] = []  # the signals that have come
STOP_EVERY = 10  # steps: so often the ranks ask each other, for which they wait
STOPPED = 75  # exit status: EX_TEMPFAIL of sysexits.h, "try again later"


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
    cpus = int(os.environ.get("SLURM_CPUS_PER_TASK", cpus))
    cpus //= int(os.environ.get("LOCAL_WORLD_SIZE", 1))  # [dist] ranks share them
    workers = max(1, min(16, cpus))

    images = parser.add_mutually_exclusive_group(required=True)
    images.add_argument("--data", metavar="DIR", help="ImageNet, in train/ and val/")
    images.add_argument(
        "--synthetic", type=int, nargs="?", const=1280, help="so many made-up images"
    )
    parser.add_argument("--arch", default="resnet50", help="a model of torchvision")
    parser.add_argument("--image-size", type=int, default=224, help="pixels a side")
    parser.add_argument("--epochs", type=int, default=90, help="passes over the images")
    parser.add_argument("--batch-size", type=int, default=256, help="of all ranks")
    parser.add_argument("--lr", type=float, default=0.1, help="peak, at batch 256")
    parser.add_argument("--warmup-epochs", type=float, help="None: min(5, epochs / 10)")
    parser.add_argument("--weight-decay", type=float, default=1e-4, help="L2 penalty")
    parser.add_argument("--label-smoothing", type=float, default=0.0, help="0 to 1")
    parser.add_argument("--workers", type=int, default=workers, help="per rank")
    parser.add_argument("--bf16", action="store_true", help="bfloat16 autocast")
    parser.add_argument("--compile", action="store_true", help="by torch.compile")
    parser.add_argument("--sync-bn", action="store_true", help="on GPUs only")
    parser.add_argument("--pretrained", action="store_true", help="fetch weights")
    parser.add_argument("--output-dir", default=f"runs/{CHAPTER}", help="folder")
    parser.add_argument("--resume", metavar="PATH|auto", help="auto: from --output-dir")
    parser.add_argument("--evaluate", action="store_true", help="do not train")
    parser.add_argument("--seed", type=int, default=0, help="of weights, order, views")
    parser.add_argument("--print-freq", type=int, default=20, help="steps between rows")
    parser.add_argument("--dist-timeout", type=int, default=600, help="in seconds")
    own = parser.add_argument_group("of this chapter")
    own.add_argument("--procs-per-task", type=int, help="None: 1, or one per GPU")
    own.add_argument("--dist-file", metavar="DIR", help="shared folder to meet in")
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
def procs_of_task(args: Namespace) -> int:
    """How many processes this task is to run: one, or one for each GPU of its node."""
    if "SLURM_STEP_ID" not in os.environ:
        fail(f"start it with srun -K --ntasks 2 python {__file__} ...")
    gpus = int(os.environ.get("SLURM_GPUS_ON_NODE", 0))
    tasks = int(os.environ["SLURM_STEP_NUM_TASKS"])
    nodes = int(os.environ["SLURM_STEP_NUM_NODES"])

    if args.procs_per_task:
        return args.procs_per_task
    if tasks == nodes:
        return max(1, gpus)
    if gpus and tasks != nodes * gpus:
        fail(f"{tasks} tasks, {nodes} nodes, {gpus} GPUs each: a task per node or GPU")
    return 1


def join_slurm(number: int, procs: int) -> None:
    """Set for process `number` of this task what torchrun would have set for it."""
    env = os.environ
    local_rank = number
    # With --gpus-per-task a task sees no GPUs but its own, counted from 0.
    if not 0 < torch.accelerator.device_count() <= procs:
        local_rank += int(env["SLURM_LOCALID"]) * procs

    # The processes of one task have ranks in a row.
    env["RANK"] = str(int(env["SLURM_PROCID"]) * procs + number)  # [dist]
    env["LOCAL_RANK"] = str(local_rank)  # [dist]
    env["WORLD_SIZE"] = str(int(env["SLURM_STEP_NUM_TASKS"]) * procs)  # [dist]
    env["LOCAL_WORLD_SIZE"] = str(procs)  # [dist] those that share the task's CPUs

    # Rank 0 listens on the first node, at a port that its neighbours there, other jobs
    # and the first 64 steps of each, do not have.
    port = 10_000 + (int(env["SLURM_JOB_ID"]) * 64 + int(env["SLURM_STEP_ID"])) % 20_000
    env.setdefault("MASTER_PORT", str(port))  # [dist]

    if "MASTER_ADDR" in env or env["SLURM_STEP_NUM_NODES"] == "1":
        env.setdefault("MASTER_ADDR", "127.0.0.1")  # [dist] all ranks are here
        return

    command = ["scontrol", "show", "hostnames", env["SLURM_STEP_NODELIST"]]
    nodes = subprocess.check_output(command, text=True).split()
    env["MASTER_ADDR"] = nodes[0]  # [dist] rank 0 is there


def meeting_point(args: Namespace) -> str:
    """Where the ranks meet: at an address, or in a file of this run alone."""
    if args.dist_file is None:
        return "env://"
    if not Path(args.dist_file).is_dir():
        fail(f"--dist-file {args.dist_file} is not a folder: make it first")

    # A new name after each requeue: what a killed run leaves would hang the next one.
    words = ["SLURM_JOB_ID", "SLURM_STEP_ID", "SLURM_RESTART_COUNT"]
    name = "-".join(os.environ.get(word, "0") for word in words)
    return f"file://{Path(args.dist_file).resolve()}/rendezvous-{name}"


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
        init_method=meeting_point(args),
        rank=int(os.environ["RANK"]),
        world_size=int(os.environ["WORLD_SIZE"]),
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


def synthetic_images(numbers: range, size: int) -> Dataset:
    """Learnable images: a colour for each class plus noise, shifted in each image."""
    generator = torch.Generator().manual_seed(0)
    colours = 64 + 128 * torch.rand(10, 3, 1, 1, generator=generator)
    noise = 48 * torch.randn(3, size, size, generator=generator)

    images = []
    for number in numbers:
        image = colours[number % 10] + noise.roll(number * 7919)
        images.append(image.clamp(0, 255).byte())
    return TensorDataset(torch.stack(images), torch.tensor(numbers) % 10)


def build_datasets(args: Namespace) -> tuple[Dataset, Dataset, int]:
    """Training set, validation set and number of classes. Replace it to use your data:
    an item is a uint8 image (3, size, size) and the index of its class."""
    size = args.image_size
    if not args.data:
        count = args.synthetic
        train_set = synthetic_images(range(count), size)
        val_set = synthetic_images(range(count, count + max(1, count // 4)), size)
        return train_set, val_set, 10

    root = Path(args.data).expanduser()
    for split in ["val"] if args.evaluate else ["train", "val"]:
        if not (root / split).is_dir():
            fail(f"--data {args.data} has no folder {split}")

    train_view = v2.Compose([v2.RandomResizedCrop(size), v2.RandomHorizontalFlip()])
    val_view = v2.Compose([v2.Resize(size * 8 // 7), v2.CenterCrop(size)])
    val_set = ImageFolder(root / "val", val_view, loader=load_image)
    if args.evaluate:
        return val_set, val_set, len(val_set.classes)  # nobody trains
    train_set = ImageFolder(root / "train", train_view, loader=load_image)

    odd = sorted(set(train_set.classes) ^ set(val_set.classes))
    if odd:
        fail(f"{root}: only one of train/ and val/ has {odd[:3]!a}")
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


class ResumableSampler(DistributedSampler):
    """Leaves out the first `done` images of this rank: they were trained on already."""

    done = 0

    def __iter__(self) -> Iterator[int]:
        return islice(super().__iter__(), self.done, None)

    def __len__(self) -> int:
        return super().__len__() - self.done


def ignore_signals(worker_id: int) -> None:
    """In a loader worker: Slurm signals all processes of a step, this one would die."""
    for stop_signal in STOP_SIGNALS:
        signal.signal(stop_signal, signal.SIG_IGN)


def build_loaders(
    args: Namespace, train_set: Dataset, val_set: Dataset, rank: int, world_size: int
) -> tuple[DataLoader, DataLoader]:
    """Batches of this rank's share of both sets. Loader workers start here."""
    seed = args.seed * 1_000_003  # far from that of the next --seed, in all epochs
    options = {
        "batch_size": args.batch_size // world_size,  # [dist] --batch-size is global
        "num_workers": args.workers,
        "persistent_workers": args.workers > 0,
        "worker_init_fn": ignore_signals,
        "multiprocessing_context": "fork" if args.workers else None,
        # Seeds each worker, numpy too: other numbers on each rank.
        "generator": torch.Generator().manual_seed(seed + rank),  # [dist]
    }

    # All ranks shuffle alike, and each takes every world_size-th image: together they
    # have the next batch. drop_last gives all ranks the same number of steps.
    sampler = ResumableSampler(  # [dist]
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
def build_model(args: Namespace, num_classes: int, pretrained: bool) -> nn.Module:
    """From images (N, 3, H, W) to logits (N, num_classes). Replace it by your model."""
    get_model = torchvision.models.get_model
    model = get_model(args.arch, num_classes=num_classes)
    if pretrained:
        weights = get_model(args.arch, weights="DEFAULT").state_dict()
        for name, own in model.state_dict().items():  # in the model's own memory
            if own.shape == weights[name].shape:
                own.copy_(weights[name])
            else:
                print(f"--pretrained {args.arch}: {name} keeps random weights")
    return model


def build_optimizer(args: Namespace, model: nn.Module) -> Optimizer:
    """Replace it by yours: each group of parameters may have a rate of its own."""
    # A larger batch takes larger steps (Goyal et al. 2017, arXiv:1706.02677). This is a
    # rule for SGD, not for Adam.
    peak = args.lr * args.batch_size / 256
    weights = model.parameters()
    return SGD(weights, peak, momentum=0.9, weight_decay=args.weight_decay)


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
        if args.evaluate and not args.pretrained:
            fail("--evaluate needs --resume PATH or --pretrained")
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
    saved = checkpoint["args"]
    inside = checkpoint.get("step_in_epoch") and not args.evaluate
    if inside and (saved["batch_size"], saved["seed"]) != (args.batch_size, args.seed):
        fail(f"--resume {path} stopped inside an epoch: keep --batch-size and --seed")
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


def ask_to_stop(number: int, frame: object) -> None:
    """Signal handler. It takes note only: ranks can stop together, at a collective."""
    ASKED_TO_STOP.append(number)


def all_shall_stop(device: torch.device) -> bool:
    """Whether any rank was asked to stop: the same answer on all of them."""
    asked = torch.tensor(len(ASKED_TO_STOP), device=device)
    dist.all_reduce(asked)  # [dist] one that stopped alone would hang the others
    return asked.item() > 0


def train_one_epoch(
    args: Namespace,
    model: nn.Module,
    loader: DataLoader,
    optimizer: Optimizer,
    rank: int,
    epoch: int,
    first_step: int,
    done: int,
) -> int:
    """Train on this rank's share of the images. In an ordinary step nothing waits for
    the device, where loss and hits add up. Steps `done` of the epoch are left out.
    Returns how many are done now: fewer than all if the ranks were asked to stop."""
    device = next(model.parameters()).device
    criterion = nn.CrossEntropyLoss(label_smoothing=args.label_smoothing)
    sums = torch.zeros(3, dtype=torch.float64, device=device)  # since the last row
    loss_sum, hits, count = sums  # each is a view: what is added to it is in sums
    steps = done + len(loader)
    start = perf_counter()

    model.train()
    # disable=None: a bar in a terminal only
    bar = tqdm(loader, f"epoch {epoch}", leave=False, disable=rank > 0 or None)
    for step, (images, targets) in enumerate(bar, start=done + 1):
        images, targets = to_device(images, targets, device)
        factor = lr_factor(args, epoch + (step - 0.5) / steps)  # mid-step
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
        hits += (logits.detach().argmax(1) == targets).sum()
        count += len(targets)

        if step % args.print_freq == 0 or step in (1, steps):
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
                "acc1": 100 * all_hits / all_count,
                "lr": optimizer.param_groups[0]["lr"],
                "seconds": seconds,
                "images_per_second": all_count / seconds,
                "max_memory": torch.cuda.max_memory_allocated() >> 20,  # MiB of rank 0
            }
            log(args, rank, "train", row)
            sums.zero_()
            start = perf_counter()
        if step % STOP_EVERY == 0 and all_shall_stop(device):  # [dist]
            return step
    return steps


@torch.inference_mode()
def evaluate(args: Namespace, model: nn.Module, loader: DataLoader, rank: int) -> dict:
    """Loss and accuracies on the validation set, by name, the same on all ranks. Exact
    for any number of images and ranks: sums over all of them, divided once."""
    for buffer in model.buffers():  # of BatchNorm: ranks differ after their last step
        dist.broadcast(buffer, src=0)  # [dist] all evaluate the model that rank 0 saves
    device = next(model.parameters()).device
    sums = torch.zeros(4, dtype=torch.float64, device=device)
    loss_sum, top1, top5, count = sums  # views, as above

    model.eval()
    for images, targets in tqdm(loader, "val", leave=False, disable=rank > 0 or None):
        images, targets = to_device(images, targets, device)
        with torch.autocast(device.type, torch.bfloat16, enabled=args.bf16):
            logits = model(images).double()
        guesses = logits.topk(min(5, logits.shape[1])).indices
        hits = guesses == targets[:, None]
        loss_sum += nn.functional.cross_entropy(logits, targets, reduction="sum")
        top1 += hits[:, 0].sum()
        top5 += hits.sum()
        count += len(targets)

    # The loop has no collective and no DDP: ranks may have unequal numbers of batches.
    dist.all_reduce(sums)  # [dist]
    all_loss, all_top1, all_top5, all_count = sums.tolist()
    return {
        "loss": all_loss / all_count,
        "acc1": 100 * all_top1 / all_count,
        "acc5": 100 * all_top5 / all_count,
        "images": int(all_count),
    }


# ---- the run ----
def run(args: Namespace) -> bool:
    """The whole run of one rank. Returns whether it was asked to stop early."""
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
    done = checkpoint.get("step_in_epoch", 0)  # steps of the epoch to go on with
    stop = False
    check_same([len(train_set), len(val_set), step], device)  # [dist]

    torch.manual_seed(args.seed)
    fetch = args.pretrained and not checkpoint and rank == 0  # [dist] DDP sends them
    raw_model = build_model(args, num_classes, fetch)
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
        train_loader.sampler.done = done * train_loader.batch_size
        # Dropout differs by rank and epoch, and after a stop goes on with others.
        part = epoch * world_size + rank + done * 15_485_863
        torch.manual_seed(args.seed * 1_000_003 + part)  # [dist]
        before = step - done  # steps of the epochs before this one
        done = train_one_epoch(
            args, model, train_loader, optimizer, rank, epoch, before, done
        )
        step = before + done

        stop = all_shall_stop(device)  # [dist]
        is_best = False
        if not stop:
            results = evaluate(args, raw_model, val_loader, rank)
            # Not finite: the last step has broken the weights.
            if not math.isfinite(results["loss"]):
                at = f"{results['loss']} at step {step}"
                fail(f"the loss is {at}: use a lower --lr and --resume auto")
            log(args, rank, "eval", {"epoch": epoch, "step": step, **results})
            is_best = best is None or results[METRIC] > best
            best = results[METRIC] if is_best else best
            epoch, done = epoch + 1, 0
        state = {
            "model": raw_model.state_dict(),
            "optimizer": optimizer.state_dict(),
            "epoch": epoch,
            "step_in_epoch": done,
            "global_step": step,
            f"best_{METRIC}": best,
            "num_classes": num_classes,
            "args": settings,
        }
        if rank == 0:  # [dist] one writer for one file
            save_checkpoint(Path(args.output_dir), state, is_best)
        # This waits for rank 0 to save: the first rank that ends may end the job.
        stop = all_shall_stop(device) and (stop or epoch < args.epochs)  # [dist]
        if stop:
            break
    event = "stopped" if stop else "end"
    log(args, rank, event, {"step": step, f"best_{METRIC}": best})
    sleep(0.1)  # gloo frees its last tensors: until then torch 2.6 may hang below
    dist.destroy_process_group()  # [dist] or a process may abort as it ends
    return stop


def worker(number: int, argv: list[str] | None, procs: int) -> None:
    """One rank: the only process of its task, or one of several."""
    if procs > 0:
        join_slurm(number, procs)  # [dist]
    args = build_parser().parse_args(argv)
    if not args.evaluate:
        for stop_signal in STOP_SIGNALS:
            signal.signal(stop_signal, ask_to_stop)
    try:
        stopped = run(args)
    except BaseException as error:  # Ctrl-C, too
        # The traceback keeps the loader, and so its workers. Python would end them by
        # SIGTERM, which they ignore, and wait for ever.
        traceback.clear_frames(error.__traceback__)
        raise
    if stopped:
        raise SystemExit(STOPPED)


@record  # [dist] torchrun shows the traceback of the rank that failed
def main(argv: list[str] | None = None) -> None:
    args = build_parser().parse_args(argv)
    if "TORCHELASTIC_RUN_ID" in os.environ:
        return worker(0, argv, procs=0)  # torchrun has set everything

    procs = procs_of_task(args)
    if procs == 1:
        return worker(0, argv, procs)

    # Slurm signals all processes of a step, this one too. Those that it starts ignore
    # signals as well, until they can handle them.
    for stop_signal in STOP_SIGNALS:
        signal.signal(stop_signal, signal.SIG_IGN)
    threads = max(1, torch.get_num_threads() // procs)
    os.environ.setdefault("OMP_NUM_THREADS", str(threads))  # [dist] for each rank
    context = mp.spawn(worker, (argv, procs), procs, join=False)  # [dist]
    try:
        # If one fails, the others have 5 seconds to end. They only take note of a
        # SIGTERM, which spawn would send at once, to wait for 30 s then.
        while not context.join(grace_period=5):
            pass
    except mp.ProcessExitedException as error:
        if error.exit_code == STOPPED:
            raise SystemExit(STOPPED) from None
        fail(f"process {error.error_index} ended with status {error.exit_code}")


if __name__ == "__main__":
    main()
