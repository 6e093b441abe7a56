"""A stand-in for NVIDIA's Apex at tag 25.05, for machines without a GPU.

It has the functions that 04_apex calls, and notes their order, which a test compares. It does the
arithmetic, on the CPU, but is not Apex: the numerics of O1 to O3, the fused kernels, SyncBatchNorm
(here a plain BatchNorm) and the overlap of its DistributedDataParallel are seen only on a GPU.
Written from Apex's behaviour and none of its code. Compared by hand in 2026 with Apex's sources,
changed to run on one CPU: 16 steps of O0 to O3 had the same weights, scales and skipped steps, bit
for bit, and so had resumed runs.
"""

from __future__ import annotations

import contextlib
import sys
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.optim import SGD, Optimizer
from torch.overrides import TorchFunctionMode

FIRST_SCALE, LARGEST_SCALE, GROWS_AFTER = 2.0**16, 2.0**24, 2000
# Functions of two tensors that O1 makes one type of, if it can.
PROMOTED = "add sub rsub mul div true_divide eq ne lt le gt ge equal addcmul addcdiv".split()


@dataclass
class State:
    """What Apex holds in globals of its own, once a process."""

    calls: list[str] = field(default_factory=list)
    arguments: dict[str, Any] = field(default_factory=dict)
    model: nn.Module | None = None
    optimizer: Optimizer | None = None
    dynamic: bool = False
    scale: float = 1.0
    unskipped: int = 0
    overflow: bool = False
    masters: dict[Tensor, Tensor] = field(default_factory=dict)  # with O2: fp32 copies of weights
    patches: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)


state = State()


# ---------------------------------------------------------------------------------------- apex.amp


def initialize(
    models: nn.Module, optimizers: Optimizer, opt_level: str, loss_scale: float | None
) -> tuple[nn.Module, Optimizer]:
    """Changes model and optimizer in place, and returns them."""
    owned = [id(weight) for weight in optimizers.param_groups[0]["params"]]
    if owned != [id(weight) for weight in models.parameters()]:
        raise RuntimeError("the optimizer's weights are others: convert_syncbn_model comes first")

    state.calls.append("initialize")
    state.arguments = {"opt_level": opt_level, "loss_scale": loss_scale}
    state.model, state.optimizer = models, optimizers
    state.dynamic = opt_level in ("O1", "O2") and loss_scale is None
    state.scale = FIRST_SCALE if state.dynamic else loss_scale or 1.0
    if opt_level == "O1":
        state.patches.enter_context(FunctionsOfO1())
        _change_forward(models, None)
    if opt_level in ("O2", "O3"):
        _make_half(models, keep_batchnorm=opt_level == "O2")
        _change_forward(models, torch.float16)
        models._register_state_dict_hook(_float32_state)
    _change_optimizer(optimizers)
    return models, optimizers


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


def _change_forward(model: nn.Module, dtype: torch.dtype | None) -> None:
    """fp16 images in and fp32 logits out; None: fp16 where it is safe, as autocast picks it."""
    forward = model.forward

    def changed(images: Tensor) -> Tensor:
        if dtype:
            return forward(images.to(dtype)).float()
        with torch.autocast("cpu", torch.float16):
            return forward(images)

    model.forward = changed


def _float32_state(module: nn.Module, weights: dict, prefix: str, metadata: object) -> None:
    for name, value in weights.items():
        if value.dtype == torch.float16:
            weights[name] = value.float()


def _make_masters() -> None:
    """With O2, fp32 weights for the optimizer: made at the first zero_grad, not by initialize."""
    if state.arguments["opt_level"] != "O2" or state.masters:
        return
    optimizer = state.optimizer
    for group in optimizer.param_groups:
        for index, weight in enumerate(group["params"]):
            if weight.dtype == torch.float16:
                master = nn.Parameter(weight.detach().float())
                group["params"][index] = state.masters[weight] = master
                optimizer.state[master] = optimizer.state.pop(weight)


