r"""Train ImageNet with DistributedDataParallel: torchrun starts a process per GPU.

Use it for any training that one GPU is too slow for, on one machine or on many. Do not
use it for a model that does not fit into one GPU: every process, called a rank, holds a
whole copy.

    # two processes on generated images, with or without GPUs
    torchrun --standalone --nproc-per-node 2 02_distributed/main.py --synthetic \
        --arch resnet18 --image-size 64 --batch-size 64 --epochs 3
    # ImageNet on all GPUs of a machine; on two machines (same on both; HOST names one)
    torchrun --standalone --nproc-per-node gpu 02_distributed/main.py --data /imagenet
    torchrun --nnodes 2 --nproc-per-node 8 --rdzv-backend c10d \
        --rdzv-endpoint HOST:29400 02_distributed/main.py --data /imagenet

Every other chapter is this file with one idea changed. `grep '\[dist\]' main.py`
shows what distributed training adds or changes. Explained line by line in
docs/en/chapters/02_distributed.md and docs/zh/chapters/02_distributed.md.
"""

import argparse
import json
import math
import os
from argparse import Namespace
from datetime import timedelta
from pathlib import Path
from time import perf_counter, sleep, time
from typing import NoReturn

import torch
import torch.distributed as dist
import torchvision
from torch import Tensor, nn
from torch.distributed.elastic.multiprocessing.errors import record
from torch.nn import Module
from torch.nn.parallel import DistributedDataParallel
from torch.optim import SGD
from torch.utils.data import DataLoader, Dataset, DistributedSampler, TensorDataset
from torchvision.datasets import ImageFolder
from torchvision.io import ImageReadMode, decode_image
from torchvision.transforms import v2
from tqdm import tqdm

CHAPTER = Path(__file__).resolve().parent.name
# ImageNet's mean and standard deviation of red, green and blue, 0 to 255.
PIXELS = 255 * torch.tensor([[0.485, 0.456, 0.406], [0.229, 0.224, 0.225]])


def fail(line: str) -> NoReturn:
    """End this process with one line that says what to do, and status 1."""
    raise SystemExit(f"{CHAPTER}: error: {line}")


# ---- command line ----
def build_parser() -> argparse.ArgumentParser:
    """The flags: same names, defaults and order in every chapter, its own ones last."""
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0],
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
        allow_abbrev=False,
    )
    cpus = len(os.sched_getaffinity(0))
    cpus //= int(os.environ.get("LOCAL_WORLD_SIZE", 1))  # [dist] ranks share them
    workers = max(1, min(16, cpus))

    add = parser.add_mutually_exclusive_group(required=True).add_argument
    add("--data", metavar="DIR", help="ImageNet, in train/ and val/")
    add("--synthetic", type=int, nargs="?", const=1280, help="made-up images")
    add = parser.add_argument
    add("--arch", help="None: that of --resume, else resnet50")
    add("--image-size", type=int, default=224, help="pixels a side")
    add("--epochs", type=int, default=90, help="passes over the training images")
    add("--batch-size", type=int, default=256, help="of all ranks together")
    add("--lr", type=float, default=0.1, help="peak, for 256 images in a batch")
    add("--warmup-epochs", type=float, help="None: 5, but at most --epochs / 10")
    add("--weight-decay", type=float, default=1e-4, help="L2 penalty on all weights")
    add("--label-smoothing", type=float, default=0.0, help="in the training loss")
    add("--workers", type=int, default=workers, help="per rank, load images")
    add("--bf16", action="store_true", help="bfloat16 autocast")
    add("--compile", action="store_true", help="torch.compile the model")
    add("--sync-bn", action="store_true", help="BatchNorm over all ranks, GPUs only")
    add("--pretrained", action="store_true", help="begin with torchvision's weights")
    add("--output-dir", default=f"runs/{CHAPTER}", help="for all output")
    add("--resume", metavar="PATH|auto", help="auto: from --output-dir, if it has one")
    add("--evaluate", action="store_true", help="do not train")
    add("--seed", type=int, default=0, help="for weights, order, augmentation")
    add("--print-freq", type=int, default=20, help="steps between log lines")
    add("--dist-timeout", type=int, default=600, help="seconds to wait for a rank")
    return parser


