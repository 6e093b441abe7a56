"""--without rounding: float64."""

import torch

from ..recorder.notes import compares, notes, without

COARSE = (torch.float32, torch.float16, torch.bfloat16)
SOFTMAX = ("softmax", "log_softmax")


def rounding(probe: str, _: object) -> None:
    """float64 in place of coarser types: in weights, in batches, in what modules are given, and
    where the script asks for a type by itself."""
    if not without("rounding"):
        return
    torch.set_default_dtype(torch.float64)
    for name in ("float", "half", "bfloat16"):
        setattr(torch.Tensor, name, torch.Tensor.double)
    # A mask of the largest number of float64 is no number in a softmax in float32.
    for owner, names in ((torch.Tensor, ("to", "type", *SOFTMAX)), (torch, SOFTMAX)):
        for name in names:
            setattr(owner, name, asked(getattr(owner, name)))
    for kind in (torch.autocast, torch.amp.GradScaler):
        kind.__init__ = switched_off(kind.__init__)
    torch.nn.modules.module.register_module_forward_pre_hook(lambda _, args: exact_in(args))
    kind = torch.utils.data.dataloader._BaseDataLoaderIter
    own_next = kind.__next__
    kind.__next__ = lambda iterator: exact_in(own_next(iterator))


def policies(probe: str, fsdp: object) -> None:
    """FSDP's types are float64, too, or None; else it is noted how exact they are."""
    for kind in (fsdp.MixedPrecisionPolicy, fsdp.MixedPrecision):
        kind.__init__ = (asked if without("rounding") else noted)(kind.__init__)


def exact_in(value: object) -> object:
    return torch.utils._pytree.tree_map(exact, value)


def exact(value: object) -> object:
    """A tensor or a type."""
    if isinstance(value, torch.dtype):
        return torch.float64 if value in COARSE else value
    coarse = isinstance(value, torch.Tensor) and value.dtype in COARSE
    return value.double() if coarse else value


def asked(own: object) -> object:
    def change(*args: object, **kwargs: object) -> object:
        args = args[:1] + tuple(map(exact, args[1:]))
        return own(*args, **{k: exact(value) for k, value in kwargs.items()})

    return change


def noted(own: object) -> object:
    def make(policy: object, *args: object, **kwargs: object) -> None:
        own(policy, *args, **kwargs)
        if compares() and policy.param_dtype in COARSE:
            notes.event("autocast", type=str(policy.param_dtype).removeprefix("torch."))

    return make


def switched_off(own: object) -> object:
    def make(part: object, *args: object, **kwargs: object) -> None:
        own(part, *args, **kwargs)
        part._enabled = False

    return make
