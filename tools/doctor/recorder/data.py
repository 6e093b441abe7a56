"""What loaders give: samples, targets, and the random numbers that items are made with."""

import functools
import hashlib
import os
import re
import sys
import time
import zlib
from collections import Counter, deque
from collections.abc import Iterator
from contextlib import suppress

import torch
from torch.utils.data import DataLoader, IterableDataset, Subset
from torch.utils.data._utils import fetch
from torch.utils.data.dataloader import _BaseDataLoaderIter

from .collectives import tensors_in
from .notes import hook, notes, user_line
from .randomness import generators
from .training import training

SEQUENCES = (list, tuple, range)
MOST_CONTENTS = 100  # batches of a pass whose items are looked at


class Data:
    def __init__(self) -> None:
        self.loaders = 0
        self.passes = 0
        self.making = 0  # the pass whose workers are being started
        self.fetched = Counter()  # pass -> batches that this process made for it
        self.states = None  # of random numbers, before a batch was made

    def new_loader(self, loader: object) -> None:
        if getattr(loader, "_doctor", (0, 0))[0] == os.getpid():
            return  # one from before a fork or a pickle is new to this process

        self.loaders += 1
        loader._doctor = (os.getpid(), self.loaders)

        iterable = isinstance(loader.dataset, IterableDataset)
        root = loader.dataset
        while isinstance(root, Subset):
            root = root.dataset
        sampler = getattr(loader, "sampler", None)
        notes.event(
            "loader",
            id=self.loaders,
            at=user_line(),
            iterable=iterable,
            length=None if iterable else length_of(loader.dataset),
            root=None if iterable else length_of(root),
            fingerprint=fingerprint(root),
            subset=fingerprint(loader.dataset) if root is not loader.dataset else "",
            numbered=dict(numbered(root)),
            sampler=type(sampler).__name__,
            replacement=bool(getattr(sampler, "replacement", False)),
            batch_size=loader.batch_size,
            workers=loader.num_workers,
            accelerate="accelerate" in sys.modules,
        )

    def before_pass(self, loader: object) -> None:
        self.making = self.passes + 1
        if getattr(loader, "_iterator", None) is not None:  # what persistent workers drew ahead
            loader._iterator.__dict__.pop("_doctor_drawn", None)

    def new_pass(self, iterator: object, loader: object) -> None:
        if not hasattr(iterator, "_base_seed"):
            return  # a loader of somebody's own
        self.new_loader(loader)

        self.passes += 1
        iterator._doctor_pass = self.passes
        number = loader._doctor[1]
        notes.event("pass", n=self.passes, loader=number, total=length_of(iterator))

    def drawn(self, indices: object, iterator: object) -> None:
        queue = iterator.__dict__.setdefault("_doctor_drawn", deque())
        queue.append(list(indices) if isinstance(indices, list | tuple) else [indices])

    def batch(self, iterator: object, batch: object, waited: float) -> None:
        count = iterator._num_yielded
        drawn = iterator.__dict__.get("_doctor_drawn")
        indices = drawn.popleft() if drawn else None
        grad = torch.is_grad_enabled()
        fields = {"n": iterator._doctor_pass, "wait": round(waited, 4), "grad": grad}
        if indices is not None and indices[:1] != [None]:
            fields["indices"] = to_root(iterator._dataset, indices)

        if count <= MOST_CONTENTS:
            fields["targets"], fields["items"] = contents(batch)

        notes.event("batch", **fields)
        if count == 3:  # a forward pass, which may broadcast them, lies behind it
            training.buffers(iterator._doctor_pass)

    def end_of_pass(self, iterator: object) -> None:
        if iterator._num_yielded == 2:
            training.buffers(iterator._doctor_pass)
        notes.event("end", n=iterator._doctor_pass)

    def before_fetch(self, fetcher: object, _: object) -> None:
        """Does making an item draw random numbers? Asked of two batches of each pass."""
        self.fetched[self.making] += 1
        self.states = generators(fetcher.dataset) if self.fetched[self.making] <= 2 else None

    def after_fetch(self, _: object, fetcher: object, __: object) -> None:
        if self.states is not None:
            worker = torch.utils.data.get_worker_info()
            after = generators(fetcher.dataset)
            changed = [name for name, state in self.states.items() if state != after[name]]
            states = {name: self.states[name] for name in changed}
            notes.event("drew", n=self.making, worker=worker and worker.id, states=states)


