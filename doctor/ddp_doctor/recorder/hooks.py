"""How the recorder attaches to functions of torch: a line of a table for each."""

import functools
import pkgutil
from collections.abc import Callable
from typing import NamedTuple

from .notes import notes


def hook(
    probe: str, owner: object, name: str, before: Callable = None, after: Callable = None
) -> None:
    """owner.name also calls before(*arguments) and after(result, *arguments)."""
    own = getattr(owner, name)

    @functools.wraps(own)
    def wrapper(*args: object, **kwargs: object) -> object:
        notes.call(probe, before, *args, **kwargs)
        result = own(*args, **kwargs)
        notes.call(probe, after, result, *args, **kwargs)
        return result

    setattr(owner, name, wrapper)


class Probe(NamedTuple):
    """name: as checks call it. target: a dotted path, of which before and after become part; or
    attach does the work: attach(name, what the path leads to)."""

    name: str
    target: str
    before: Callable | None = None
    after: Callable | None = None
    attach: Callable | None = None
    also: str = ""  # a second path to the same function


def attach(probes: tuple[Probe, ...]) -> None:
    for probe in probes:
        try:
            attach_one(probe)
        except (AttributeError, ImportError):
            notes.fail(probe.name, probe.target, missing=True)
        except Exception as error:
            notes.fail(probe.name, repr(error))


def attach_one(probe: Probe) -> None:
    found = pkgutil.resolve_name(probe.target)
    if probe.attach:
        return probe.attach(probe.name, found)
    owner, _, name = probe.target.rpartition(".")
    owner = pkgutil.resolve_name(owner)
    hook(probe.name, owner, name, probe.before, probe.after)
    if probe.also:
        other, _, name = probe.also.rpartition(".")
        setattr(pkgutil.resolve_name(other), name, getattr(owner, name))
    return None
