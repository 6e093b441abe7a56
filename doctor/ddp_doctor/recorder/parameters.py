"""Of an optimizer's parameters: are gradients emptied between steps?"""

import weakref

import torch

MOST = 8  # optimizers that are looked for when one is made anew


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
