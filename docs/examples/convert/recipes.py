"""Recipes of docs/en/convert.md: what a script that is more than a plain loop needs.

tests/handbook/test_convert.py runs each on two processes, with and without its point.
"""

import os
import random
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from itertools import islice

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.optim import SGD, Optimizer
from torch.optim.lr_scheduler import OneCycleLR
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.data import DataLoader, IterableDataset, Sampler, get_worker_info


class DistributedWeightedSampler(Sampler[int]):
    """All ranks draw the same order; each takes every world_size-th image of it."""

    def __init__(self, weights: Tensor, rank: int, world_size: int) -> None:
        self.weights, self.rank, self.world_size = weights, rank, world_size
        self.set_epoch(0)

    def set_epoch(self, epoch: int) -> None:
        self.generator = torch.Generator().manual_seed(epoch)

    def __len__(self) -> int:
        return len(self.weights) // self.world_size

    def __iter__(self) -> Iterator[int]:
        drawn = len(self) * self.world_size
        order = torch.multinomial(self.weights, drawn, True, generator=self.generator)
        return iter(order[self.rank :: self.world_size].tolist())


class Share(IterableDataset):
    """Every record once, over all ranks and their loader workers."""

    def __init__(self, read: Callable[[], Iterator], rank: int, world_size: int) -> None:
        self.read, self.rank, self.world_size = read, rank, world_size

    def __iter__(self) -> Iterator:
        worker = get_worker_info()
        workers, number = (worker.num_workers, worker.id) if worker else (1, 0)
        first = self.rank * workers + number
        return islice(self.read(), first, None, self.world_size * workers)


def batches_of_an_epoch(loader: DataLoader, records: int, global_batch_size: int) -> Iterator:
    """Equally many batches on all ranks, however the records are shared out."""
    return islice(loader, records // global_batch_size)


def seed_all(seed: int, rank: int) -> None:
    """Call it after the model is made: other random numbers on each rank."""
    seed = seed * 1_000_003 + rank
    torch.manual_seed(seed)  # in loader workers that of random and numpy as well
    random.seed(seed)
    np.random.seed(seed % 2**32)


def train_accumulating(
    model: DistributedDataParallel, loader: DataLoader, optimizer: Optimizer, accumulate: int
) -> None:
    """A step for each `accumulate` batches, and a smaller one for what is left over."""
    whole = len(loader) - len(loader) % accumulate
    for number, (inputs, targets) in enumerate(loader, start=1):
        last = number % accumulate == 0 or number == len(loader)
        group = accumulate if number <= whole else len(loader) - whole
        with nullcontext() if last else model.no_sync():  # the last one communicates
            loss = cross_entropy(model(inputs), targets) / group
            loss.backward()
        if last:
            nn.utils.clip_grad_norm_(model.parameters(), max_norm=1.0)  # of the average
            optimizer.step()
            optimizer.zero_grad()


def wrap(model: nn.Module, never_used: nn.Module, changing: bool) -> DistributedDataParallel:
    """DDP waits for a gradient of each parameter that requires one."""
    never_used.requires_grad_(False)
    return DistributedDataParallel(model, find_unused_parameters=changing)


def one_cycle(optimizer: SGD, loader: DataLoader, epochs: int) -> OneCycleLR:
    """len(loader) is the number of steps of an epoch, on any number of ranks."""
    return OneCycleLR(optimizer, max_lr=0.1, total_steps=epochs * len(loader))


def mean_over_ranks(total: Tensor, count: int) -> float:
    """The mean over all images of all ranks, the same number on each of them."""
    sums = torch.stack([total.double(), torch.tensor(count).to(total)])
    dist.all_reduce(sums)
    return (sums[0] / sums[1]).item()


class EarlyStopping:
    """Fed with the mean over all ranks, it says the same on all of them."""

    def __init__(self, patience: int) -> None:
        self.patience, self.best, self.waited = patience, float("inf"), 0

    def shall_stop(self, val_loss: float) -> bool:
        self.waited = 0 if val_loss < self.best else self.waited + 1
        self.best = min(val_loss, self.best)
        return self.waited > self.patience

    def state_dict(self) -> dict:
        return dict(vars(self))

    def load_state_dict(self, state: dict) -> None:
        vars(self).update(state)


def macro_f1(targets: Tensor, guesses: Tensor, classes: int) -> float:
    """Sum what F1 is made of over the ranks, then divide once."""
    pairs = torch.bincount(targets * classes + guesses, minlength=classes * classes)
    dist.all_reduce(pairs)
    confusion = pairs.view(classes, classes)
    f1 = 2 * confusion.diagonal() / (confusion.sum(0) + confusion.sum(1)).clamp(min=1)
    return f1.mean().item()


def from_all_ranks(values: Tensor) -> Tensor:
    """All predictions on each rank, for what needs them at once: AUC, mAP, a CSV."""
    parts = [None] * dist.get_world_size()
    dist.all_gather_object(parts, values.cpu())
    return torch.cat(parts)


def make_ema(ddp_model: DistributedDataParallel) -> AveragedModel:
    """After DDP has given all ranks the weights of rank 0, from the model inside it."""
    return AveragedModel(ddp_model.module, multi_avg_fn=get_ema_multi_avg_fn(0.999))


def same_buffers(model: nn.Module) -> None:
    """Before evaluation: the running statistics of rank 0, whose model is saved."""
    for buffer in model.buffers():
        dist.broadcast(buffer, src=0)


def generator_loss(discriminator: DistributedDataParallel, fake: Tensor) -> Tensor:
    """The step of the generator needs no gradients of the discriminator: go round DDP."""
    return nn.functional.softplus(-discriminator.module(fake)).mean()


def step_in_fp16(
    loss: Tensor, optimizer: Optimizer, scaler: torch.amp.GradScaler, model: nn.Module
) -> None:
    """An overflow on one rank is in the average, so all ranks skip the step together."""
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)  # before the clipping, which is for true gradients
    nn.utils.clip_grad_norm_(model.parameters(), max_norm=1.0)
    scaler.step(optimizer)
    scaler.update()


def log_loss(write: Callable[[float, int], None], loss: Tensor, step: int) -> None:
    """All ranks take part in the mean; rank 0 alone has a writer that is used."""
    loss = loss.detach().clone()
    dist.all_reduce(loss)
    if dist.get_rank() == 0:
        write(loss.item() / dist.get_world_size(), step)


def save(path: str, model: DistributedDataParallel, epoch: int, **others: object) -> None:
    """Everything with a memory: optimizer, scheduler, scaler, EarlyStopping, EMA."""
    state = {"model": model.module.state_dict(), "epoch": epoch + 1}
    for name, other in others.items():
        state[name] = other.state_dict()
    if dist.get_rank() == 0:
        torch.save(state, f"{path}.tmp")
        os.replace(f"{path}.tmp", path)  # never half a file


def load(path: str, model: nn.Module, **others: object) -> int:
    """Before DDP wraps the model. Returns the epoch to go on with."""
    state = torch.load(path, map_location="cpu", weights_only=True)
    model.load_state_dict(state["model"])
    for name, other in others.items():
        other.load_state_dict(state[name])
    return state["epoch"]
