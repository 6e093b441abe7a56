"""What runs inside each process of the script, of --speed alone.

Steps are those of the optimizer that steps first. After WARM of them each rank tells how long one
takes, and waits until the doctor has planned for all: so windows begin at the same step on all
ranks. Each begins with steps that are not measured, until what the one before has left in the
loaders is used up. Weights stay as they are: the rates are 0 while an optimizer steps.
"""

import copy
import json
import os
import time
from collections.abc import Callable
from contextlib import suppress
from weakref import WeakKeyDictionary, WeakSet

import torch
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)
from torch.utils.data import BatchSampler

from ..recorder import ending
from ..recorder.hooks import Probe, hook
from ..recorder.notes import FOLDER, notes, place
from . import KINDS, PLAN

WARM = 6  # steps; of the last three the time is taken
KEPT = 4  # batches that come again
PATIENCE = 120  # seconds that a rank waits for the plan
NOTHING = (0, 0, 0, 0, 0.0)  # steps, samples, batches, bytes that DDP averages, seconds
COLLECTIVES = "all_reduce broadcast reduce all_gather all_gather_into_tensor reduce_scatter_tensor"
COLLECTIVES += " all_to_all_single all_to_all gather scatter barrier all_gather_object"
COLLECTIVES += " broadcast_object_list gather_object scatter_object_list reduce_scatter"


class Windows:
    def __init__(self) -> None:
        self.main = None  # the optimizer whose steps count
        self.steps = 0
        self.plan = None
        self.kind = KINDS[0]
        self.since = None  # when the part of a window began that is measured
        self.part = list(NOTHING)
        self.measured = NOTHING  # of the window so far
        self.rates = []  # of each optimizer that steps: one may call another one
        self.wrapped = WeakSet()  # DDP's models
        self.trained = WeakKeyDictionary()  # a loader that steps learned from -> its kept batches
        self.gave = set()  # loaders that gave a batch since the latest step
        self.asked = False  # a loader, which may ask another one
        self.called = 0  # collectives of the script

    # ---- steps ----

    def before_step(self, optimizer: object, *_: object) -> None:
        rates = []
        for group in optimizer.param_groups:
            rate = group.get("lr")
            if isinstance(rate, torch.Tensor):
                rates.append((group, rate.clone()))
                rate.zero_()
            elif rate is not None:
                rates.append((group, rate))
                group["lr"] = 0.0
        self.rates.append(rates)

    def after_step(self, optimizer: object, *_: object) -> None:
        for group, rate in self.rates.pop():
            if isinstance(rate, torch.Tensor):
                group["lr"].copy_(rate)
            else:
                group["lr"] = rate
        self.main = self.main or optimizer
        if optimizer is not self.main:
            return
        self.steps += 1
        for loader in self.gave:
            self.trained.setdefault(loader, Batches())
        self.gave.clear()
        self.part[0] += 1
        if self.plan is None:
            self.warm()
        elif self.plan:
            self.turn()

    def warm(self) -> None:
        if self.steps == WARM - 3:
            self.go_on()
        if self.steps < WARM:
            return
        self.pause()
        steps, _, batches, _, seconds = self.measured
        queued = [one.num_workers * (one.prefetch_factor or 0) for one in self.trained]
        each = max(1, round(batches / max(1, steps)))
        settle = max(queued, default=0) // each + 3
        notes.event("ready", seconds=seconds / max(1, steps), settle=settle, **self.facts())
        self.plan = read_plan()
        self.start = self.steps
        self.measured = NOTHING

    def turn(self) -> None:
        """The end of a step: of what does the next one belong to?"""
        settle, steps = self.plan["settle"], self.plan["steps"]
        window, place = divmod(self.steps - self.start, settle + steps)
        if place == settle or (place > settle and self.since is None):
            self.go_on()
        if place or not window:
            return
        self.pause()
        names = ("steps", "samples", "batches", "bytes", "seconds")
        row = {"kind": self.kind, "collectives": self.called}
        notes.event("window", n=window - 1, **row, **dict(zip(names, self.measured, strict=True)))
        self.measured, self.called = NOTHING, 0
        over = window == len(KINDS) * self.plan["rounds"]
        self.kind = KINDS[0] if over else KINDS[window % len(KINDS)]
        if over:
            self.plan = {}
            notes.event("over")

    def go_on(self) -> None:
        """The clock goes on, at the end of a step."""
        wait_for_device()
        self.part, self.since = list(NOTHING), time.perf_counter()

    def pause(self) -> None:
        """The clock stops: at the end of a window, or where something else than a step begins."""
        if self.since is None:
            return
        wait_for_device()
        self.part[4] = time.perf_counter() - self.since
        if self.part[0]:
            self.measured = [a + b for a, b in zip(self.measured, self.part, strict=True)]
        self.since = None

    def facts(self) -> dict:
        """What the doctor says beside the numbers."""
        rank, world = place()
        params = [p for group in self.main.param_groups for p in group["params"]]
        sharded = any(hasattr(p, "device_mesh") or "Flat" in type(p).__name__ for p in params)
        return {
            "rank": rank,
            "world": world,
            "workers": max((one.num_workers for one in self.trained), default=-1),
            "cpus": list(os.sched_getaffinity(0)),
            "ddp": len(self.wrapped),
            "sharded": sharded,
        }

    # ---- batches ----

    def begin_pass(self, own: Callable, loader: object) -> object:
        self.pause()
        found = own(loader)
        with suppress(AttributeError):  # of a loader that is no torch's
            found._doctor = [loader, 0]
        return found

    def hand_out(self, own: Callable, one: object) -> object:
        """A batch of the pass, which ends after as many as it always has."""
        loader, count = getattr(one, "_doctor", None) or (None, 0)
        if loader is None or self.asked:
            return own(one)
        kept = self.trained.get(loader)
        self.asked = True
        try:
            if self.kind == "input" and kept is not None and len(kept.all) == KEPT:
                if count == length(one):
                    raise StopIteration
                batch = kept.next()
            else:
                batch = own(one)
                if kept is not None:
                    kept.keep(batch)
        except StopIteration:
            self.gave.discard(loader)  # an evaluation comes to its end, training goes on
            self.pause()
            raise
        finally:
            self.asked = False
        one._doctor[1] += 1
        if torch.is_grad_enabled():
            self.gave.add(loader)
        sampler = loader.batch_sampler
        # A data set may give whole batches: then a loader's batch is one of them.
        known = type(sampler) is BatchSampler and sampler.batch_size > 1
        whole = known and count + 1 != length(one)
        self.part[1] += sampler.batch_size if whole else size_of(batch)
        self.part[2] += 1
        return batch


