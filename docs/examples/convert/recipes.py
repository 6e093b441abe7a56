"""Recipes of docs/en/recipes.md: what a script that is more than a plain loop needs.

tests/handbook/test_recipes.py runs each on two processes, with and without its point.
"""

import gzip
import json
import os
import random
import tarfile
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from contextlib import nullcontext
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import Tensor, nn
from torch.distributed import ProcessGroup
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.optim import SGD, Optimizer
from torch.optim.lr_scheduler import OneCycleLR
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.profiler import profile, schedule
from torch.utils.data import (
    DataLoader,
    IterableDataset,
    Sampler,
    WeightedRandomSampler,
    default_collate,
    get_worker_info,
)
from torchvision import tv_tensors
from torchvision.transforms import v2


class DistributedWeightedSampler(Sampler[int]):
    """All ranks draw the same order; each takes every world_size-th image of it."""

    def __init__(self, sampler: WeightedRandomSampler, rank: int, world_size: int) -> None:
        self.sampler, self.rank, self.world_size = sampler, rank, world_size
        self.set_epoch(0)

    def set_epoch(self, epoch: int) -> None:
        self.sampler.generator = torch.Generator().manual_seed(epoch)

    def __len__(self) -> int:
        return len(self.sampler) // self.world_size

    def __iter__(self) -> Iterator[int]:
        return islice(self.sampler, self.rank, len(self) * self.world_size, self.world_size)


class Share(IterableDataset):
    """Every record once, over all ranks and their loader workers."""

    def __init__(self, read: Callable[[], Iterator], rank: int, world_size: int) -> None:
        self.read, self.rank, self.world_size = read, rank, world_size

    def __iter__(self) -> Iterator:
        worker = get_worker_info()
        workers, number = (worker.num_workers, worker.id) if worker else (1, 0)
        first = self.rank * workers + number
        return islice(self.read(), first, None, self.world_size * workers)


class BatchesOfRank(Sampler[list[int]]):
    """Your sampler draws batches for all ranks, alike on each; a rank takes its part of each."""

    def __init__(self, batches: Iterable[list[int]], rank: int, world_size: int) -> None:
        self.batches, self.rank, self.world_size = batches, rank, world_size

    def __len__(self) -> int:
        return len(self.batches)

    def __iter__(self) -> Iterator[list[int]]:
        for batch in self.batches:
            yield batch[self.rank :: self.world_size]


def texts_of_step(tokens: np.ndarray, step: int, count: int, length: int) -> tuple[Tensor, Tensor]:
    """This rank's part of so many texts, which all ranks draw alike, and their targets."""
    draw = torch.Generator().manual_seed(step)
    starts = torch.randint(len(tokens) - length, (count,), generator=draw)
    mine = starts[dist.get_rank() :: dist.get_world_size(), None] + torch.arange(length + 1)
    rows = torch.from_numpy(tokens[mine.numpy()].astype(np.int64))
    return rows[:, :-1], rows[:, 1:]


def together(loader: Iterable, cpu_group: dist.ProcessGroup) -> Iterator:
    """Batches until the first rank has no more: equally many on all ranks."""
    batches = iter(loader)
    while True:
        batch = next(batches, None)
        goes_on = torch.tensor(int(batch is not None))
        dist.all_reduce(goes_on, dist.ReduceOp.MIN, group=cpu_group)  # no GPU is waited for
        if not goes_on:
            return
        yield batch


def share_of(files: list, sizes: dict, rank: int, world_size: int) -> tuple[list, int, int]:
    """A rank's files, and its turn in each: of whole files, if that makes equal shares, its own;
    or all files, of which each rank takes every world_size-th record."""
    shares, totals = [[] for _ in range(world_size)], [0] * world_size
    for file in sorted(files, key=lambda file: -sizes[file].bit_length()):  # large ones first
        least = totals.index(min(totals))
        shares[least].append(file)
        totals[least] += sizes[file]
    if min(totals) < 0.95 * sum(totals) / world_size:
        return files, rank, world_size
    return shares[rank], 0, 1


def records_of(
    files: list, read: Callable, turn: int, turns: int, worker: int, workers: int
) -> Iterator:
    """The records of one worker of a rank: those of whole files, as far as there are enough."""
    groups = min(len(files), workers)
    group, place = worker % groups, worker // groups
    places = len(range(group, workers, groups))  # workers with the same files
    for file in files[group::groups]:
        try:
            yield from islice(read(file), turn * places + place, None, turns * places)
        except Exception as error:
            raise RuntimeError(f"{file} cannot be read: {error!r}") from error


