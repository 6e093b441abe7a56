"""What the tests with pretended GPUs share."""

from collections.abc import Iterator

import pretended_gpus
import pytest
from crew import Crew


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Where there can be none, all of them are skipped, with the reason."""
    reason = pretended_gpus.why_not()
    for item in items:
        if reason and "pretended" in item.path.parts:
            item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture(scope="session")
def gpu_crew() -> Iterator[Crew]:
    """Four warm processes, see members.py."""
    with Crew(4) as members:
        yield members
