"""In one step of a run that is compared: what each module is given and returns, and the gradient
that comes back to it, in a number for each row. against/where.py says by these where two runs part.
"""

import inspect
import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from functools import partial, wraps
from itertools import count

import torch

from .figures import capturing
from .hooks import Probe
from .named import plain
from .notes import GOLDEN, WHERE, notes, user_line
from .training import training

MOST_ROWS = 4096  # of a tensor
MOST_PLACES = 2048  # of the texts of a batch; longer ones are a row each
MOST_NUMBERS = 2**22  # that are float64 at a time
LARGE = 1e9  # of a mask, beside which other numbers would vanish


class Modules:
    def __init__(self) -> None:
        self.step = int(notes.told.get(WHERE, 0))  # that is looked at; 0: none
        self.calls: list[dict] = []
        self.inside: list[torch.nn.Module] = []  # those whose forward() runs
        self.names: dict[int, str] = {}  # of the outermost one's parts, by their ids
        self.numbers: dict[object, int] = {}  # of outermost ones, as they were called first
        self.passes = Counter()  # of an outermost one
        self.count = Counter()  # calls of a name in this pass
        self.moments = count()
        self.samples = 0  # of this pass
        self.places = 0  # of its texts, which may be padded to the longest of a rank's own
        self.again: set[int] = set()  # modules that a checkpoint has called in a backward pass
        self.pending = defaultdict(list)  # id of a module -> calls without gradients

    def look(self, module: torch.nn.Module) -> bool:
        """Not at what a checkpoint computes once more; nor at the parts of a batch that
        DataParallel gives to threads."""
        if training.steps != self.step - 1:
            return False
        if torch._C._current_graph_task_id() >= 0:
            self.again.add(id(module))
            return False
        return (
            (bool(self.inside) or torch.is_grad_enabled())
            and threading.current_thread() is threading.main_thread()
            and not torch.compiler.is_compiling()
            and not capturing()
        )

    def before(self, found: list, module: torch.nn.Module, args: tuple, kwargs: dict) -> None:
        """found: gets the call, if it is looked at. A wrapper has the name of what it wraps."""
        given = dict(tensors_in(arguments(module.forward, args, kwargs)))
        if not self.inside:
            self.begin(module, given)
        self.inside.append(module)
        kinds = [kind.__name__ for kind in type(module).__mro__]
        kind = kinds[kinds.index("FSDPModule") + 1 if "FSDPModule" in kinds else 0]
        name = self.names.get(id(module), f"({kind})")
        if name is None:
            return
        self.count[name] += 1
        root = self.numbers[self.root]
        call = {"root": root, "pass": self.passes[root], "call": self.count[name], "name": name}
        call |= {"samples": self.samples, "places": self.places, "kind": kind, "at": user_line()}
        call |= {"given": self.rows(given), "gradients": {}, "again": id(module)}
        found.append(call | {"enter": next(self.moments)})

    def begin(self, root: torch.nn.Module, given: dict) -> None:
        """A pass of an outermost module. A loss may be another object each time."""
        names = {plain(f"{name}.").rstrip("."): module for name, module in root.named_modules()}
        inner = {id(module): name for name, module in names.items()}
        self.names = {id(module): inner.get(id(module)) for module in root.modules()}
        own = next(root.parameters(), None) is not None
        self.root = id(names[""]) if own else type(root)  # a wrapper may be around it, or not
        self.passes[self.numbers.setdefault(self.root, len(self.numbers))] += 1
        self.count = Counter()
        first = next((t for t in given.values() if t.dim()), torch.zeros(0))
        self.samples, self.places = len(first), 0
        if first.dim() == 2 and not first.is_floating_point() and first.numel() <= MOST_PLACES:
            self.places = first.shape[1]

    def after(self, found: list, result: object) -> None:
        returned = dict(tensors_in([result]))
        for call in found:
            call |= {"returned": self.rows(returned), "leave": next(self.moments)}
            self.calls.append(call)
            self.follow(call, returned)
            if not call["gradients"]:
                self.pending[call["again"]].append(call)

    def follow(self, call: dict, returned: dict) -> None:
        for path, tensor in returned.items():
            if tensor.grad_fn is not None:  # a hook of the tensor would be copied with it
                call["gradients"][path] = None, None  # none has come
                add = partial(self.add, call, path, tensor.output_nr)
                tensor.grad_fn.register_prehook(partial(notes.call, "modules", add))

    def once_more(self, module: torch.nn.Module, result: object) -> None:
        """A checkpoint (use_reentrant=True) computes without gradients at first. Of several calls
        nobody knows which one this is."""
        calls = self.pending.get(id(module), [])
        if len(calls) == 1 and torch._C._current_graph_task_id() >= 0:
            self.follow(calls.pop(), dict(tensors_in([result])))

    def add(self, call: dict, path: str, place: int, gradients: tuple) -> None:
        """Of several backward passes, the sum."""
        if gradients[place] is not None:
            rows, shape = self.row(gradients[place])
            before, _ = call["gradients"][path]
            both = rows is not None and before is not None
            call["gradients"][path] = before + rows if both else rows, shape

    def rows(self, tensors: dict) -> dict:
        return {path: self.row(tensor) for path, tensor in tensors.items()}

    def row(self, tensor: torch.Tensor) -> tuple[torch.Tensor | None, list]:
        """A number for each row, float64 on its device, or None; and the shape."""
        places = getattr(tensor, "placements", ())
        if not all(place.is_replicate() for place in places):
            return None, []  # a part of it
        tensor = tensor.detach().to_local() if places else tensor.detach()
        shape = list(tensor.shape)
        count = shape[0] if shape else 1
        if self.samples and count % self.samples == 0:
            text = self.places and shape[:2] == [self.samples, self.places]
            count = self.samples * (self.places if text else 1)
        return rows_of(tensor, count) if count <= MOST_ROWS else None, shape

    def write(self, *_: object) -> None:
        """At the end of the step, before anybody counts it."""
        if self.step and training.steps == self.step - 1 and not training.done:
            calls, self.calls = self.calls, []
            self.pending.clear()
            for call in calls:
                call["again"] = call["again"] in self.again
                notes.event("module", **{name: plain_numbers(v) for name, v in call.items()})


