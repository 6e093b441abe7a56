"""--without growth: after each step the weights are put back, so that no rounding grows.

Where a run cannot compute in float64 (bfloat16, kernels of 4 bits), rounding is soon as large as a
mistake, because each step begins with weights that differ more. Of one and the same weights, two
runs differ in each step by the rounding of that step alone. The optimizer keeps its state.
"""

import weakref
from collections.abc import Callable

import torch

from ..recorder.figures import capturing
from ..recorder.notes import notes, without
from ..recorder.training import parameters_of

kept = weakref.WeakKeyDictionary()  # an optimizer in its step -> its parameters, copied


def before_every_step(probe: str, register: Callable) -> None:
    register(lambda optimizer, *_: notes.call(probe, keep, optimizer))


def after_every_step(probe: str, register: Callable) -> None:
    register(lambda optimizer, *_: notes.call(probe, put_back, optimizer))


def keep(optimizer: object) -> None:
    if without("growth") and optimizer not in kept and not capturing():
        kept[optimizer] = [p.detach().clone() for p in parameters_of(optimizer)]


def put_back(optimizer: object) -> None:
    for p, before in zip(parameters_of(optimizer), kept.pop(optimizer, ()), strict=False):
        with torch.no_grad():
            p.copy_(before)
