"""A stand-in for NVIDIA's Apex at tag 25.05, for machines without a GPU.

Apex itself needs CUDA for anything that 04_apex does with it. This package has the functions that
the chapter calls, keeps the rules that Apex documents or checks, and some that its examples keep,
and raises Misuse where one is broken. It calculates for real, on the CPU: it scales the loss,
unscales the gradients, halves a dynamic scale and leaves out the step after an overflow, keeps fp32
copies of fp16 weights, and averages the gradients over gloo.

It shows that the chapter makes the calls, in which order, with which arguments, and that a run
which does so trains. It is not Apex: the numerics of O1, O2 and O3, the fused kernels, Apex's own
SyncBatchNorm and the overlap of its DistributedDataParallel are seen only on a GPU, with Apex.
What it does was written from Apex's behaviour and none of its code. Compared by hand in 2026 with
Apex's own sources, changed to run on one CPU: 16 steps of O0 to O3 had the same weights, scales and
skipped steps, bit for bit, and so had resumed runs.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import sys
import types
from collections.abc import Iterator
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.optim import Optimizer

FILES = {
    "apex/__init__.py": "",
    "apex/amp/__init__.py": "from apex_stand_in import initialize, load_state_dict\n"
    "from apex_stand_in import master_params, scale_loss, state_dict\n",
    "apex/parallel/__init__.py": "from apex_stand_in import DistributedDataParallel\n"
    "from apex_stand_in import SyncBatchNorm, convert_syncbn_model\n",
    "apex/optimizers/__init__.py": "from apex_stand_in import FusedSGD\n",
    "apex/multi_tensor_apply/__init__.py": "",
    "amp_C.py": "",
}
PYPI = {  # apex 0.9.10dev, "Pyramid toolkit to add Velruse, Flash Messages, CSRF, ReCaptcha ..."
    "apex/__init__.py": "from pyramid_mailer import mailer_factory_from_settings\n",
    "apex/lib/__init__.py": "",
    "apex/views.py": "",
}
FIRST_SCALE, LARGEST_SCALE, GROWS_AFTER = 2.0**16, 2.0**24, 2000
# What O1 puts its own functions around. Of two kinds of floats it brings only half and float
# together; of three, or of double and any other, it knows nothing and raises.
PROMOTED = "add sub mul truediv radd rsub rmul rtruediv iadd isub imul itruediv eq ne lt le gt ge"
PROMOTED_BY_NAME = "add mul div eq ne lt le gt ge equal addcmul addcdiv"
IN_FLOAT32 = {torch.nn.functional: ["cross_entropy"], torch: ["sum", "norm", "pow"]}
IN_FLOAT32[torch.Tensor] = ["sum", "norm", "pow", "cpu"]


class Misuse(RuntimeError):
    """A rule of Apex was broken."""


def rule(kept: object, text: str) -> None:
    if not kept:
        raise Misuse(text)


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
        self.level, self.casts, self.dynamic = "", False, False
        self.scale, self.unskipped = 1.0, 0
        self.half_weights: list[nn.Parameter] = []  # of the model, with O2
        self.masters: list[nn.Parameter] = []  # their fp32 copies, made late
        self.inside, self.backwards, self.may_step = False, 0, False

    def needs_initialize(self, who: str) -> None:
        rule(self.optimizer is not None, f"{who} before amp.initialize")


state = State()


# ---------------------------------------------------------------------------------------- apex.amp


def initialize(
    models: nn.Module,
    optimizers: Optimizer | None = None,
    enabled: bool = True,
    opt_level: str = "O1",
    cast_model_type: torch.dtype | None = None,
    patch_torch_functions: bool | None = None,
    keep_batchnorm_fp32: bool | str | None = None,
    master_weights: bool | None = None,
    loss_scale: float | str | None = None,
    cast_model_outputs: torch.dtype | None = None,
    num_losses: int = 1,
    verbosity: int = 1,
    min_loss_scale: float | None = None,
    max_loss_scale: float = LARGEST_SCALE,
) -> tuple[nn.Module, Optimizer]:
    """Changes model and optimizer in place, and returns them."""
    rule(state.device is not None, "amp.initialize before torch.cuda.set_device")
    rule(dist.is_initialized(), "amp.initialize before init_process_group")
    rule(state.optimizer is None, "amp.initialize is to be called once")
    rule(opt_level in ("O0", "O1", "O2", "O3"), f"unexpected optimization level {opt_level}")
    wrappers = (nn.parallel.DistributedDataParallel, nn.DataParallel, DistributedDataParallel)
    wrapped = any(isinstance(module, wrappers) for module in models.modules())
    rule(not wrapped, "parallel wrappers come AFTER amp.initialize")
    for name, tensor in [*models.named_parameters(), *models.named_buffers()]:
        fp32 = not tensor.is_floating_point() or tensor.dtype == torch.float32
        rule(fp32, f"{name} is {tensor.dtype}: amp.initialize wants a model that is fp32")
    rule(isinstance(optimizers, Optimizer), "to train, amp.initialize needs the optimizer")
    owned = [id(weight) for group in optimizers.param_groups for weight in group["params"]]
    same = owned == [id(weight) for weight in models.parameters()]
    rule(same, "the optimizer has other weights than the model: convert_syncbn_model comes first")
    rule("step" not in vars(optimizers), "optimizer.step is changed: schedules come after")
    keep = {"True": True, "False": False}.get(keep_batchnorm_fp32, keep_batchnorm_fp32)
    rule(keep in (True, False, None), f"keep_batchnorm_fp32 is no boolean: {keep!r}")
    rule(keep is None or opt_level != "O1", "with O1, keep_batchnorm_fp32 should be None")
    if loss_scale not in (None, "dynamic"):
        rule(float(loss_scale) > 0, f"a loss scale of {loss_scale}")
    known = (enabled, cast_model_type, patch_torch_functions, master_weights, cast_model_outputs)
    known += (num_losses, verbosity, min_loss_scale, max_loss_scale)
    plain = known == (True, None, None, None, None, 1, 1, None, LARGEST_SCALE)
    rule(plain, "the stand-in knows opt_level, keep_batchnorm_fp32 and loss_scale alone")

    state.model, state.optimizer, state.level = models, optimizers, opt_level
    wanted = {"O0": 1.0, "O1": "dynamic", "O2": "dynamic", "O3": 1.0}[opt_level]
    wanted = wanted if loss_scale is None else loss_scale
    state.dynamic = wanted == "dynamic"
    state.scale = FIRST_SCALE if state.dynamic else float(wanted)
    state.calls.append("initialize")
    state.arguments |= {"opt_level": opt_level, "loss_scale": loss_scale}
    state.arguments |= {"keep_batchnorm_fp32": keep_batchnorm_fp32}
    if opt_level == "O1":
        _cast_functions()
        _change_forward(models, None)
    if opt_level in ("O2", "O3"):
        keep = opt_level == "O2" if keep is None else keep
        _make_half(models, keep)
        _change_forward(models, torch.float16)
        # The momentum takes the type of its weight.
        optimizers.load_state_dict(optimizers.state_dict())
        models._register_state_dict_hook(_float32_state)
    _change_optimizer(optimizers)
    return models, optimizers


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


def _cast_functions() -> None:
    """What O1 does to torch, in the whole process, as far as it can stop a program."""
    state.casts = True

    def promoting(function: Any) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            floats = {x.dtype for x in args if isinstance(x, Tensor) and x.is_floating_point()}
            known = len(floats) < 2 or floats == {torch.float16, torch.float32}
            if state.casts and not known:
                raise NotImplementedError(f"do not know how to handle these types: {floats}")
            return function(*args, **kwargs)

        return call

    def in_float32(function: Any) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            if state.casts:
                floats = [isinstance(x, Tensor) and x.is_floating_point() for x in args]
                args = tuple(x.float() if f else x for x, f in zip(args, floats, strict=True))
            return function(*args, **kwargs)

        return call

    names = [(torch.Tensor, f"__{name}__") for name in PROMOTED.split()]
    names += [(where, n) for where in (torch, torch.Tensor) for n in PROMOTED_BY_NAME.split()]
    wrappers = [(where, name, promoting) for where, name in names]
    wrappers += [(where, n, in_float32) for where, all_of in IN_FLOAT32.items() for n in all_of]
    for where, name, wrapper in wrappers:
        changed = wrapper(getattr(where, name))
        state.patches.enter_context(mock.patch.object(where, name, changed))


def _make_masters() -> None:
    """With O2, fp32 weights for the optimizer: made at the first zero_grad or scale_loss."""
    if state.level != "O2" or state.masters:
        return
    optimizer = state.optimizer
    for group in optimizer.param_groups:
        for index, weight in enumerate(group["params"]):
            if weight.dtype == torch.float16:
                master = nn.Parameter(weight.detach().float())
                group["params"][index] = master
                state.half_weights.append(weight)
                state.masters.append(master)
                if weight in optimizer.state:
                    optimizer.state[master] = optimizer.state.pop(weight)
    optimizer.load_state_dict(optimizer.state_dict())  # the momentum is fp32 again


def _change_optimizer(optimizer: Optimizer) -> None:
    step = optimizer.step
    zero_grad = optimizer.zero_grad

    def changed_step(self: Optimizer) -> None:
        rule(not state.inside, "optimizer.step inside of scale_loss")
        rule(state.may_step, "optimizer.step without a scale_loss before it")
        state.may_step, state.casts = False, False
        step()
        state.casts = state.level == "O1"
        with torch.no_grad():
            for weight, master in zip(state.half_weights, state.masters, strict=True):
                weight.copy_(master)
                master.grad = None
        state.calls.append("step")

    def changed_zero_grad(self: Optimizer) -> None:
        rule(not state.inside, "zero_grad inside of scale_loss")
        rule(not state.may_step, "zero_grad between scale_loss and step")
        _make_masters()
        zero_grad()
        for weight in state.half_weights:
            weight.grad = None
        state.calls.append("zero_grad")

    # Bound methods, as torch's schedules want them.
    optimizer.step = types.MethodType(changed_step, optimizer)
    optimizer.zero_grad = types.MethodType(changed_zero_grad, optimizer)


@contextlib.contextmanager
def scale_loss(loss: Tensor, optimizers: Optimizer) -> Iterator[Tensor]:
    state.needs_initialize("scale_loss")
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
        rule(state.inside, "backward outside of scale_loss")
        state.backwards += 1
        state.calls.append("backward")

    def compare(gradient: Tensor) -> None:
        rule(state.backwards, "backward of the loss that is not scaled")

    loss.register_hook(compare)
    scaled.register_hook(count)
    try:
        yield scaled
    finally:
        state.inside = False
    rule(state.backwards == 1, f"{state.backwards} backward in one scale_loss")
    state.may_step = True
    overflow = False
    for weight in weights:
        if weight.grad is not None:
            overflow |= state.dynamic and not bool(weight.grad.isfinite().all())
    with torch.no_grad():
        for weight, master in zip(state.half_weights, state.masters, strict=True):
            if weight.grad is not None:
                master.grad = weight.grad.float() / state.scale
        of_half = {id(weight) for weight in state.half_weights}
        for weight in weights:
            if id(weight) not in of_half and weight.grad is not None:
                weight.grad /= state.scale
    state.unskipped += 1
    if overflow:
        state.scale, state.unskipped = state.scale / 2, 0
        _skip_the_next_step(optimizers)
    elif state.dynamic and state.unskipped == GROWS_AFTER:
        state.scale, state.unskipped = min(LARGEST_SCALE, state.scale * 2), 0


def _skip_the_next_step(optimizer: Optimizer) -> None:
    step = optimizer.step

    def skip() -> None:
        rule(not state.inside, "optimizer.step inside of scale_loss")
        state.may_step = False
        for master in state.masters:
            master.grad = None
        optimizer.step = step
        state.calls.append("skip")

    optimizer.step = skip


def master_params(optimizer: Optimizer) -> Iterator[nn.Parameter]:
    state.needs_initialize("master_params")
    rule(not state.inside, "the gradients are still scaled inside of scale_loss")
    rule(state.may_step, "master_params where there are no new gradients")
    state.calls.append("master_params")
    for group in optimizer.param_groups:
        yield from group["params"]


def state_dict() -> dict:
    state.needs_initialize("amp.state_dict")
    return {"loss_scaler0": {"loss_scale": state.scale, "unskipped": state.unskipped}}


def load_state_dict(saved: dict) -> None:
    state.needs_initialize("amp.load_state_dict")
    foreign = [key for key in saved if "loss_scaler" not in key]
    rule(not foreign, f"unexpected keys in amp's state_dict: {foreign}")
    scaler = saved["loss_scaler0"]
    state.scale, state.unskipped = scaler["loss_scale"], scaler["unskipped"]
    state.calls.append("load_state_dict")


# ----------------------------------------------------------------------------------- apex.parallel


class DistributedDataParallel(nn.Module):
    """Rank 0's weights for all; averages the gradients of each backward."""

    def __init__(
        self,
        module: nn.Module,
        message_size: int = 10_000_000,
        delay_allreduce: bool = False,
        gradient_average: bool = True,
        gradient_predivide_factor: float = 1.0,
    ) -> None:
        super().__init__()
        rule(type(message_size) is int, "Apex's DistributedDataParallel takes no device_ids")
        rule(state.device is not None, "DistributedDataParallel before torch.cuda.set_device")
        rule(dist.is_initialized(), "DistributedDataParallel before init_process_group")
        state.needs_initialize("DistributedDataParallel")
        rule(module is state.model, "another model than that of amp.initialize")
        self.module = module
        for weight in module.parameters():
            dist.broadcast(weight.data, 0)
            weight.register_post_accumulate_grad_hook(self.average)
        state.calls.append("DistributedDataParallel")

    @staticmethod
    def average(weight: Tensor) -> None:
        dist.all_reduce(weight.grad)
        weight.grad.mul_(1 / dist.get_world_size())

    def forward(self, *inputs: Tensor) -> Tensor:
        return self.module(*inputs)


