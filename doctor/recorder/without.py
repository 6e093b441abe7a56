"""What `doctor --against … --without …` takes out of both runs: differences that right ones have.

Only here does the recorder change a training.
"""

import os

import torch
from torch.nn import functional
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils._pytree import tree_map
from torch.utils.data import DistributedSampler, RandomSampler
from torch.utils.data.dataloader import _BaseDataLoaderIter

DROPOUTS = ("dropout", "dropout1d", "dropout2d", "dropout3d", "alpha_dropout")
DROPOUTS += ("feature_alpha_dropout",)


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
    """float64 in place of float32, in weights, batches and what modules are given."""
    if not without("rounding"):
        return
    torch.set_default_dtype(torch.float64)
    torch.Tensor.float = torch.Tensor.double
    own_autocast = torch.autocast.__init__

    def off(autocast: object, *args: object, **kwargs: object) -> None:
        own_autocast(autocast, *args, **(kwargs | {"enabled": False}))

    def exact(value: object) -> object:
        return value.double() if getattr(value, "dtype", None) == torch.float32 else value

    def before_forward(module: object, args: tuple) -> tuple:
        return tree_map(exact, args)

    own_next = _BaseDataLoaderIter.__next__
    torch.autocast.__init__ = off
    torch.nn.modules.module.register_module_forward_pre_hook(before_forward)
    _BaseDataLoaderIter.__next__ = lambda iterator: tree_map(exact, own_next(iterator))
