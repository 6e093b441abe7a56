"""What runs inside each process of the script, of --speed alone.

Steps are those of the optimizer that steps first. After WARM of them each rank tells how long one
takes, and waits until the doctor has planned for all: so windows begin at the same step on all
ranks. Each begins with steps that are not measured, until what the one before has left behind is
used up; in these, which nobody times, the device may be waited for at each batch. Weights stay as
they are: the rates are 0 while an optimizer steps.
"""

import functools
import gc
import json
import os
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from copy import deepcopy
from statistics import median
from weakref import WeakKeyDictionary, WeakSet, ref

import torch
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)
from torch.utils.data import BatchSampler

from ..recorder import ending
from ..recorder.collectives import tensors_in
from ..recorder.contents import length_of
from ..recorder.hooks import Probe, hook
from ..recorder.notes import notes, place
from . import KINDS, PLAN, WARM
from .batches import KEPT, Batches, size_of
from .rent import buckets_of

PATIENCE = 120  # seconds that a rank waits for the plan
# Of the steps of a window that are timed; bytes are those that DDP averages, collectives those of
# the script, in which a rank has waited so many seconds.
COUNTED = ("steps", "samples", "batches", "bytes", "seconds", "collectives", "waited")
COLLECTIVES = "all_reduce broadcast reduce all_gather all_gather_into_tensor reduce_scatter_tensor"
COLLECTIVES += " all_to_all_single all_to_all gather scatter barrier all_gather_object"
COLLECTIVES += " broadcast_object_list gather_object scatter_object_list reduce_scatter"


