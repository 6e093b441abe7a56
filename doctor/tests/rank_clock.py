"""A clock of each rank's own, for programs whose truth is known: time passes where they wait, and
nowhere else, whatever the machine does. Collectives bring the clocks of ranks together, and the
workers of a loader are reckoned, as far ahead as they are allowed to be.

install() comes before the doctor attaches: then what waits here lies in what it times.
"""

import functools
import math
import os
import random
import time
from types import SimpleNamespace

import torch
import torch.distributed as dist
from torch.utils.data.dataloader import _MultiProcessingDataLoaderIter as Workers

NOISES = {  # how much longer a wait takes, for two seconds of the machine; its state is kept
    "quiet": lambda luck, state: (0.0, 0.0),
    "some": lambda luck, state: (luck.gauss(0, 0.12), 0.0),
    "busy": lambda luck, state: (
        luck.gauss(0, 0.15) + math.log1p((luck.random() < 0.2) * luck.expovariate(1.5)), 0.0,
    ),
    "drift": lambda luck, state: (state + luck.gauss(0, 0.05), 0.9 * state + luck.gauss(0, 0.15)),
}  # fmt: skip
OWN = SimpleNamespace(all_reduce=dist.all_reduce, barrier=dist.barrier, save=torch.save)


class Over(BaseException):
    """All windows were measured."""


def begin(noise: str = "quiet", seed: int = 0) -> None:
    """Of a new program."""
    global now, collective, saving, load, until, state, luck, own, kind, through, bandwidth, hop
    now = until = state = through = 0.0  # through: when all that DDP has sent is there
    bandwidth, hop = math.inf, 0.0  # bytes a second of a rank's link, and seconds of a hop
    collective = saving = 0.0  # seconds of a collective of the script's own, and of torch.save
    load, kind = 1.0, noise
    luck = random.Random(seed)  # of the machine, so the same on all ranks
    own = random.Random(f"{seed} {os.environ.get('RANK')}")


def clock() -> float:
    return now


def wait(seconds: float) -> None:
    global now
    now += seconds * slower()


def slower() -> float:
    global load, until, state
    while now >= until:
        until += 2
        load, state = NOISES[kind](luck, state)
    return 1.0 if kind == "quiet" else math.exp(load + own.gauss(0, 0.03))


def meet(seconds: float = 0.0) -> None:
    """All ranks come here, and go on together."""
    global now
    if dist.get_world_size() > 1:
        latest = torch.tensor([now], dtype=torch.float64)
        OWN.all_reduce(latest, op=dist.ReduceOp.MAX)
        now = float(latest)
        wait(seconds)


def link(ddp: object, seconds: float = 0.0) -> None:
    """DDP's all-reduce takes so long, and nothing hides it."""

    def average(_: object, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        meet(seconds)
        OWN.all_reduce(bucket.buffer().div_(dist.get_world_size()))
        future = torch.futures.Future()
        future.set_result(bucket.buffer())
        return future

    ddp.register_comm_hook(None, average)


def sending(tensor: torch.Tensor) -> float:
    """Seconds that a ring takes for it."""
    ranks = dist.get_world_size()
    return 2 * (ranks - 1) * (hop + tensor.nbytes / ranks / bandwidth)


def overlapped(ddp: object) -> None:
    """DDP's all-reduces take their time one after the other, and backward goes on beside them."""

    def average(_: object, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        global through
        latest = torch.tensor([now], dtype=torch.float64)
        OWN.all_reduce(latest, op=dist.ReduceOp.MAX)
        through = max(through, float(latest)) + sending(bucket.buffer()) * slower()
        OWN.all_reduce(bucket.buffer().div_(dist.get_world_size()))
        future = torch.futures.Future()
        future.set_result(bucket.buffer())
        return future

    ddp.register_comm_hook(None, average)


def sent() -> None:
    """The end of backward, where DDP waits for its all-reduces."""
    wait_until(through)


class Works(torch.autograd.Function):
    """What a layer makes takes its time forwards, and twice that backwards."""

    @staticmethod
    def forward(ctx: object, made: torch.Tensor, seconds: float) -> torch.Tensor:
        wait(seconds)
        ctx.seconds = seconds
        return made.view_as(made)

    @staticmethod
    def backward(ctx: object, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        wait(2 * ctx.seconds)
        return gradient, None


def install() -> None:
    begin()

    def together(call: object) -> object:
        @functools.wraps(call)
        def wrapper(*args: object, **kwargs: object) -> object:
            meet(collective + sending(torch.as_tensor(args[0] if args else 0.0)))
            return call(*args, **kwargs)

        return wrapper

    def save(*args: object, **kwargs: object) -> None:
        wait(saving)
        OWN.save(*args, **kwargs)

    dist.all_reduce, dist.barrier, torch.save = (
        together(OWN.all_reduce),
        together(OWN.barrier),
        save,
    )
    own_reset, own_data = Workers._reset, Workers._next_data

    def reset(one: object, loader: object, first_iter: bool = False) -> None:
        own_reset(one, loader, first_iter)
        one._from = now + (getattr(loader.dataset, "start_seconds", 0.0) if first_iter else 0.0)
        one._done, one._taken = [], []

    def next_data(one: object) -> object:
        data, count = own_data(one), one._num_workers
        ahead = one._prefetch_factor * count
        free = [one._from]  # since when a worker could begin with it
        free += [
            past[-far]
            for past, far in ((one._done, count), (one._taken, ahead))
            if len(past) >= far
        ]
        one._done.append(max(free) + slower() * getattr(one._dataset, "batch_seconds", 0.0))
        wait_until(one._done[-1])
        one._taken.append(now)
        return data

    Workers._reset, Workers._next_data = reset, next_data


def wait_until(moment: float) -> None:
    global now
    now = max(now, moment)


def read_by(windows: object, ends: bool = True) -> None:
    """The doctor's windows read this clock; the program ends with the last of them."""
    windows.time = SimpleNamespace(perf_counter=clock, monotonic=time.monotonic, sleep=time.sleep)
    turn = windows.Windows.turn

    def turn_or_end(one: object) -> None:
        turn(one)
        if ends and not one.plan:
            raise Over

    windows.Windows.turn = turn_or_end


begin()