class Sum(torch.autograd.Function):
    """Over all ranks, of values and on the way back of gradients."""

    @staticmethod
    def forward(ctx: Any, values: Tensor) -> Tensor:
        total = values.clone()
        dist.all_reduce(total)
        return total

    backward = forward


class SyncBatchNorm(_BatchNorm):
    """BatchNorm of the images of all ranks, of equal shares; a plain and slow calculation."""

    def _check_input_dim(self, images: Tensor) -> None: ...

    def forward(self, images: Tensor) -> Tensor:
        if not self.training:
            return super().forward(images)
        both = torch.stack(
            [images.float().mean((0, 2, 3)), images.float().square().mean((0, 2, 3))]
        )
        mean, square = Sum.apply(both) / dist.get_world_size()
        variance = square - mean * mean
        count = images.numel() / images.shape[1] * dist.get_world_size()
        with torch.no_grad():
            self.num_batches_tracked += 1
            unbiased = variance * count / (count - 1)
            for old, new in ((self.running_mean, mean), (self.running_var, unbiased)):
                old.lerp_(new.to(old.dtype), self.momentum)
        factor = self.weight * torch.rsqrt(variance + self.eps)
        shift = self.bias - mean * factor
        return (images * factor[:, None, None] + shift[:, None, None]).to(images.dtype)


