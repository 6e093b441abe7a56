"""Run by Python at its start, from a folder in PYTHONPATH: gives the process its pretended GPUs
when it has imported torch, and not before, as many processes of a launch never do."""

import importlib.util
import os
import sys
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType

PACKAGE = Path(__file__).resolve().parents[1]


def package() -> ModuleType:
    """pretended_gpus, of which the program's own sys.path shall know nothing."""
    if "pretended_gpus" not in sys.modules:
        spec = importlib.util.spec_from_file_location("pretended_gpus", PACKAGE / "__init__.py")
        sys.modules["pretended_gpus"] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules["pretended_gpus"])
    return sys.modules["pretended_gpus"]


class Finder:
    """Finds torch as all others do, and follows its import."""

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        if name != "torch":
            return None
        sys.meta_path.remove(self)  # once
        spec = importlib.util.find_spec(name)
        if spec and spec.loader:
            execute = spec.loader.exec_module

            def exec_module(module: ModuleType) -> None:
                execute(module)
                package().begin()

            spec.loader.exec_module = exec_module
        return spec


visible = os.environ.get("CUDA_VISIBLE_DEVICES", "all")
if int(os.environ.get("PRETENDED_GPUS", 0)) and visible.strip():
    sys.meta_path.insert(0, Finder())
