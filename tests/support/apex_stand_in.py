"""A stand-in for NVIDIA's Apex at tag 25.05, for machines without a GPU.

It has the functions that 04_apex calls, and raises where a rule is broken that Apex documents or
checks, or that its examples keep. It calculates for real, on the CPU, but is not Apex: the numerics
of O1 to O3, the fused kernels, Apex's SyncBatchNorm (here a plain BatchNorm) and the overlap of its
DistributedDataParallel are seen only on a GPU. Written from Apex's behaviour and none of its code.
Compared by hand in 2026 with Apex's own sources, changed to run on one CPU: 16 steps of O0 to O3
had the same weights, scales and skipped steps, bit for bit, and so had resumed runs.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import sys
import types
from collections.abc import Callable, Iterator
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.optim import SGD, Optimizer
from torch.overrides import TorchFunctionMode

PACKAGES = {  # the names in each
    "apex": "",
    "apex/amp": "initialize, load_state_dict, master_params, scale_loss, state_dict",
    "apex/parallel": "DistributedDataParallel, convert_syncbn_model",
    "apex/optimizers": "FusedSGD",
    "apex/multi_tensor_apply": "",
    "amp_C": "",
}
FIRST_SCALE, LARGEST_SCALE, GROWS_AFTER = 2.0**16, 2.0**24, 2000
# What O1 puts its own functions around, as far as that can stop a program.
PROMOTED = "add sub rsub mul div true_divide eq ne lt le gt ge equal addcmul addcdiv".split()
IN_FLOAT32 = ["cross_entropy", "sum", "norm", "pow", "cpu"]


def rule(kept: object, text: str) -> None:
    if not kept:
        raise RuntimeError(text)


class State:
    """What Apex holds in globals of its own, once a process; reset() forgets it all."""

    def __init__(self) -> None:
        self.patches = contextlib.ExitStack()
        self.reset()

    def reset(self) -> None:
        self.patches.close()
        self.calls: list[str] = []
        self.arguments: dict[str, Any] = {}
        self.device = self.model = self.optimizer = None
        self.level, self.dynamic, self.scale, self.unskipped = "", False, 1.0, 0
        self.masters: dict[Tensor, Tensor] = {}  # of fp16 weights, with O2: the fp32 copies
        self.inside, self.backwards, self.may_step, self.overflow = False, 0, False, False


state = State()


# ---------------------------------------------------------------------------------------- apex.amp


def initialize(
    models: nn.Module,
    optimizers: Optimizer,
    opt_level: str = "O1",
    keep_batchnorm_fp32: str | None = None,
    loss_scale: float | None = None,
) -> tuple[nn.Module, Optimizer]:
    """Changes model and optimizer in place, and returns them."""
    rule(state.device is not None, "amp.initialize before torch.cuda.set_device")
    rule(dist.is_initialized(), "amp.initialize before init_process_group")
    rule(state.optimizer is None, "amp.initialize is to be called once")
    wrappers = (nn.parallel.DistributedDataParallel, nn.DataParallel, DistributedDataParallel)
    wrapped = any(isinstance(module, wrappers) for module in models.modules())
    rule(not wrapped, "parallel wrappers come AFTER amp.initialize")
    kinds = {tensor.dtype for tensor in [*models.parameters(), *models.buffers()]}
    rule(kinds <= {torch.float32, torch.int64}, "amp.initialize wants a model that is fp32")
    owned = [id(weight) for group in optimizers.param_groups for weight in group["params"]]
    same = owned == [id(weight) for weight in models.parameters()]
    rule(same, "the optimizer has other weights than the model: convert_syncbn_model comes first")
    rule("step" not in vars(optimizers), "optimizer.step is changed: schedules come after")
    none = keep_batchnorm_fp32 is None
    rule(none or opt_level != "O1", "with O1, keep_batchnorm_fp32 should be None")

    state.model, state.optimizer, state.level = models, optimizers, opt_level
    state.dynamic = opt_level in ("O1", "O2") and loss_scale is None
    state.scale = FIRST_SCALE if state.dynamic else loss_scale or 1.0
    state.calls.append("initialize")
    state.arguments = {"opt_level": opt_level, "loss_scale": loss_scale}
    state.arguments |= {"keep_batchnorm_fp32": keep_batchnorm_fp32}
    if opt_level == "O1":
        state.patches.enter_context(FunctionsOfO1())
        _change_forward(models, None)
    if opt_level in ("O2", "O3"):
        keep = opt_level == "O2" if none else {"True": True, "False": False}[keep_batchnorm_fp32]
        _make_half(models, keep)
        _change_forward(models, torch.float16)
        # The momentum takes the type of its weight.
        optimizers.load_state_dict(optimizers.state_dict())
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
        floats = [isinstance(x, Tensor) and x.is_floating_point() for x in args]
        kinds = {x.dtype for x, is_float in zip(args, floats, strict=True) if is_float}
        if name in PROMOTED and len(kinds) > 1 and kinds != {torch.float16, torch.float32}:
            raise NotImplementedError(f"do not know how to handle these types: {kinds}")
        if name in IN_FLOAT32:
            args = tuple(x.float() if f else x for x, f in zip(args, floats, strict=True))
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
    """With O2, fp32 weights for the optimizer: made at the first zero_grad or scale_loss."""
    if state.level != "O2" or state.masters:
        return
    optimizer = state.optimizer
    for group in optimizer.param_groups:
        for index, weight in enumerate(group["params"]):
            if weight.dtype == torch.float16:
                master = nn.Parameter(weight.detach().float())
                group["params"][index] = state.masters[weight] = master
                if weight in optimizer.state:
                    optimizer.state[master] = optimizer.state.pop(weight)
    optimizer.load_state_dict(optimizer.state_dict())  # the momentum is fp32 again


def _change_optimizer(optimizer: Optimizer) -> None:
    step, zero_grad = optimizer.step, optimizer.zero_grad

    def changed_step(self: Optimizer) -> None:
        rule(not state.inside, "optimizer.step inside of scale_loss")
        rule(state.may_step, "optimizer.step without a scale_loss before it")
        state.may_step = False
        state.calls.append("skip" if state.overflow else "step")
        if not state.overflow:
            step()
        for weight, master in state.masters.items():
            weight.data.copy_(master)
            master.grad = None

    def changed_zero_grad(self: Optimizer) -> None:
        rule(not state.inside, "zero_grad inside of scale_loss")
        rule(not state.may_step, "zero_grad between scale_loss and step")
        _make_masters()
        zero_grad()
        for weight in state.masters:
            weight.grad = None
        state.calls.append("zero_grad")

    # Bound methods, as torch's schedules want them.
    optimizer.step = types.MethodType(changed_step, optimizer)
    optimizer.zero_grad = types.MethodType(changed_zero_grad, optimizer)


@contextlib.contextmanager
def scale_loss(loss: Tensor, optimizers: Optimizer) -> Iterator[Tensor]:
    rule(optimizers is state.optimizer, "this optimizer has not been through amp.initialize")
    rule(not state.inside, "scale_loss inside of scale_loss")
    rule(not state.may_step, "scale_loss again, before the step")
    _make_masters()
    weights = list(state.model.parameters())
    old = any(w.grad is not None and w.grad.count_nonzero() for w in weights)
    rule(not old, "the gradients of the step before are still there")
    state.calls.append("scale_loss")
    state.inside, state.backwards = True, 0
    scaled = loss.float() * state.scale

    def count(gradient: Tensor) -> None:
        state.backwards += 1
        state.calls.append("backward")

    scaled.register_hook(count)
    try:
        yield scaled
    finally:
        state.inside = False
    rule(state.backwards == 1, f"{state.backwards} backward of the scaled loss in one scale_loss")
    state.may_step = True
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


def master_params(optimizer: Optimizer) -> Iterator[nn.Parameter]:
    rule(not state.inside, "the gradients are still scaled inside of scale_loss")
    rule(state.may_step, "master_params where there are no new gradients")
    state.calls.append("master_params")
    for group in optimizer.param_groups:
        yield from group["params"]


def state_dict() -> dict:
    rule(state.optimizer, "amp.state_dict before amp.initialize")
    return {"loss_scaler0": {"loss_scale": state.scale, "unskipped": state.unskipped}}


def load_state_dict(saved: dict) -> None:
    rule(state.optimizer, "amp.load_state_dict before amp.initialize")
    rule(saved.keys() == {"loss_scaler0"}, f"unexpected keys in amp's state_dict: {[*saved]}")
    scaler = saved["loss_scaler0"]
    state.scale, state.unskipped = scaler["loss_scale"], scaler["unskipped"]
    state.calls.append("load_state_dict")


# ----------------------------------------------------------------- apex.parallel, apex.optimizers


class DistributedDataParallel(nn.Module):
    """Rank 0's weights for all; averages the gradients of each backward. Takes no device_ids."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        rule(module is state.model, "DistributedDataParallel before amp.initialize of its model")
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
    rule(state.optimizer is None, "convert_syncbn_model comes before amp.initialize")
    for parent in list(module.modules()):
        for name, child in parent.named_children():
            if isinstance(child, _BatchNorm):
                new = type(child)(child.num_features, child.eps, child.momentum)
                new.load_state_dict(child.state_dict())
                setattr(parent, name, new)
    state.calls.append("convert_syncbn_model")
    return module


