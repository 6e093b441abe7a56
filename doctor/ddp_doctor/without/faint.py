"""--without rounding: a gradient that is nothing but rounding is 0.

A bias of an attention's keys changes nothing that the attention returns. Its gradient is 0, and
comes out as 1e-17 or so, another number for each order of a sum. Adam divides it by its own size,
and makes a step of it all the same. With 0 in its place all goes on as exact arithmetic would have
it: moments, counts of steps and weight decay stay those of the optimizer.
"""

import weakref
from collections.abc import Callable

import torch

from ..recorder.figures import capturing
from ..recorder.notes import notes, without
from ..recorder.training import parameters_of, training

LEAST = 1e-10  # of the largest gradient: six digits below it, and as many above float64's last one

taken = weakref.WeakKeyDictionary()  # an optimizer -> places of the tensors, until they are told
told = weakref.WeakKeyDictionary()  # an optimizer -> places that are


def before_every_step(probe: str, register: Callable) -> None:
    def hook(optimizer: object, args: tuple, kwargs: dict) -> tuple | None:
        if not without("rounding"):
            return None
        if not any(map(callable, (*args[1:], *kwargs.values()))):
            notes.call(probe, take_out, optimizer)
            return None

        # Gradients are made inside the step then, by a closure.
        def followed(value: object) -> object:
            def closure() -> object:
                loss = value()
                notes.call(probe, take_out, optimizer)
                return loss

            return closure if callable(value) else value

        args = (*args[:1], *map(followed, args[1:]))
        return args, {name: followed(value) for name, value in kwargs.items()}

    register(hook)


def after_every_step(probe: str, register: Callable) -> None:
    register(lambda optimizer, *_: notes.call(probe, tell, optimizer))


def take_out(optimizer: object) -> None:
    """Only what is exact enough to tell: where a gradient is 0 by itself, nothing changes."""
    if capturing() or torch.compiler.is_compiling():
        return
    gradients = {}
    for n, p in enumerate(parameters_of(optimizer)):
        own = getattr(p.grad, "_local_tensor", p.grad)
        if own is not None and own.dtype == torch.float64 and not own.is_sparse:
            gradients[n] = own.detach()
    sizes = {n: float(torch.linalg.vector_norm(own)) for n, own in gradients.items()}
    least = LEAST * max(sizes.values(), default=0.0)
    faint = [n for n, size in sizes.items() if 0 < size < least < float("inf")]
    for n in faint:
        gradients[n].zero_()
    taken.setdefault(optimizer, set()).update(faint)


def tell(optimizer: object) -> None:
    """Its number is known after its first step."""
    known = told.setdefault(optimizer, set())
    new = taken.pop(optimizer, set()) - known
    if new and optimizer in training.optimizers:
        known |= new
        number = training.optimizers[optimizer]
        notes.event("rounded", n=training.steps, optimizer=number, places=sorted(new))
