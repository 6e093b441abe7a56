"""Where tensors are: a label on their memory, which views and in-place operations share."""

import threading
from typing import Any

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

from . import machine

CPU, META = torch.device("cpu"), torch.device("meta")
# What torch does without asking rules.py.
UNSEEN = torch._C.DisableTorchFunction


class Labels:
    """Something about storages, for as long as they live."""

    def __init__(self) -> None:
        self.kept: dict[int, tuple[StorageWeakRef, Any]] = {}
        self.sweep_at = 1000
        self.lock = threading.Lock()  # DataParallel has a thread for each GPU

    def get(self, storage: Any) -> Any:
        found = self.kept.get(storage._cdata)
        return found[1] if found else None

    def put(self, storage: Any, label: Any) -> None:
        with self.lock:
            # The weak reference keeps another storage from getting the same address.
            self.kept[storage._cdata] = StorageWeakRef(storage), label
            if len(self.kept) > self.sweep_at:
                living = [item for item in self.kept.items() if not item[1][0].expired()]
                self.kept = dict(living)
                self.sweep_at = 1000 + 2 * len(living)


DEVICES = Labels()  # of those that are on a GPU
PINNED = Labels()


class Autograd(threading.local):
    """Of this thread, as the CPU's autograd works in the one that calls backward()."""

    works = False  # if so, tensors without a label are its own


AUTOGRAD = Autograd()


def storage_of(tensor: Tensor) -> Any:
    with UNSEEN():
        return getattr(tensor, "_local_tensor", tensor).untyped_storage()  # of a DTensor


def place_of(tensor: Tensor) -> torch.device:
    found = DEVICES.get(storage_of(tensor))
    if found is None and AUTOGRAD.works:
        return torch.device("cuda", machine.MACHINE.current)
    with UNSEEN():
        return found or (META if tensor.is_meta else CPU)


def put(tensor: Tensor, place: torch.device) -> Tensor:
    """Say where a tensor is that has just been made."""
    if place.type == "cuda":
        put_storage(storage_of(tensor), place)
    return tensor


def put_storage(storage: Any, place: torch.device) -> None:
    machine.touch()
    DEVICES.put(storage, place)


def full(device: Any) -> torch.device:
    """A device as a tensor has it: with its number. An int is a GPU."""
    device = torch.device("cuda", device) if isinstance(device, int) else torch.device(device)
    if device.type != "cuda":
        return device
    return torch.device("cuda", machine.index_of(device))


def tensors_in(*values: Any) -> list[Tensor]:
    found: list[Tensor] = []
    for value in values:
        if isinstance(value, Tensor):
            found.append(value)
        elif isinstance(value, (list, tuple)):
            found += tensors_in(*value)
        elif isinstance(value, dict):
            found += tensors_in(*value.values())
    return found
