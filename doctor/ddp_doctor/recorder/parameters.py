"""Of an optimizer's parameters: are gradients emptied between steps, and do all tensors move?"""

import math
import weakref

import torch

from .figures import figures, in_memory_order
from .notes import notes

NUMBERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}  # by bytes
EARLIEST = 8  # steps before tensors are looked at again; then after twice as many, and so on
SMALL = 0.01  # of the usual gradient: less may be what rounding leaves of one that is 0
MOST = 8  # optimizers whose tensors are looked at


class Emptied:
    """Whether a gradient is emptied between two steps, and only there, asked of one parameter. Its
    numbers are not read: a tensor knows how often it was changed."""

    def __init__(self) -> None:
        self.parameter = lambda: None
        self.left = None  # the gradient as the step, or the backward pass before, has left it
        self.kept = False  # it was still so when this backward pass began
        self.emptied = False
        self.added = False
        self.weight = None  # how often the parameter was changed, at the backward pass before
        self.batches = 0  # that loaders had given by then
        self.thrown = 0  # gradients that no step has used: of other batches, and nothing was made

    def now(self) -> tuple | None:
        grad = getattr(self.parameter(), "grad", None)
        return None if grad is None else (id(grad), grad._version)

    def before_backward(self, batches: int, stepped: bool) -> None:
        """stepped: some optimizer has made a step since the backward pass before."""
        self.kept = self.left is not None and self.now() == self.left
        weight = getattr(self.parameter(), "_version", None)
        unused = self.left and self.weight == weight and batches > self.batches and not stepped
        self.thrown += bool(unused) and not self.kept
        self.weight, self.batches = weight, batches
        self.emptied = self.emptied or not self.kept

    def after_backward(self) -> None:
        now = self.now()
        self.added = self.added or (self.kept and now != self.left)
        self.left = now

    def before_step(self) -> int:
        """How many gradients were thrown away before it; 0, where it uses another one than the
        backward pass has left: somebody has kept them elsewhere."""
        thrown, self.thrown = self.thrown, 0
        return thrown if self.left == self.now() else 0

    def after_change(self) -> None:
        self.left = self.now()

    def after_step(self, parameters: list) -> bool:
        """Whether the step's gradients were added to those of the step before."""
        old = self.added and not self.emptied
        self.emptied = self.added = False
        self.weight = None
        plain = (p for p in parameters if type(p.grad) is torch.Tensor and not p.grad.is_sparse)
        chosen = next(plain, None)
        self.parameter = (lambda: None) if chosen is None else weakref.ref(chosen)
        self.left = self.now()
        return old


class Still:
    """Which tensors never move, although their gradients are not small: bfloat16 may swallow each
    update, say. Compared bit by bit, on their device."""

    def __init__(self, parameters: list, names: list[str], at: list | None) -> None:
        self.names = names
        self.at = at
        self.begun = each(parameters, bits, torch.int64)
        self.still = True
        self.steps = 0

    def after_step(self, parameters: list, rates: list) -> None:
        """rates: of each parameter; one of 0 keeps it where it is."""
        self.steps += 1
        if self.steps < EARLIEST or self.steps & (self.steps - 1):
            return
        if len(parameters) != len(self.names):
            return
        size = each([p.grad for p in parameters], root_mean_square, torch.float64)
        usual = torch.where(size > 0, size, torch.nan).nanmedian()
        same = each(parameters, bits, torch.int64) == self.begun
        self.still = same & (size > SMALL * usual) & self.still
        names = [name if rate != 0 else "" for name, rate in zip(self.names, rates, strict=True)]
        figures.send(self.still, lambda rows, steps=self.steps: self.tell(rows, names, steps))

    def tell(self, rows: list[bool], names: list[str], steps: int) -> None:
        names = [name for name, still in zip(names, rows, strict=True) if still and name]
        notes.event("still", at=self.at, steps=steps, names=names, count=len(rows))


def each(tensors: list, number: object, dtype: torch.dtype) -> object:
    """A number for each tensor, on their device: (tensors,); 0 for one that cannot be read."""
    device = next((tensor.device for tensor in tensors if tensor is not None), "cpu")
    found = torch.zeros(len(tensors), dtype=dtype, device=device)
    for n, tensor in enumerate(tensors):
        values = None if tensor is None else tensor.detach()
        values = values.to_local() if hasattr(values, "to_local") else values
        if values is None or values.is_sparse or values.element_size() not in NUMBERS:
            continue
        if values.is_floating_point() and values.untyped_storage().size() >= values.numel() > 0:
            found[n] = number(values)
    return found


def bits(values: object) -> object:
    """Sums without a copy. Not of all numbers alike: updates of a bias may add up to 0."""
    flat = in_memory_order(values).view(NUMBERS[values.element_size()])
    parts = [n * flat[::n].sum(dtype=torch.int64) for n in (1, 2, 3, 5)]
    return sum(parts)


def root_mean_square(values: object) -> object:
    norm = torch.linalg.vector_norm(values, dtype=torch.promote_types(values.dtype, torch.float32))
    return norm / math.sqrt(values.numel())
