"""The table of faults that were tried, and what happened: tests/FAULTS.md.

A test that has seen a fault end as it should calls the fixture `fault_table`; `make faults` runs
them all and writes the table.
"""

from __future__ import annotations

import os
import platform
from datetime import date
from pathlib import Path

import torch

PATH = Path(__file__).parents[1] / "FAULTS.md"
HEAD = """\
# What was broken on purpose, and what happened

Written by the tests themselves (`make faults`), from what they saw; each row is a test that fails
when the outcome is another. Seconds are those from the fault to the end of the last process; "in
process" is a run without a launch of its own. Measured {where}.

| fault | chapter | outcome | seconds |
| --- | --- | --- | --- |
"""


class FaultTable:
    """The rows of a session, and the file."""

    def __init__(self) -> None:
        self.rows: list[str] = []

    def __call__(self, fault: str, chapter: str, outcome: str, seconds: float | None) -> None:
        """One row. seconds None: in a warm process, where a time would mean nothing."""
        outcome = " ".join(outcome.replace("|", "/").split())
        shown = "in process" if seconds is None else f"{seconds:.1f}"
        self.rows.append(f"| {fault} | {chapter} | {outcome} | {shown} |")

    def write(self) -> None:
        cpus, python = len(os.sched_getaffinity(0)), platform.python_version()
        where = f"{date.today()}: {cpus} CPUs, Python {python}, torch {torch.__version__}"
        PATH.write_text(HEAD.format(where=where) + "\n".join(sorted(self.rows)) + "\n")