# ---- processes ----
def pick_device(local_rank: int) -> torch.device:
    """The GPU of this process, or the CPU on a machine without GPUs."""
    gpus = torch.cuda.device_count()
    if gpus == 0:
        return torch.device("cpu")
    if not torch.cuda.is_available():  # the driver counts GPUs that CUDA cannot open
        fail("torch cannot use the GPUs of this machine: its driver may be too old")
    if local_rank >= gpus:
        fail(f"more processes than GPUs on this machine: start {gpus}")

    device = torch.device("cuda", local_rank)
    torch.cuda.set_device(device)  # [dist] otherwise every rank opens GPU 0 as well
    torch.set_float32_matmul_precision("high")  # TF32, as convolutions have it anyway
    return device


def setup_distributed(args: Namespace) -> tuple[int, int, torch.device]:
    """Join the other processes. Returns rank, world_size and the device."""
    rank = int(os.environ["RANK"])  # [dist] of this process, across all machines
    local_rank = int(os.environ["LOCAL_RANK"])  # [dist] on this machine
    world_size = int(os.environ["WORLD_SIZE"])  # [dist] processes on all machines

    left = args.batch_size % world_size  # [dist] gradients are averaged over ranks
    if left:
        low = max(args.batch_size - left, world_size)
        sizes = f"use {low} or {low + world_size}"
        fail(f"--batch-size must be a multiple of {world_size} ranks: {sizes}")

    device = pick_device(local_rank)
    on_gpu = device.type == "cuda"
    # This waits for all ranks. GPUs communicate by nccl, CPUs by gloo. Given its
    # device, nccl connects now, and not in the first step of training.
    dist.init_process_group(  # [dist]
        backend="nccl" if on_gpu else "gloo",
        timeout=timedelta(seconds=args.dist_timeout),
        device_id=device if on_gpu else None,
    )
    return rank, world_size, device


def wrap_model(args: Namespace, model: Module) -> Module:
    """What training steps call. It shares its weights with `model`."""
    if args.sync_bn:
        nn.SyncBatchNorm.convert_sync_batchnorm(model)  # [dist] in place
    # Rank 0 gives all ranks its weights now, and BatchNorm statistics in each step.
    # backward() averages the gradients; gradient_as_bucket_view spares a copy of them.
    model = DistributedDataParallel(model, gradient_as_bucket_view=True)  # [dist]
    return torch.compile(model) if args.compile else model


def all_reduce_sum(tensor: Tensor) -> Tensor:
    """The sum over all ranks, in place. If a rank does not call it, the others wait."""
    dist.all_reduce(tensor)  # [dist]
    if tensor.is_cpu:
        sleep(0.02)  # until gloo has freed it: loader workers forked sooner may hang
    return tensor


def broadcast_buffers(model: Module) -> None:
    """Give all ranks the BatchNorm statistics of rank 0. DDP does so before each step,
    but after the last step of an epoch they differ again."""
    for buffer in model.buffers():
        dist.broadcast(buffer, src=0)  # [dist]
    sleep(0.02)  # as in all_reduce_sum


def check_same(numbers: list[int], world_size: int, device: torch.device) -> None:
    """Fail if ranks differ in these numbers, and so in data or checkpoint. Not all of
    them then find mine * world_size; when one fails, the launcher ends the others."""
    mine = torch.tensor(numbers, device=device)
    if not torch.equal(all_reduce_sum(mine.clone()), mine * world_size):  # [dist]
        fail(f"other ranks have different data or a different checkpoint: {numbers}")


def cleanup() -> None:
    """Disconnect from the other ranks after a good run. One that fails just exits."""
    sleep(0.1)  # gloo frees its last tensors: until then torch 2.6 hangs below
    dist.destroy_process_group()  # [dist] without it a process may abort as it ends