def shuffled(records: Iterable, size: int, draw: random.Random) -> Iterator:
    """As random an order as a buffer of so many records allows."""
    held = []
    for record in records:
        if len(held) < size:
            held.append(record)
            continue
        place = draw.randrange(size)
        yield held[place]
        held[place] = record
    draw.shuffle(held)
    yield from held


class RecordFiles(IterableDataset):
    """Files of records; before each epoch the training loop sets `epoch`."""

    def __init__(self, files: list, read: Callable, rank: int, world_size: int) -> None:
        if not files:
            raise ValueError("no files")
        self.sizes = {file: os.path.getsize(file) for file in sorted(files)}
        self.read, self.rank, self.world_size = read, rank, world_size
        self.epoch = torch.tensor(0).share_memory_()  # workers that live on see it, too

    def __iter__(self) -> Iterator:
        worker = get_worker_info()
        workers, number = (worker.num_workers, worker.id) if worker else (1, 0)
        files = random.Random(self.epoch.item()).sample(list(self.sizes), len(self.sizes))
        files, turn, turns = share_of(files, self.sizes, self.rank, self.world_size)
        records = records_of(files, self.read, turn, turns, number, workers)
        draw = random.Random(f"{self.epoch} {self.rank} {number}")
        return shuffled(records, 1000, draw)


def read_tar(path: str) -> Iterator[dict[str, bytes]]:
    """0001.jpg and 0001.cls, next to each other, are a record {"jpg": …, "cls": …}."""
    with tarfile.open(path) as tar:
        name, record = None, {}
        for member in filter(tarfile.TarInfo.isfile, tar):
            stem, _, kind = member.name.partition(".")
            if record and stem != name:
                yield record
                record = {}
            name = stem
            record[kind] = tar.extractfile(member).read()
        if record:
            yield record
        if tar.fileobj.read(512) != bytes(512):  # its end: without it, records are missing
            raise tarfile.ReadError("it is cut off")


def seed_epoch(seed: int, epoch: int, rank: int) -> None:
    """At the start of an epoch: other random numbers on each rank, the same after a resume."""
    number = random.Random(f"{seed} {epoch} {rank}").getrandbits(63)
    torch.manual_seed(number)  # in loader workers that of random and numpy as well
    random.seed(number)
    np.random.seed(number % 2**32)


def train_accumulating(
    ddp_model: DistributedDataParallel, loader: DataLoader, optimizer: Optimizer, accumulate: int
) -> None:
    """An epoch with a step for each `accumulate` batches."""
    device = next(ddp_model.parameters()).device
    for number, (inputs, targets) in enumerate(loader, start=1):
        steps = number % accumulate == 0  # wherever your script makes a step
        with nullcontext() if steps else ddp_model.no_sync():
            loss = cross_entropy(ddp_model(inputs.to(device)), targets.to(device))
            (loss / accumulate).backward()
        if steps:
            optimizer.step()
            optimizer.zero_grad()


