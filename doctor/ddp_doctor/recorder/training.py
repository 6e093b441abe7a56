"""Optimizer steps: gradients, weights, learning rates, and the model that is trained."""

import gc
import os
import sys
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial, wraps
from itertools import count

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from . import collectives
from .collectives import trace
from .figures import capturing, figures, figures_of
from .given import inputs, noted
from .named import groups_of, note_fixed, note_layers, note_optimizer, note_state
from .notes import PADDING, compares, notes, user_line
from .others import all_modules, others
from .parameters import MOST, Emptied
from .parts import Parts, divided
from .seeds import seeds
from .states import generators
from .unset import unset
from .window import window

ALL_UNTIL = 20  # steps that are compared between ranks, each;
ALL_OF_TWO = 1000  # between two runs (--against);
EVERY = 10  # after them, each tenth
MOST_WHOLE = 1000  # figures of parameters that are whole beside parts of others
EARLY = 20  # until which it is noted, at most, what the first optimizer's first two steps draw
OTHERS = 4  # of the first, each fourth: what no optimizer changes


class Training:
    def __init__(self) -> None:
        self.steps = 0
        self.weighed = 0  # steps after which figures of the weights were written last
        self.latest = lambda: None  # the optimizer of the latest step
        self.gradients = None  # figures of them, until the step is done
        self.unclipped = {}  # a parameter's id -> its gradient's before clipping, and when
        self.parts = None  # what ranks have of the model
        self.spread = False  # the optimizer has a part of it, and all ranks have the whole
        self.fixed = []  # parameters of the model that no optimizer has; of runs that are compared
        self.cut = False  # ranks have parts
        self.fresh = None  # of parts: figures of gradients as the latest backward has left them
        self.closed = False  # a closure makes them inside the step, as Lightning's Trainer has it
        self.done = True  # a step() inside a step(), as Horovod has them, counts once
        self.outer = None  # groups of the outer one's parameters, until the step
        self.firsts = 0  # of these, steps of the first optimizer
        self.scheduler_numbers = count(1)
        self.optimizers = weakref.WeakKeyDictionary()  # -> the number of each
        self.renewed = 0  # how often one took another one's place
        self.kinds = {}  # a number -> class and shapes of its optimizer, and a reference to it
        self.emptied = weakref.WeakKeyDictionary()  # an optimizer -> what its gradients become
        self.thrown = 0  # gradients that were emptied before this step could use them
        self.before = 0  # steps, at the backward pass before
        self.divided = weakref.WeakKeyDictionary()  # an optimizer -> are its tensors parts?
        self.made = weakref.WeakKeyDictionary()  # an optimizer or DDP -> its line
        self.schedulers = weakref.WeakKeyDictionary()
        self.model = lambda: None  # that is trained, if it still exists
        self.moody = False  # it has layers that train and evaluate differently
        self.beside = 0  # parameters of optimizers in no model that DDP wraps
        self.wrapped = {}  # a parameter's id -> the node of the graph that DDP waits for
        self.scaled = False  # a GradScaler has multiplied the loss, and not divided the gradients

    def before_step(self, optimizer: object, args: tuple = (), kwargs: dict | None = None) -> None:
        closed = any(map(callable, (*args[1:], *(kwargs or {}).values())))
        if begins_state() or (not closed and self.begins_nothing(optimizer)):
            return
        notes.call("lost", trace.end)
        if self.steps == 0 and self.done:
            self.first_step(optimizer)

        if self.done and optimizer in self.emptied:
            self.thrown = self.emptied[optimizer].before_step()
        self.outer = optimizer.param_groups if self.done else self.outer
        self.done = False  # inside it, Horovod's calls this again, with averaged gradients
        if self.due() and not capturing():
            parameters = self.weigh(optimizer)
            if whole := self.whole(parameters):
                figures.write("whole", self.steps, figures_of(whole, min(len(whole), MOST_WHOLE)))
            self.closed = closed
            if not self.closed:
                self.gradients = gradients_of(parameters)
            self.find_unhooked(parameters)
            if self.steps % OTHERS == 0 and self.steps < ALL_UNTIL:
                others.write(self.steps)

    def begins_nothing(self, optimizer: object) -> bool:
        """Whether this step only makes the optimizer's state, to read a checkpoint into: nothing
        was trained before, and all gradients are 0."""
        if self.steps or window.backwards:
            return False
        gradients = [p.grad for p in parameters_of(optimizer)]
        own = [getattr(grad, "_local_tensor", grad) for grad in gradients if grad is not None]
        return not any(grad.any() for grad in own)

    def after_step(self, optimizer: object, *_: object) -> None:
        if self.done:
            return
        self.done = True
        self.scaled = False

        self.latest = weakref.ref(optimizer)
        parameters = parameters_of(optimizer)
        groups = optimizer.param_groups if self.steps == 0 else []
        rates = [group.get("lr") for group in optimizer.param_groups]
        # A scheduler may hold a wrapper: accelerate's, Lightning Fabric's; ZeRO is around one.
        held, self.outer = (optimizer.param_groups, self.outer), None
        mine = [s for s in self.schedulers if any(s.optimizer.param_groups is g for g in held)]
        self.steps += 1
        if optimizer not in self.optimizers:
            self.optimizers[optimizer] = self.number(optimizer, parameters)
            self.divided[optimizer] = any(map(divided, parameters))
            if compares():
                model = find_model(set(map(id, parameters)))
                note_optimizer(self.optimizers[optimizer], optimizer, model, self.parts)
        self.firsts += self.optimizers[optimizer] == 1
        early = self.steps <= 2 or (self.firsts <= 2 and self.steps <= EARLY)
        states = generators() if early else {}
        notes.event(
            "step",
            n=self.steps,
            at=user_line(),
            made=self.made.get(optimizer) or user_line(),
            optimizer=self.optimizers[optimizer],
            rates=[float(rate) for rate in rates if isinstance(rate, int | float)],
            parameters=len(parameters),
            without=sum(p.grad is None for p in parameters),
            settings=str([{k: v for k, v in g.items() if k != "params"} for g in groups]),
            schedules=[[self.schedulers[s], s.last_epoch] for s in mine],
            random=states,
            seeded=seeds.told() if early else {},
            left=self.emptied.setdefault(optimizer, Emptied()).after_step(parameters),
            thrown=self.thrown,
            trains=self.trains(),
            divided=self.divided[optimizer],
            **window.step(),
            **inputs.step(self.steps, states),
        )
        self.thrown = 0
        if self.closed:
            self.gradients = gradients_of(parameters)
        if self.gradients is not None:
            figures.write("gradients", self.steps, self.gradients)
            if self.fresh is not None:
                figures.write("fresh", self.steps, self.fresh)
            self.write_unclipped(parameters)
        self.gradients = self.fresh = None
        self.closed = False
        figures.drain(wait=False)

    def number(self, optimizer: object, parameters: list) -> int:
        """Of a new one, or that of the one which it replaces, as a restart in the process makes it:
        of the same class, for tensors of the same shapes, and gone."""
        kind = type(optimizer), [p.shape for p in parameters]
        alike = [(n, old) for n, (known, old) in self.kinds.items() if known == kind]
        early = (
            self.renewed < MOST
        )  # beyond it they are made in each step, say: a search costs time
        if early and alike and all(old() is not None for _, old in alike):
            gc.collect()  # it may hang in a cycle, with its scheduler say
        number = next((n for n, old in alike if old() is None), None)
        if number is None:
            number = len(self.kinds) + 1
        else:
            notes.event("restored")
            self.renewed += 1
            if early:
                self.train(find_model(set(map(id, parameters))))
        self.kinds[number] = kind, weakref.ref(optimizer)
        return number

    def train(self, model: object) -> None:
        """This model from now on."""
        self.model = (lambda: None) if model is None else weakref.ref(model)
        inputs.watch(model)
        if compares() and model is not None:
            self.fixed = note_fixed(model, ids_of(self.made), self.parts)

    def due(self) -> bool:
        each = ALL_OF_TWO if compares() else ALL_UNTIL
        return self.steps < each or (self.steps + 1) % EVERY == 0

    def whole(self, parameters: list) -> list:
        """What each rank has as a whole: of these, beside parts of others; or all of the model, of
        which its optimizer has a part."""
        if self.spread:
            return trainable(self.model())
        return [p for p in parameters if self.parts and id(p) in self.parts.whole]

    def weigh(self, optimizer: object, again: bool = False) -> list:
        """Figures of an optimizer's parameters, after so many steps; returns the parameters."""
        self.weighed = self.steps
        fixed = [p for known in self.fixed if (p := known()) is not None]
        if fixed and len(fixed) == len(self.fixed) and (again or self.steps % EVERY == 0):
            figures.write("fixed", self.steps, figures_of(fixed, len(fixed)))
        parameters = parameters_of(optimizer)
        groups = groups_of(len(parameters))
        figures.write("weights", self.steps, figures_of(parameters, groups))
        if compares():
            note_state(optimizer, self.steps)
        return parameters

    def weigh_again(self) -> None:
        """After the latest step, of which something is told now: it may have been the last one."""
        optimizer = self.latest() if notes.first == os.getpid() else None  # no fork of it
        if optimizer is not None and self.done and self.weighed < self.steps and not capturing():
            self.weigh(optimizer, again=True)

    def trains(self) -> bool:
        """Whether the model is in training mode, where that makes a difference."""
        model = self.model()
        model = getattr(model, "module", model)
        return getattr(model, "training", True) or not self.moody

    def before_backward(self, *_: object, **__: object) -> None:
        for emptied in self.emptied.values():
            emptied.before_backward(window.batches, self.steps > self.before)
        self.before = self.steps

    def after_change(self, *_: object, **__: object) -> None:
        """Gradients were changed in their place, by the script's order."""
        for emptied in self.emptied.values():
            emptied.after_change()

    def after_backward(self, *_: object, **__: object) -> None:
        if self.cut and len(self.optimizers) == 1 and self.steps < ALL_UNTIL and not capturing():
            self.fresh = gradients_of(parameters_of(*self.optimizers))
        for emptied in self.emptied.values():
            emptied.after_backward()

    def first_step(self, optimizer: object) -> None:
        if dist.is_initialized():
            collectives.note_rank()  # the group may have been made behind our back
        parameters = parameters_of(optimizer)
        model = find_model(set(map(id, parameters)))
        if model is None:
            model = model_in_parts(parameters)
        if model is None:
            return

        batches = torch.nn.modules.batchnorm._BatchNorm, torch.nn.modules.dropout._DropoutNd
        self.moody = any(isinstance(module, batches) for module in model.modules())
        zero = type(optimizer).__name__ == "ZeroRedundancyOptimizer"
        parts = Parts(model, parameters, zero)
        self.parts, self.cut = parts, "sharded" in parts.wrappers
        known = {*map(id, parameters), *ids_of(self.made)}
        self.spread = not self.cut and any(id(p) not in known for p in trainable(model))
        notes.call("to_empty", unset.tell, model)
        self.train(model)
        wrapped = [self.made[module] for module in model.modules() if module in self.made]
        notes.event(
            "model",
            at=wrapped[-1] if wrapped else self.made.get(optimizer) or user_line(),
            wrappers=parts.wrappers,
            group=parts.group,
            copies=parts.copies,
            sizes=[p.numel() for p in parameters],
            all=sum(p.numel() for p in trainable(model)),
            others=others.look(model, parameters),
            together=parts.together,
        )
        if compares():
            note_layers(model, parameters)

    def wrap(self, _: object, ddp: object, *args: object, **kwargs: object) -> None:
        """DDP waits for a node of the graph, which a parameter that is moved has anew."""
        self.made[ddp] = user_line(ddp)
        window.wrapped.add(ddp)
        for p in ddp.module.parameters():
            if p.requires_grad:
                self.wrapped[id(p)] = node(p)

    def find_unhooked(self, parameters: list) -> None:
        """Parameters with a gradient that came behind DDP's back."""
        if not self.wrapped:
            return
        mine = [p for p in parameters if p.grad is not None and p.requires_grad]
        known = [p for p in mine if id(p) in self.wrapped]
        lost = [p for p in known if self.wrapped[id(p)] is not node(p)]
        inside = {id(p) for ddp in list(window.wrapped) for p in ddp.module.parameters()}
        other = [p for p in mine if id(p) not in self.wrapped]
        new = sum(id(p) in inside for p in other)
        if lost or new or (len(other) > self.beside):
            self.beside = len(other)
            notes.event("unhooked", new=new, moved=len(lost), beside=len(other) - new)
        if lost or new:
            self.wrapped.clear()  # once is enough

    def buffers(self, number: int) -> None:
        """BatchNorm's statistics, if this pass evaluates with them."""
        model = self.model()
        if model is None:  # some models have no bool()
            model = find_model(set())
        found = []
        for module in model.modules() if model is not None else []:
            if is_norm(module) and module.running_mean is not None and not module.training:
                found += [module.running_mean, module.running_var]
        if found:
            figures.write("buffers", number, figures_of(found))

    def new_optimizer(self, _: object, optimizer: object, *args: object, **kw: object) -> None:
        self.made[optimizer] = user_line(optimizer)
        if compares() and not self.steps:
            inputs.watch(find_model(set(map(id, parameters_of(optimizer)))))

    def restored(self, _: object, optimizer: object, *args: object, **kw: object) -> None:
        if optimizer in self.optimizers:
            notes.event("restored")

    def new_scheduler(self, _: object, scheduler: object, *args: object, **kw: object) -> None:
        lengths = [getattr(scheduler, n, None) for n in ("T_max", "total_steps", "total_iters")]
        self.schedulers[scheduler] = next(self.scheduler_numbers)
        notes.event(
            "scheduler",
            id=self.schedulers[scheduler],
            at=user_line(scheduler),
            kind=type(scheduler).__name__,
            length=next((length for length in lengths if isinstance(length, int)), None),
        )

    def scale(self, scaler: object, *args: object) -> None:
        self.scaled = scaler.is_enabled()

    def unscale(self, scaler: object, *args: object) -> None:
        self.scaled = False

    def clip(self, parameters: object) -> None:
        notes.event("clip", at=user_line(), scaled=self.scaled)
        if not compares() or not self.due() or capturing():
            return
        when = (self.steps, window.backwards)  # a second clip behind one backward pass finds less
        for p in parameters if isinstance(parameters, list) else [parameters]:
            _, latest = self.unclipped.get(id(p), (None, None))
            if p.grad is not None and latest != when:
                self.unclipped[id(p)] = figures_of([p.grad], 1)[0], when

    def write_unclipped(self, parameters: list) -> None:
        found = [self.unclipped.pop(id(p), None) for p in parameters]
        if any(found) and len(found) == len(self.gradients):
            rows = zip(found, self.gradients, strict=True)
            rows = [own[0].to(row.device) if own else row for own, row in rows]
            figures.write("unclipped", self.steps, torch.stack(rows))


