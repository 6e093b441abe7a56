"""What a trained model is given: it stands for the samples of scripts without a DataLoader."""

import weakref
from collections.abc import Callable

import torch
from torch.utils._pytree import tree_leaves

from .figures import capturing, figures
from .notes import INPUTS, LOADED, notes
from .states import generators
from .window import window

MOST_ROWS = 4096  # of a step
MOST_NUMBERS = 4096  # of a row: of a longer one, some


class Given:
    """What a model was given in one forward pass. rows: a number for each, if anybody can tell."""

    def __init__(self, tensors: list) -> None:
        self.rows = rows_of(tensors) if tensors else None
        self.kinds = {f"{tensor.dtype} {list(tensor.shape[1:])}" for tensor in tensors}
        self.learned = False  # a backward pass came from it: no first look, and no evaluation

    def follow(self, result: object) -> None:
        tensors = [t for t in tree_leaves(result) if isinstance(t, torch.Tensor)]
        self.learned = not tensors
        for tensor in tensors:
            if tensor.grad_fn is not None:  # a hook of the tensor would be copied with it
                tensor.grad_fn.register_prehook(lambda *_: setattr(self, "learned", True))


class Inputs:
    def __init__(self) -> None:
        self.models = weakref.WeakSet()  # that optimizers train
        self.given: list[Given] = []  # since the step before
        self.states: dict = {}  # of random numbers, after one of the first steps
        self.drawn = False  # some were drawn between a step and the next forward pass
        self.steps = 0
        self.begun: dict = {}  # the state before the forward pass that the first gradient comes of

    def begin(self) -> None:
        if window.new and not window.backwards and torch.is_grad_enabled() and not capturing():
            self.begun = generators()

    def before(self, found: list, *given: object) -> None:
        loaded = window.lines or window.given  # by a DataLoader
        over = self.steps >= (LOADED if loaded else INPUTS)
        if over or not torch.is_grad_enabled() or capturing():
            return
        if self.states and not self.given and not loaded:
            self.drawn = self.drawn or self.states != generators()
        found.append(Given(tensors_of(given)))
        self.given += found

    def after(self, found: list, result: object) -> None:
        for one in found:
            one.follow(result)

    def step(self, n: int, states: dict) -> dict:
        """For the event of step n; states: of random numbers."""
        given = [one for one in self.given if one.learned]
        self.given, self.states, self.steps = [], states, n
        rows = [one.rows for one in given if one.rows is not None]
        if len(rows) == len(given) > 0 and sum(map(len, rows)) <= MOST_ROWS:
            figures.write("rows", n, torch.cat([part.to(rows[0].device) for part in rows]))
        kinds = set().union(*(one.kinds for one in given))
        begun, self.begun = self.begun, {}
        return {"kinds": sorted(kinds), "drawn": self.drawn, "begun": begun}

    def watch(self, model: object) -> None:
        """Of its class, as a hook of a model would be copied and saved with it. DDP has its own."""
        kind = type(model)
        if model is None or issubclass(kind, torch.nn.parallel.DistributedDataParallel):
            return
        self.models.add(model)
        if kind in WATCHED:
            return
        WATCHED.add(kind)
        own = vars(kind).get("__call__")

        def call(module: object, *args: object, **kwargs: object) -> object:
            above = super(kind, module).__call__ if own is None else own.__get__(module)
            if torch.compiler.is_compiling() or not trained(module):
                return above(*args, **kwargs)
            return noted("forward", above, *args, **kwargs)

        kind.__call__ = call


def noted(probe: str, forward: Callable, *args: object, **kwargs: object) -> object:
    """A forward pass of a model that is trained."""
    found: list[Given] = []
    notes.call(probe, inputs.begin)
    notes.call(probe, inputs.before, found, args, kwargs)
    result = forward(*args, **kwargs)
    notes.call(probe, inputs.after, found, result)
    return result


def trained(module: object) -> bool:
    return module in inputs.models and all(ddp.module is not module for ddp in window.wrapped)


def tensors_of(given: object) -> list:
    """None of them where something else, such as a text, may tell samples apart."""
    leaves = tree_leaves(given)
    tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
    others = [leaf for leaf in leaves if not isinstance(leaf, torch.Tensor | int | float | None)]
    strange = any(
        tensor.layout not in (torch.strided, torch.sparse_coo)
        or tensor.is_complex()
        or hasattr(tensor, "to_local")
        or torch._C._functorch.is_functorch_wrapped_tensor(tensor)
        for tensor in tensors
    )
    return [] if others or strange else [t for t in tensors if t.dim() and t.numel()]


@torch.no_grad()
def rows_of(tensors: list) -> torch.Tensor:
    """A number for each row of the first tensor, with what the others have there: float64, on its
    device. Tensors of another length are of all rows."""
    total = torch.zeros(len(tensors[0]), dtype=torch.float64, device=tensors[0].device)
    for n, tensor in enumerate(tensors, 1):
        sparse = tensor.layout == torch.sparse_coo  # a graph, say, of all rows
        tensor = tensor.detach().coalesce().values() if sparse else tensor.detach()
        rows = tensor.reshape(len(tensor) if len(tensor) == len(total) else 1, -1)
        rows = rows[:, :: -(-rows.shape[1] // MOST_NUMBERS)].double()
        weights = n * torch.arange(1.0, rows.shape[1] + 1, dtype=rows.dtype, device=rows.device)
        total += (rows * weights.sqrt()).sum(1).to(total.device)
    return total.nan_to_num()


WATCHED = weakref.WeakSet()  # classes
inputs = Inputs()
