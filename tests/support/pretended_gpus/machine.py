"""The hardware: what torch.cuda and torch.accelerator answer about it."""

import contextlib
import os
import threading
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import torch

from .notes import note

GIB = 2**30


class Machine(threading.local):
    """The GPUs as this process sees them. Each thread has a current one, at first number 0."""

    current = 0
    names: list[str] = []  # of those that it sees, as the machine counts them
    capability = (8, 0)
    old_driver = False
    touched = False  # whether this process has used a GPU
    holding: set[int] = set()  # the GPUs on which it has had tensors
    forked = False  # from one that had
    sync_debug = "default"


MACHINE = Machine()


def look() -> None:
    """Read the environment anew."""
    names = [str(number) for number in range(int(os.environ.get("PRETENDED_GPUS", 0)))]
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        names = [word for word in visible.split(",") if word in names]
    Machine.names = names
    Machine.old_driver = bool(os.environ.get("PRETENDED_OLD_DRIVER"))
    Machine.touched = Machine.forked = False
    Machine.holding = set()
    MACHINE.current = 0
    torch.cuda.default_generators = generators()


def touch() -> None:
    """From now on the process has a context on a GPU, which a fork cannot take over."""
    if Machine.forked:
        raise RuntimeError("Cannot re-initialize CUDA in forked subprocess. To use CUDA with "
                           "multiprocessing, you must use the 'spawn' start method")  # fmt: skip
    if Machine.old_driver:
        raise RuntimeError("The NVIDIA driver on your system is too old")
    Machine.touched = True


def after_fork() -> None:
    Machine.forked = Machine.touched


def index_of(device: Any) -> int:
    """The number of the GPU that a call means; the current one if it says none."""
    if device is None:
        return MACHINE.current
    if isinstance(device, str):
        device = torch.device(device)
    index = device if isinstance(device, int) else device.index
    index = MACHINE.current if index is None else index
    if not 0 <= index < len(MACHINE.names):
        raise RuntimeError(f"CUDA error: invalid device ordinal ({index})")
    return index


def is_available() -> bool:
    return bool(MACHINE.names) and not MACHINE.old_driver


def device_count() -> int:
    return len(MACHINE.names)


def set_device(device: Any) -> None:
    touch()
    MACHINE.current = index_of(device)
    if threading.current_thread() is threading.main_thread():
        note("set_device", index=MACHINE.current)


def current_device() -> int:
    touch()
    return MACHINE.current


def properties(device: Any = None) -> SimpleNamespace:
    major, minor = MACHINE.capability
    name = MACHINE.names[index_of(device)]
    return SimpleNamespace(name="Pretended GPU", uuid=name, major=major, minor=minor,
                           total_memory=80 * GIB, multi_processor_count=108)  # fmt: skip


@contextlib.contextmanager
def on_device(device: Any) -> Iterator[None]:
    before, MACHINE.current = MACHINE.current, index_of(device)
    yield
    MACHINE.current = before


class Stream:
    """All work is done in order, so there is nothing to wait for."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        pass

    def __enter__(self) -> "Stream":
        return self

    def __exit__(self, *args: object) -> None:
        pass

    def nothing(self, *args: Any, **kwargs: Any) -> None:
        pass

    wait_stream = wait_event = record = synchronize = wait = nothing

    def record_event(self, event: Any = None) -> "Stream":
        return self

    def query(self) -> bool:
        return True


class Event(Stream):
    pass


def stream(*args: Any) -> Stream:
    return Stream()


def set_sync_debug_mode(mode: int | str) -> None:
    Machine.sync_debug = {0: "default", 1: "warn", 2: "error"}.get(mode, mode)


def generators() -> list[SimpleNamespace]:
    """Random numbers of GPUs: as torch's own for the CPU, of which they are drawn here."""
    seed = torch.default_generator.initial_seed
    return [SimpleNamespace(initial_seed=seed, get_offset=lambda: 0) for _ in MACHINE.names]


def memory(device: Any = None) -> int:
    """Not how much, only whether there is any."""
    return GIB // 8 if index_of(device) in Machine.holding else 0


def nothing(*args: Any) -> None:
    pass


CUDA = {
    "_lazy_init": touch, "init": touch, "is_initialized": lambda: MACHINE.touched,
    "is_available": is_available, "device_count": device_count, "set_device": set_device,
    "_is_in_bad_fork": lambda: MACHINE.forked, "current_device": current_device,
    "get_device_properties": properties, "device": on_device, "stream": stream,
    "current_stream": stream, "default_stream": stream, "Stream": Stream, "Event": Event,
    "synchronize": nothing, "empty_cache": nothing, "reset_peak_memory_stats": nothing,
    "manual_seed": nothing, "manual_seed_all": nothing, "set_sync_debug_mode": set_sync_debug_mode,
    "memory_allocated": memory, "max_memory_allocated": memory, "memory_reserved": memory,
    "max_memory_reserved": memory, "mem_get_info": lambda device=None: (70 * GIB, 80 * GIB),
    "is_current_stream_capturing": lambda: False,
}  # fmt: skip
ACCELERATOR = {
    "current_accelerator": lambda check_available=False: torch.device("cuda"),
    "current_device_index": current_device, "set_device_index": set_device,
    "current_stream": stream, "synchronize": nothing, "device_index": on_device,
}  # fmt: skip


def of_its_own(answer: Callable) -> Callable:
    """torch._dynamo takes two names of one function for a mistake."""
    return answer if isinstance(answer, type) else lambda *args, **kwargs: answer(*args, **kwargs)


def install() -> None:
    for owner, answers in ((torch.cuda, CUDA), (torch.accelerator, ACCELERATOR)):
        for name, answer in answers.items():
            setattr(owner, name, of_its_own(answer))
    os.register_at_fork(after_in_child=after_fork)