def length_of(dataset: object) -> int | None:
    with suppress(Exception):
        return len(dataset)
    return None


def fingerprint(dataset: object) -> str:
    """Of a dataset's own attributes: a hint whether indices mean the same on two ranks."""
    text = [type(dataset).__name__, str(length_of(dataset))]
    for name, value in sorted(getattr(dataset, "__dict__", {}).items()):
        if isinstance(value, str | int | float | bool):
            text.append(f"{name}={value!r}")
        elif type(value).__module__ in ("torch", "numpy") or isinstance(value, SEQUENCES):
            with suppress(Exception):
                some = value[:: max(1, len(value) // 16)]
                text.append(f"{name}={len(value)} {some!r:.5000}")
    plain = re.sub(r" at 0x[0-9a-f]+", "", "\n".join(text))
    return hashlib.md5(plain.encode()).hexdigest()


def numbered(dataset: object) -> Iterator[tuple[str, tuple]]:
    """Lists of names in a dataset, such as files or classes, and dicts from names to numbers.

    For each attribute: how many, a digest of the names, one of the names with their numbers.
    """
    for attribute, value in list(getattr(dataset, "__dict__", {}).items()):
        if isinstance(value, dict):
            pairs = value.items()
        elif isinstance(value, list | tuple):
            pairs = zip(map(name_of, value), range(len(value)), strict=False)
        else:
            continue

        names = both = 0
        for name, number in pairs:
            if not isinstance(name, str | os.PathLike):
                names = 0
                break
            digest = zlib.crc32(os.fsencode(name))
            names += digest + 1
            both += zlib.crc32(repr(number).encode(), digest)
        if names:
            yield attribute, (len(value), names, both)


def name_of(item: object) -> object:
    """The first name in what stands for an item: (file, class), {"file": …}, or itself."""
    parts = item.values() if isinstance(item, dict) else item
    if isinstance(item, dict | list | tuple):
        return next((part for part in parts if isinstance(part, str | os.PathLike)), None)
    return item


def to_root(dataset: object, indices: list) -> list:
    """Indices into the data set that Subsets (torch.utils.data) choose from."""
    while isinstance(dataset, Subset):
        indices = [dataset.indices[index] for index in indices]
        dataset = dataset.dataset
    return [int(i) if hasattr(i, "__index__") else repr(i) for i in indices]


def contents(batch: object) -> tuple[list, list]:
    """A number for each item's target, and one for the rest of it; no copy of images."""
    targets = []
    items = []
    for tensor in reversed(tensors_in(batch)):
        if tensor.device.type != "cpu" or tensor.dim() == 0 or tensor.is_sparse:
            continue
        if tensor.dim() == 1 and not tensor.is_floating_point():
            targets = tensor.tolist()
        elif not items:
            steps = [max(1, size // 4) for size in tensor.shape[1:]]
            few = tensor[(slice(None), *(slice(None, None, step) for step in steps))]
            few = few.double().reshape(len(few), -1)
            sums = few @ torch.arange(1, few.shape[1] + 1, dtype=torch.float64)
            items = [round(value, 6) for value in sums.tolist()]
    return targets, items


data = Data()


def attach() -> None:
    own_next = _BaseDataLoaderIter.__next__

    @functools.wraps(own_next)
    def following(iterator: object) -> object:
        if not hasattr(iterator, "_doctor_pass"):
            return own_next(iterator)  # a loader of somebody's own
        start = time.perf_counter()
        try:
            batch = own_next(iterator)
        except StopIteration:
            notes.call(data.end_of_pass, iterator)
            raise
        notes.call(data.batch, iterator, batch, time.perf_counter() - start)
        return batch

    _BaseDataLoaderIter.__next__ = following
    hook(DataLoader, "__init__", after=lambda _, loader, *a, **k: data.new_loader(loader))
    hook(DataLoader, "__iter__", data.before_pass, data.new_pass)
    hook(_BaseDataLoaderIter, "_next_index", after=data.drawn)
    for fetcher in (fetch._MapDatasetFetcher, fetch._IterableDatasetFetcher):
        hook(fetcher, "fetch", data.before_fetch, data.after_fetch)