def _change_optimizer(optimizer: Optimizer) -> None:
    step, zero_grad = optimizer.step, optimizer.zero_grad

    def changed_step() -> None:
        state.calls.append("skip" if state.overflow else "step")
        if not state.overflow:
            step()
        for weight, master in state.masters.items():
            weight.data.copy_(master)
            master.grad = None

    def changed_zero_grad() -> None:
        state.calls.append("zero_grad")
        _make_masters()
        zero_grad()
        for weight in state.masters:
            weight.grad = None

    optimizer.step, optimizer.zero_grad = changed_step, changed_zero_grad


@contextlib.contextmanager
def scale_loss(loss: Tensor, optimizers: Optimizer) -> Iterator[Tensor]:
    """The scaled loss, to go backward from; then gradients without the scale."""
    state.calls.append("scale_loss")
    scaled = loss.float() * state.scale
    scaled.register_hook(lambda gradient: state.calls.append("backward"))
    yield scaled
    state.calls.append("unscale")
    weights = list(state.model.parameters())
    state.overflow = state.dynamic and not all(w.grad.isfinite().all() for w in weights)
    for weight in weights:
        if weight in state.masters:
            state.masters[weight].grad = weight.grad.float() / state.scale
        else:
            weight.grad /= state.scale
    state.unskipped += 1
    if state.overflow:
        state.scale, state.unskipped = state.scale / 2, 0
    elif state.dynamic and state.unskipped == GROWS_AFTER:
        state.scale, state.unskipped = min(LARGEST_SCALE, state.scale * 2), 0


def master_params(optimizer: Optimizer) -> list[nn.Parameter]:
    state.calls.append("master_params")
    return optimizer.param_groups[0]["params"]


def state_dict() -> dict:
    return {"loss_scaler0": {"loss_scale": state.scale, "unskipped": state.unskipped}}


def load_state_dict(saved: dict) -> None:
    state.scale = saved["loss_scaler0"]["loss_scale"]
    state.unskipped = saved["loss_scaler0"]["unskipped"]


# ----------------------------------------------------------------- apex.parallel, apex.optimizers


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

    def forward(self, *inputs: Tensor) -> Tensor:
        return self.module(*inputs)


def convert_syncbn_model(module: nn.Module) -> nn.Module:
    """Swaps the layers inside of module, for plain ones: their weights are new, as Apex's are."""
    state.calls.append("convert_syncbn_model")
    for parent in list(module.modules()):
        for name, child in parent.named_children():
            if isinstance(child, _BatchNorm):
                new = type(child)(child.num_features, child.eps, child.momentum)
                new.load_state_dict(child.state_dict())
                setattr(parent, name, new)
    return module


class FusedSGD(SGD):
    """torch's, as far as the chapter needs it."""

    def __init__(self, params: Any, lr: float, momentum: float, weight_decay: float) -> None:
        super().__init__(params, lr, momentum, weight_decay=weight_decay)
        state.calls.append("FusedSGD")


MODULES = {
    "apex.amp": types.SimpleNamespace(
        initialize=initialize,
        load_state_dict=load_state_dict,
        master_params=master_params,
        scale_loss=scale_loss,
        state_dict=state_dict,
    ),
    "apex.parallel": types.SimpleNamespace(
        DistributedDataParallel=DistributedDataParallel, convert_syncbn_model=convert_syncbn_model
    ),
    "apex.optimizers": types.SimpleNamespace(FusedSGD=FusedSGD),
}


@contextlib.contextmanager
def in_use(chapter: types.ModuleType) -> Iterator[State]:
    """The chapter finds this Apex, and a GPU where it asks for one; it still trains on the CPU."""
    check = mock.patch("torch.cuda.is_available", lambda: True)(chapter.check_precision)
    state.__init__()
    with (
        mock.patch.dict(sys.modules, MODULES),
        mock.patch.object(chapter, "check_precision", check),
        state.patches,  # what O1 does to torch ends here
    ):
        yield state
