"""What Module.to_empty leaves of a model: buffers with anything in them, which no state_dict may
have, and parameters that were one and are two. fully_shard makes two of one, too."""

import weakref
from collections import defaultdict
from collections.abc import Iterable

import torch

from .named import plain
from .notes import notes, user_line
from .others import all_modules
from .parameters import NUMBERS, bits


class Unset:
    """Places are modules and names there."""

    def __init__(self) -> None:
        self.at = None
        self.ties = []  # of the module that is being emptied: the places of one parameter
        self.tied = []  # those of all that were emptied
        self.buffers = []  # a place, how often its tensor was changed, and the bits in it
        self.sharded_at = None  # the first call of fully_shard
        self.known = weakref.WeakSet()  # modules that there were before one
        self.in_units = []  # their ties: a unit does not see the others

    def before(self, module: torch.nn.Module, *_: object, **__: object) -> None:
        self.ties = ties_of(module.modules())

    def after(self, _: object, module: torch.nn.Module, *__: object, **___: object) -> None:
        self.at = user_line()
        self.tied += self.ties
        for inner in module.modules():
            for name, buffer in inner._buffers.items():
                if readable(buffer):
                    self.buffers.append(((weakref.ref(inner), name), state_of(buffer)))

    def before_sharding(self, modules: object, *_: object, **__: object) -> None:
        first = modules if isinstance(modules, torch.nn.Module) else next(iter(modules))
        if first not in self.known:
            self.known.update(found := all_modules())
            self.in_units += ties_of(found)
            self.sharded_at = self.sharded_at or user_line()

    def still(self) -> list[tuple]:
        """Of these buffers those that nothing has written into, with their bits."""
        now = [(place, tensor_at(place), before) for place, before in self.buffers]
        now = [(p, state_of(tensor), before) for p, tensor, before in now if readable(tensor)]
        return [(p, bits) for p, (n, bits), (m, old) in now if bits == old and m in (n, None)]

    def before_ddp(self, *_: object, **__: object) -> None:
        """It sends what rank 0 has, and writes into all: from then on the bits alone tell it."""
        self.buffers = [(place, (None, bits)) for place, bits in self.still()]

    def tell(self, model: torch.nn.Module) -> None:
        """Before the first step: what is still as it was left."""
        outer = {id(module): name for name, module in model.named_modules()}

        def named(place: tuple) -> str:
            return plain(f"{outer.get(id(place[0]()), '')}.{place[1]}").removeprefix(".")

        def untied(ties: list) -> list:
            inside = ([place for place in tie if id(place[0]()) in outer] for tie in ties)
            apart = (tie for tie in inside if len({id(tensor_at(place)) for place in tie}) > 1)
            return [[named(place) for place in tie] for tie in apart]

        buffers = [named(place) for place, _ in self.still()]
        for call, at, ties in (
            ("to_empty", self.at, self.tied),
            ("fully_shard", self.sharded_at, self.in_units),
        ):
            if at is not None:
                notes.event("unset", call=call, at=at, buffers=buffers, untied=untied(ties))
                buffers = []
        self.__init__()


def ties_of(modules: Iterable[torch.nn.Module]) -> list[list]:
    places = defaultdict(list)
    for module in modules:
        for name, parameter in module._parameters.items():
            places[id(parameter)] += [(weakref.ref(module), name)] * (parameter is not None)
    return [found for found in places.values() if len(found) > 1]


def readable(buffer: object) -> bool:
    known = type(buffer) is torch.Tensor and not buffer.is_meta
    return known and buffer.numel() > 0 and buffer.element_size() in NUMBERS


def state_of(buffer: torch.Tensor) -> tuple[int, int]:
    """A collective may change the bits alone; a copy of what is there, the version alone."""
    return buffer._version, int(bits(buffer.detach()))


def tensor_at(place: tuple) -> object:
    return getattr(place[0](), place[1], None)


unset = Unset()
