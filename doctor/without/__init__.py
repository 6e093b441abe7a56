"""What `doctor --against … --without …` takes out of both runs: differences that right ones have.

Only here is a training changed: the recorder changes nothing.
"""

import os

from ..recorder.notes import AGAINST

PARTS = ("shuffling", "batchnorm", "dropout", "rounding")


def without(part: str) -> bool:
    return part in os.environ.get(AGAINST, "").split(",")