def convert_syncbn_model(module: nn.Module) -> nn.Module:
    """Swaps the layers inside of module: their weights are new ones."""
    if isinstance(module, _BatchNorm):
        new = SyncBatchNorm(module.num_features, module.eps, module.momentum)
        new.load_state_dict(module.state_dict())
        return new
    for name, child in module.named_children():
        setattr(module, name, convert_syncbn_model(child))
    if "convert_syncbn_model" not in state.calls:
        rule(state.optimizer is None, "convert_syncbn_model comes before amp.initialize")
        state.calls.append("convert_syncbn_model")
    return module


# --------------------------------------------------------------------------------- apex.optimizers


class FusedSGD(Optimizer):
    """SGD with momentum, in plain operations."""

    def __init__(
        self,
        params: Any,
        lr: float,
        momentum: float = 0.0,
        dampening: float = 0.0,
        weight_decay: float = 0.0,
        nesterov: bool = False,
        wd_after_momentum: bool = False,
        materialize_master_grads: bool = True,
        set_grad_none: bool = False,
    ) -> None:
        rule(importlib.util.find_spec("amp_C"), "apex.optimizers.FusedSGD requires cuda extensions")
        defaults = {"lr": lr, "momentum": momentum, "weight_decay": weight_decay}
        super().__init__(params, defaults | {"dampening": dampening, "nesterov": nesterov})
        state.calls.append("FusedSGD")

    def zero_grad(self) -> None:
        """Without the argument that torch's optimizers have."""
        super().zero_grad()

    @torch.no_grad()
    def step(self, closure: None = None) -> None:
        for group in self.param_groups:
            for weight in group["params"]:
                if weight.grad is None:
                    continue
                gradient = weight.grad + group["weight_decay"] * weight
                kept = self.state[weight]
                if "momentum_buffer" not in kept:
                    kept["momentum_buffer"] = torch.zeros_like(weight)
                kept["momentum_buffer"].mul_(group["momentum"]).add_(gradient)
                weight.add_(kept["momentum_buffer"], alpha=-group["lr"])


