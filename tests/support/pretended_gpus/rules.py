"""Every call of torch passes here: tensors keep their places, and what CUDA forbids is raised."""

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from . import batch_norm, machine, notes, placement
from .notes import note
from .placement import CPU, PINNED, full, place_of, put, storage_of, tensors_in

# These copy from one device to another, or only look at where tensors are.
BETWEEN_DEVICES = {"copy_", "__setitem__", "_has_compatible_shallow_copy_type", "set_", "backward"}
# The host must have a number from the GPU before it can go on.
READS = {"item", "tolist", "__bool__", "__int__", "__float__", "__index__", "__repr__",
         "__format__", "equal", "nonzero", "is_nonzero", "masked_select", "unique"}  # fmt: skip
# What autocast computes in 16 bits, and what in 32.
HALF = {"linear", "conv2d", "conv1d", "matmul", "bmm", "mm", "addmm", "__matmul__"}
SINGLE = {"cross_entropy", "nll_loss", "mse_loss", "softmax", "log_softmax", "layer_norm"}


class OnGPUs(TorchFunctionMode):
    """The rules, while a thread is in this mode."""

    def __torch_function__(
        self, func: Callable, types: Any, args: tuple = (), kwargs: dict | None = None
    ) -> Any:
        rule = RULES.get(func)
        if rule is None:
            rule = {"__get__": read_attribute, "__set__": write_attribute}.get(name_of(func))
        return (rule or compute)(func, *args, **(kwargs or {}))


def name_of(func: Callable) -> str:
    return getattr(func, "__name__", "")


def waits(why: str) -> None:
    """The host waits here for the GPU, or for a copy to it."""
    note("wait", why=why)


# ---- attributes ----
def device(func: Callable, tensor: Tensor, *_: Any) -> torch.device:
    return place_of(tensor)


def is_cuda(func: Callable, tensor: Tensor, *_: Any) -> bool:
    return place_of(tensor).type == "cuda"


def read_attribute(func: Callable, tensor: Tensor, *args: Any) -> Any:
    """.grad, .data and views such as .T are where their tensor is."""
    value = func(tensor, *args)
    return put(value, place_of(tensor)) if isinstance(value, Tensor) else value


def write_attribute(func: Callable, tensor: Tensor, value: Any) -> None:
    """.data may come from another device: Module.to() moves parameters so."""
    func(tensor, value)


