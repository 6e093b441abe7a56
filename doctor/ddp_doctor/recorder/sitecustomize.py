"""Run by Python at its start, from a folder that comes first in PYTHONPATH.

It imports nothing of ours until the script has imported a module that we record. By then the script
may have changed os.environ, sys.path and what is in sys.modules: what we need of them is read here.
"""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import module_from_spec
from types import ModuleType

HOOKED = ("torch", "torch.distributed.fsdp", "horovod.torch", "safetensors", "numpy.random")
HERE = os.path.dirname(__file__)
LIBRARY = os.path.dirname(os.__file__)  # Python's own
OTHERS = ("site-packages", "dist-packages")  # below it, and not Python's
TOLD = {name: value for name, value in os.environ.items() if name.startswith("DOCTOR_")}
FOLDER = TOLD.get("DOCTOR_FOLDER", "")


def is_pythons(path: str) -> bool:
    below = path[len(LIBRARY) :]
    return path.startswith(LIBRARY) and not any(name in below for name in OTHERS)


class Own:
    """Finds our package, and Python's modules where Python has them."""

    paths = tuple(path for path in sys.path if is_pythons(path))

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        if name == "_doctor":
            return PathFinder.find_spec(name, [HERE])
        ours = path is None and name in sys.stdlib_module_names
        return PathFinder.find_spec(name, self.paths) if ours else None


def is_theirs(module: ModuleType) -> bool:
    """Whether it has the name of a module of Python's, and is another one."""
    origin = getattr(getattr(module, "__spec__", None), "origin", None) or ""
    return origin not in ("built-in", "frozen") and not is_pythons(origin)


@contextmanager
def own_modules() -> Iterator[None]:
    """A script may have a statistics.py: within, ours imports Python's; after it, the script's
    modules are as they were."""

    def standard(names: set[str]) -> list[str]:
        return [name for name in names if name.partition(".")[0] in sys.stdlib_module_names]

    before = dict(sys.modules)
    theirs = {name: before[name] for name in standard(before) if is_theirs(before[name])}
    for name in theirs:
        del sys.modules[name]
    own = Own()
    sys.meta_path.insert(0, own)
    try:
        yield
    finally:
        sys.meta_path.remove(own)
        for name in standard(sys.modules.keys() - before.keys()):
            spec = PathFinder.find_spec(name.partition(".")[0])
            if spec and not is_pythons(spec.origin or ""):
                del sys.modules[name]
        sys.modules.update(theirs)


class Finder:
    """Finds modules as Python does, and attaches the recorder to those of HOOKED."""

    here = HERE

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        if name not in HOOKED or not os.path.isdir(FOLDER):  # it has gone
            return None
        spec = PathFinder.find_spec(name, path)
        if spec and spec.loader:
            execute = spec.loader.exec_module

            def exec_module(module: ModuleType) -> None:
                execute(module)
                try:
                    with own_modules():
                        from _doctor.attach import attach

                        attach(name, TOLD)
                except Exception as error:
                    print(f"doctor: cannot record this process: {error!r}", file=sys.stderr)

            spec.loader.exec_module = exec_module
        return spec


# Another program's sitecustomize, or that of a doctor around this one, may run this file again.
if HERE not in [getattr(finder, "here", None) for finder in sys.meta_path]:
    if os.path.dirname(FOLDER) == os.path.dirname(HERE):  # else a doctor inside records
        sys.meta_path.insert(0, Finder())
    behind = sys.path[sys.path.index(HERE) + 1 :] if HERE in sys.path else []
    spec = PathFinder.find_spec("sitecustomize", behind)  # the machine's own
    if spec and spec.loader:
        spec.loader.exec_module(module_from_spec(spec))