def in_one_view(view: nn.Module, image: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """Crops and flips that are drawn once, for both; no classes are mixed in the mask."""
    return view(tv_tensors.Image(image), tv_tensors.Mask(mask))


class Mixing:
    """A collate_fn: batches whose images are mixed, and their targets, then of all classes."""

    def __init__(self, classes: int) -> None:
        ways = [v2.MixUp(num_classes=classes), v2.CutMix(num_classes=classes)]
        self.mix = v2.RandomChoice(ways)

    def __call__(self, batch: list) -> tuple[Tensor, Tensor]:
        return self.mix(*default_collate(batch))


def wrap(model: nn.Module, never_used: nn.Module, changing: bool) -> DistributedDataParallel:
    """DDP waits for a gradient of each parameter that requires one."""
    never_used.requires_grad_(False)
    return DistributedDataParallel(model, find_unused_parameters=changing)


def nothing(output: Tensor) -> Tensor:
    """Added to the loss of a batch that lacks something: `output` gets a gradient, of zeros."""
    return 0 * output.sum()


def mean_over_all(total: Tensor, count: Tensor) -> Tensor:
    """The loss for backward(): DDP's average of it is the mean over what all ranks count."""
    everywhere = count.clone()
    dist.all_reduce(everywhere)
    return total * dist.get_world_size() / everywhere


def train_by_tokens(
    ddp_model: DistributedDataParallel, loader: Iterable, optimizer: Optimizer, accumulate: int
) -> None:
    """A step for each `accumulate` batches, by the mean over all their tokens on all ranks. Tokens
    and targets are (N, length); a target of -100 does not count."""
    device = next(ddp_model.parameters()).device
    batches = iter(loader)
    while group := list(islice(batches, accumulate)):
        count = torch.stack([(targets != -100).sum() for _, targets in group]).sum().to(device)
        dist.all_reduce(count)  # once a step, before the first loss

        for number, (tokens, targets) in enumerate(group, start=1):
            with nullcontext() if number == len(group) else ddp_model.no_sync():
                logits = ddp_model(tokens.to(device)).flatten(0, 1)
                loss = cross_entropy(logits, targets.to(device).flatten(), reduction="sum")
                (loss * dist.get_world_size() / count).backward()  # not / accumulate as well

        nn.utils.clip_grad_norm_(ddp_model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()


def sum_over_ranks(part: Tensor) -> Tensor:
    """The sum of all ranks' parts, the same on each of them, for a loss made from it. backward()
    reaches this rank's part, times world_size: DDP's average divides by that."""
    total = part.detach().clone()
    dist.all_reduce(total)
    return total + (part - part.detach()) * dist.get_world_size()  # zero, with a gradient


def dice_loss(logits: Tensor, masks: Tensor) -> Tensor:
    """One minus the soft Dice of each class over the images of all ranks, averaged over classes.
    Both (N, classes, height, width), masks of 0 and 1."""
    guesses = logits.sigmoid()
    sums = torch.stack([(guesses * masks).sum((0, 2, 3)), (guesses + masks).sum((0, 2, 3))])
    overlap, sizes = sum_over_ranks(sums)
    return 1 - ((2 * overlap + 1) / (sizes + 1)).mean()


def rows_of_all_ranks(rows: Tensor) -> Tensor:
    """(N, features) of each rank, as (world_size * N, features) in the order of ranks. N must be
    the same on all ranks."""
    places = rows.new_zeros(dist.get_world_size(), *rows.shape)
    places[dist.get_rank()] = rows
    return sum_over_ranks(places).flatten(0, 1)


def contrastive_loss(first: Tensor, second: Tensor, temperature: float) -> Tensor:
    """CLIP's: of all pairs of all ranks, row n of the one belongs to row n of the other."""
    first, second = rows_of_all_ranks(first), rows_of_all_ranks(second)
    logits = first @ second.T / temperature
    pairs = torch.arange(len(logits), device=logits.device)
    return (cross_entropy(logits, pairs) + cross_entropy(logits.T, pairs)) / 2


def one_cycle(optimizer: SGD, loader: DataLoader, epochs: int) -> OneCycleLR:
    """len(loader) is the number of steps of an epoch, on any number of ranks."""
    return OneCycleLR(optimizer, max_lr=0.1, total_steps=epochs * len(loader))


def mean_over_ranks(total: float, count: int, device: torch.device) -> float:
    """The mean over all images of all ranks, the same number on each of them."""
    sums = torch.tensor([total, count], dtype=torch.float64, device=device)
    dist.all_reduce(sums)
    return (sums[0] / sums[1]).item()


class Best:
    """Fed with a score that is the same on all ranks, it says the same on all of them."""

    def __init__(self, patience: int) -> None:
        self.patience, self.score, self.waited = patience, float("-inf"), 0

    def improved(self, score: float) -> bool:
        score = float(score)  # load() below reads no NumPy numbers
        better = score > self.score
        self.score = score if better else self.score
        self.waited = 0 if better else self.waited + 1
        return better

    def state_dict(self) -> dict:
        return dict(vars(self))

    def load_state_dict(self, state: dict) -> None:
        vars(self).update(state)


def macro_f1(targets: Tensor, guesses: Tensor, classes: int) -> float:
    """Sum what F1 is made of over the ranks, then divide once."""
    pairs = torch.bincount(targets * classes + guesses, minlength=classes * classes)
    dist.all_reduce(pairs)
    confusion = pairs.view(classes, classes)
    either = confusion.sum(0) + confusion.sum(1)  # how often a class is a target or a guess
    f1 = 2 * confusion.diagonal() / either
    return f1[either > 0].mean().item()


def from_all_ranks(values: Tensor) -> Tensor:
    """All predictions on each rank, for what needs them at once: AUC, mAP, a CSV."""
    parts = [None] * dist.get_world_size()
    dist.all_gather_object(parts, values.cpu())
    return torch.cat(parts)


def by_name(rows: dict[str, list]) -> dict[str, list]:
    """The rows of all ranks under each name: one gather of the whole dictionary. One for each name
    would bring together what stands at the same place, whatever it is called."""
    parts: list = [None] * dist.get_world_size()
    dist.all_gather_object(parts, rows)
    names = sorted(set().union(*parts))
    return {name: [row for part in parts for row in part.get(name, [])] for name in names}


def make_ema(model: nn.Module, decay: float) -> AveragedModel:
    """Before DDP wraps the model: its first update copies the weights, those of rank 0 by then."""
    return AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(decay))


def same_buffers(model: nn.Module) -> None:
    """Before evaluating a model or an EMA: the running statistics of rank 0, which saves."""
    for buffer in model.buffers():
        dist.broadcast(buffer, src=0)


def generator_loss(discriminator: DistributedDataParallel, fake: Tensor) -> Tensor:
    """The step of the generator needs no gradients of the discriminator: go round DDP."""
    return nn.functional.softplus(-discriminator.module(fake)).mean()


def on_any_rank(condition: Tensor) -> bool:
    """`if on_any_rank(loss.isnan()): continue`: all ranks skip the step, or none."""
    found = condition.int()
    dist.all_reduce(found, dist.ReduceOp.MAX)
    return bool(found)  # the host waits here, in each step


def log_loss(write: Callable[[float, int], None], loss: Tensor, step: int) -> None:
    """All ranks take part in the mean; rank 0 alone has a writer that is used."""
    loss = loss.detach().clone()
    dist.all_reduce(loss)
    if dist.get_rank() == 0:
        write(loss.item() / dist.get_world_size(), step)


def seconds_by_rank(seconds: float, device: torch.device) -> list[float]:
    """One number of each rank, on all of them: the slowest is the largest."""
    each = torch.zeros(dist.get_world_size(), device=device)
    each[dist.get_rank()] = seconds
    dist.all_reduce(each)
    return each.tolist()


def profiler(folder: str) -> profile:
    """`with profiler("traces") as steps:`, and `steps.step()` after each: a file for each rank."""
    os.makedirs(folder, exist_ok=True)
    return profile(
        schedule=schedule(wait=20, warmup=5, active=5, repeat=1),
        on_trace_ready=lambda done: done.export_chrome_trace(
            f"{folder}/rank{dist.get_rank()}.json.gz"
        ),
    )


def seconds_in_collectives(folder: str) -> dict[str, float]:
    """Of each rank's trace: all wait for the slow rank, which itself waits for nobody."""
    kinds = ("gloo:", "ncclDevKernel", "ncclKernel")  # of nccl its kernels, not their names twice
    seconds = {}
    for path in sorted(Path(folder).glob("rank*.json.gz")):
        events = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
        waits = [e["dur"] for e in events if e.get("ph") == "X" and e["name"].startswith(kinds)]
        seconds[path.name.partition(".")[0]] = sum(waits) / 1e6
    return seconds


def save_in_background(
    state: dict, folder: str, group: ProcessGroup, last: Future | None
) -> Future:
    """On all ranks. Waits for the last save, and raises what went wrong in it; copies the state;
    returns what the next call waits for, and the end of the script, by `.result()`. group: for
    saves alone, new_group(backend="gloo"). In the group of training their collectives would fall
    among its own, at another place on each rank: both hang."""
    if last:
        last.result()
    return dcp.async_save(state, checkpoint_id=folder, process_group=group)


def save(path: str, place: int | tuple[int, int], parts: dict) -> None:
    """Everything with a memory: model, optimizer, scheduler, scaler, Best, EMA. And where to go
    on: the epoch, or the epoch and how many steps of it are done."""
    if dist.get_rank() == 0:
        state = {name: part.state_dict() for name, part in parts.items()}
        torch.save(state | {"place": place}, f"{path}.tmp")
        with open(f"{path}.tmp", "rb") as file:
            os.fsync(file.fileno())  # or a power cut leaves it empty
        os.replace(f"{path}.tmp", path)  # never half a file


def load(path: str, parts: dict) -> Any:
    """On all ranks, before DDP wraps the model. Returns the place to go on from."""
    state = torch.load(path, map_location="cpu", weights_only=True)
    for name, part in parts.items():
        part.load_state_dict(state[name])
    return state["place"]
