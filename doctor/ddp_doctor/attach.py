"""What runs inside each process of the script.

The recorder notes what happens, and changes nothing: no collective, no random number and no order
is added. Where two runs are compared it notes more, and without/ takes out what --without names.
The job copies these folders to a place of its own and puts it on PYTHONPATH, with sitecustomize.py,
which calls attach.
"""

import sys
from collections.abc import Mapping

from .recorder.notes import WHERE, compares, notes
from .speed import SPEED


def attach(name: str, told: Mapping[str, str]) -> None:
    """Called when torch, or another module of sitecustomize.py, has been imported.

    told: what the doctor has put into the environment."""
    if name != "torch" and not hasattr(notes, "folder"):
        return  # torch has not been imported, or not to its end: it is attached to with torch
    if name == "torch":
        notes.begin(told)
        try:
            notes.open_files()
        except OSError as error:
            notes.stop(error)
    if SPEED in notes.told:
        if name == "torch":
            from .recorder import hooks
            from .speed import windows

            hooks.attach(windows.PROBES)
        return
    try:
        from .recorder import hooks, probes
        from .without import changes
    except Exception as error:  # a name that torch has no more: nothing is recorded
        notes.fail("all", repr(error))
        return
    if name == "torch":
        if WHERE in notes.told:
            from .recorder import modules

            hooks.attach(modules.PROBES)  # before those that count steps
        hooks.attach(probes.PROBES + ((*probes.OF_TWO, *changes.CHANGES) if compares() else ()))
    for module, found in probes.BESIDE.items():
        if name in ("torch", module) and module in sys.modules:
            hooks.attach(found)
    if name == "torch.distributed.fsdp":  # seconds, where torch would have to import it for us
        hooks.attach(probes.OF_FSDP + (changes.OF_FSDP if compares() else ()))
    if name == "horovod.torch":
        hooks.attach(probes.OF_HOROVOD)
