"""What no optimizer changes: frozen weights, modules that nobody trains, running statistics."""

import gc
import re
import weakref

import torch
from torch.nn.parallel import DistributedDataParallel

from .figures import figures, figures_of

STATISTICS = "mean|var|std|avg"  # names of buffers
PLAIN = (torch.Tensor, torch.nn.Parameter)
FLOATS = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
WHOLE_NUMBERS = (torch.int64, torch.int32, torch.bool)


def all_modules() -> list:
    return [o for o in gc.get_objects() if issubclass(type(o), torch.nn.Module)]


class Others:
    """Tensors by what they are, each as its module and its name there: a buffer may be replaced
    at any time, and nothing is kept alive."""

    def __init__(self) -> None:
        self.places: dict[str, list] = {}

    def look(self, model: object, trained: list) -> dict[str, list[int]]:
        """At the first step. DDP has sent all that it wraps, and sends buffers in each forward."""
        modules = all_modules()
        wrapped = [module for module in modules if isinstance(module, DistributedDataParallel)]
        sent = {id(b) for ddp in wrapped if ddp.broadcast_buffers for b in ddp.buffers()}
        equal = sent | {id(p) for ddp in wrapped for p in ddp.parameters()}
        mine = set(map(id, model.modules()))
        known = set(map(id, trained))

        kinds = ("frozen", "beside", "constant", "kept", "statistics")
        self.places = {kind: [] for kind in kinds}
        for module in modules:
            if isinstance(module, torch.nn.modules.batchnorm._NormBase):
                continue
            tensors = {**module._parameters, **module._buffers}
            for name, tensor in tensors.items():
                buffer = name in module._buffers
                kinds = (*FLOATS, *WHOLE_NUMBERS) if buffer and id(module) in mine else FLOATS
                if type(tensor) not in PLAIN or tensor.dtype not in kinds or tensor.is_meta:
                    continue  # also DTensors, and numbers that nobody can add up
                if id(tensor) in known or tensor.requires_grad or tensor.numel() < 2:
                    continue
                known.add(id(tensor))
                place = (weakref.ref(module), name)
                if buffer and re.search(STATISTICS, name):
                    if id(tensor) not in sent:
                        self.places["statistics"].append(place)
                elif id(tensor) not in equal:
                    kinds = ("frozen", "constant") if id(module) in mine else ("beside", "kept")
                    self.places[kinds[buffer]].append(place)
        return {what: sorted(t.numel() for t in self.tensors(what)) for what in self.places}

    def tensors(self, what: str) -> list:
        found = [getattr(module(), name, None) for module, name in self.places[what]]
        return [tensor for tensor in found if tensor is not None]

    def write(self, n: int) -> None:
        for what in self.places:
            # One sum: modules are found in another order on each rank.
            if tensors := self.tensors(what):
                figures.write(what, n, figures_of(tensors).sum(0, keepdim=True))


others = Others()
