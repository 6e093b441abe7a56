"""What a data set has and a batch holds, in numbers small enough to compare between ranks."""

import hashlib
import os
import re
import zlib
from collections.abc import Iterator, Mapping
from contextlib import suppress

import torch
from torch.utils.data import Subset

from .collectives import tensors_in

SEQUENCES = (list, tuple, range)


def length_of(dataset: object) -> int | None:
    with suppress(Exception):
        return len(dataset)
    return None


def fingerprint(dataset: object, depth: int = 2) -> str:
    """Of a dataset's own attributes, and of those of a dataset in it: a hint whether indices mean
    the same on two ranks."""
    text = [type(dataset).__name__, str(length_of(dataset))]
    for name, value in sorted(getattr(dataset, "__dict__", {}).items()):
        if isinstance(value, str | int | float | bool):
            text.append(f"{name}={value!r}")
        elif is_array(value) or isinstance(value, SEQUENCES):
            with suppress(Exception):
                some = getattr(value, "iloc", value)[:: max(1, len(value) // 16)]
                text.append(f"{name}={len(value)} {some!r:.5000}")
        elif depth and is_dataset(value):
            text.append(f"{name}={fingerprint(value, depth - 1)}")
    plain = re.sub(r" at 0x[0-9a-f]+", "", "\n".join(text))
    return hashlib.md5(plain.encode()).hexdigest()


def described(dataset: object) -> bool:
    """Whether its fingerprint has more than numbers. Places in a range(n), say, may stand for other
    samples on each rank."""
    if isinstance(dataset, list | tuple):
        return True
    values = getattr(dataset, "__dict__", {}).values()
    return any(isinstance(value, str | list | tuple) or is_array(value) for value in values)


def is_array(value: object) -> bool:
    kind = type(value)
    return kind.__module__ in ("torch", "numpy") or hasattr(kind, "iloc")  # of pandas


def is_dataset(value: object) -> bool:
    kind = type(value)
    return hasattr(kind, "__getitem__") and hasattr(kind, "__len__") and not issubclass(kind, dict)


def numbered(dataset: object) -> Iterator[tuple[str, tuple]]:
    """Lists of names in a dataset, such as files or classes, and dicts from names to numbers.

    For each attribute: how many, a digest of the names and of the numbers, one of both together.
    """
    for attribute, value in list(getattr(dataset, "__dict__", {}).items()):
        if isinstance(value, dict):
            pairs = list(value.items())
        elif isinstance(value, list | tuple):
            pairs = [(name_of(item), number) for number, item in enumerate(value)]
        else:
            continue
        # Settings have names, too: they are no numbers, or not each another one.
        numbers = {number for _, number in pairs if type(number) is int}
        named = all(isinstance(name, str | os.PathLike) for name, _ in pairs)
        if not named or len(numbers) != len(value) or len(value) < 2:
            continue
        if len({name for name, _ in pairs}) < len(pairs):
            continue  # the class of each sample, say

        parts = together = 0
        for name, number in pairs:
            digest = zlib.crc32(os.fsencode(name))
            parts += digest + 1 + zlib.crc32(b"%d" % number)
            together += zlib.crc32(b"%d" % number, digest)
        yield attribute, (len(value), parts, together)


def name_of(item: object) -> object:
    """The first name in what stands for an item: (file, class), {"file": …}, or itself."""
    parts = item.values() if isinstance(item, dict) else item
    if isinstance(item, dict | list | tuple):
        return next((part for part in parts if isinstance(part, str | os.PathLike)), None)
    return item


def root_of(dataset: object) -> object:
    """The data set that Subsets (torch.utils.data) choose from."""
    while isinstance(dataset, Subset):
        dataset = dataset.dataset
    return dataset


def to_root(dataset: object, indices: list) -> list:
    """Indices into it."""
    while isinstance(dataset, Subset):
        indices = [dataset.indices[index] for index in indices]
        dataset = dataset.dataset
    return keys_of(indices)


def keys_of(indices: list) -> list:
    return [int(i) if hasattr(i, "__index__") else repr(i) for i in indices]


def batched(part: object, count: int | None) -> object:
    """A batch without its lists of a dict for each item, as detection has them: in these, the rows
    of a tensor are objects of one image."""
    if isinstance(part, Mapping):
        part = list(part.values())
    if not isinstance(part, list | tuple):
        return part
    dicts = all(isinstance(item, Mapping) for item in part)
    if dicts and (len(part) == count or (count is None and len(part) > 1)):
        return []
    return [batched(inner, count) for inner in part]


def contents(batch: object, count: int | None) -> tuple[list, list, list]:
    """A number for each item's target, and one for all the rest of it, whose shapes are the last;
    no copy of images.

    count: of items, if it is known. Only tensors with a row for each say something of them.
    """
    targets = []
    items = None
    shape = []
    found = [tensor for tensor in tensors_in(batched(batch, count)) if tensor.dim()]
    count = len(found[0]) if found and count is None else count
    for tensor in reversed(found):
        if tensor.device.type != "cpu" or tensor.is_sparse or not count or len(tensor) != count:
            continue
        if tensor.dim() == 1 and not tensor.is_floating_point():
            targets = tensor.tolist()
        else:
            steps = [max(1, size // 4) for size in tensor.shape[1:]]
            few = tensor[(slice(None), *(slice(None, None, step) for step in steps))]
            few = few.double().reshape(len(few), -1)
            sums = few @ torch.arange(1, few.shape[1] + 1, dtype=torch.float64)
            # Else the large numbers of one tensor would hide what changes in another one.
            sums = sums.asinh() * (1 + len(shape))
            items = sums if items is None else items + sums
            shape.append(list(tensor.shape[1:]))
    return targets, [] if items is None else [round(n, 6) for n in items.tolist()], shape
