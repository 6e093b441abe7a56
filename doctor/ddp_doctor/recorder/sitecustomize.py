"""Run by Python at its start, from a folder that comes first in PYTHONPATH.

It imports nothing of ours until the script has imported a module that we record.
"""

import os
import sys
from importlib.machinery import PathFinder
from importlib.util import module_from_spec

HOOKED = ("torch", "torch.distributed.fsdp", "horovod.torch", "safetensors", "numpy.random")


class Finder:
    """Finds modules as Python does, and attaches the recorder to those of HOOKED."""

    def find_spec(self, name: str, path: object = None, target: object = None) -> object:
        if name not in HOOKED or not os.path.isdir(os.environ["DOCTOR_FOLDER"]):  # it has gone
            return None
        spec = PathFinder.find_spec(name, path)
        if spec and spec.loader:
            execute = spec.loader.exec_module

            def exec_module(module: object) -> None:
                execute(module)
                try:
                    from _doctor.attach import attach

                    attach(name)
                except Exception as error:
                    print(f"doctor: cannot record this process: {error!r}", file=sys.stderr)

            spec.loader.exec_module = exec_module
        return spec


sys.meta_path.insert(0, Finder())
elsewhere = [path for path in sys.path if path != os.path.dirname(__file__)]
spec = PathFinder.find_spec("sitecustomize", elsewhere)  # the machine's own
if spec and spec.loader:
    spec.loader.exec_module(module_from_spec(spec))
