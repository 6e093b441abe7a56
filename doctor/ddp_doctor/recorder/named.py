"""What two runs are compared by: optimizers, frozen parameters, layers and what is saved, by their
names."""

import re
import weakref
from collections import defaultdict
from functools import partial

import torch

from .figures import GROUPS, figures, figures_of
from .notes import NAMELESS, compares, notes, without

MOST_TENSORS = 4000  # of an optimizer, and of a checkpoint: a figure for each
LONGEST = 500  # of lists that are looked into: longer ones are states of random numbers, say
DEEPEST = 8  # Lightning has moments of its optimizers in five dicts
# Names that wrappers put before those of a module.
WRAPPERS = r"\b(module|_orig_mod|_fsdp_wrapped_module|_checkpoint_wrapped_module|_forward_module)\."
# Settings of an optimizer that change no result, or are compared in each step.
NO_SETTING = ("params", "lr", "initial_lr", "foreach", "fused", "capturable", "differentiable")


def frozen(norm: object) -> bool:
    """Whether --without lets this layer use its running statistics in training, too."""
    return without("batchnorm") and norm.running_mean is not None


def groups_of(count: int) -> int:
    """Figures for so many tensors: one for each, where two runs are compared."""
    return count if compares() and count <= MOST_TENSORS else GROUPS


def plain(name: str) -> str:
    return re.sub(WRAPPERS, "", name)


def names_of(parameters: list, model: object) -> list[str]:
    names = dict(model.named_parameters() if model is not None else ())
    names = {id(p): plain(name) for name, p in names.items()}
    return [names.get(id(p), f"{NAMELESS}{n}") for n, p in enumerate(parameters)]


def note_optimizer(number: int, optimizer: object, model: object, parts: object) -> None:
    """At its first step: names and groups of its parameters, and the settings of each group."""
    members = [(n, p) for n, group in enumerate(optimizer.param_groups) for p in group["params"]]
    names = names_of([p for _, p in members], model)
    settings = []
    for group in optimizer.param_groups:
        values = {k: v for k, v in group.items() if k not in NO_SETTING}
        # 0 is 0.0.
        values = {k: str(float(v) if type(v) is int else v)[:60] for k, v in values.items()}
        settings.append({"class": type(optimizer).__name__, **values})  # Horovod keeps the name
    names = [[name, n] for name, (n, _) in zip(names, members, strict=True)]
    parameters = [p for _, p in members]
    pending = [name for (name, _), p in zip(names, parameters, strict=True) if is_pending(p.grad)]
    more = {"pending": pending, **sizes_of(parameters, parts)}
    notes.event("optimizer", number=number, names=names, options=settings, **more)


def is_pending(gradient: object) -> bool:
    """Whether it is a DTensor whose parts are still to be added up, as an optimizer does."""
    return any(place.is_partial() for place in getattr(gradient, "placements", ()))


def sizes_of(tensors: list, parts: object) -> dict[str, list]:
    return {
        "parts": [parts.of(p) if parts else 1 for p in tensors],
        "shapes": [list(p.shape) for p in tensors],
    }


def note_state(optimizer: object, n: int) -> None:
    """What it has kept after n steps, such as momentum and how often it was called: of each kind
    the norm, over all parameters. A run that goes on from a checkpoint begins with some."""
    kinds = defaultdict(list)
    for values in optimizer.state.values():
        for key, value in values.items() if isinstance(values, dict) else ():
            value = torch.tensor(float(value)) if isinstance(value, int | float) else value
            if isinstance(value, torch.Tensor) and value.is_floating_point():
                value = value.to_local() if hasattr(value, "to_local") else value
                kinds[str(key)].append(torch.linalg.vector_norm(value).double())
    if not kinds:
        tell_state([], n, [])
        return
    device = max((norms[0].device for norms in kinds.values()), key=str)  # cuda, not cpu
    alike = [torch.stack([norm.to(device) for norm in norms]) for norms in kinds.values()]
    rows = torch.stack(list(map(torch.linalg.vector_norm, alike)))
    figures.send(rows, partial(tell_state, list(kinds), n))


def tell_state(keys: list, n: int, rows: list) -> None:
    notes.event("state", n=n, norms=dict(zip(keys, rows, strict=True)))


def note_fixed(model: object, trained: set, parts: object) -> list:
    """Parameters of the model that are none of these: frozen ones, or an average."""
    found = {plain(n): p for n, p in model.named_parameters() if id(p) not in trained}
    found = dict(list(found.items())[:MOST_TENSORS])
    names = [[name, 0] for name in found]
    notes.event("fixed", names=names, **sizes_of(list(found.values()), parts))
    return list(map(weakref.ref, found.values()))


def note_layers(model: object, parameters: list) -> None:
    """What makes two right runs differ: statistics of a part of the batch, random numbers in
    forward, and how exact the numbers are."""
    batch_norm = torch.nn.modules.batchnorm._BatchNorm
    dropout = torch.nn.modules.dropout._DropoutNd
    synced = torch.nn.SyncBatchNorm
    several = torch.distributed.is_initialized() and torch.distributed.get_world_size() > 1
    norms, drops = [], []
    for name, module in model.named_modules():
        if isinstance(module, batch_norm) and module.training and not frozen(module):
            norms += [] if several and isinstance(module, synced) else [plain(name)]
        if isinstance(module, dropout) and module.training and module.p:
            drops += [] if without("dropout") else [plain(name)]
    types = {str(p.dtype).removeprefix("torch.") for p in parameters}
    single = any(p.is_cuda and p.dtype == torch.float32 for p in parameters)
    if single and torch.get_float32_matmul_precision() != "highest":
        types.add("tf32")
    notes.event("layers", norms=norms, drops=drops, types=sorted(types))


def collect(obj: object, name: str, tensors: dict, numbers: dict, depth: int = 0) -> None:
    """What a saved object holds."""
    if getattr(getattr(obj, "dtype", None), "str", None) in ("<f2", "<f4", "<f8") and obj.shape:
        obj = torch.tensor(obj)  # numpy's
    if isinstance(obj, torch.Tensor) and obj.is_floating_point():
        tensors[plain(name)] = obj
    elif isinstance(obj, int | float) and abs(obj) < 2**63:
        numbers[plain(name)] = obj
    elif isinstance(obj, dict) or (isinstance(obj, list | tuple) and len(obj) <= LONGEST):
        pairs = obj.items() if isinstance(obj, dict) else enumerate(obj)
        for key, value in pairs if depth < DEEPEST else ():
            inner = f"{name}.{key}" if name else str(key)
            collect(value, inner, tensors, numbers, depth + 1)


def row_of(tensor: torch.Tensor) -> list:
    """Norm, weighted sample and shape of what this rank has of it."""
    own = tensor.to_local() if hasattr(tensor, "to_local") else tensor
    return [*figures_of([own], 1)[0].tolist(), list(own.shape)]
