"""Warm processes of the doctor's own: its recorder, once attached, stays in them."""

import sys
from collections.abc import Iterator

import pytest
from crew import Crew
from harness import ROOT

sys.path.append(str(ROOT / "docs/examples/doctor"))  # faults.py


@pytest.fixture(scope="module")
def crew() -> Iterator[Crew]:
    with Crew(2) as members:
        yield members