def begins_state() -> bool:
    """Whether this is no step of the script: torch.distributed.checkpoint makes the state of an
    optimizer by a step of rate 0, with gradients of 0."""
    names = []
    frame = sys._getframe(1)
    while frame and len(names) < 12:
        names.append(frame.f_code.co_name)
        frame = frame.f_back
    return "_init_optim_state" in names


def parameters_of(optimizer: object) -> list:
    return [p for group in optimizer.param_groups for p in group["params"]]


def ids_of(made: Iterable) -> set[int]:
    """Of the parameters of all optimizers among these."""
    optimizers = [one for one in made if isinstance(one, torch.optim.Optimizer)]
    return {id(p) for one in optimizers for p in parameters_of(one)}


def gradients_of(parameters: list) -> object:
    """Figures of them."""
    groups = groups_of(len(parameters))
    gradients = [p.grad for p in parameters]
    if groups != len(parameters):
        gradients = [grad for grad in gradients if grad is not None]
    return figures_of(gradients, groups)


def is_norm(module: object) -> bool:
    """BatchNorm of torch or of another library; other modules may keep a running_mean, too."""
    known = isinstance(module, torch.nn.modules.batchnorm._NormBase)
    return known or ("BatchNorm" in type(module).__name__ and hasattr(module, "running_var"))