class FusedSGD(SGD):
    """torch's, as far as the chapter needs it."""

    def __init__(self, params: Any, lr: float, momentum: float, weight_decay: float) -> None:
        rule(importlib.util.find_spec("amp_C"), "apex.optimizers.FusedSGD requires cuda extensions")
        super().__init__(params, lr, momentum, weight_decay=weight_decay)
        state.calls.append("FusedSGD")


# ---------------------------------------------------------------------- putting it where it is seen


def write_files(folder: Path, without: str | tuple[str, ...] = "nothing") -> Path:
    """A folder for on_path, less the packages whose names begin with `without`."""
    for package, names in PACKAGES.items():
        if not package.startswith(without):
            (folder / package).mkdir(parents=True, exist_ok=True)
            text = f"from apex_stand_in import {names}\n" if names else ""
            (folder / package / "__init__.py").write_text(text)
    return folder


@contextlib.contextmanager
def on_path(folder: Path | None) -> Iterator[None]:
    """What is found as apex and amp_C is what the folder has, whatever is installed on this
    machine; for None, nothing."""
    real, ours = PathFinder.find_spec, ("apex", "amp_C")

    def find_spec(name: str, path: Any = None, target: Any = None) -> Any:
        if name in ours:
            path = [str(folder)] if folder else []
        return real(name, path, target)

    try:
        with mock.patch.object(PathFinder, "find_spec", find_spec):
            yield
    finally:
        for name in [name for name in sys.modules if name.split(".")[0] in ours]:
            del sys.modules[name]