class Windows:
    def __init__(self) -> None:
        self.main = None  # the optimizer whose steps count
        self.steps = self.number = self.made = 0  # of all; windows; steps of this one
        self.plan = None
        self.kind = KINDS[0]
        self.since = None  # when the part of a window began that is timed
        self.part, self.measured = Counter(), Counter()  # it, and the window so far
        self.stamps = []  # of the part: when collectives began and ended
        self.rates = []  # of each optimizer that steps: one may call another one
        self.wrapped = WeakSet()  # DDP's models
        self.trained = WeakKeyDictionary()  # a loader that steps learned from -> its kept batches
        self.gave = set()  # loaders that gave a batch since the latest step
        self.asked = self.calls = False  # a loader or a collective, which may ask another one
        self.what, self.at = "steps", 0.0  # what time goes into, and since when
        self.spent = Counter()  # seconds outside of steps, since the latest of them
        self.given = 0  # batches of this pass so far
        self.handed = None  # when a batch was, until a forward pass begins
        self.evaluated = -2  # steps before the latest forward pass of an evaluation
        self.loop = None  # seconds of this step that went by between the two
        self.work = 0  # numbers in the batches of this step
        self.weights, self.hooks = {}, []  # of a weight's id its bytes, and its device
        self.came = [{}]  # of each of the first steps, by id when gradients were there
        self.now = None  # a reference to the pass over the first loader
        self.tries = 3  # to time it alone, as a pass may have too few batches left
        self.extra = 0  # batches that the next window has before it is measured
        self.open_window()

    def open_window(self) -> None:
        self.made = 0
        self.measured = Counter()
        self.within, self.between = Counter(), Counter()  # seconds in a pass, and between two
        self.passes = self.passed = 0  # that have begun, and batches that the ones before had
        self.loops, self.works = [], []

    # ---- steps ----

    def before_step(self, optimizer: object, *_: object) -> None:
        rates = []
        for group in optimizer.param_groups:
            for weight in group["params"] if self.plan is None else ():
                if weight.requires_grad and id(weight) not in self.weights:
                    size = weight.numel() * weight.element_size()
                    self.weights[id(weight)] = size, weight.device
                    self.hooks.append(weight.register_post_accumulate_grad_hook(self.note_gradient))
            rate = group.get("lr")
            if rate is not None:
                rates.append((group, deepcopy(rate)))
                group["lr"] *= 0  # a tensor stays the same one
        self.rates.append(rates)

    def after_step(self, optimizer: object, *_: object) -> None:
        for group, rate in self.rates.pop():
            same = isinstance(rate, torch.Tensor)
            group["lr"] = group["lr"].copy_(rate) if same else rate
        self.main = self.main or optimizer
        if optimizer is not self.main:
            return
        self.steps += 1
        for loader in self.gave:
            if loader not in self.trained:  # one that is made anew for each epoch, say
                self.trained[loader] = Batches()
                self.what = "start" if self.what == "evaluation" else self.what
                self.resume(loader, 0)
        self.gave.clear()
        if self.what == "other":  # of a batch that was fetched before the pass had come to its end
            self.what = "steps"
        self.turn_to("steps")
        if not self.trained:  # no batch tells that a step has begun
            self.within.update(self.spent)
            self.spent.clear()
        self.part["steps"] += 1
        if self.since is not None:
            self.works.append(self.work)
        elif self.loop is not None:
            self.loops.append(self.loop)
        self.loop = self.handed = None
        self.work = 0
        if self.plan is None:
            self.came.append({})
            self.warm()
        elif self.plan:
            self.turn()

    def warm(self) -> None:
        if self.steps == WARM - 3:
            self.go_on()
        if self.steps < WARM:
            return
        self.pause()
        steps, batches = (max(1, self.measured[name]) for name in ("steps", "batches"))
        each, (rank, world), loaders = max(1, round(batches / steps)), place(), list(self.trained)
        params = [p for group in self.main.param_groups for p in group["params"]]
        sharded = any(hasattr(p, "device_mesh") or "Flat" in type(p).__name__ for p in params)
        queued = [one.num_workers * (one.prefetch_factor or 0) for one in loaders]
        ready = {"rank": rank, "world": world, "cpus": list(os.sched_getaffinity(0)), "each": each}
        ready |= {"seconds": self.measured["seconds"] / steps, "ends": any(map(length_of, loaders))}
        ready |= {"queued": max(queued, default=0) // each, "ddp": len(self.wrapped)}
        ready |= self.gradients()
        ready |= {"loaders": len(loaders), "device": params[0].device.type}
        workers = max((one.num_workers for one in loaders), default=-1)
        notes.event("ready", sharded=sharded, workers=workers, **ready)
        for one in outermost(set(map(id, params))):
            one.register_forward_pre_hook(begin_forward)
            inner = one.module if one in self.wrapped else one  # which evaluations may call
            if inner is not one and not (inner._compiled_call_impl or hasattr(inner, "_orig_mod")):
                inner.register_forward_pre_hook(begin_forward)
        self.plan = read_plan()
        self.open_window()
        self.spent.clear()

    def turn(self) -> None:
        """The end of a step: of what does the next one belong to?"""
        self.made += 1
        settle = self.plan["settle"][self.kind] + -(-self.extra // self.plan["each"])
        if self.made < settle + self.plan["steps"]:
            if self.made >= settle and self.since is None:
                self.go_on()
            return
        self.pause()
        row = {name: self.measured[name] for name in COUNTED} | {"made": self.made}
        self.extra = 0
        if self.kind == KINDS[0] and self.plan["pieces"]:  # what follows uses no queue of a loader
            row |= self.exchange() if self.wrapped and place()[1] > 1 else {}
            row["pulled"] = self.pull() if self.tries and self.plan["drains"] else None
            self.tries = 0 if row["pulled"] is not None else max(0, self.tries - 1)
        if self.kind == "input" and self.plan["drains"]:
            self.drain()
        row |= {"within": self.within, "between": self.between, "passes": self.passes}
        row |= {"passed": self.passed, "loop": median(self.loops) if self.loops else None}
        row["works"] = self.works if len(set(self.works)) > 1 and self.kind == KINDS[0] else []
        notes.event("window", n=self.number, kind=self.kind, **row)
        self.open_window()
        self.number += 1
        kinds = self.plan["kinds"]
        self.kind = kinds[self.number % len(kinds)]
        if self.number == len(kinds) * self.plan["rounds"]:
            self.plan = {}
            notes.event("over")

    def go_on(self) -> None:
        """The clock goes on, at the end of a step."""
        wait_for_device()
        self.part.clear()
        self.stamps.clear()
        self.since = time.perf_counter()

    def pause(self) -> None:
        """The clock stops: at the end of a window, or where something else than a step begins."""
        if self.since is None:
            return
        wait_for_device()
        self.part["seconds"] = time.perf_counter() - self.since
        self.part["waited"] = sum(seconds_between(a, b) for a, b in self.stamps)
        if self.part["steps"]:
            self.measured.update(self.part)
        self.since = None

    def turn_to(self, what: str) -> None:
        """All of the time is told apart: it goes into steps, or into what is outside of them."""
        if what != self.what:
            now = time.perf_counter()
            if self.what != "steps":
                self.spent[self.what] += now - self.at
            self.what, self.at = what, now

    # ---- what more GPUs would need ----

    def note_gradient(self, weight: torch.Tensor) -> None:
        before = self.came[-1].pop(id(weight), [])  # of batches that are accumulated
        self.came[-1][id(weight)] = [*before, stamp()]

    def gradients(self) -> dict:
        """Of DDP's buckets, in the order in which they fill, their bytes, and the seconds that they
        are full before the last one; and how many backward passes a step has."""
        for one in self.hooks:
            one.remove()
        early, backwards = {}, [0]
        for came in self.came[-4:-1]:
            last = list(came.values())[-1:]
            for weight, when in came.items():
                early.setdefault(weight, []).append(seconds_between(when[-1], last[0][-1]))
                backwards.append(len(when))
        known = [(self.weights[weight][0], median(times)) for weight, times in early.items()]
        self.came = [{}]
        buckets = buckets_of(sorted(known, key=lambda one: -one[1]))
        return {"gradients": buckets, "backwards": max(backwards)}

    def all_reduce(self, *sizes: int) -> float:
        """Seconds that it takes with nothing beside it, for so many bytes."""
        *_, (_, device) = self.weights.values()
        tensor = torch.zeros(max(sizes) // 4, device=device)
        wait_for_device()
        begin = time.perf_counter()
        for size in sizes:
            torch.distributed.all_reduce(tensor[: size // 4], group=self.group())
        wait_for_device()
        return time.perf_counter() - begin

    def group(self) -> object:
        """DDP's own, whose backend knows where the weights are."""
        return next(iter(self.wrapped)).process_group

    def exchange(self) -> dict:
        self.all_reduce(4)  # all ranks are here then
        pieces = self.plan["pieces"]
        return {"hop": self.all_reduce(4), "sent": self.all_reduce(*pieces), "pieces": pieces}

    def take(self, count: int) -> bool:
        """Batches of the first loader away; whether its pass has ended, or there is none."""
        one = self.now and self.now()
        kept = None if one is None else self.trained.get(one._doctor[0])
        if kept is None or len(kept.all) < KEPT:
            return True
        self.asked = True
        try:
            for _ in range(count):
                self.own_next(one)
                one._doctor[2] -= 1
        except StopIteration:
            return True
        finally:
            self.asked = False
        return False

    def drain(self) -> None:
        """Takes away what workers have made while nobody asked for it, in place of batches that
        came again."""
        late = max(0.005, self.plan["seconds"] / 4)  # for a batch that was there
        for _ in range(self.plan["queued"]):
            one, begin = self.now and self.now(), time.perf_counter()
            ended = one is None or one._doctor[2] <= 0 or self.take(1)
            if self.worst(ended or time.perf_counter() - begin > late):
                return

    def pull(self) -> float | None:
        """Seconds of a batch that the loader gives with nothing beside it, after those that its
        workers had ready. As many come again in the window after it."""
        ready, count = self.plan["pull"]
        self.extra += ready + count
        ended = self.take(ready)
        begin = time.perf_counter()
        ended = self.take(count) or ended
        seconds = time.perf_counter() - begin
        return None if self.worst(ended) else seconds / count

    def worst(self, state: int) -> int:
        """Of all ranks, so that all take as many batches."""
        if place()[1] == 1:
            return state
        *_, (_, device) = self.weights.values()
        worst = torch.tensor(float(state), device=device)
        torch.distributed.all_reduce(worst, torch.distributed.ReduceOp.MAX, self.group())
        return int(worst)

    # ---- batches ----

    def begin_pass(self, own: Callable, loader: object) -> object:
        self.pause()
        self.turn_to("start" if loader in self.trained else "evaluation")
        found = own(loader)
        with suppress(AttributeError):  # of a loader that is no torch's
            found._doctor = [loader, 0, 0]
        return found

    def hand_out(self, own: Callable, one: object) -> object:
        """A batch of the pass, which ends after as many as it always has."""
        loader, count, behind = getattr(one, "_doctor", None) or (None, 0, 0)
        if loader is None or self.asked:
            return own(one)
        kept = self.trained.get(loader)
        self.asked = True
        try:
            comes_again = self.kind == "input" and kept is not None and len(kept.all) == KEPT
            if count == length_of(one) and (comes_again or behind):
                raise StopIteration
            if comes_again:
                batch = kept.next()
                one._doctor[2] += 1
            else:
                batch = own(one)
                if kept is not None:
                    kept.keep(batch)
        except StopIteration:
            self.gave.discard(loader)  # an evaluation comes to its end, training goes on
            self.pause()
            self.turn_to("other")
            raise
        finally:
            self.asked = False
        one._doctor[1] += 1
        told = getattr(loader.batch_sampler, "batch_size", None)
        # A data set may give whole batches: then a loader's batch is one of them.
        told = None if told == 1 else told
        whole = type(loader.batch_sampler) is BatchSampler and count + 1 != length_of(one)
        self.part["samples"] += told if told and whole else size_of(batch, told)
        self.part["batches"] += 1
        if torch.is_grad_enabled():
            self.gave.add(loader)
            self.work += sum(value.numel() for value in tensors_in(batch))
            if kept is not None:
                self.now = self.now if loader is not next(iter(self.trained)) else ref(one)
                self.resume(loader, count)
        return batch

    def resume(self, loader: object, count: int) -> None:
        """A batch to learn from: a step has begun, and what was outside is told."""
        self.turn_to("steps")
        if loader is next(iter(self.trained)):  # of several one counts passes
            if not count:
                self.passes += 1
                self.passed += self.given
            (self.within if count else self.between).update(self.spent)
            self.spent.clear()
            self.given = count + 1
        if self.plan and self.since is None:
            wait_for_device()
            self.handed = time.perf_counter()

    # ---- what else takes time ----

    def forward(self, model: torch.nn.Module) -> None:
        """A forward pass begins. Where no batch was given since the latest step, one in eval mode
        without gradients is an evaluation, unless the steps before had one, too."""
        if self.handed is not None:
            wait_for_device()
            self.loop = (self.loop or 0.0) + time.perf_counter() - self.handed
            self.handed = None
        if model.training or torch.is_grad_enabled():
            if not self.trained and not self.gave:  # a loader may be made anew for each epoch
                self.turn_to("steps")
        elif not self.gave:
            often, self.evaluated = self.steps <= self.evaluated + 1, self.steps
            if not often:
                self.save("evaluation")

    def save(self, what: str) -> None:
        if threading.current_thread() is threading.main_thread():
            self.pause()
            self.turn_to(what)

    def call(self, own: Callable, counts: bool, args: tuple, kwargs: dict) -> object:
        """A collective of the script's own, or the wait for one: a late rank waits least."""
        if self.since is None or self.calls:
            return own(*args, **kwargs)
        self.calls = True
        self.part["collectives"] += counts
        begin = stamp()
        try:
            return own(*args, **kwargs)
        finally:
            self.stamps.append((begin, stamp()))
            self.calls = False


def outermost(weights: set[int]) -> list:
    """Modules that hold one of these weights, and that no other module holds."""
    found = [one for one in gc.get_objects() if issubclass(type(one), torch.nn.Module)]
    inner = {id(child) for one in found for child in one.children()}
    return [
        one for one in found
        if id(one) not in inner and not one._compiled_call_impl  # which would be compiled anew
        and any(id(p) in weights for p in one.parameters())
    ]  # fmt: skip


def wait_for_device() -> None:
    if torch.accelerator.is_available():
        torch.accelerator.synchronize()


def stamp() -> object:
    """Now; on a device, where a call returns at once, as soon as its queue has come to here."""
    if not torch.accelerator.is_available():
        return time.perf_counter()
    event = torch.Event(torch.accelerator.current_accelerator(), enable_timing=True)
    event.record()
    return event


def seconds_between(a: object, b: object) -> float:
    return b - a if isinstance(a, float) else a.elapsed_time(b) / 1000


def read_plan() -> dict:
    """What the doctor has planned when all ranks were ready; nothing, if it does not answer."""
    path = os.path.join(notes.folder, PLAN)
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
    windows.own_next = own_next
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
            windows.part["bytes"] += size * ddp.require_backward_grad_sync

        # Once in a backward pass: the largest one is hardly without a gradient.
        max(weights, key=torch.numel).register_post_accumulate_grad_hook(count)

    setattr(kind, name, property(read, write))
    hook(probe, kind, "__init__", after=note)


def time_collectives(probe: str, module: object) -> None:
    def attach(owner: object, name: str) -> None:
        own, counts = getattr(owner, name), owner is module

        @functools.wraps(own)
        def wrapper(*args: object, **kwargs: object) -> object:
            return windows.call(own, counts, args, kwargs)

        setattr(owner, name, wrapper)

    for name in COLLECTIVES.split():
        attach(module, name)
    attach(module.Work, "wait")


def begin_forward(model: torch.nn.Module, *_: object) -> None:
    """A function, as a script may save its model with what is registered on it."""
    windows.forward(model)


def tell_steps(probe: str, _: object) -> None:
    def tell(*_: object, **__: object) -> None:
        if notes.pid == os.getpid() and windows.steps:
            notes.event("made", steps=windows.steps)

    hook(probe, ending, "note_end", before=tell)


windows = Windows()
PROBES = (
    Probe("batch", "torch.utils.data.dataloader", attach=follow),
    Probe("step", "torch.optim", attach=watch_steps),
    Probe("ddp", "torch.nn.parallel.DistributedDataParallel", attach=follow_ddp),
    Probe("collectives", "torch.distributed", attach=time_collectives),
    Probe(
        "save",
        "torch.save",
        lambda *_, **__: windows.save("saving"),
        lambda *_, **__: windows.save("other"),
    ),
    Probe("made", "atexit.register", attach=tell_steps),
    Probe("exit", "atexit.register", attach=ending.watch),
)