# ---------------------------------------------------------------------- putting it where it is seen


def write_files(folder: Path, files: dict[str, str] = FILES, without: str = "nothing") -> Path:
    """A folder to be put on sys.path, less the files whose path begins with `without`."""
    for name, text in files.items():
        if not name.startswith(without):
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
    return folder


class OnlyIn:
    """Stands in sys.meta_path before another finder, and keeps what it knows of Apex to itself."""

    def __init__(self, folder: Path | None, finder: Any) -> None:
        self.places, self.finder = [str(folder)] if folder else [], finder

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if _is_apex(name) and path is None:
            return PathFinder.find_spec(name, self.places)
        return self.finder.find_spec(name, path, target)

    def __getattr__(self, name: str) -> Any:  # others than import ask finders for other things
        return getattr(self.finder, name)


@contextlib.contextmanager
def on_path(folder: Path | None) -> Iterator[None]:
    """What is found as apex and amp_C is what the folder has, whatever is installed on this
    machine; for None, nothing."""
    kept = {name: sys.modules.pop(name) for name in list(sys.modules) if _is_apex(name)}
    finders = [OnlyIn(folder, finder) for finder in sys.meta_path]
    importlib.invalidate_caches()
    try:
        with mock.patch.object(sys, "meta_path", finders):
            yield
    finally:
        for name in [name for name in sys.modules if _is_apex(name)]:
            del sys.modules[name]
        sys.modules.update(kept)