def arguments(forward: Callable, args: tuple, kwargs: dict) -> dict:
    """What it is given, by the names that it has there, however it is called."""
    try:
        signature = inspect.signature(forward)
        bound = signature.bind(*args, **kwargs)
    except (TypeError, ValueError):
        return dict(enumerate(args)) | kwargs
    names = [name for name, one in signature.parameters.items() if one.kind is not one.VAR_KEYWORD]
    return {name: bound.arguments[name] for name in names if name in bound.arguments} | bound.kwargs


def plain_numbers(value: object) -> object:
    if isinstance(value, dict):
        return {path: [r if r is None else r.tolist(), s] for path, (r, s) in value.items()}
    return value


def tensors_in(value: object, path: str = "") -> Iterator[tuple[str, torch.Tensor]]:
    """Those with numbers that can be read, and where they stand."""
    if isinstance(value, torch.Tensor):
        wrapped = torch._C._functorch.is_functorch_wrapped_tensor(value)
        dense = value.layout == torch.strided and value.device.type != "meta"
        if dense and value.numel() and not wrapped and not value.is_complex():
            yield path, value
        return
    pairs = ()
    if isinstance(value, Mapping):
        pairs = value.items()
    elif isinstance(value, list | tuple):
        pairs = enumerate(value)
    for name, part in pairs:
        yield from tensors_in(part, f"{path}.{name}" if path else str(name))


def rows_of(tensor: torch.Tensor, count: int) -> torch.Tensor:
    """(count,) float64: rows with the same numbers have the same one, but for rounding."""
    with torch.no_grad(), torch._C.DisableTorchFunction():
        flat = tensor.reshape(count, -1)
        total = torch.zeros(count, dtype=torch.float64, device=flat.device)
        width = max(1, MOST_NUMBERS // count)
        for begin in range(0, flat.shape[1], width):
            part = flat[:, begin : begin + width].double()
            part = part.nan_to_num(LARGE).clamp(-LARGE, LARGE)
            places = torch.arange(begin + 1, begin + 1 + part.shape[1], device=flat.device)
            total += part @ (places.double() * GOLDEN % 1 + 0.5)
        return total


modules = Modules()


def watch(probe: str, own: Callable) -> None:
    @wraps(own)
    def call(module: torch.nn.Module, *args: object, **kwargs: object) -> object:
        if not (modules.step and modules.look(module)):
            result = own(module, *args, **kwargs)
            if modules.pending:
                notes.call(probe, modules.once_more, module, result)
            return result
        found, depth = [], len(modules.inside)
        notes.call(probe, modules.before, found, module, args, kwargs)
        try:
            result = own(module, *args, **kwargs)
        finally:
            del modules.inside[depth:]
        notes.call(probe, modules.after, found, result)
        return result

    torch.nn.Module.__call__ = call


def compiled(*_: object, **__: object) -> None:
    """It does nothing in this run: TORCHDYNAMO_DISABLE."""
    notes.event("compiled")


def after_every_step(probe: str, register: Callable) -> None:
    register(partial(notes.call, probe, modules.write))


PROBES = (
    Probe("modules", "torch.nn.Module.__call__", attach=watch),
    Probe("modules", "torch.optim.optimizer.register_optimizer_step_post_hook",
          attach=after_every_step),
    Probe("compile", "torch.compile", compiled),
)  # fmt: skip
