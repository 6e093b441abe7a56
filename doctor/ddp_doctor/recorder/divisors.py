"""What a rank divides its loss by: read from the graph that backward() goes through.

A mean is a sum divided by a count. Nothing is added to the graph, and nothing waits for a GPU.
"""

import re
from collections.abc import Iterator

import torch
from torch.autograd.function import BackwardCFunction

from .collectives import tensors_in
from .figures import capturing, figures
from .notes import notes
from .training import training

MOST = 200  # nodes of a graph
LONGEST = 8  # numbers of a row
MEAN = 1  # torch's number for reduction="mean"
# Nodes through which each target's part of the loss goes as it is.
THROUGH = "Add|Sub|Neg|Sum|Stack|Cat|View|ReshapeAlias|UnsafeView|Squeeze|Unsqueeze|Clone|Alias"


class Unread(Exception):
    """Nobody can tell what the loss is divided by."""


def before_backward(tensors: object, *_: object, **__: object) -> None:
    n = training.steps + 1
    for loss in tensors_in(tensors) if training.due() and not capturing() else []:
        if loss.grad_fn is not None and loss.numel() == 1:
            try:
                with torch.no_grad():
                    rows = torch.stack([one_row(row, loss.device) for row in terms_of(loss)])
                figures.send(rows, lambda rows: notes.event("divisors", n=n, terms=rows))
            except Unread:
                notes.event("divisors", n=n, terms=None)


def one_row(values: list, device: torch.device) -> torch.Tensor:
    """(LONGEST,), float64, on the device: what is there already stays there."""
    here = [isinstance(v, torch.Tensor) and v.device == device for v in values]
    rows = [
        v.double().reshape(1) if at else torch.full((1,), float(v), device=device).double()
        for v, at in zip(values, here, strict=True)
    ]
    if len(rows) > LONGEST:
        raise Unread
    return torch.cat([*rows, torch.ones(LONGEST - len(rows), device=device).double()])


def terms_of(loss: torch.Tensor) -> Iterator[list]:
    """Of each term of the loss: how many targets an nll_loss counts (or 0), the count of a mean of
    torch's (or 1), and what else the term is divided by, from the loss inwards."""
    todo = [(loss.grad_fn, loss.output_nr, [])]
    for _ in range(MOST):
        if not todo:
            return
        node, place, outer = todo.pop()
        name = node.name()
        mean = getattr(node, "_saved_reduction", None) == MEAN
        inner = [edge for edge in node.next_functions if edge[0] is not None]
        if name == "_DDPSinkBackward":  # around all that a model under DDP returns
            todo.append((*node.next_functions[place], outer))
        elif isinstance(node, BackwardCFunction):  # of torch.compile or a checkpoint, or one's own
            raise Unread
        elif name.startswith("NllLoss"):
            counted = (kept(node, "target") != node._saved_ignore_index).sum()
            yield [counted, kept(node, "total_weight") if mean else 1, *outer]
        elif mean:  # mse_loss and the like
            yield [0, kept(node, "self").numel(), *outer]
        elif (by := divisor(node, name, inner)) or re.fullmatch(rf"({THROUGH}|ToCopy)B.*", name):
            todo += [(*edge, outer + by) for edge in inner]
        else:
            yield [0, 1, *outer]
    raise Unread


def divisor(node: object, name: str, inner: list) -> list:
    """What this node divides by, if that is one number, and no part of what is trained."""
    if name == "MeanBackward0":
        return [node._saved_self_sym_numel]
    first = node.next_functions[:1] == tuple(inner)
    if re.match("Div|Mul", name) and (first or (name[0] == "M" and len(inner) == 1)):
        by = kept(node, "other" if first else "self")
        if not isinstance(by, torch.Tensor) or by.numel() == 1:
            return [by if name[0] == "D" else 1 / by]
    return []


def kept(node: object, name: str) -> object:
    """What a node keeps, unless reading it would compute it: a checkpoint's is made once more."""
    hook = getattr(getattr(node, f"_raw_saved_{name}", None), "unpack_hook", None)
    if hook or hasattr(value := getattr(node, f"_saved_{name}"), "to_local"):
        raise Unread
    return value
