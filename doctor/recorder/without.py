"""What `doctor --against … --without …` takes out of both runs: differences that right ones have.

Only here does the recorder change a training.
"""

import os

import torch
from torch.nn import functional
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils._pytree import tree_map
from torch.utils.data import DistributedSampler, RandomSampler

DROPOUTS = ("dropout", "dropout1d", "dropout2d", "dropout3d", "alpha_dropout")
DROPOUTS += ("feature_alpha_dropout",)
COARSE = (torch.float32, torch.float16, torch.bfloat16)


def without(what: str) -> bool:
    return what in os.environ.get("DOCTOR_AGAINST", "").split(",")


def shuffling(probe: str, own: object) -> None:
    """No order is drawn, so that a step has the same samples for any number of ranks. A sampler of
    the script's own stays as it is."""
    own_random = RandomSampler.__iter__

    def iterate(sampler: object) -> object:
        some = sampler.replacement or sampler.num_samples != len(sampler.data_source)
        fixed = without("shuffling") and not some
        return iter(range(sampler.num_samples)) if fixed else own_random(sampler)

    def divide(sampler: object) -> object:
        shuffle, sampler.shuffle = sampler.shuffle, sampler.shuffle and not without("shuffling")
        try:
            return own(sampler)
        finally:
            sampler.shuffle = shuffle

    RandomSampler.__iter__ = iterate
    DistributedSampler.__iter__ = divide


def batchnorm(probe: str, _: object) -> None:
    """In training, too, these layers use their running statistics."""

    def evaluating(own: object) -> object:
        def forward(norm: object, images: object) -> object:
            if not (norm.training and frozen(norm)):
                return own(norm, images)
            norm.training = False
            try:
                return own(norm, images)
            finally:
                norm.training = True

        return forward

    for kind in (_BatchNorm, torch.nn.SyncBatchNorm):
        kind.forward = evaluating(kind.forward)


def frozen(norm: object) -> bool:
    return without("batchnorm") and norm.running_mean is not None


def dropout(probe: str, module: object) -> None:
    def keeping(own: object) -> object:
        def dropout(images: object, *args: object, **kwargs: object) -> object:
            return images if without("dropout") else own(images, *args, **kwargs)

        return dropout

    for name in DROPOUTS:
        setattr(module, name, keeping(getattr(module, name)))
    attend = functional.scaled_dot_product_attention

    def attention(*args: object, **kwargs: object) -> object:
        if without("dropout"):
            args = (*args[:4], 0.0, *args[5:])[: len(args)]
            kwargs = kwargs | {"dropout_p": 0.0} if "dropout_p" in kwargs else kwargs
        return attend(*args, **kwargs)

    functional.scaled_dot_product_attention = attention


def rounding(probe: str, _: object) -> None:
    """float64 in place of coarser types: in weights, in batches, in what modules are given, and
    where the script asks for a type by itself."""
    if not without("rounding"):
        return
    torch.set_default_dtype(torch.float64)
    for name in ("float", "half", "bfloat16"):
        setattr(torch.Tensor, name, torch.Tensor.double)
    for name in ("to", "type"):
        setattr(torch.Tensor, name, asked(getattr(torch.Tensor, name)))
    for kind in (torch.autocast, torch.amp.GradScaler):
        kind.__init__ = switched_off(kind.__init__)
    torch.nn.modules.module.register_module_forward_pre_hook(lambda _, args: tree_map(exact, args))
    kind = torch.utils.data.dataloader._BaseDataLoaderIter
    own_next = kind.__next__
    kind.__next__ = lambda iterator: tree_map(exact, own_next(iterator))


def exact(value: object) -> object:
    """A tensor or a type."""
    if isinstance(value, torch.dtype):
        return torch.float64 if value in COARSE else value
    coarse = isinstance(value, torch.Tensor) and value.dtype in COARSE
    return value.double() if coarse else value


def asked(own: object) -> object:
    def change(tensor: object, *args: object, **kwargs: object) -> object:
        return own(tensor, *map(exact, args), **{k: exact(value) for k, value in kwargs.items()})

    return change


def switched_off(own: object) -> object:
    def make(part: object, *args: object, **kwargs: object) -> None:
        own(part, *args, **kwargs)
        part._enabled = False

    return make