@contextlib.contextmanager
def in_use(chapter: types.ModuleType, folder: Path) -> Iterator[State]:
    """The chapter finds this Apex in the folder, and a GPU for each rank where it looks for one:
    in check_precision and setup_distributed. All else stays on the CPU, over gloo."""
    init_process_group = dist.init_process_group

    def set_device(device: torch.device) -> None:
        state.device = device
        state.calls.append("set_device")

    def init_by_gloo(backend: str, device_id: torch.device, **rest: Any) -> None:
        rule(state.device == device_id, "init_process_group before torch.cuda.set_device")
        rule(backend == "nccl", f"GPUs talk over nccl, not over {backend}")
        state.calls.append("init_process_group")
        init_process_group("gloo", **rest)

    group = mock.patch("torch.distributed.init_process_group", init_by_gloo)
    gpus = mock.patch.multiple(
        "torch.cuda",
        is_available=lambda: True,
        device_count=lambda: int(os.environ["LOCAL_WORLD_SIZE"]),
        set_device=set_device,
    )

    def on_cpu(args: Any) -> tuple[int, int, torch.device]:
        rank, world_size, device = gpus(group(setup))(args)
        assert device == torch.device("cuda", rank), device
        return rank, world_size, torch.device("cpu")

    check, setup = chapter.check_precision, chapter.setup_distributed
    state.reset()
    with (
        on_path(folder),
        mock.patch.object(chapter, "check_precision", gpus(check)),
        mock.patch.object(chapter, "setup_distributed", on_cpu),
        state.patches,  # what O1 does to torch ends here
    ):
        yield state
