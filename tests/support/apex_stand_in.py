"""A stand-in for NVIDIA's Apex at tag 25.05, for machines without a GPU.

It has the functions of apex.amp and apex.parallel that 04_apex calls, and notes their order, which
a test compares. It does the arithmetic, on the CPU, but is not Apex: the numerics of O1 to O3, its
kernels, SyncBatchNorm and the overlap of its
DistributedDataParallel are seen only on a GPU. Written from Apex's behaviour and none of its code.
Compared by hand in 2026 with Apex's sources, changed to run on one CPU: 16 steps of O0 to O3 had
the same weights, scales and skipped steps, bit for bit, and so had resumed runs.
"""

import contextlib
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.optim import Optimizer
from torch.overrides import TorchFunctionMode

# Functions of two tensors that O1 makes one type of, if it can.
PROMOTED = "add sub rsub mul div true_divide eq ne lt le gt ge equal addcmul addcdiv".split()


@dataclass
class State:
    """What Apex holds in globals of its own, once a process."""

    calls: list[str] = field(default_factory=list)
    arguments: dict[str, Any] = field(default_factory=dict)
    weights: list[nn.Parameter] = field(default_factory=list)
    masters: dict[Tensor, Tensor] = field(default_factory=dict)  # with O2: fp32 copies of weights
    patches: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)
    dynamic: bool = False
    scale: float = 1.0
    unskipped: int = 0
    overflow: bool = False


state = State()


# ---------------------------------------------------------------------------------------- apex.amp


def initialize(model: nn.Module, optimizer: Optimizer, opt_level: str) -> None:
    """Changes model and optimizer in place."""
    state.calls.append("initialize")
    state.arguments = {"opt_level": opt_level}
    state.weights = list(model.parameters())
    state.dynamic = opt_level in ("O1", "O2")
    state.scale = 2.0**16 if state.dynamic else 1.0
    if opt_level == "O1":
        state.patches.enter_context(FunctionsOfO1())
        device = next(model.parameters()).device.type
        model.forward = torch.autocast(device, torch.float16)(model.forward)
    if opt_level in ("O2", "O3"):
        _make_half(model, keep_batchnorm=opt_level == "O2")
        model.register_forward_pre_hook(lambda _, images: images[0].half())
        model.register_forward_hook(lambda _, images, logits: logits.float())
    _change_optimizer(optimizer)


class FunctionsOfO1(TorchFunctionMode):
    """What O1 does to torch, in the whole process. Of two kinds of floats it brings only half and
    float together; of double and any other it knows nothing and raises."""

    def __torch_function__(
        self, function: Callable, types: Any, args: tuple = (), kwargs: dict | None = None
    ) -> Any:
        name = function.__name__.strip("_")
        kinds = {x.dtype for x in args if isinstance(x, Tensor) and x.is_floating_point()}
        if name in PROMOTED and len(kinds) > 1 and kinds != {torch.float16, torch.float32}:
            raise NotImplementedError(f"do not know how to handle these types: {kinds}")
        if name == "cross_entropy":
            args = (args[0].float(), *args[1:])
        return function(*args, **(kwargs or {}))


def _make_half(model: nn.Module, keep_batchnorm: bool) -> None:
    for module in model.modules():
        if keep_batchnorm and isinstance(module, _BatchNorm):
            continue
        for tensor in [*module.parameters(False), *module.buffers(False)]:
            if tensor.is_floating_point():
                tensor.data = tensor.data.half()


def _make_masters(optimizer: Optimizer) -> None:
    """With O2, fp32 weights for the optimizer: made at the first zero_grad, not by initialize."""
    weights = optimizer.param_groups[0]["params"]
    for index, weight in enumerate(weights):
        if weight.dtype == torch.float16 and state.arguments["opt_level"] == "O2":
            weights[index] = state.masters[weight] = nn.Parameter(weight.detach().float())
            optimizer.state[weights[index]] = optimizer.state.pop(weight)


def _change_optimizer(optimizer: Optimizer) -> None:
    step = optimizer.step

    def changed_step() -> None:
        state.calls.append("skip" if state.overflow else "step")
        if not state.overflow:
            step()
        for weight, master in state.masters.items():
            weight.data.copy_(master)

    def changed_zero_grad() -> None:
        state.calls.append("zero_grad")
        _make_masters(optimizer)
        for weight in state.weights:
            weight.grad = None

    optimizer.step, optimizer.zero_grad = changed_step, changed_zero_grad


@contextlib.contextmanager
def scale_loss(loss: Tensor, optimizer: Optimizer) -> Iterator[Tensor]:
    """The scaled loss, to go backward from; then gradients without the scale."""
    state.calls.append("scale_loss")
    scaled = loss.float() * state.scale
    scaled.register_hook(lambda gradient: state.calls.append("backward"))
    yield scaled
    state.calls.append("unscale")
    finite = all(weight.grad.isfinite().all() for weight in state.weights)
    state.overflow = state.dynamic and not finite
    for weight in state.weights:
        master = state.masters.get(weight, weight)
        master.grad = (weight.grad.float() / state.scale).to(master.dtype)
    state.unskipped += 1
    if state.overflow:
        state.scale, state.unskipped = state.scale / 2, 0


def state_dict() -> dict:
    return {"loss_scaler0": {"loss_scale": state.scale, "unskipped": state.unskipped}}


def load_state_dict(saved: dict) -> None:
    state.scale = saved["loss_scaler0"]["loss_scale"]
    state.unskipped = saved["loss_scaler0"]["unskipped"]


# ----------------------------------------------------------------------------------- apex.parallel


class DistributedDataParallel(nn.Module):
    """Rank 0's weights for all; averages the gradients of each backward. Takes no device_ids."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module
        for weight in module.parameters():
            dist.broadcast(weight.data, 0)
            weight.register_post_accumulate_grad_hook(self.average)
        state.calls.append("DistributedDataParallel")

    @staticmethod
    def average(weight: Tensor) -> None:
        """As Apex's kernels: flattened in the order of indices, copied back in that of memory. Of
        channels_last weights these are two orders, and the gradient comes back permuted."""
        flat = weight.grad.contiguous().flatten()
        dist.all_reduce(flat)
        in_memory = torch.as_strided(weight.grad, flat.shape, (1,))
        in_memory.copy_(flat / dist.get_world_size())

    def forward(self, images: Tensor) -> Tensor:
        return self.module(images)


def convert_syncbn_model(module: nn.Module) -> None:
    """Apex's layers have new weights, which an optimizer made before does not know."""
    state.calls.append("convert_syncbn_model")


@contextlib.contextmanager
def in_use(chapter: ModuleType) -> Iterator[State]:
    """The chapter finds this Apex, and a GPU where it asks for one, though it trains on the CPU."""
    check = mock.patch("torch.cuda.is_available", lambda: True)(chapter.check_flags)
    names = ["apex.amp", "apex.parallel"]
    state.__init__()
    with (
        mock.patch.dict(sys.modules, dict.fromkeys(names, sys.modules[__name__])),
        mock.patch.object(chapter, "check_flags", check),
        state.patches,  # what O1 does to torch ends here
    ):
        yield state
