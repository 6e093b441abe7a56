r"""Evaluate on all ranks, get the exact number, and see what else it can tell.

Use its evaluation wherever a reported accuracy must be right: for any number of images
and ranks it equals that of a single process. It evaluates checkpoints of all chapters.

    # two processes on generated images, on two GPUs or on CPUs
    torchrun --standalone --nproc-per-node 2 main.py --synthetic 1300 \
        --arch resnet18 --image-size 64 --batch-size 64 --epochs 3 --compare-naive
    # a checkpoint, on all GPUs of a machine
    torchrun --standalone --nproc-per-node gpu main.py --data /imagenet \
        --evaluate --resume runs/02_distributed/best.pt --save-predictions top5.csv

Changed against 02_distributed:
- evaluate sums a confusion matrix over the ranks: every accuracy but top-5, and two CSV
  files, come from it;
- --save-predictions: every image once, in the order of the data set, from all ranks;
- --compare-naive: the padded sampler and the mean of means, and how far off they are.
"""

import argparse
import csv
import fcntl
import io
import json
import math
import multiprocessing
import os
import signal
import time
import zipfile
import zlib
from argparse import Namespace
from collections.abc import Iterator
from itertools import islice, zip_longest
from multiprocessing.util import Finalize
from pathlib import Path
from typing import Any, NamedTuple, NoReturn, TextIO

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.elastic.multiprocessing import errors
from torch.nn.parallel import DistributedDataParallel
from torch.optim import SGD, Optimizer
from torch.utils.data import DataLoader, Dataset, DistributedSampler, TensorDataset
from torchvision import models
from torchvision.datasets import ImageFolder
from torchvision.io import ImageReadMode, decode_image
from torchvision.transforms import v2
from tqdm import tqdm

# ImageNet's mean and standard deviation of red, green and blue, from 0 to 1.
MEAN = [0.485, 0.456, 0.406]
STD = [0.229, 0.224, 0.225]
# The score, of those that `evaluate` returns, of the best epoch: larger is better.
BEST = "acc1"


