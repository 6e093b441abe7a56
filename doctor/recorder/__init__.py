"""What runs inside each process of the script: it notes what happens, and changes nothing.

No collective, no random number and no order is added. The job copies this folder to a
place of its own and puts it on PYTHONPATH, with sitecustomize.py, which calls attach.
"""

import os

from .notes import FOLDER, notes


def attach(name: str) -> None:
    """Called when torch or horovod.torch has been imported."""
    if name == "torch":
        notes.begin(os.environ[FOLDER])
        notes.open_files()
    try:
        from . import probes, twin
    except Exception as error:  # a name that torch has no more: nothing is recorded
        notes.fail("all", repr(error))
        return
    if name == "torch":
        probes.attach(probes.PROBES + (probes.OF_TWINS if twin.compares() else ()))
    else:
        probes.attach(probes.OF_HOROVOD)
