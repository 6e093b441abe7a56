"""Tensors and numbers in files of torch.save, torch.distributed.checkpoint, pickle, safetensors and
numpy.

Torch reads them, in the doctor's own process, before another run writes the same files. Of a pickle
nothing is imported or run but what makes tensors: an object of another class becomes an empty Box,
which hides no weights beside it.
"""

import io
import os
import pickle
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import suppress
from types import ModuleType

import torch

from .before import METADATA
from .recorder.named import collect, row_of

SAFE = {"_codecs.encode", "numpy.ndarray", "numpy.dtype", "torch.Size", "torch.device"}
SAFE |= {f"collections.{name}" for name in ("OrderedDict", "defaultdict", "Counter")}
OF_NUMPY = ("multiarray._reconstruct", "multiarray.scalar", "numeric._frombuffer")
SAFE |= {f"numpy.{core}.{name}" for core in ("core", "_core") for name in OF_NUMPY}


def read(path: str) -> tuple[dict, dict]:
    """By name: norm, weighted sample and shape of its tensors; and its numbers. None of a file of
    another kind, or that is damaged."""
    rows, numbers = {}, {}
    with suppress(Exception):
        for name, content in contents(path):
            tensors = {}
            collect(content, name, tensors, numbers)
            rows |= {key: row_of(tensor) for key, tensor in tensors.items()}
        return rows, numbers
    return {}, {}


def contents(path: str) -> Iterator[tuple[str, object]]:
    with open(path, "rb") as file:
        begins = file.read(6)
    if os.path.basename(path) == METADATA:
        yield from put_together(path)
    elif begins == b"\x93NUMPY" or (begins[:2] == b"PK" and path.endswith(".npz")):
        import numpy

        found = numpy.load(path, mmap_mode="r")
        yield "", dict(found) if path.endswith(".npz") else {"": found}
    elif begins[:2] == b"PK":
        yield "", load(path, mmap=True)
    elif begins[:1] == b"\x80":
        with open(path, "rb") as file:
            found = Unpickler(file).load()
        yield "", load(path) if found == torch.serialization.MAGIC_NUMBER else found
    else:
        from safetensors.torch import load_file

        yield "", load_file(path)


def put_together(path: str) -> Iterator[tuple[str, object]]:
    """What ranks have written, each its pieces."""
    with open(path, "rb") as file:
        known = Unpickler(file).load().state
    places = defaultdict(list)
    for index, place in known["storage_data"].items():
        places[index.state["fqn"]].append((index.state.get("offset") or (), place.state))
    for name, found in places.items():
        whole = (known["state_dict_metadata"][name].state or {}).get("size")  # None: no tensor
        for offset, place in found:
            with open(os.path.join(os.path.dirname(path), place["relative_path"]), "rb") as file:
                file.seek(place["offset"])
                piece = load(io.BytesIO(file.read(place["length"])))
            if isinstance(whole, torch.Size):
                whole = torch.zeros(whole, dtype=piece.dtype)
            if whole is not None:
                pairs = zip(offset, piece.shape, strict=True)
                whole[tuple(slice(start, start + size) for start, size in pairs)] = piece
        yield name, piece if whole is None else whole


class Box(dict):
    """In place of an object of whatever class; of a dict's, it has the items."""

    __hash__ = object.__hash__
    __eq__ = object.__eq__
    state = None

    def __new__(cls, *_: object, **__: object) -> "Box":
        return super().__new__(cls)

    def __init__(self, *_: object, **__: object) -> None:
        """What it is made of is not looked at."""

    def __setstate__(self, state: object) -> None:
        self.state = state

    def __call__(self, *_: object, **__: object) -> "Box":
        return self

    append = extend = add = update = __call__  # of other classes


class Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> object:
        if name == "_rebuild_from_type_v2":
            return of_type
        if name == "_load_from_bytes":
            return lambda data: load(io.BytesIO(data))
        kind = getattr(torch, name, None) if module == "torch" else None
        rebuilds = module == "torch._utils" and name.startswith("_rebuild_")
        if rebuilds or isinstance(kind, torch.dtype) or f"{module}.{name}" in SAFE:
            return super().find_class(module, name)
        return type(name, (Box,), {})


def of_type(make: Callable, _: type, args: tuple, state: object) -> object:
    """A tensor of another class: of FSDP's, what this rank has."""
    parts = state if isinstance(state, tuple) else (state,)
    own = [part["_local_tensor"] for part in parts if part and "_local_tensor" in part]
    return own[0] if own else make(*args)


def load(file: object, **more: bool) -> object:
    own = ModuleType("own")
    own.Unpickler, own.load = Unpickler, lambda *a, **k: Unpickler(*a, **k).load()
    return torch.load(file, "cpu", own, weights_only=False, **more)
