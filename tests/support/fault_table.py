"""The table of faults and bad inputs that were tried, and what happened: tests/FAULTS.md.

A test that has seen a fault end as it should calls the fixture `fault_table`; a session started
with `pytest --write-faults` writes what it has seen into the table, and leaves alone the rows of
tests that it has not run. `make faults` runs them all.
"""

from __future__ import annotations

import os
import platform
import re
from datetime import date
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

PATH = Path(__file__).parents[1] / "FAULTS.md"
HEAD = """\
# What was broken on purpose, and what happened

Written by the tests themselves (`make faults`), from what they saw; each row is a test that fails
when the outcome is another. Seconds are those from the fault to the end of the last process, or of
the whole command where the fault is there from its start; "in process" is a run without a launch of
its own.

"""
COLUMNS = ("fault", "chapter", "outcome", "seconds", "measured")


def _cell(text: object) -> str:
    return re.sub(r"\s+", " ", str(text)).replace("|", "/").strip()


def machine() -> str:
    """Where the rows of a session come from."""
    names = []
    for name in ("torch", "torchvision", "horovod"):
        try:
            names.append(f"{name} {version(name)}")
        except PackageNotFoundError:
            continue
    cpus = len(os.sched_getaffinity(0))
    python = platform.python_version()
    return f"{date.today()}, {cpus} CPUs, Python {python}, {', '.join(names)}"


class FaultTable:
    """The rows of a session, and the file."""

    def __init__(self) -> None:
        self.rows: dict[tuple[str, str], tuple[str, str]] = {}

    def __call__(self, fault: str, chapter: str, outcome: str, seconds: float | None) -> None:
        """One row. seconds None: in a warm process, where a time would mean nothing. The slowest
        of the cases that share fault and chapter counts."""
        key, shown = (_cell(fault), _cell(chapter)), "in process"
        if seconds is not None:
            before = self.rows.get(key, ("", "0"))[1]
            shown = f"{max(seconds, float(before) if before[0].isdigit() else 0):.1f}"
        self.rows[key] = (_cell(outcome), shown)

    def write(self, path: Path = PATH) -> None:
        """Merge this session's rows into the file."""
        kept: dict[tuple[str, str], tuple[str, str, str]] = {}
        machines: dict[str, str] = {}
        for line in path.read_text().splitlines() if path.exists() else ():
            if note := re.fullmatch(r"- \[(\d+)\] (.*)", line):
                machines[note[1]] = note[2]
            cells = [cell.strip() for cell in line.strip("|").split("|")]
            if len(cells) == len(COLUMNS) and cells[-1].startswith("["):
                kept[cells[0], cells[1]] = (cells[2], cells[3], machines.get(cells[4][1:-1], ""))
        kept |= {key: (*row, machine()) for key, row in self.rows.items()}
        numbers = {
            where: str(i) for i, where in enumerate(sorted({r[2] for r in kept.values()}), 1)
        }
        lines = [f"- [{number}] {where}" for where, number in numbers.items()]
        lines += ["", "| " + " | ".join(COLUMNS) + " |", "|" + " --- |" * len(COLUMNS)]
        for (fault, chapter), (outcome, seconds, where) in sorted(kept.items()):
            lines.append(f"| {fault} | {chapter} | {outcome} | {seconds} | [{numbers[where]}] |")
        path.write_text(HEAD + "\n".join(lines) + "\n")