def _is_apex(name: str) -> bool:
    return name.split(".")[0] in ("apex", "amp_C")


def set_device(device: torch.device) -> None:
    """In place of torch.cuda.set_device."""
    state.device = device
    state.calls.append("set_device")


@contextlib.contextmanager
def in_use(chapter: types.ModuleType, folder: Path) -> Iterator[State]:
    """The chapter finds this Apex in the folder, and a GPU for each rank where it looks for one:
    in check_precision and setup_distributed. All else stays on the CPU, over gloo."""
    init_process_group = dist.init_process_group

    def init_by_gloo(backend: str, *rest: Any, device_id: torch.device) -> None:
        rule(state.device == device_id, "init_process_group before torch.cuda.set_device")
        rule(backend == "nccl", f"GPUs talk over nccl, not over {backend}")
        state.calls.append("init_process_group")
        init_process_group("gloo", *rest)

    def with_gpus(function: Any) -> Any:
        def call(args: Any) -> Any:
            ranks = int(os.environ["LOCAL_WORLD_SIZE"])
            with (
                mock.patch("torch.cuda.is_available", lambda: True),
                mock.patch("torch.cuda.device_count", lambda: ranks),
                mock.patch("torch.cuda.set_device", set_device),
                mock.patch("torch.distributed.init_process_group", init_by_gloo),
            ):
                return function(args)

        return call

    def on_cpu(args: Any) -> tuple[int, int, torch.device]:
        rank, world_size, device = with_gpus(setup)(args)
        assert device == torch.device("cuda", rank), device
        return rank, world_size, torch.device("cpu")

    check, setup = chapter.check_precision, chapter.setup_distributed
    state.reset()
    with (
        on_path(folder),
        mock.patch.object(chapter, "check_precision", with_gpus(check)),
        mock.patch.object(chapter, "setup_distributed", on_cpu),
    ):
        try:
            yield state
        finally:
            state.patches.close()  # torch's own functions again