# ---- data ----
def load_image(path: str) -> Tensor:
    """The picture as uint8 RGB (3, height, width). Raises ValueError with the path."""
    try:
        image = decode_image(path, ImageReadMode.RGB)
    except RuntimeError as error:
        raise ValueError(f"cannot decode {path}") from error

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

    train_view = v2.Compose([v2.RandomResizedCrop(size), v2.RandomHorizontalFlip()])
    val_view = v2.Compose([v2.Resize(size * 8 // 7), v2.CenterCrop(size)])
    train_set = ImageFolder(f"{args.data}/train", train_view, loader=load_image)
    val_set = ImageFolder(f"{args.data}/val", val_view, loader=load_image)

    odd = set(train_set.classes) ^ set(val_set.classes)
    if odd:
        fail(f"{args.data}: only one of train/ and val/ has {sorted(odd)[:3]}")
    return train_set, val_set, len(train_set.classes)


def check_data(args: Namespace, checkpoint: dict, images: int, classes: int) -> None:
    """Refuse data that does not fit the checkpoint, or is less than one batch."""
    known = checkpoint.get("num_classes", classes)
    if known != classes:
        fail(f"--resume {args.resume} has {known} classes, the data {classes}")
    if images < args.batch_size and not args.evaluate:
        fail(f"--batch-size {args.batch_size} is more than all {images} images")


def build_loaders(
    args: Namespace, train_set: Dataset, val_set: Dataset, rank: int, world_size: int
) -> tuple[DataLoader, DataLoader]:
    """Batches of this rank's share of both sets."""
    options = {
        "batch_size": args.batch_size // world_size,  # [dist] --batch-size is global
        "num_workers": args.workers,
        "pin_memory": torch.cuda.is_available(),
        # Forked workers start fast, without importing torch again. Each epoch forks new
        # ones (no persistent_workers), whose random numbers begin from its seed.
        "multiprocessing_context": "fork" if args.workers else None,
    }

    # All ranks shuffle alike and take every world_size-th image: in a step, together
    # the next batch_size. drop_last makes shares, and so numbers of steps, equal.
    sampler = DistributedSampler(  # [dist]
        train_set, world_size, rank, seed=args.seed, drop_last=True
    )
    train_loader = DataLoader(train_set, sampler=sampler, drop_last=True, **options)
    # A DistributedSampler repeats or drops images; these ranges take each once.
    share = range(rank, len(val_set), world_size)  # [dist]
    return train_loader, DataLoader(val_set, sampler=share, **options)


# ---- model ----
def build_model(arch: str, num_classes: int, pretrained: bool) -> Module:
    """From images (N, 3, H, W) to logits (N, num_classes). Replace it by your model."""
    model = torchvision.models.get_model(arch, num_classes=num_classes)
    if pretrained:
        weights = torchvision.models.get_model(arch, weights="DEFAULT").state_dict()
        for name, own in model.state_dict().items():
            if own.shape == weights[name].shape:
                own.copy_(weights[name])
            else:
                print(f"--pretrained {arch}: {name} keeps random weights")
    return model


def build_optimizer(
    args: Namespace, model: Module, checkpoint: dict, device: torch.device
) -> SGD:
    """Move the model to its device, make its optimizer; both as in the checkpoint."""
    model.to(device, memory_format=torch.channels_last)
    weights = model.parameters()
    optimizer = SGD(weights, args.lr, momentum=0.9, weight_decay=args.weight_decay)

    if checkpoint:
        model.load_state_dict(checkpoint["model"])
        state = optimizer.state_dict()  # with the settings of this command line
        state["state"] = checkpoint["optimizer"]["state"]  # the momentum
        optimizer.load_state_dict(state)
    return optimizer


def learning_rate(args: Namespace, epochs: float) -> float:
    """The rate after so many epochs: 2.5 is the middle of the third one. It grows with
    the batch and warms up linearly (Goyal et al. 2017, arXiv:1706.02677), then falls
    along a cosine (Loshchilov & Hutter 2017, arXiv:1608.03983)."""
    peak = args.lr * args.batch_size / 256
    warmup = args.warmup_epochs
    if warmup is None:
        warmup = min(5, args.epochs / 10)

    if epochs < warmup:
        return peak * epochs / warmup
    progress = (epochs - warmup) / (args.epochs - warmup)
    return peak * (1 + math.cos(math.pi * progress)) / 2


# ---- checkpoint ----
def check_output_dir(args: Namespace) -> None:
    """Refuse to train into the folder of another run."""
    folder = Path(args.output_dir)
    if args.evaluate or args.resume == "auto":
        return
    for name in ("metrics.jsonl", "checkpoint.pt"):
        if (folder / name).exists():
            fail(f"{folder} holds a run: use --resume auto or another --output-dir")


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
        arch = checkpoint["args"]["arch"]
    except Exception as error:
        fail(f"--resume {path} is not a checkpoint of these chapters: {error!r:.40}")
    if args.arch not in (None, arch):
        fail(f"--resume {path} is a {arch}: drop --arch {args.arch}")
    if checkpoint["step_in_epoch"] and not args.evaluate:
        fail(f"--resume {path} stopped inside an epoch: resume it by 06_slurm")
    return checkpoint


def save_checkpoint(folder: Path, state: dict, is_best: bool) -> None:
    """Write checkpoint.pt, and best.pt. A crash leaves the old file or the new one."""
    # best.pt first: a run killed between the two repeats its epoch and writes both.
    for name in ["best.pt", "checkpoint.pt"] if is_best else ["checkpoint.pt"]:
        temporary = folder / "saving.tmp"
        with temporary.open("wb") as file:
            torch.save(state, file)
            file.flush()
            os.fsync(file.fileno())  # before the renaming, in case power fails
        temporary.replace(folder / name)


# ---- log ----
class RunLog:
    """Where the run stands. Rank 0 writes it to a file, and prints it."""

    def __init__(self, args: Namespace, rank: int, checkpoint: dict) -> None:
        self.epoch = checkpoint.get("epoch", 0)  # from 0
        self.step = checkpoint.get("global_step", 0)  # steps done, in all epochs
        self.best_acc1 = checkpoint.get("best_acc1", -1.0)  # percent
        self.folder = Path(args.output_dir)
        self.name = "evaluate.jsonl" if args.evaluate else "metrics.jsonl"
        self.place = "checkpoint"  # what the printed lines begin with
        self.silent = rank != 0  # [dist] local_rank is 0 once per machine
        self.no_bar = True if self.silent else None  # None: a bar in a terminal only

    def write(self, event: str, text: str, **fields: object) -> None:
        """Append an event with all its fields to the file, and print the text."""
        if self.silent:
            return

        self.folder.mkdir(parents=True, exist_ok=True)
        row = {"event": event, "time": time(), "epoch": self.epoch}
        row.update(step=self.step, **fields)
        with (self.folder / self.name).open("a") as file:
            file.write(json.dumps(row) + "\n")
        tqdm.write(text)

    def check_loss(self, loss: float) -> None:
        """End the run if the loss, a sum over all ranks, is infinite or nan."""
        if not math.isfinite(loss):
            fail(f"the loss is {loss} at step {self.step}: lower --lr, --resume auto")


# ---- training ----
def to_device(images: Tensor, targets: Tensor, device: torch.device) -> tuple:
    """uint8 images (N, 3, H, W) as normalised float32, channels_last; targets (N,)."""
    # Images are bytes until here: a quarter of what floats would take on their way.
    images = images.to(device, non_blocking=True)
    images = images.float(memory_format=torch.channels_last)
    mean, std = PIXELS.to(device, non_blocking=True).view(2, 3, 1, 1)
    return images.sub_(mean).div_(std), targets.to(device, non_blocking=True)


def train_one_epoch(
    args: Namespace, model: Module, loader: DataLoader, optimizer: SGD, log: RunLog
) -> None:
    """Train on this rank's share of the images. No ordinary step waits for the device:
    loss and hits add up there. (With --sync-bn torch waits, in every BatchNorm.)"""
    device = next(model.parameters()).device
    criterion = nn.CrossEntropyLoss(label_smoothing=args.label_smoothing)
    totals = torch.zeros(3, dtype=torch.float64, device=device)  # loss, hits, images
    data_wait = 0.0
    start = asked = perf_counter()

    model.train()
    bar = tqdm(loader, log.place, leave=False, disable=log.no_bar)
    for step, (images, targets) in enumerate(bar, start=1):
        data_wait += perf_counter() - asked
        images, targets = to_device(images, targets, device)
        lr = learning_rate(args, log.epoch + (step - 0.5) / len(loader))
        optimizer.param_groups[0]["lr"] = lr

        with torch.autocast(device.type, torch.bfloat16, enabled=args.bf16):
            logits = model(images)
            loss = criterion(logits, targets)

        optimizer.zero_grad()
        loss.backward()  # [dist] averages the gradients over the ranks as it goes
        optimizer.step()
        log.step += 1

        totals[0] += loss.detach() * len(targets)
        totals[1] += (logits.detach().argmax(1) == targets).sum()
        totals[2] += len(targets)

        if step % args.print_freq == 0 or step in (1, len(loader)):
            # Not in every step, because this waits for the device and for all ranks.
            loss_sum, hits, count = all_reduce_sum(totals).tolist()  # [dist]
            log.check_loss(loss_sum)
            seconds = perf_counter() - start
            row = {
                "loss": loss_sum / count,
                "acc1": 100 * hits / count,
                "lr": lr,
                "seconds": seconds,
                "images_per_second": count / seconds,
                "data_wait": data_wait / seconds,
                "max_memory": torch.cuda.max_memory_allocated() >> 20,  # MiB, rank 0
            }
            text = "loss {loss:.3g}  acc1 {acc1:.3g}%  lr {lr:.3g}"
            text += "  {images_per_second:.0f} images/s"
            text = text.format(**row)
            log.write("train", f"{log.place}  step {step}/{len(loader)}  {text}", **row)
            bar.set_postfix_str(text)

            totals.zero_()
            data_wait = 0.0
            start = perf_counter()
        asked = perf_counter()


@torch.inference_mode()
def evaluate(args: Namespace, model: Module, loader: DataLoader, log: RunLog) -> float:
    """Log loss and accuracies on the validation set; returns acc1 in percent. Exact for
    any number of images and ranks: sums over all of them, divided once."""
    broadcast_buffers(model)  # [dist] all ranks evaluate the model that rank 0 saves
    device = next(model.parameters()).device
    totals = torch.zeros(4, dtype=torch.float64, device=device)

    model.eval()
    for images, targets in tqdm(loader, "val", leave=False, disable=log.no_bar):
        images, targets = to_device(images, targets, device)
        with torch.autocast(device.type, torch.bfloat16, enabled=args.bf16):
            logits = model(images).double()
        guesses = logits.topk(min(5, logits.shape[1])).indices
        hits = guesses == targets[:, None]
        totals[0] += nn.functional.cross_entropy(logits, targets, reduction="sum")
        totals[1] += hits[:, 0].sum()
        totals[2] += hits.sum()
        totals[3] += len(targets)

    # The loop has no collective and no DDP: ranks may have unequal numbers of batches.
    loss_sum, top1, top5, count = all_reduce_sum(totals).tolist()  # [dist]
    log.check_loss(loss_sum)
    result = {
        "loss": loss_sum / count,
        "acc1": 100 * top1 / count,
        "acc5": 100 * top5 / count,
        "images": int(count),
    }
    text = "loss {loss:.3g}  acc1 {acc1:.4g}%  acc5 {acc5:.4g}%  of {images} images"
    log.write("eval", f"{log.place}  validation  {text.format(**result)}", **result)
    return result["acc1"]


# ---- the run ----
def log_start(log: RunLog, settings: dict, saved: dict, loader: DataLoader) -> None:
    """Write what runs where, and what the user has changed since the checkpoint."""
    device = "cpu"
    has_bf16 = torch.backends.cpu.get_cpu_capability() not in ("DEFAULT", "AVX2")
    if torch.cuda.is_available():
        device = torch.cuda.get_device_name()
        has_bf16 = torch.cuda.is_bf16_supported(including_emulation=False)

    facts = {
        "chapter": CHAPTER,
        "torch": torch.__version__,
        "host": os.uname().nodename,
        "device": device,
        "world_size": settings["batch_size"] // loader.batch_size,
        "global_batch_size": settings["batch_size"],
        "per_rank_batch_size": loader.batch_size,
        "train_images": len(loader.dataset),
        "steps_per_epoch": len(loader),
        "resumed_from_step": log.step,
    }
    text = ", ".join(f"{name} {fact}" for name, fact in facts.items())
    if saved:
        text += f", changed from {dict(saved.items() - settings.items())}"
    log.write("start", text, **facts, args=settings)
    if settings.get("bf16") and not has_bf16:
        log.write("warning", "--bf16 is emulated here: drop it; 04 has fp16 for GPUs")


def run(args: Namespace, checkpoint: dict) -> None:
    """The whole run of one rank."""
    train_set, val_set, num_classes = build_datasets(args)
    check_data(args, checkpoint, len(train_set), num_classes)
    rank, world_size, device = setup_distributed(args)  # [dist]
    log = RunLog(args, rank, checkpoint)
    check_same([len(train_set), len(val_set), log.step], world_size, device)  # [dist]
    train_loader, val_loader = build_loaders(args, train_set, val_set, rank, world_size)

    saved = checkpoint.get("args", {})
    arch = args.arch or saved.get("arch", "resnet50")
    settings = {**vars(args), "arch": arch}

    torch.manual_seed(args.seed)
    fetch = args.pretrained and not checkpoint and rank == 0  # [dist] one rank fetches
    raw_model = build_model(arch, num_classes, fetch)
    optimizer = build_optimizer(args, raw_model, checkpoint, device)
    model = wrap_model(args, raw_model)  # [dist] the same parameters
    log_start(log, settings, saved, train_loader)

    epochs = range(log.epoch, args.epochs)
    if args.evaluate:
        evaluate(args, raw_model, val_loader, log)
        epochs = []
    for epoch in epochs:
        log.epoch = epoch
        log.place = f"epoch {epoch + 1}/{args.epochs}"
        train_loader.sampler.set_epoch(epoch)  # [dist] gives each epoch its own order
        # Dropout and augmentation differ by rank and epoch, and repeat after a resume.
        # The factor keeps the numbers of one --seed far from those of the next.
        torch.manual_seed(args.seed * 1_000_003 + epoch * world_size + rank)  # [dist]
        train_one_epoch(args, model, train_loader, optimizer, log)
        acc1 = evaluate(args, raw_model, val_loader, log)

        is_best = acc1 > log.best_acc1
        log.best_acc1 = max(acc1, log.best_acc1)
        state = {
            "model": raw_model.state_dict(),
            "optimizer": optimizer.state_dict(),
            "scaler": None,  # chapter 04 has one
            "epoch": epoch + 1,
            "step_in_epoch": 0,  # chapter 06 saves in an epoch
            "global_step": log.step,
            "best_acc1": log.best_acc1,
            "num_classes": num_classes,
            "args": settings,
        }
        if rank == 0:  # [dist] one writer for one file
            save_checkpoint(log.folder, state, is_best)
    log.write("end", "end", best_acc1=log.best_acc1)
    cleanup()  # [dist]


@record  # [dist] torchrun shows the traceback of the rank that failed
def main(argv: list[str] | None = None) -> None:
    args = build_parser().parse_args(argv)
    if "RANK" not in os.environ:  # [dist] torchrun has set it
        fail(f"start it with torchrun --standalone --nproc-per-node 2 {__file__} ...")
    check_output_dir(args)
    run(args, load_checkpoint(args))


if __name__ == "__main__":
    main()
