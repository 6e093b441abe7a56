"""What `doctor --against … --without …` takes out of both runs: differences that right ones have.

Only here is a training changed: the recorder changes nothing.
"""

import json
from functools import cache
from pathlib import Path

from ..recorder.notes import FIRST, notes

PARTS = ("shuffling", "batchnorm", "dropout", "draws", "rounding")
ALONE = ("growth",)  # where rounding cannot be taken out: no part of "all"


@cache
def first() -> dict:
    """In the second of two runs: what against/first.py tells of the first one."""
    return json.loads(Path(notes.told[FIRST]).read_text()) if FIRST in notes.told else {}
