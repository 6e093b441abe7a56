"""Where printed lines of two runs differ: the first one again, as if it had rounded otherwise."""

import torch
from torch.utils._pytree import tree_map

from . import first
from .rounding import COARSE

GENERATORS = {}  # of a device: the script's own random numbers stay as they are


def noise(probe: str, module: object) -> object:
    """What modules compute in an evaluation moves by so much of its size, each number by itself."""
    size = first().get("noise")
    return module.register_module_forward_hook(moving(size)) if size else None


def moving(size: float) -> object:
    def moved(value: object) -> object:
        if type(value) is not torch.Tensor or value.dtype not in (*COARSE, torch.float64):
            return value
        if value.device not in GENERATORS:
            GENERATORS[value.device] = torch.Generator(value.device).manual_seed(0)
        generator = GENERATORS[value.device]
        places = {"dtype": value.dtype, "device": value.device}
        with torch._C.DisableTorchFunction():  # draws.py is to see the script's own draws alone
            return value * (1 + size * torch.randn(value.shape, generator=generator, **places))

    def after_forward(module: object, _: tuple, result: object) -> object:
        trains = module.training and torch.is_grad_enabled()
        return None if trains or torch.compiler.is_compiling() else tree_map(moved, result)

    return after_forward