def node(parameter: object) -> object:
    """Where the graph adds to this parameter's gradient."""
    with torch.enable_grad():
        return parameter.expand_as(parameter).grad_fn.next_functions[0][0]


def find_model(parameters: set[int]) -> object:
    """What DDP wraps, else the outermost module, that holds one of these parameters (of any: the
    largest). Around DDP's there may be one that holds an average of the weights as well."""
    modules = all_modules()
    inner = {id(child) for module in modules for child in module._modules.values()}
    ddp = DistributedDataParallel
    outer = [module for module in modules if isinstance(module, ddp) or id(module) not in inner]
    if parameters:
        outer = [m for m in outer if any(id(p) in parameters for p in m.parameters())]

    def weight(module: torch.nn.Module) -> tuple[bool, int]:
        return isinstance(module, ddp), len(list(module.parameters()))

    return max(outer, key=weight, default=None)


def trainable(model: object) -> list:
    return [p for p in model.parameters() if p.requires_grad] if model is not None else []


def model_in_parts(parameters: list) -> object:
    """The model of whose numbers these are this rank's share, flat, as in a ZeRO of one's own."""
    model = find_model(set())
    count = sum(p.numel() for p in trainable(model))
    ranks = dist.get_world_size() if dist.is_initialized() else 1
    share = sum(p.numel() for p in parameters) * ranks
    return model if count and abs(share / count - 1) < PADDING else None


