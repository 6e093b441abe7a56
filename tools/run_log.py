"""Reads RUN/metrics.jsonl, the log that every chapter writes: one JSON object a line.

A run that is going on, or that was killed, may end in a half-written line: it is left for later.
A resumed run appends a new `start` event, and what it does again replaces the old rows.
"""

import json
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

LOG_NAME = "metrics.jsonl"
NO_EVENT = f"no event of a run; is this a whole {LOG_NAME}?"
# Where and when a row was written. Every other number in it is a measurement. "at" is added here:
# how many epochs are done, such as 1.5 in the middle of the second one.
PLACE = {"epoch", "step", "time", "at"}

FAR = 1e300  # a picture of larger numbers cannot be computed: the widths of axes overflow

Event = dict[str, Any]

# A killed run leaves half a line and no newline, so the `start` of the run that goes on from it
# can stand in the middle of a line.
BEFORE_START = re.compile(rb'(?=\{\s*"event"\s*:\s*"start")')


class RunLogError(Exception):
    """A log that cannot be read; the message is one line, meant for the user."""


@dataclass
class Run:
    """What one log holds, without the rows that a resumed run did again."""

    path: Path
    starts: list[Event] = field(default_factory=list)
    train: list[Event] = field(default_factory=list)
    eval: list[Event] = field(default_factory=list)
    end: Event | None = None


def run_folder(path: str | Path) -> Path:
    """The folder of a run that is given by it or by the log in it; raises where there is no log."""
    path = Path(path)
    folder = path.parent if path.name == LOG_NAME else path
    if not (folder / LOG_NAME).is_file():
        raise RunLogError(f"{folder} holds no {LOG_NAME}: give a run's --output-dir")
    return folder


def read_run(path: str | Path) -> Run:
    """Read the log of a run, given by its folder or by the file."""
    log = run_folder(path) / LOG_NAME
    run = Run(log)
    for event in parse(log):
        try:
            add(run, event)
            if not abs(event.get("at", 0)) < FAR:
                raise ArithmeticError
        except (ArithmeticError, LookupError, TypeError):
            where = f"of a row {event['event']!r:.99}"
            what = f"epoch, step or steps_per_epoch {where} is missing, or no number of a run"
            raise RunLogError(f"{log}: {what}") from None
    if not run.starts:
        raise RunLogError(f"{log} has no start event yet: try again later, or give another run")
    return run


def add(run: Run, event: Event) -> None:
    """Put an event where it belongs, with its place in epochs."""
    kind, rows = event["event"], {"train": run.train, "eval": run.eval}
    steps = run.starts[-1]["steps_per_epoch"] if run.starts else 1
    if kind == "start":
        steps = event["steps_per_epoch"]
        event["at"] = event["epoch"] + event.get("step", 0) / steps
        run.starts.append(event)
        run.train[:] = [row for row in run.train if row["at"] <= event["at"]]
        # A run that begins at the last step of an epoch evaluates that once more. Where
        # evaluations come after so many steps, that is seen when it has done so.
        run.eval[:] = [row for row in run.eval if kept(row, event)]
        run.end = None
    elif not run.starts:
        raise RunLogError(f"{run.path}: {kind} before any start; is this a whole {LOG_NAME}?")
    elif kind == "end":
        run.end = event
    elif kind in rows:
        event["at"] = event["epoch"] + event.get("step", steps) / steps
        if kind == "eval" and run.eval and run.eval[-1]["at"] == event["at"]:
            run.eval.pop()
        rows[kind].append(event)


def kept(row: Event, start: Event) -> bool:
    """Whether an evaluation was before this start; its row has a step in chapter 09 alone."""
    return row["at"] <= start["at"] if "step" in row else row["epoch"] < start["epoch"]


def numbers(row: Event) -> dict[str, float]:
    """What was measured in a row, by name: whatever is a number there, finite and below FAR."""
    found = {name: value for name, value in row.items() if type(value) in (int, float)}
    return {n: value for n, value in found.items() if n not in PLACE and abs(value) < FAR}


def parse(log: Path) -> list[Event]:
    """The events of the log. A broken line may only stand at the end, or before a `start`."""
    lines = log.read_bytes().split(b"\n")
    events: list[Event] = []
    broken = 0
    for number, line in enumerate(lines, 1):
        for piece in filter(bytes.strip, BEFORE_START.split(line)):
            if broken and not BEFORE_START.match(piece):
                raise RunLogError(f"{log}, line {broken}: {NO_EVENT}")
            event = parse_event(piece)
            broken = 0 if event else number
            events += [event] if event else []
    # The last line may still grow, if it has no newline yet.
    if broken and broken != len(lines):
        raise RunLogError(f"{log}, line {broken}: {NO_EVENT}")
    return events


def parse_event(line: bytes) -> Event | None:
    """The event of a line; None for half a line, and for what no chapter writes."""
    try:
        event = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return event if isinstance(event, dict) and "event" in event else None
