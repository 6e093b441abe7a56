"""Warm processes of the doctor's own: its recorder, once attached, stays in them."""

from collections.abc import Iterator

import pytest
from crew import Crew


@pytest.fixture(scope="module")
def crew() -> Iterator[Crew]:
    with Crew(2) as members:
        yield members
