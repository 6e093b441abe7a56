"""The hardware: what torch.cuda and torch.accelerator answer about it."""

import contextlib
import os
import threading
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import torch

from .notes import note


class Machine(threading.local):
    """The GPUs as this process sees them. Each thread has a current one, at first number 0."""

    current = 0
    names: list[str] = []  # of those that it sees, as the machine counts them
    touched = False  # whether this process has used a GPU
    forked = False  # from one that had


MACHINE = Machine()


def look() -> None:
    """Read the environment anew."""
    names = [str(number) for number in range(int(os.environ.get("PRETENDED_GPUS", 0)))]
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        names = [word for word in visible.split(",") if word in names]
    Machine.names = names
    Machine.touched = Machine.forked = False
    MACHINE.current = 0


def touch() -> None:
    """From now on the process has a context on a GPU, which a fork cannot take over."""
    if Machine.forked:
        raise RuntimeError("Cannot re-initialize CUDA in forked subprocess. To use CUDA with "
                           "multiprocessing, you must use the 'spawn' start method")  # fmt: skip
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
    return bool(MACHINE.names)


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
    """What DataParallel compares, and what tools/gpu_check.py tells."""
    return SimpleNamespace(name="Pretended GPU", major=8, minor=0, total_memory=80 * 2**30,
                           multi_processor_count=108)  # fmt: skip


@contextlib.contextmanager
def on_device(device: Any) -> Iterator[None]:
    before, MACHINE.current = MACHINE.current, index_of(device)
    yield
    MACHINE.current = before


class Stream:
    """Of DataParallel's threads, and FSDP2's. All work is done in order, so it does nothing."""

    stream_id = device_index = device_type = 0
    is_capturing = staticmethod(lambda: False)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        pass

    def __enter__(self) -> "Stream":
        return self

    def __exit__(self, *args: object) -> None:
        pass

    def record_event(self, *args: Any) -> "Event":
        return Event()

    def wait_stream(self, other: "Stream") -> None:
        pass

    def wait_event(self, event: "Event") -> None:
        pass

    def synchronize(self) -> None:
        note("wait", why="synchronize() of a stream")


class Event:
    """In a stream. The host would wait for it only in synchronize(), which is not here."""

    def record(self, *args: Any) -> "Event":
        return self


def stream(*args: Any) -> Stream:
    return Stream()


def nothing(*args: Any) -> None:
    pass


CUDA = {
    "_lazy_init": touch, "is_initialized": lambda: MACHINE.touched, "is_available": is_available,
    "_is_in_bad_fork": lambda: MACHINE.forked, "device_count": device_count,
    "set_device": set_device, "current_device": current_device,
    "get_device_properties": properties, "manual_seed": nothing, "manual_seed_all": nothing,
    "is_current_stream_capturing": lambda: False,
    "Stream": Stream, "Event": Event, "stream": stream, "current_stream": stream,
}  # fmt: skip
ACCELERATOR = {
    "current_accelerator": lambda check_available=False: torch.device("cuda"),
    "current_device_index": current_device, "set_device_index": set_device,
    "current_stream": stream, "device_index": on_device,
}  # fmt: skip


def of_its_own(answer: Callable) -> Callable:
    """torch._dynamo takes two names of one function for a mistake."""
    return lambda *args, **kwargs: answer(*args, **kwargs)


def install() -> None:
    for owner, answers in ((torch.cuda, CUDA), (torch.accelerator, ACCELERATOR)):
        for name, answer in answers.items():
            setattr(owner, name, of_its_own(answer))
    os.register_at_fork(after_in_child=after_fork)
