"""What Module.to_empty leaves of a model: buffers with anything in them, which no state_dict may
have, parameters that a checkpoint may lack, and parameters that were one and are two. fully_shard
makes two of one, too."""

import weakref
from collections import defaultdict
from collections.abc import Iterable

import torch

from .figures import in_memory_order
from .named import plain
from .notes import notes, user_line
from .others import all_modules

# What to_empty has left may be just what is right: memory of before, or zeros. So its first numbers
# become these, which nobody writes; almost nothing, and the same in all types, if they are used.
MARK = 2.0**-9
LOOKED = 64


class Unset:
    """Places are modules and names there."""

    def __init__(self) -> None:
        self.at = None
        self.ties = []  # of the module that is being emptied: the places of one parameter
        self.tied = []  # those of all that were emptied
        self.left = []  # places of tensors with a mark
        self.sharded_at = None  # the first call of fully_shard
        self.known = weakref.WeakSet()  # modules that there were before one
        self.in_units = []  # their ties: a unit does not see the others

    def before(self, module: torch.nn.Module, *_: object, **__: object) -> None:
        self.ties = ties_of(module.modules())

    def after(self, _: object, module: torch.nn.Module, *__: object, **___: object) -> None:
        self.at = user_line()
        self.tied += self.ties
        for inner in module.modules():
            for name, tensor in (*inner._parameters.items(), *inner._buffers.items()):
                if (head := head_of(tensor)) is not None:
                    head.copy_(mark_of(head))
                    self.left.append((weakref.ref(inner), name))

    def before_sharding(self, modules: object, *_: object, **__: object) -> None:
        first = modules if isinstance(modules, torch.nn.Module) else next(iter(modules))
        if first not in self.known:
            self.known.update(found := all_modules())
            self.in_units += ties_of(found)
            self.sharded_at = self.sharded_at or user_line()

    def tell(self, model: torch.nn.Module) -> None:
        """Before the first step: what is still as it was left."""
        outer = {id(module): name for name, module in model.named_modules()}

        def named(place: tuple) -> str:
            return plain(f"{outer.get(id(place[0]()), '')}.{place[1]}").removeprefix(".")

        def untied(ties: list) -> list:
            inside = ([place for place in tie if id(place[0]()) in outer] for tie in ties)
            apart = (tie for tie in inside if len({id(tensor_at(place)) for place in tie}) > 1)
            return [[named(place) for place in tie] for tie in apart]

        left = [named(place) for place in self.left if is_left(tensor_at(place))]
        for call, at, ties in (
            ("to_empty", self.at, self.tied),
            ("fully_shard", self.sharded_at, self.in_units),
        ):
            if at is not None:
                notes.event("unset", call=call, at=at, left=left, untied=untied(ties))
                left = []
        self.__init__()


def ties_of(modules: Iterable[torch.nn.Module]) -> list[list]:
    places = defaultdict(list)
    for module in modules:
        for name, parameter in module._parameters.items():
            places[id(parameter)] += [(weakref.ref(module), name)] * (parameter is not None)
    return [found for found in places.values() if len(found) > 1]


def head_of(tensor: object) -> torch.Tensor | None:
    """The first numbers of what this rank has of it; of so few whole ones, nobody can tell."""
    own = getattr(tensor, "_local_tensor", tensor)
    if type(own) not in (torch.Tensor, torch.nn.Parameter) or own.is_meta or not own.numel():
        return None
    small = own.numel() < 4 and not (own.is_floating_point() or own.is_complex())
    return None if small else in_memory_order(own.detach())[:LOOKED]


def mark_of(head: torch.Tensor) -> torch.Tensor:
    """0 in every second place: whole numbers may be indices, into two rows at least."""
    whole = not (head.is_floating_point() or head.is_complex())
    marks = (torch.arange(len(head), device=head.device) + 1) % 2
    return (marks * (1 if whole else MARK)).to(head.dtype)


def is_left(tensor: object) -> bool:
    """Nothing has written into it; a parameter counts if the model uses it."""
    used = not isinstance(tensor, torch.nn.Parameter) or tensor.grad is not None
    head = head_of(tensor) if used else None
    return head is not None and torch.equal(head, mark_of(head))


def tensor_at(place: tuple) -> object:
    return getattr(place[0](), place[1], None)


unset = Unset()
