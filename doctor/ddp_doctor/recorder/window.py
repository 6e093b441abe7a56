"""Which passes over loaders a step learns from: noted where backward() is called."""

import threading
import weakref

import torch

from .notes import notes, user_line


class Window:
    """What came since the last backward pass: batches, and what ranks told each other."""

    def __init__(self) -> None:
        self.lock = threading.Lock()  # batches may be fetched by a thread
        self.given: list = []  # passes with a batch, the one of the latest batch last
        self.given_before: list = []  # in the window before, if it had any
        self.chosen: list = []  # passes of the backward before
        self.lines: set = set()  # of loaders that something was learned from
        self.learned: list = []  # until the step: a pass, and batches it had given by a backward
        self.told: list = []  # the pass while ranks exchanged a tensor, their group, its size
        self.exchanged: dict[tuple, int] = {}  # of those before backward: group -> largest size
        self.backwards = 0  # until the step
        self.at = None  # the line of the latest one
        self.held = None  # the line that has switched FSDP's reduction of gradients off, if it is
        self.kept = None  # the same, while the latest backward ran
        self.wrapped = weakref.WeakSet()  # models under DDP
        self.averaged = 0  # of these, those whose gradients DDP averages
        self.scattered: set[int] = set()  # and those in which FSDP reduces some
        self.new = True  # no step was made
        self.batches = 0  # of all loaders
        self.rows: list = []  # of what DDP's models were given each time, until the step

    def batch(self, one: object, model: object) -> None:
        """model: the one that is trained, if it is known by now."""
        model = getattr(model, "module", model)  # Lightning leaves the wrapper in eval mode
        self.batches += 1
        one.by_grad = torch.is_grad_enabled()
        # Whoever was learned from before may be asked under no_grad, as by a timer around it.
        one.learns = (one.by_grad or one.line in self.lines) and getattr(model, "training", True)
        with self.lock:
            self.given = [other for other in self.given if other is not one] + [one]

    def exchange(self, group: tuple, size: int) -> None:
        self.told.append((self.given[-1] if self.given else None, group, size))

    def backward(self) -> None:
        self.backwards += 1
        self.at = user_line() or self.at  # in a thread of autograd there is none
        self.averaged += self.averages()
        self.kept = self.held
        with self.lock:
            given, self.given = self.given, []
        self.chosen = self.learned_from(given)
        self.given_before = given or self.given_before
        for one in self.chosen:
            self.lines.add(one.line)
            self.learned.append([one.n, one.count])
        for during, group, size in self.told:
            if during in self.chosen or not given:
                self.exchanged[group] = max(size, self.exchanged.get(group, 0))
        self.told.clear()

    def averages(self) -> bool:
        """Whether the latest forward pass has told DDP to average: it was not inside no_sync. Of
        several models, nobody can tell which one that was."""
        told = [getattr(ddp, "require_forward_param_sync", False) for ddp in self.wrapped]
        return told == [True]

    def learned_from(self, given: list) -> list:
        """The passes whose batches this gradient is of.

        Most often one has given a batch since the last time. An evaluation does so without a
        gradient, in eval mode, or has ended; one that is cut short gives none in the next window,
        where each of several loaders that are trained together does.
        """
        learning = [one for one in given if one.learns and not one.ended]
        if learning:
            return [one for one in learning if one in self.given_before or one is learning[-1]]
        if any(not one.ended for one in self.chosen):
            return self.chosen  # several backward passes over a batch, or an evaluation between
        whole = [one for one in given if one.learns or not one.ended]
        if not whole:
            return self.chosen  # a later batch of a pass that was fetched as a whole before
        return self.fetched_whole(whole)

    def fetched_whole(self, whole: list) -> list:
        """Of these, the pass that was fetched as a whole, and is learned from now."""
        if self.lines:
            return [one for one in whole if one.line in self.lines][-1:]
        # Without gradients it may have been a first look at the validation set, before a backward
        # pass that only counts FLOPs. One that gives batches in two windows is trained on, under
        # whatever they were asked for.
        return [one for one in whole if one.by_grad or one in self.given_before][-1:]

    def forward(self, args: tuple, kwargs: dict) -> None:
        given = (value for value in (*args, *kwargs.values()) if isinstance(value, torch.Tensor))
        first = next(given, None)
        if first is not None and first.dim() and torch.is_grad_enabled():
            self.rows.append(len(first))

    def switched(self, _: object, __: object, reduces: bool, *___: object, **____: object) -> None:
        self.held = None if reduces else user_line()

    def step(self) -> dict:
        """For the event of an optimizer's step: what it has learned from."""
        if not self.backwards:
            self.backward()  # by torch.autograd.grad, say
        fields = {
            "backward": self.at,
            "passes": list(dict.fromkeys(n for n, _ in self.learned)),
            "learned": self.learned,
            "exchanged": [[size, list(group)] for group, size in self.exchanged.items()],
            "averaged": self.averaged + len(self.scattered),
            "held": self.kept,
            "rows": self.rows,
        }
        self.learned, self.exchanged, self.rows, self.scattered = [], {}, [], set()
        self.new = False
        self.backwards, self.averaged = 0, 0
        self.told.clear()  # gradients that were added up
        return fields


window = Window()


def backward(*_: object, **__: object) -> None:
    notes.call("backward", window.backward)
