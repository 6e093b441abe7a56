"""Batches: those that come again and again in windows without input, and how large one is."""

import copy
from collections import UserDict
from collections.abc import Callable

import torch

from ..recorder.collectives import tensors_in

KEPT = 4


class Batches:
    """The first ones of a loader. A script may change a batch in place: then it gets a copy of the
    copy that was made before."""

    def __init__(self) -> None:
        self.all = []  # of each: as it was handed out, a copy, and its versions then
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
    if isinstance(value, dict | UserDict):  # a BatchEncoding, say
        found = copy.copy(value)
        for key in value:
            found[key] = mapped(value[key], change)
        return found
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(mapped(one, change) for one in value))
    if type(value) in (list, tuple):
        return type(value)(mapped(one, change) for one in value)
    return change(value)


def copied(value: object) -> object:
    if not isinstance(value, torch.Tensor):
        return copy.deepcopy(value)
    found = value.detach().clone()
    return found.pin_memory() if value.device.type == "cpu" and value.is_pinned() else found


def versions(batch: object) -> list[int]:
    """Of its tensors: another number after each change in place."""
    return [value._version for value in tensors_in(batch)]


def size_of(batch: object, told: object = None) -> int:
    """Its samples. told: how many its sampler puts into a batch, which holds if a list or a tensor
    in this one is so long. (Of a list of images the first tensor's length is 3, its colours.)"""
    found = [len(value) for value in tensors_in(batch) if value.dim()]
    parts = [batch, *batch] if isinstance(batch, list | tuple) else []
    lists = [len(one) for one in parts if isinstance(one, list | tuple)]
    return told if told in found + lists else (found or lists or [1])[0]
