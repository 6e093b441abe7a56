"""The table of faults that were tried, and what happened: tests/FAULTS.md.

A test that has seen a fault end as it should calls the fixture `fault_table`; `make faults` runs
them all and writes the table.
"""

import os
import platform
from collections.abc import Iterator
from datetime import date

import pytest
from harness import ROOT

HEAD = """\
# What was broken on purpose, and what happened

Written by the tests themselves (`make faults`), from what they saw; each row is a test that fails
when the outcome is another. Seconds are those from the fault to the end of the last process, or of
the whole launch where there is no fault; "in process" is a run without a launch of its own.
Measured on {date} with {cpus} CPUs, Python {python}, torch {torch}.

| fault | chapter | outcome | seconds |
| --- | --- | --- | --- |
"""


class FaultTable(list):
    """The rows of a session."""

    def __call__(self, fault: str, chapter: str, outcome: str, seconds: float | None) -> None:
        """One row. seconds None: in a warm process, where a time would mean nothing."""
        outcome = " ".join(outcome.replace("|", "/").split())
        shown = "in process" if seconds is None else f"{seconds:.1f}"
        self.append(f"| {fault} | {chapter} | {outcome} | {shown} |\n")


@pytest.fixture(scope="session")
def fault_table(request: pytest.FixtureRequest) -> Iterator[FaultTable]:
    import torch

    rows = FaultTable()
    yield rows
    if request.config.getoption("--write-faults") and not request.session.testsfailed:
        where = {"cpus": len(os.sched_getaffinity(0)), "python": platform.python_version()}
        head = HEAD.format(date=date.today(), torch=torch.__version__, **where)
        (ROOT / "tests/FAULTS.md").write_text(head + "".join(sorted(rows)))