training = Training()


def before_every_step(probe: str, register: Callable) -> None:
    register(partial(notes.call, probe, training.before_step))


def after_every_step(probe: str, register: Callable) -> None:
    register(partial(notes.call, probe, training.after_step))


def watch_forward(probe: str, own: Callable) -> None:
    """Of the class: a hook of a model would be copied and saved with it."""

    @wraps(own)
    def forward(ddp: object, *args: object, **kwargs: object) -> object:
        if torch.compiler.is_compiling():
            return own(ddp, *args, **kwargs)
        notes.call(probe, window.forward, args, kwargs)
        return noted(probe, partial(own, ddp), *args, **kwargs)

    DistributedDataParallel.forward = forward


def watch_clips(probe: str, utils: object) -> None:
    def telling(own: Callable) -> Callable:
        @wraps(own)
        def clip(parameters: object, *args: object, **kwargs: object) -> object:
            if compares() and not isinstance(parameters, torch.Tensor):
                parameters = list(parameters)  # a generator is read once
            notes.call(probe, training.clip, parameters)
            result = own(parameters, *args, **kwargs)
            notes.call("emptied", training.after_change)
            return result

        return clip

    for name in ("clip_grad_norm_", "clip_grad_value_", "clip_grads_with_norm_"):
        if own := getattr(utils, name, None):  # the last one is not in torch 2.6
            setattr(utils, name, telling(own))
            setattr(utils.clip_grad, name, getattr(utils, name))


def watch_no_sync(probe: str, own: Callable) -> None:
    before = 0

    def entered(ddp: object) -> None:
        nonlocal before
        before = window.backwards

    def left(ddp: object) -> None:
        # A forward pass inside would have set this to False.
        if window.backwards > before and ddp.require_forward_param_sync:
            notes.event("no_sync", at=user_line())

    @contextmanager
    def no_sync(ddp: object) -> Iterator[None]:
        notes.call(probe, entered, ddp)
        with own(ddp):
            yield
        notes.call(probe, left, ddp)

    DistributedDataParallel.no_sync = no_sync