# ---- from one place to another ----
def to(func: Callable, tensor: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    """Tensor.to in all its forms."""
    names = ["dtype", "non_blocking", "copy"]
    if args and isinstance(args[0], (str, int, torch.device)):
        names = ["device", *names]
    elif args and isinstance(args[0], Tensor):
        names[0] = "other"
    kwargs |= dict(zip(names, args, strict=False))

    here = place_of(tensor)
    target = here
    if isinstance(kwargs.get("other"), Tensor):
        target = place_of(kwargs["other"])
    elif kwargs.get("device") is not None:
        target, kwargs["device"] = full(kwargs["device"]), CPU
    if target != here:
        kwargs["copy"] = True  # and not the tensor itself
        watch_copy(tensor, here, target, bool(kwargs.get("non_blocking")))
    return put(Tensor.to(tensor, **kwargs), target)


def watch_copy(tensor: Tensor, here: torch.device, target: torch.device, no_wait: bool) -> None:
    """Only a copy from pinned memory can go on by itself, and only if it is told to."""
    if here == CPU and PINNED.get(storage_of(tensor)) is None:
        waits("a copy from memory that is not pinned")
    elif CPU in (here, target) and not no_wait:
        waits("a copy without non_blocking")


def cpu(func: Callable, tensor: Tensor, **kwargs: Any) -> Tensor:
    return to(func, tensor, CPU, **kwargs)


def numpy(func: Callable, tensor: Tensor, *args: Any, **kwargs: Any) -> Any:
    if place_of(tensor) != CPU:
        raise TypeError(f"can't convert {place_of(tensor)} device type tensor to numpy. Use "
                        "Tensor.cpu() to copy the tensor to host memory first.")  # fmt: skip
    return func(tensor, *args, **kwargs)


def pin_memory(func: Callable, tensor: Tensor, device: Any = None) -> Tensor:
    if place_of(tensor) != CPU:
        raise RuntimeError("cannot pin a tensor of a GPU: only dense CPU tensors can be pinned")
    note("pin_memory", device=machine.current_device())
    pinned = tensor.detach().clone()
    PINNED.put(storage_of(pinned), True)
    return pinned


def is_pinned(func: Callable, tensor: Tensor, device: Any = None) -> bool:
    return PINNED.get(storage_of(tensor)) is not None


# ---- autograd ----
def backward(func: Callable, loss: Tensor, **_: Any) -> None:
    """As Tensor.backward of a number, but in this mode, for hooks and for functions in Python."""
    notes.BACKWARDS += 1
    placement.AUTOGRAD.works = True
    try:
        with OnGPUs():
            torch.autograd.graph._engine_run_backward(
                (loss,), (torch.ones_like(loss),), False, False, (),
                allow_unreachable=True, accumulate_grad=True,
            )  # fmt: skip
    finally:
        placement.AUTOGRAD.works = False


# ---- all else ----
def compute(func: Callable, *args: Any, **kwargs: Any) -> Any:
    """A function whose result lies where its arguments do, or where it is told."""
    target = None
    if kwargs.get("device") is not None:
        target = full(kwargs["device"])
        kwargs["device"] = CPU if target.type == "cuda" else target

    tensors = tensors_in(args, kwargs)
    places = [place_of(tensor) for tensor in tensors]
    gpus = [place for place in places if place.type == "cuda"]
    if not gpus and (target is None or target.type != "cuda"):
        return func(*args, **kwargs)

    name = name_of(func)
    check_places(name, tensors, places)
    watch(name, args, tensors, places, target)
    with autocast_of_gpus():
        if name in SINGLE and torch.is_autocast_enabled("cpu"):
            args = tuple(a.float() if isinstance(a, Tensor) and a.is_floating_point() else a
                         for a in args)  # fmt: skip
        result = func(*args, **kwargs)

    place = target or gpus[0]
    for tensor in tensors_in(result):
        if not any(tensor is given for given in tensors):
            put(tensor, place)
    if name in HALF:
        note("layer", function=name, dtype=result.dtype, place=place)
    return result


def check_places(name: str, tensors: list[Tensor], places: list[torch.device]) -> None:
    """All on one device. Only a single number of the CPU may be among tensors of a GPU."""
    if name in BETWEEN_DEVICES or placement.AUTOGRAD.works:
        return
    single = [place == CPU and t.dim() == 0 for t, place in zip(tensors, places, strict=True)]
    different = {place for place, alone in zip(places, single, strict=True) if not alone}
    if name == "__getitem__" and places[0].type == "cuda":
        different -= {CPU}  # an index, which is copied
    changes = name.startswith("__i") or (name.endswith("_") and not name.endswith("__"))
    if len(different) > 1 or (changes and places[0] == CPU and different):
        found = ", ".join(sorted({str(place) for place in places}))
        raise RuntimeError(
            f"Expected all tensors to be on the same device, but found at least two devices, "
            f"{found}! (in {name})"
        )


def watch(
    name: str, args: tuple, tensors: list[Tensor], places: list[torch.device], target: Any
) -> None:
    """Note for what the host waits."""
    if name in READS:
        waits(f"{name}() of a tensor of a GPU")
    elif name in ("tensor", "as_tensor", "new_tensor") and CPU in [*places, CPU][:1]:
        waits("a list that is copied to a GPU")
    elif name == "copy_" and places[0] != places[1]:
        watch_copy(tensors[1], places[1], places[0], args[2:] == (True,))
    elif name == "__getitem__":
        if any(tensor.dtype in (torch.bool, torch.uint8) for tensor in tensors[1:]):
            waits("a mask as an index: its result has an unknown size")
        elif isinstance(args[1], list) or CPU in places[1:]:
            waits("an index that is copied to a GPU")


@contextlib.contextmanager
def autocast_of_gpus() -> Iterator[None]:
    """What is computed on a GPU obeys torch.autocast("cuda"), and not that of the CPU."""
    before = torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu")
    torch.set_autocast_enabled("cpu", torch.is_autocast_enabled("cuda"))
    torch.set_autocast_dtype("cpu", torch.get_autocast_dtype("cuda"))
    try:
        yield
    finally:
        torch.set_autocast_enabled("cpu", before[0])
        torch.set_autocast_dtype("cpu", before[1])


RULES: dict[Callable, Callable] = {
    Tensor.device.__get__: device,
    Tensor.is_cuda.__get__: is_cuda,
    Tensor.to: to,
    Tensor.cpu: cpu,
    Tensor.numpy: numpy,
    Tensor.__array__: numpy,
    Tensor.pin_memory: pin_memory,
    Tensor.is_pinned: is_pinned,
    Tensor.backward: backward,
}


def install() -> None:
    """For this thread and all that it starts: a mode is that of a thread, a GPU is not."""
    OnGPUs().__enter__()
    own = threading.Thread._bootstrap_inner

    def in_the_mode(thread: threading.Thread) -> None:
        with OnGPUs():
            own(thread)

    threading.Thread._bootstrap_inner = in_the_mode
    batch_norm.install()