# ---- flags ----
def build_parser() -> argparse.ArgumentParser:
    """The flags, with their defaults."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=HelpFormatter)
    parser.error = fail  # so that torchrun repeats the line about a mistyped flag
    images = parser.add_mutually_exclusive_group(required=True).add_argument
    images("--data", type=Path, metavar="DIR", help="ImageNet: holds train/ and val/")
    made = "train on N generated images of 10 classes (1280 if N is left out)"
    images("--synthetic", type=int, nargs="?", const=1280, metavar="N", help=made)

    add = parser.add_argument
    archs = models.list_models(models)  # none that detects or segments
    workers = min(16, cpus_of_rank())
    here = Path(__file__).resolve().parent.name
    named = "a classifier of torchvision, such as resnet18"
    add("--arch", default="resnet50", choices=archs, metavar="MODEL", help=named)
    add("--image-size", type=int, default=224, help="width and height in pixels")
    add("--epochs", type=int, default=90, help="passes over the training images")
    add("--batch-size", type=int, default=256, help="images per step, over all ranks")
    add("--lr", type=float, default=0.1, help="peak rate: times batch size / 256")
    add("--weight-decay", type=float, default=1e-4, help="L2 penalty on all weights")
    add("--clip-grad", type=float, default=0, help="largest norm of gradients; 0: any")
    add("--label-smoothing", type=float, default=0.0, help="0 to 1, when training")
    add("--workers", type=int, default=workers, help="loader processes of each rank")
    add("--bf16", action="store_true", help="compute in bfloat16 where that is safe")
    add("--compile", action="store_true", help="speed up training by torch.compile")
    add("--sync-bn", action="store_true", help="BatchNorm over all ranks (GPUs only)")
    add("--pretrained", action="store_true", help="start from weights for 1000 classes")
    add("--output-dir", type=Path, default=f"runs/{here}", help="log, checkpoints")
    goes_on = "go on with the run in --output-dir, if any; or from the checkpoint PATH"
    add("--resume", metavar="PATH", nargs="?", const="", help=goes_on)
    add("--save-minutes", type=float, default=15, help="between saves inside an epoch")
    add("--evaluate", action="store_true", help="evaluate, and do not train")
    add("--seed", type=int, default=0, help="for weights, order, crops and dropout")
    add("--print-freq", type=int, default=20, help="steps between two lines of the log")

    add = parser.add_argument_group("of this chapter").add_argument
    add("--save-predictions", type=Path, metavar="FILE", help="CSV of all top 5, new")
    add("--compare-naive", action="store_true", help="evaluate as most scripts do, too")
    return parser


# ---- data ----
def build_datasets(args: Namespace) -> tuple[Dataset, Dataset, list[str]]:
    """Training set, validation set and the names of the classes. To use your data
    replace it, MEAN and STD: an item is a uint8 image (3, size, size), 0 to 255, and
    the index of its class. All ranks need the same items in the same order. Loader
    workers make the items, by torch's random numbers, and cannot use a GPU."""
    size = args.image_size
    if not args.data:
        return synthetic_datasets(args.synthetic, size)

    check_image_folders(args.data)
    train_view = v2.Compose([v2.RandomResizedCrop(size), v2.RandomHorizontalFlip()])
    val_view = v2.Compose([v2.Resize(size * 8 // 7), v2.CenterCrop(size)])  # 256/224
    train_set = ImageFolder(args.data / "train", train_view, loader=load_image)
    val_set = ImageFolder(args.data / "val", val_view, loader=load_image)
    check_links(train_set)
    check_links(val_set)
    return train_set, val_set, train_set.classes


def build_loaders(
    args: Namespace, train_set: Dataset, val_set: Dataset, rank: int, world_size: int
) -> tuple[DataLoader, DataLoader]:
    """Loaders of this rank's share of both sets. Their workers start here."""
    check_enough(args, train_set)
    options = {
        "batch_size": args.batch_size // world_size,  # [dist] --batch-size is global
        "num_workers": args.workers,
        "worker_init_fn": ignore_signals,
        "persistent_workers": args.workers > 0,
        "multiprocessing_context": "fork" if args.workers else None,
        "pin_memory": torch.accelerator.is_available(),
        # For the workers' seeds: the loader would else draw from dropout's generator.
        "generator": torch.Generator().manual_seed(args.seed + rank),  # [dist]
    }
    # All ranks shuffle alike, and each takes every world_size-th image: a step has the
    # same images for any number of ranks. Both drop_last leave out images that do not
    # fill a batch, so that all ranks have equally many steps.
    seed = 1_000_003 * args.seed  # far apart: the sampler adds the epoch to it
    sampler = ResumableSampler(  # [dist]
        train_set, world_size, rank, seed=seed, drop_last=True
    )
    train_set = SeededDataset(train_set, args.seed)
    train_loader = DataLoader(train_set, sampler=sampler, drop_last=True, **options)
    # Each image once: a DistributedSampler would repeat or drop some.
    share = list(range(rank, len(val_set), world_size))  # [dist]
    val_loader = DataLoader(val_set, sampler=share, **options)
    start_workers(args, train_loader, val_loader)
    return train_loader, val_loader


def batches(loader: DataLoader, device: torch.device, name: str) -> Iterator:
    """Images (N, 3, H, W), normalised and channels_last, and targets, on the device."""
    mean = 255 * torch.tensor(MEAN, device=device).view(3, 1, 1)
    std = 255 * torch.tensor(STD, device=device).view(3, 1, 1)
    hidden = True if dist.get_rank() > 0 else None  # [dist] None: shown in terminals
    for images, targets in tqdm(loader, name, leave=False, disable=hidden):
        images = images.to(device, non_blocking=True)  # bytes are 1/4 of floats
        images = images.float(memory_format=torch.channels_last)
        yield images.sub_(mean).div_(std), targets.to(device, non_blocking=True)


# ---- model ----
def build_model(args: Namespace, num_classes: int) -> nn.Module:
    """Maps images (N, 3, H, W) to logits (N, num_classes). Replace it with your model,
    and change `model_name` in main, by which checkpoints are known."""
    check_pretrained(args, num_classes)
    weights = "DEFAULT" if args.pretrained else None  # for ImageNet's 1000 classes
    return models.get_model(args.arch, weights=weights, num_classes=num_classes)


def build_optimizer(args: Namespace, model: nn.Module) -> Optimizer:
    """Replace it with yours; each group of parameters may have its own peak rate."""
    # A larger batch takes larger steps (Goyal et al. 2017, arXiv:1706.02677). This is a
    # rule for SGD, not for Adam.
    peak = args.lr * args.batch_size / 256
    return SGD(model.parameters(), peak, momentum=0.9, weight_decay=args.weight_decay)


def lr_factor(args: Namespace, epochs: float) -> float:
    """What each peak rate is multiplied by after so many epochs, such as 2.5: a linear
    warm-up (Goyal et al. 2017), then a cosine (Loshchilov & Hutter 2017,
    arXiv:1608.03983). One of torch's schedulers would have to be saved and resumed."""
    warmup = min(5, args.epochs / 10)
    if epochs < warmup:
        return epochs / warmup
    progress = (epochs - warmup) / (args.epochs - warmup)
    return (1 + math.cos(math.pi * progress)) / 2


# ---- training ----
def train_one_epoch(
    args: Namespace,
    log_file: TextIO | None,
    model: nn.Module,
    loader: DataLoader,
    optimizer: Optimizer,
    epoch: int,
    done: int,
) -> tuple[int, bool]:
    """Train on this rank's share of the images, after the first `done` steps, until the
    epoch ends, or the ranks agree to save or stop. Returns the steps done, and whether
    to stop. Loss and hits add up on the device: the host would wait to read them."""
    device, rank = next(model.parameters()).device, dist.get_rank()
    criterion = nn.CrossEntropyLoss(label_smoothing=args.label_smoothing)
    totals = torch.zeros(2, dtype=torch.float64, device=device)  # of loss and hits
    steps = done + len(loader)  # of the epoch: the loader has those that are left
    logged, start = done, time.perf_counter()  # step and moment of the last row
    meetings = Meetings(args, done, steps, clock=rank == 0)  # [dist] one clock for all

    model.train()
    epoch_batches = batches(loader, device, f"epoch {epoch}")
    for step, (images, targets) in enumerate(epoch_batches, start=done + 1):
        # The factor in the middle of the step: neither the first nor the last is 0.
        factor = lr_factor(args, epoch + (step - 0.5) / steps)
        for group in optimizer.param_groups:
            peak = group.setdefault("initial_lr", group["lr"])  # set once
            group["lr"] = factor * peak

        # Dropout differs between ranks and steps, and is the same after a resume.
        torch.manual_seed(seed_of(args.seed, epoch, step, rank))  # [dist]
        with torch.autocast(device.type, torch.bfloat16, enabled=args.bf16):
            logits = model(images)
            loss = criterion(logits, targets)

        loss.backward()  # [dist] averages the gradients over the ranks as it goes
        if args.clip_grad:
            nn.utils.clip_grad_norm_(model.parameters(), args.clip_grad)
        optimizer.step()
        optimizer.zero_grad()  # here, so that no gradients lie beside activations

        totals[0] += loss.detach() * len(targets)
        totals[1] += (logits.detach().argmax(1) == targets).sum()

        if step == meetings.next:
            # One sum over all ranks tells each of them loss and hits, whether one was
            # asked to stop, and by rank 0's clock when to save and to meet again.
            sums = torch.cat([totals, totals.new_tensor(meetings.news())])
            dist.all_reduce(sums)  # [dist]
            loss_sum, hits, *news = sums.tolist()
            check_finite(loss_sum, f"at step {step} of epoch {epoch}")
            save, stop = meetings.learn(news)
            if save or stop or step % args.print_freq == 0 or step == steps:
                seen = (step - logged) * args.batch_size
                row = {
                    "epoch": epoch,
                    "step": step,
                    "loss": loss_sum / seen,
                    "acc1": 100 * hits / seen,
                    "lr": optimizer.param_groups[0]["lr"],
                    "images_per_second": seen / (time.perf_counter() - start),
                }
                log(log_file, "train", row)
                totals.zero_()
                logged, start = step, time.perf_counter()
            if save or stop:
                return step, stop
    return steps, False


# ---- evaluation ----
class Evaluation(NamedTuple):
    """What evaluate finds.

    scores: loss and accuracies in percent, by name, for the log.
    confusion: how many images of a class (row) were taken for which (column), float64.
    likeliest: with --save-predictions, for each image of this rank its k likeliest
        classes, then their probabilities (images, 2 * k), float64. Otherwise empty.
    """

    scores: dict
    confusion: Tensor
    likeliest: Tensor


@torch.inference_mode()
def evaluate(
    args: Namespace, model: nn.Module, loader: DataLoader, num_classes: int
) -> Evaluation:
    """Scores and confusion are of all ranks, and exact for any number of images and
    ranks: sums over all of them, divided once."""
    # After a training step BatchNorm's statistics differ between the ranks: each has
    # added its own images. Rank 0 saves its own, so all ranks evaluate with rank 0's.
    for buffer in model.buffers():
        dist.broadcast(buffer, src=0)  # [dist]

    device = next(model.parameters()).device
    k = min(5, num_classes)
    totals = torch.zeros(2, dtype=torch.float64, device=device)  # loss, right in top 5
    pairs = torch.zeros(num_classes**2, dtype=torch.float64, device=device)
    likeliest = [torch.zeros(0, 2 * k, dtype=torch.float64, device=device)]

    model.eval()
    for images, targets in batches(loader, device, "val"):
        with torch.autocast(device.type, torch.bfloat16, enabled=args.bf16):
            logits = model(images).double()  # float64: many losses are added up
        probabilities, guesses = logits.softmax(1).topk(k)
        totals[0] += nn.functional.cross_entropy(logits, targets, reduction="sum")
        totals[1] += (guesses == targets[:, None]).sum()
        # True and predicted class as one number: to count these is to fill the matrix.
        pair = targets * num_classes + guesses[:, 0]
        pairs += torch.bincount(pair, minlength=num_classes**2)
        if args.save_predictions:
            likeliest.append(torch.cat([guesses, probabilities], dim=1))

    # Not in the loop: a rank with fewer batches would leave out a call.
    dist.all_reduce(totals)  # [dist]
    dist.all_reduce(pairs)  # [dist]
    loss, top5 = totals.tolist()
    check_finite(loss, "in validation")
    confusion = pairs.view(num_classes, num_classes)
    images = confusion.sum().item()
    scores = {
        "loss": loss / images,
        "acc1": 100 * confusion.trace().item() / images,
        "acc5": 100 * top5 / images,
        "images": int(images),
    }
    return Evaluation(scores, confusion, torch.cat(likeliest))


def gather_rows(rows: Tensor, count: int) -> Tensor:
    """The rows of all ranks in the order of the data set (count, columns), on each."""
    # all_gather wants one shape: a share that is one row short gets a row of zeros.
    world_size = dist.get_world_size()
    missing = math.ceil(count / world_size) - len(rows)
    padded = nn.functional.pad(rows, (0, 0, 0, missing))
    shares = [torch.empty_like(padded) for _ in range(world_size)]
    dist.all_gather(shares, padded)  # [dist]

    # Rank r has images r, r + world_size, ...: taken in turns they are in order.
    return torch.stack(shares, dim=1).flatten(0, 1)[:count]


def write_csv(path: Path, rows: list[list]) -> None:
    """Write a temporary file and rename it, so that there is never half a file."""
    # A spreadsheet would take a class or a path that begins like a formula for one.
    formula = ("=", "+", "-", "@")
    rows = [
        [f"'{cell}" if str(cell).startswith(formula) else cell for cell in row]
        for row in rows
    ]
    temporary = path.with_name(path.name + ".tmp")
    with temporary.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows(rows)
    temporary.replace(path)


def write_confusion(folder: Path, names: list[str], confusion: Tensor) -> None:
    """confusion.csv, and per_class.csv with what a class is mistaken for most often."""
    matrix = [["true \\ predicted", *names]]
    per_class = [["class", "images", "correct", "acc1", "most often mistaken for"]]
    for index, counts in enumerate(confusion.long().tolist()):
        matrix.append([names[index], *counts])

        images = sum(counts)
        correct = counts[index]
        acc1 = f"{100 * correct / images:.2f}" if images else ""
        mistakes = list(counts)
        mistakes[index] = 0
        worst = ""
        if any(mistakes):
            worst = names[mistakes.index(max(mistakes))]
        per_class.append([names[index], images, correct, acc1, worst])
    write_csv(folder / "confusion.csv", matrix)
    write_csv(folder / "per_class.csv", per_class)


def write_predictions(
    path: Path, names: list[str], val_set: Dataset, likeliest: Tensor
) -> None:
    """A line for each image: its path, its class and the likeliest classes."""
    k = likeliest.shape[1] // 2
    header = ["path", "label"]
    for place in range(1, k + 1):
        header += [f"class{place}", f"prob{place}"]

    lines = [header]
    for index, row in enumerate(likeliest.tolist()):
        if isinstance(val_set, ImageFolder):
            image, target = val_set.samples[index]
        else:
            image, target = f"image {index}", int(val_set[index][1])
        line = [image, names[target]]
        for guess, probability in zip(row[:k], row[k:], strict=True):
            line += [names[int(guess)], f"{probability:.6f}"]
        lines.append(line)
    write_csv(path, lines)


def write_details(
    args: Namespace, names: list[str], val_set: Dataset, found: Evaluation
) -> None:
    """Rank 0 writes the tables of the last evaluation."""
    likeliest = found.likeliest
    if args.save_predictions:
        likeliest = gather_rows(likeliest, len(val_set))  # [dist] from all ranks
    if dist.get_rank() != 0:  # [dist] one writer for one file
        return
    write_confusion(args.output_dir, names, found.confusion)
    if args.save_predictions:
        write_predictions(args.save_predictions, names, val_set, likeliest)


@torch.inference_mode()
def evaluate_naive(
    args: Namespace, model: nn.Module, loader: DataLoader, exact: float
) -> dict:
    """What most scripts report: each rank's mean over a share, and the mean of these. A
    DistributedSampler makes the shares equally long: some images count twice."""
    rank, world_size = dist.get_rank(), dist.get_world_size()  # [dist]
    sampler = DistributedSampler(  # [dist]
        loader.dataset, world_size, rank, shuffle=False
    )
    loader.sampler[:] = sampler

    device = next(model.parameters()).device
    totals = torch.zeros(2, dtype=torch.float64, device=device)  # loss, images right
    for images, targets in batches(loader, device, "naive"):
        with torch.autocast(device.type, torch.bfloat16, enabled=args.bf16):
            logits = model(images).double()
        # As in evaluate: argmax may choose another one of two equal logits.
        guesses = logits.softmax(1).topk(min(5, logits.shape[1])).indices
        totals[0] += nn.functional.cross_entropy(logits, targets, reduction="sum")
        totals[1] += (guesses[:, 0] == targets).sum()

    # A mean of means: right only if all shares are equal and none is padded.
    means = totals / len(sampler) / world_size
    dist.all_reduce(means)  # [dist]
    loss, acc1 = means.tolist()
    return {
        "loss": loss,
        "acc1": 100 * acc1,
        "images": sampler.total_size,
        "counted_twice": sampler.total_size - len(loader.dataset),
        "acc1_off_by": 100 * acc1 - exact,
    }


# ---- the run ----
def setup_device(local_rank: int) -> torch.device:
    """The GPU of this process, made its current one, or the CPU."""
    check_gpus(local_rank)
    if not torch.accelerator.is_available():
        return torch.device("cpu")
    torch.accelerator.set_device_index(local_rank)  # [dist] or all ranks open GPU 0
    torch.set_float32_matmul_precision("high")  # allow TF32, as convolutions do anyway
    # cuDNN tries which algorithm is fastest: two runs may differ in their last bits.
    torch.backends.cudnn.benchmark = True
    return torch.device(torch.accelerator.current_accelerator().type, local_rank)


@errors.record  # [dist] torchrun shows the traceback of the rank that failed
def main(argv: list[str] | None = None) -> None:
    args = build_parser().parse_args(argv)
    check_launcher()
    rank = int(os.environ["RANK"])  # [dist] of this process, across all machines
    local_rank = int(os.environ["LOCAL_RANK"])  # [dist] on this machine
    world_size = int(os.environ["WORLD_SIZE"])  # [dist] processes on all machines
    check_flags(args, world_size)
    log_file = open_log(args) if rank == 0 else None  # [dist] one for all machines
    train_set, val_set, classes = build_datasets(args)
    model_name = f"{args.arch} with {len(classes)} classes"
    run = describe_run(model_name, classes, train_set)
    checkpoint = load_checkpoint(args, run, rank)  # {} for a new run

    # First the device: loaders pin memory for it. Then their workers, before the
    # process group, which has threads: a fork would copy the locks that they hold.
    device = setup_device(local_rank)
    train_loader, val_loader = build_loaders(args, train_set, val_set, rank, world_size)
    # Waits for all ranks, which meet at torchrun's MASTER_ADDR and MASTER_PORT.
    dist.init_process_group(  # [dist]
        dist.get_default_backend_for_device(device),  # nccl on NVIDIA's GPUs, else gloo
        device_id=None if device.type == "cpu" else device,  # connects at once
    )
    check_ranks(args, run, checkpoint, val_set)

    torch.manual_seed(args.seed)
    raw_model = build_model(args, len(classes))
    if args.sync_bn:  # [dist] BatchNorm by the statistics of all ranks' images
        raw_model = nn.SyncBatchNorm.convert_sync_batchnorm(raw_model)  # [dist]
    raw_model.to(device, memory_format=torch.channels_last)
    optimizer = build_optimizer(args, raw_model)
    restore(checkpoint, raw_model, optimizer)
    # DDP sends rank 0's weights to all ranks, now, and averages the gradients in each
    # training step, so weights stay equal. Evaluation uses raw_model: in DDP's forward
    # ranks may wait for one with fewer batches. gradient_as_bucket_view saves memory.
    model = DistributedDataParallel(raw_model, gradient_as_bucket_view=True)  # [dist]
    model = torch.compile(model) if args.compile else model

    steps = len(train_loader)  # of an epoch
    log_start(log_file, args, device, steps, run, checkpoint, optimizer)
    epoch, done = checkpoint.get("epoch", 0), checkpoint.get("step", 0)
    best = checkpoint.get("best") if args.resume == "" else None  # only of this run
    evaluation = None  # the last one: a finished run has none
    if args.evaluate:
        evaluation = evaluate(args, raw_model, val_loader, len(classes))
        scores = evaluation.scores
        log(log_file, "eval", {"epoch": epoch, **scores})

    # Each round either trains, to the end of the epoch or until it is time to save; or,
    # at the end, evaluates. Then it saves. A resumed run begins with the next round.
    catch_signals(args)
    stop = False
    while epoch < args.epochs and not (args.evaluate or stop):
        if done < steps:
            train_loader.sampler.set_epoch(epoch)  # [dist] each epoch has its own order
            train_loader.sampler.done = done * train_loader.batch_size  # left out of it
            train_loader.dataset.set_epoch(epoch)  # and its own crops and flips
            done, stop = train_one_epoch(
                args, log_file, model, train_loader, optimizer, epoch, done
            )
            is_best = False
        else:
            evaluation = evaluate(args, raw_model, val_loader, len(classes))
            scores = evaluation.scores
            log(log_file, "eval", {"epoch": epoch, **scores, **peak_memory(device)})
            is_best = best is None or scores[BEST] > best
            best = float(scores[BEST]) if is_best else best
            epoch, done = epoch + 1, 0
        state = {
            "model": raw_model.state_dict(),
            "optimizer": optimizer.state_dict(),
            "epoch": epoch,
            "step": done,
            "best": best,
            **run,
        }
        if rank == 0:  # [dist] one process writes
            save_checkpoints(args, state, is_best)

    if evaluation and not stop:
        write_details(args, classes, val_set, evaluation)
        if args.compare_naive:
            exact = evaluation.scores["acc1"]
            log(log_file, "naive", evaluate_naive(args, raw_model, val_loader, exact))
    log(log_file, "stopped" if stop else "end", {f"best_{BEST}": best})
    dist.barrier()  # [dist] rank 0 may still save: one that ends may end all
    wait_for_gloo()
    dist.destroy_process_group()  # [dist] without it a finished process may abort
    if stop:
        raise SystemExit(75)  # EX_TEMPFAIL of sysexits.h: the run can go on


# ---- what protects a long run: a first reading needs none of it ----
def fail(message: str) -> NoReturn:
    """End with one line. torchrun then ends the other ranks, and repeats the line at
    the end of its report."""
    try:
        raise SystemExit(f"error: {message}")
    except SystemExit as error:  # which @errors.record, on main, does not report
        errors.get_error_handler().record_exception(error)
        raise


class HelpFormatter(
    argparse.ArgumentDefaultsHelpFormatter, argparse.RawDescriptionHelpFormatter
):
    """Of --help: says the defaults, and leaves the docstring's lines as they are."""


def cpus_of_rank() -> int:
    """The CPUs that this process may use, divided among the ranks of its machine."""
    cpus = len(os.sched_getaffinity(0))
    cpus //= int(os.environ.get("LOCAL_WORLD_SIZE", 1))  # [dist] ranks of this machine
    return max(1, cpus)


def check_launcher() -> None:
    """Refuse to be started by hand: a single process would know of no other."""
    if not {"RANK", "LOCAL_RANK"} <= os.environ.keys():  # [dist] torchrun sets them
        fail(f"start it with torchrun --standalone --nproc-per-node 2 {__file__} ...")


def check_flags(args: Namespace, world_size: int) -> None:
    """Refuse flags that would silently do something else."""
    if args.batch_size % world_size:  # [dist] each rank's gradient weighs the same
        lower = max(1, args.batch_size // world_size) * world_size
        sizes = f"use {lower} or {lower + world_size}"
        fail(f"--batch-size must be a multiple of the {world_size} ranks: {sizes}")
    for flag, value, least, most in (
        ("--epochs", args.epochs, 1, math.inf),
        ("--lr", args.lr, 0, math.inf),
        ("--weight-decay", args.weight_decay, 0, math.inf),
        ("--clip-grad", args.clip_grad, 0, math.inf),
        ("--label-smoothing", args.label_smoothing, 0, 1),
        ("--workers", args.workers, 0, max(16, 4 * cpus_of_rank())),
        ("--save-minutes", args.save_minutes, 0, math.inf),
        ("--print-freq", args.print_freq, 1, math.inf),
    ):
        if not (least <= value <= most and math.isfinite(value)):  # nan is not, either
            fail(f"{flag} {value} is out of range: use {least} to {most}")
    if args.lr == 0:
        fail("--lr 0.0 trains nothing: use a larger one, or --evaluate")
    if args.evaluate and args.resume is None and not args.pretrained:
        fail("--evaluate needs weights: add --resume, --resume PATH or --pretrained")
    file = args.save_predictions
    if file and (file.exists() or not file.parent.is_dir()):
        fail(f"--save-predictions {file}: name a new file in a folder that exists")


def check_image_folders(data: Path) -> None:
    """Fail unless train/ and val/ are there, with the same classes."""
    for split in ("train", "val"):
        if not (data / split).is_dir():
            fail(f"--data {data} has no folder {split}")
    train, val = (
        {entry.name for entry in os.scandir(data / split) if entry.is_dir()}
        for split in ("train", "val")
    )
    if train != val:
        fail(f"{data}: only one of train/ and val/ has {sorted(train ^ val)[:3]}")
    if len(train) == 1:  # such as train/train/: nothing to tell apart
        fail(f"{data}/train has one folder, {train.pop()!r}: it needs one per class")


def check_links(dataset: ImageFolder) -> None:
    """Fail where a link leads to a folder above it: ImageFolder would follow it 40
    times, and take the images of other classes for those of this one."""
    root = Path(dataset.root)
    folders = (path.rpartition("/")[0] for path, _ in dataset.samples)
    for folder in map(Path, dict.fromkeys(folders)):
        inside = [one for one in (folder, *folder.parents) if one.is_relative_to(root)]
        if len({one.resolve() for one in inside}) < len(inside):
            fail(f"{folder}: a link in this path leads to a folder above: remove it")


def check_enough(args: Namespace, train_set: Dataset) -> None:
    """Fail where an epoch would have no step."""
    if len(train_set) < args.batch_size and not args.evaluate:
        fail(f"--batch-size {args.batch_size} is more than all {len(train_set)} images")


def check_pretrained(args: Namespace, num_classes: int) -> None:
    """Fail where the downloaded weights have another last layer than the data needs."""
    if args.pretrained and num_classes != 1000:
        fail(
            f"--pretrained: 1000 classes, not {num_classes}. In build_model write: "
            'model = models.get_model(args.arch, weights="DEFAULT"); '
            "model.fc = nn.Linear(model.fc.in_features, num_classes); return model"
        )


def check_gpus(local_rank: int) -> None:
    """Fail where this process would share a GPU, or silently take the CPU."""
    # With a driver that is too old torch counts the GPUs, but would take the CPU.
    if torch.cuda.device_count() and not torch.cuda.is_available():
        fail("torch cannot use the GPUs of this machine: its driver may be too old")
    gpus = torch.accelerator.device_count()
    if torch.accelerator.is_available() and local_rank >= gpus:
        fail(f"more processes than GPUs on this machine: start {gpus}")


def check_finite(loss: float, where: str) -> None:
    """Fail if the loss is infinite or not a number."""
    if not math.isfinite(loss):
        # What is evaluated was saved before: to go on with it would end here again.
        again = "begin with best.pt" if where == "in validation" else "--resume"
        fail(f"the loss is {loss} {where}: use a lower --lr, and {again}")


def check_ranks(args: Namespace, run: dict, checkpoint: dict, val_set: Dataset) -> None:
    """Fail if the ranks have other flags, images or checkpoints than one another."""
    mine = {f"--{flag}".replace("_", "-"): value for flag, value in vars(args).items()}
    mine |= {"checkpoint": checkpoint.get("file", "none"), "images": run["images"]}
    mine["images to evaluate"] = fingerprint(val_set)
    may_differ = {"--data", "--workers", "--output-dir", "--resume"}  # by machine
    found = [None] * dist.get_world_size()
    dist.all_gather_object(found, mine)  # [dist] unequal ranks would train in silence
    for name in sorted(mine.keys() - may_differ):
        values = sorted({str(theirs.get(name)) for theirs in found})
        if len(values) > 1:
            fail(f"ranks differ in {name}: {values[0]} and {values[1]}")


def fingerprint(dataset: Dataset) -> str:
    """How many items there are and, of an ImageFolder, a checksum of classes and names,
    and of the sizes of a hundred files."""
    samples = dataset.samples if isinstance(dataset, ImageFolder) else []
    names = [path.removeprefix(str(dataset.root)) for path, _ in samples]
    sizes = [os.path.getsize(path) for path, _ in samples[:: len(samples) // 100 + 1]]
    checksum = zlib.crc32(os.fsencode("\n".join(names) + str(sizes)))
    return f"{len(dataset)} (checksum {checksum:x})"


def load_image(path: str) -> Tensor:
    """The picture as uint8 RGB (3, height, width). Raises ValueError with the path."""
    try:
        if not os.path.isfile(path):  # a pipe would be waited for
            raise ValueError("it is not a file")
        # decode_image(path) would map the file into memory: a disk that fails would end
        # the process with a "Bus error", without the name of the file.
        data = torch.frombuffer(bytearray(Path(path).read_bytes()), dtype=torch.uint8)
        image = decode_image(data, ImageReadMode.RGB)
    except (OSError, RuntimeError, ValueError) as error:
        raise ValueError(f"cannot read {path!r}: {error}") from error
    if image.dtype != torch.uint8 or image.ndim != 3:  # 16-bit PNG, animated GIF
        raise ValueError(f"not a single 8-bit image: {path!r}")
    return image


def synthetic_datasets(count: int, size: int) -> tuple[Dataset, Dataset, list[str]]:
    """`count` images to train on, a quarter as many to validate, and names of classes.
    They can be learned: each of the ten classes has a colour, under noise."""
    total = count + max(1, count // 4)
    generator = torch.Generator().manual_seed(0)
    colours = 64 + 128 * torch.rand(10, 3, 1, 1, generator=generator)
    noise = 48 * torch.randn(3, size, size, generator=generator)
    images = torch.empty(total, 3, size, size, dtype=torch.uint8)
    labels = torch.arange(total) % 10
    for number, image in enumerate(images):
        # All have the same noise, but each begins it at another place.
        image.copy_((colours[labels[number]] + noise.roll(7919 * number)).clamp(0, 255))
    train_set = TensorDataset(images[:count], labels[:count])
    return train_set, TensorDataset(images[count:], labels[count:]), list("0123456789")


def seed_of(*numbers: int) -> int:
    """One seed that depends on all of the numbers, such as --seed and epoch."""
    return zlib.crc32(" ".join(map(str, numbers)).encode())


class SeededDataset(Dataset):
    """Random crops and flips that depend on seed, epoch and image alone: they are the
    same for any number of ranks and workers, and after a resume. (This holds for
    torch's generator, which torchvision uses, but not for numpy's and random's.)"""

    def __init__(self, dataset: Dataset, seed: int) -> None:
        self.dataset = dataset
        self.seed = seed
        # Workers have a copy of this object, made before the first epoch. They see what
        # is written into this memory later.
        self.epoch = torch.tensor(0).share_memory_()

    def __len__(self) -> int:
        return len(self.dataset)

    def set_epoch(self, epoch: int) -> None:
        self.epoch.fill_(epoch)

    def __getitem__(self, index: int) -> Any:
        # fork_rng puts the generator back: with --workers 0 dropout may use it as well.
        with torch.random.fork_rng(devices=[]):
            # Not torch.manual_seed: it is slow, because it seeds GPUs too.
            seed = seed_of(self.seed, self.epoch.item(), index)
            torch.default_generator.manual_seed(seed)
            return self.dataset[index]


class ResumableSampler(DistributedSampler):
    """Leaves out the first `done` images of this rank: they were trained on already."""

    done = 0

    def __iter__(self) -> Iterator[int]:
        return islice(super().__iter__(), self.done, None)

    def __len__(self) -> int:
        return super().__len__() - self.done


# A cluster asks a run to save and end by these signals; and those that have come.
STOP_SIGNALS = [signal.SIGTERM, signal.SIGUSR1]
ASKED_TO_STOP: list[int] = []


class Meetings:
    """The steps at which the ranks tell each other how it goes: rows of the log, and
    every 5 seconds by one rank's clock, as torchrun kills 30 s after a signal."""

    seconds = 5

    def __init__(self, args: Namespace, done: int, steps: int, clock: bool) -> None:
        self.print_freq, self.steps, self.clock = args.print_freq, steps, clock
        self.last, self.next = done, done + 1
        self.moment = time.perf_counter()  # of the last one
        self.save_at = self.moment + 60 * args.save_minutes
        self.seconds_per_step = math.inf

    def news(self) -> list[float]:
        """How many signals to stop this rank has got. And from the one with the clock:
        whether to save, and the step to meet at next. The ranks add them up."""
        if not self.clock:
            return [len(ASKED_TO_STOP), 0, 0]
        row = self.next + self.print_freq - self.next % self.print_freq
        soon = self.next + max(1, int(self.seconds / self.seconds_per_step))
        due = time.perf_counter() > self.save_at
        return [len(ASKED_TO_STOP), due, min(row, soon, self.steps)]

    def learn(self, news: list[float]) -> tuple[bool, bool]:
        """Takes the sum of all ranks' news. Returns whether to save, and to stop."""
        # The host has read the sum: here a GPU is not behind it, so the time is real.
        now = time.perf_counter()
        self.seconds_per_step = (now - self.moment) / (self.next - self.last)
        self.moment, self.last = now, self.next
        asked, due, self.next = map(int, news)
        return due > 0, asked > 0


def catch_signals(args: Namespace) -> None:
    """From now on a signal to stop is only noted: the ranks stop together, where they
    meet. A second one changes nothing: launcher and cluster may send one each."""

    def note(number: int, frame: object) -> None:
        ASKED_TO_STOP.append(number)

    ASKED_TO_STOP.clear()
    for stop_signal in STOP_SIGNALS:
        signal.signal(stop_signal, signal.SIG_DFL if args.evaluate else note)


def ignore_signals(worker_id: int) -> None:
    """In a loader worker: some clusters signal all processes of a job, this one too."""
    for stop_signal in STOP_SIGNALS:
        signal.signal(stop_signal, signal.SIG_IGN)


def kill_workers() -> None:
    """At the end of a run that an error ends: its traceback holds the loaders. Python
    would send their workers SIGTERM, which they ignore, and wait for ever."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # or torch reports them as lost
    for worker in multiprocessing.active_children():
        if worker.daemon:
            worker.kill()


def start_workers(
    args: Namespace, train_loader: DataLoader, val_loader: DataLoader
) -> None:
    """Fork the workers of both loaders before the process group exists: it has threads,
    and a fork copies the locks that they hold, which nobody then releases."""
    # The first iter() of a loader forks its workers, which live for the run (and drop
    # what they load for it). Until both have theirs, val_loader has no images: they
    # would wait in shared memory, of which a container may have little, and a thread
    # would pin them during the second fork.
    share = list(val_loader.sampler)
    val_loader.sampler.clear()
    iter(val_loader)
    if not args.evaluate:
        iter(train_loader)
    val_loader.sampler.extend(share)
    Finalize(None, kill_workers, exitpriority=0)


def open_log(args: Namespace) -> TextIO:
    """The log, locked until this process ends: one run at a time writes into a folder.
    Fails if it holds a run that this one does not continue."""
    path = args.output_dir / ("evaluate.jsonl" if args.evaluate else "metrics.jsonl")
    try:
        args.output_dir.mkdir(parents=True, exist_ok=True)
        if path.is_fifo():  # whose reader would be waited for
            raise OSError("it is a pipe")
        file = path.open("a", buffering=1)  # a line at a time
    except OSError as error:
        fail(f"cannot write {path}: {error}")
    if args.evaluate:
        return file

    # Loader workers do not inherit the lock. It is lost, without a word, when this
    # process opens the file once more and closes it: nothing else may open it.
    try:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        fail(f"another run is at work in {args.output_dir}: `fuser {path}` names it")
    except OSError as error:  # some file systems of clusters have no locks
        print(f"cannot lock {path} ({error}): start no second run in its folder")
    kept = (args.output_dir / name for name in ("checkpoint.pt", "best.pt"))
    holds_run = file.tell() or any(map(os.path.lexists, kept))
    if args.resume and Path(args.resume).resolve().parent == args.output_dir.resolve():
        holds_run = True  # its best.pt, say, which this run would overwrite
    if holds_run and args.resume != "":
        hint = "use --resume without PATH, or another --output-dir"
        fail(f"{args.output_dir} holds a run: {hint}")
    return file


def log(file: TextIO | None, event: str, fields: dict) -> None:
    """Add a line to the log, which only rank 0 has, and print it."""
    if file is None:
        return
    words = [event]
    for name, value in fields.items():
        if name != "args":  # all flags would be too long to print
            value = f"{value:.4g}" if isinstance(value, float) else value
            words.append(f"{name} {value}")
    row = {"event": event, "time": time.time(), **fields}
    try:
        file.write(json.dumps(row, default=str) + "\n")  # str: a Path becomes text
        tqdm.write("  ".join(words))
    except OSError as error:
        fail(f"cannot write {file.name} or stdout: {error}")


def log_start(
    file: TextIO | None,
    args: Namespace,
    device: torch.device,
    steps_per_epoch: int,
    run: dict,
    checkpoint: dict,
    optimizer: Optimizer,
) -> None:
    """The first row of the log, and what a run that goes on should say."""
    if file is None:
        return
    groups, world_size = optimizer.param_groups, dist.get_world_size()
    peaks = [group["lr"] for group in groups]
    start = {
        "epoch": checkpoint.get("epoch", 0),
        "step": checkpoint.get("step", 0),
        "torch": torch.__version__,
        "device": str(device),
        **describe_gpu(device),
        "world_size": world_size,
        "images_per_step": args.batch_size,
        "images_per_rank": args.batch_size // world_size,
        "steps_per_epoch": steps_per_epoch,
        "lr": args.lr,
        "peak_lr": peaks[0] if len(set(peaks)) == 1 else peaks,
        "parameters": sum(p.numel() for group in groups for p in group["params"]),
        "args": vars(args),
    }
    log(file, "start", start)
    if args.evaluate or not checkpoint:
        return
    if start["epoch"] >= args.epochs:
        print(f"nothing to train: all {args.epochs} epochs are done")
    if "classes" not in checkpoint:
        print("the checkpoint does not name its classes: they were not compared")
    elif checkpoint["images"] != run["images"]:
        images = f"{run['images']} images, before {checkpoint['images']}"
        print(f"the run goes on with other images: {images}")
    kept = checkpoint["optimizer"]
    weights = sum(len(group["params"]) for group in kept.get("param_groups", []))
    if len(kept["state"]) < weights:
        has = f"momentum of {len(kept['state'])} of {weights} weights"
        print(f"the checkpoint has {has}: that of the others begins at 0")


def describe_gpu(device: torch.device) -> dict:
    """For the log: the name and the memory of this process's GPU."""
    if device.type != "cuda":
        return {}
    gpu = torch.cuda.get_device_properties(device)
    return {"gpu": f"{gpu.name}, {gpu.total_memory / 2**30:.0f} GiB"}


def describe_run(model_name: str, classes: list[str], train_set: Dataset) -> dict:
    """What a checkpoint says of its run: `check_same_run` compares it."""
    run = {"model_name": model_name, "metric": BEST, "classes": classes}
    return run | {"images": fingerprint(train_set)}


def check_same_run(args: Namespace, run: dict, checkpoint: dict) -> None:
    """Fail if this run would misread the checkpoint."""
    saved = checkpoint.get("model_name", "another program").removesuffix(INSIDE)
    if saved != run["model_name"]:
        fail(f"--resume: the checkpoint is of {saved}, not of {run['model_name']}")
    before = checkpoint.get("classes", run["classes"])
    for label, (old, new) in enumerate(zip_longest(before, run["classes"])):
        if old != new:  # what the model calls `label`
            fail(f"--resume: class {label} was {old!r}, and is {new!r} in these images")
    metric = checkpoint.get("metric", BEST)
    if metric != BEST and args.resume == "" and not args.evaluate:
        hint = "give its PATH to --resume, and another --output-dir"
        fail(f"best.pt was chosen by {metric}, not by {BEST}: {hint}")
    if checkpoint.get("step") and not args.evaluate:
        for before, now in (
            (checkpoint["typed"], typed(args)),
            (f"images {checkpoint['images']}", f"images {run['images']}"),
        ):
            if before != now:
                fail(f"--resume: saved inside an epoch: keep {before}, not {now}")


def typed(args: Namespace) -> str:
    """The flags on which depends what the steps of an epoch train on."""
    return f"--batch-size {args.batch_size} --seed {args.seed}"


def load_checkpoint(args: Namespace, run: dict, rank: int) -> dict:
    """The checkpoint that --resume names, on the CPU, or {} to begin anew."""
    if args.resume is None:
        return {}
    # --resume alone is "": it takes the checkpoint of --output-dir.
    path = Path(args.resume or args.output_dir / "checkpoint.pt")
    if args.resume == "" and not os.path.lexists(path) and not args.evaluate:
        check_best(args)
        return {}  # the first start of a job that is always started by the same line
    checkpoint = read_checkpoint(path, whole=rank == 0)
    check_same_run(args, run, checkpoint)
    return checkpoint


def check_best(args: Namespace) -> None:
    """Fail where a run that begins anew would overwrite the best epoch of another."""
    best, lost = args.output_dir / "best.pt", args.output_dir / "checkpoint.pt"
    if os.path.lexists(best):
        fail(f"{lost} is gone, {best} is there: copy that to {lost} to go on from it")


def read_checkpoint(path: Path, whole: bool) -> dict:
    """What the file holds. Fails if it is not there, damaged, or of another kind. One
    rank looks at the `whole` file; `check_ranks` sees whether others have the same."""
    if not path.is_file():
        fail(f"--resume {path}: there is no such file")
    try:
        checksums = []
        if zipfile.is_zipfile(path):  # not those of torch before 1.6
            archive = zipfile.ZipFile(path)
            checksums = [part.CRC for part in archive.infolist()]
            if whole and archive.testzip():  # torch would not have looked
                raise ValueError("a checksum is wrong")
        # Without map_location it would land on the GPU that it was saved from; without
        # weights_only it might run code.
        checkpoint = torch.load(path, map_location="cpu", weights_only=True)
        kept = [checkpoint["model"], *checkpoint["optimizer"]["state"].values()]
        if whole and not is_finite(kept):
            raise ValueError("weights or momentum are not finite")
        if checkpoint["epoch"] < 0 or not math.isfinite(checkpoint.get("best") or 0):
            raise ValueError("epoch or best is out of range")
        checksum = zlib.crc32(str([path.stat().st_size, checksums]).encode())
        where = f"epoch {checkpoint['epoch']}, step {checkpoint.get('step', 0)}"
        checkpoint["file"] = f"{where} (checksum {checksum:x})"
    except Exception as error:  # of many kinds; most do not name the file
        fail(f"cannot load {path}, {error!r:.99}: --resume another, such as best.pt")
    return checkpoint


def is_finite(kept: list[dict]) -> bool:
    """Whether the weights, and what the optimizer remembers of each, are finite."""
    tensors = [one for slot in kept for one in slot.values() if torch.is_tensor(one)]
    return all(tensor.isfinite().all() for tensor in tensors)


def restore(checkpoint: dict, model: nn.Module, optimizer: Optimizer) -> None:
    """Give back weights and momentum, if there is a checkpoint. The optimizer keeps the
    settings of this command line."""
    if not checkpoint:
        return
    model.load_state_dict(checkpoint["model"])
    state = optimizer.state_dict()
    state["state"] = checkpoint["optimizer"]["state"]
    optimizer.load_state_dict(state)


def peak_memory(device: torch.device) -> dict:
    """For the log: the most that tensors took on rank 0's GPU until now, in MB."""
    if device.type != "cuda":
        return {}
    return {"peak_mb": torch.cuda.max_memory_allocated(device) / 1e6}


# Behind model_name: programs that cannot begin inside an epoch then refuse the file.
INSIDE = ", stopped inside an epoch"


def save_checkpoints(args: Namespace, state: dict, is_best: bool) -> None:
    """best.pt comes first: after a kill between the two a resume writes both again."""
    if not is_finite([state["model"], *state["optimizer"]["state"].values()]):
        hint = "use a lower --lr, and --resume"
        fail(f"weights or momentum are not finite in epoch {state['epoch']}: {hint}")
    if state["step"]:
        state |= {"model_name": state["model_name"] + INSIDE, "typed": typed(args)}
    if is_best:
        save_checkpoint(state, args.output_dir / "best.pt")
    save_checkpoint(state, args.output_dir / "checkpoint.pt")


def save_checkpoint(state: dict, path: Path) -> None:
    """Write a file beside it, then rename that: a crash or a full disk leaves the old
    checkpoint as it was."""
    data = io.BytesIO()  # torch.save to a full disk would not raise an OSError
    torch.save(state, data)
    temporary = path.with_suffix(".tmp")
    try:
        temporary.unlink(missing_ok=True)  # a link would be written through
        with temporary.open("xb") as file:
            file.write(data.getbuffer())
            file.flush()
            os.fsync(file.fileno())  # otherwise a power cut may leave it empty
        temporary.replace(path)
    except OSError as error:
        if temporary.is_file():
            temporary.unlink()
        fail(f"cannot save {path}: {error}")


def wait_for_gloo() -> None:
    """Before torch 2.13 a process group's end may hang while gloo frees tensors."""
    time.sleep(0.1)


if __name__ == "__main__":
    main()