class Batches:
    """The first ones of a loader, which come again and again.

    A script may change a batch in place: then it gets a copy of the copy that was made before."""

    def __init__(self) -> None:
        self.all = []  # pairs: as it was handed out, and a copy
        self.given = 0

    def keep(self, batch: object) -> None:
        if len(self.all) < KEPT:
            self.all.append((batch, mapped(batch, copied), versions(batch)))

    def next(self) -> object:
        place = self.given % KEPT
        self.given += 1
        batch, as_it_was, before = self.all[place]
        if versions(batch) != before:
            batch = mapped(as_it_was, copied)
            self.all[place] = batch, as_it_was, versions(batch)
        return mapped(batch, lambda value: value)


def mapped(value: object, change: Callable) -> object:
    """The same containers anew, and change(what is in them)."""
    if isinstance(value, dict):
        found = copy.copy(value)
        for key in value:
            found[key] = mapped(value[key], change)
        return found
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(mapped(one, change) for one in value))
    if type(value) in (list, tuple):
        return type(value)(mapped(one, change) for one in value)
    if hasattr(value, "data") and isinstance(value.data, dict):  # a BatchEncoding, say
        found = copy.copy(value)
        found.data = mapped(value.data, change)
        return found
    return change(value)


def copied(value: object) -> object:
    if not isinstance(value, torch.Tensor):
        return copy.deepcopy(value)
    found = value.detach().clone()
    return found.pin_memory() if value.device.type == "cpu" and value.is_pinned() else found


def versions(batch: object) -> list[int]:
    """Of its tensors: another number after each change in place."""
    found = []
    mapped(batch, lambda value: found.append(getattr(value, "_version", 0)))
    return found


def size_of(batch: object) -> int:
    """Its samples: the length of its first tensor that has one."""
    found = []

    def look(value: object) -> None:
        if isinstance(value, torch.Tensor) and value.dim():
            found.append(len(value))

    mapped(batch, look)
    if isinstance(batch, list | tuple) and not found:
        return len(batch)
    return found[0] if found else 1


def length(one: object) -> int | None:
    with suppress(TypeError):
        return len(one)
    return None


def wait_for_device() -> None:
    if torch.accelerator.is_available():
        torch.accelerator.synchronize()


def read_plan() -> dict:
    """What the doctor has planned when all ranks were ready; nothing, if it does not answer."""
    path = os.path.join(os.environ[FOLDER], PLAN)
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        with suppress(OSError, ValueError), open(path) as file:
            return json.load(file)
        time.sleep(0.02)
    return {}


# ---- what it attaches to ----


def follow(probe: str, loaders: object) -> None:
    iterator, loader = loaders._BaseDataLoaderIter, loaders.DataLoader
    own_next, own_iter = iterator.__next__, loader.__iter__
    iterator.__next__ = lambda one: windows.hand_out(own_next, one)
    loader.__iter__ = lambda one: windows.begin_pass(own_iter, one)


def watch_steps(probe: str, _: object) -> None:
    register_optimizer_step_pre_hook(windows.before_step)
    register_optimizer_step_post_hook(windows.after_step)


def follow_ddp(probe: str, kind: type) -> None:
    name = "require_backward_grad_sync"

    def read(ddp: object) -> bool:
        return windows.kind != "communication" and ddp.__dict__.get(name, True)

    def write(ddp: object, value: bool) -> None:
        if windows.kind != "communication":  # no_sync, say, writes again what it has read
            ddp.__dict__[name] = value

    def note(_: object, ddp: object, *__: object, **___: object) -> None:
        windows.wrapped.add(ddp)
        weights = [p for p in ddp.module.parameters() if p.requires_grad]
        size = sum(p.numel() * p.element_size() for p in weights)

        def count(_: object) -> None:
            windows.part[3] += size * ddp.require_backward_grad_sync

        # Once in a backward pass: the largest one is hardly without a gradient.
        max(weights, key=torch.numel).register_post_accumulate_grad_hook(count)

    setattr(kind, name, property(read, write))
    hook(probe, kind, "__init__", after=note)


def count_collectives(probe: str, module: object) -> None:
    def count(*_: object, **__: object) -> None:
        windows.called += windows.since is not None

    for name in COLLECTIVES.split():
        hook(probe, module, name, before=count)


windows = Windows()
PROBES = (
    Probe("batch", "torch.utils.data.dataloader", attach=follow),
    Probe("step", "torch.optim", attach=watch_steps),
    Probe("ddp", "torch.nn.parallel.DistributedDataParallel", attach=follow_ddp),
    Probe("collectives", "torch.distributed", attach=count_collectives),
    Probe("exit", "atexit.register", attach=ending.watch),
)
