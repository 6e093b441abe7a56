"""Reads RUN/metrics.jsonl, the log that every chapter writes: one JSON object a line.

The one reader that the tools and the tests share. `read_run` takes a run as it stands;
`RunReader` goes on reading while the run is going on.

A run that is going on, or that was killed, may end in a half-written line: it is left for later.
A resumed run appends a new `start` event, and the steps that it does again replace the old ones.
"""

import json
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

LOG_NAME = "metrics.jsonl"
# The measured numbers of each kind of row; any of them may be missing or null.
FIELDS = {
    "train": ("loss", "acc1", "lr", "images_per_second", "data_wait", "max_memory"),
    "eval": ("loss", "acc1", "acc5"),
}
KNOWN_EVENTS = ("start", *FIELDS, "end")

# What the messages tell the user to type.
A_RUN = "a chapter's --output-dir, such as runs/02_distributed"

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


def find_log(path: str | Path) -> Path:
    """The log file of a run that is given by its folder or by the file itself."""
    path = Path(path)
    if path.is_file():
        return path
    if not path.exists():
        raise RunLogError(f"{path} does not exist: give {A_RUN}")
    log = path / LOG_NAME
    if log.is_file():
        return log
    inside = sorted(str(found.parent) for found in path.glob(f"*/{LOG_NAME}"))
    hint = f"the folder of one run, such as {inside[0]}" if inside else A_RUN
    raise RunLogError(f"{path} holds no {LOG_NAME}: give {hint}")


def own_folder(log: Path) -> Path | None:
    """The run's folder, where a tool may put its output; None when the log was renamed.

    Two renamed logs in one folder would otherwise overwrite each other's output.
    """
    return log.parent if log.name == LOG_NAME else None


def run_names(logs: Sequence[Path]) -> list[str]:
    """Short names that tell the runs apart: the last folder, or more of the path where needed."""
    tails = []
    for log in logs:
        # abspath, not resolve(): a link `runs/latest` keeps the name that the user typed.
        path = Path(os.path.abspath(log))
        tails.append((path.parent if path.name == LOG_NAME else path.with_suffix("")).parts)
    for tail in tails:
        if tails.count(tail) > 1:
            raise RunLogError(f"{Path(*tail)} is given twice: give each run once")
    depth = 1
    while len({tail[-depth:] for tail in tails}) < len(tails):
        depth += 1
    return ["/".join(tail[-depth:]).lstrip("/") for tail in tails]


def drop_redone(events: list[Event]) -> list[Event]:
    """The events without the rows that lie beyond a later resume, and without earlier ends."""
    kept: list[Event] = []
    for event in events:
        if event["event"] == "start":
            resumed_from_step = event["resumed_from_step"]
            kept = [old for old in kept if not is_redone(old, resumed_from_step)]
        kept.append(event)
    return kept


def is_redone(event: Event, resumed_from_step: int) -> bool:
    """Whether a run that goes on from this step replaces the event."""
    if event["event"] in FIELDS:
        return event["step"] > resumed_from_step
    return event["event"] == "end"


def read_run(path: str | Path) -> Run:
    """Read the whole log of a run; the path is the run's folder or the file."""
    log = find_log(path)
    reader = RunReader(log)
    events = drop_redone(reader.poll())
    if not reader.started:
        if reader.broken_line is not None:
            raise RunLogError(f"{log}, line {reader.broken_line}: not JSON; is this a {LOG_NAME}?")
        raise RunLogError(f"{log} has no start event yet: try again later, or give another run")
    run = Run(log)
    lists = {"start": run.starts, "train": run.train, "eval": run.eval}
    for event in events:
        if event["event"] == "end":
            run.end = event
        else:
            lists[event["event"]].append(event)
    return run


class RunReader:
    """Reads a log bit by bit: every `poll` returns the known events that came since the last."""

    def __init__(self, log: Path) -> None:
        self.log = log
        self.started = False
        # A whole line that is no JSON: an error, unless the next line is a `start`.
        self.broken_line: int | None = None
        self.offset = 0
        self.newlines = 0

    def poll(self) -> list[Event]:
        """The new start, train, eval and end events, as they stand in the file."""
        *lines, tail = self._read_new_bytes().split(b"\n")
        events = []
        for line in lines:
            events += self._take(line)
            self.offset += len(line) + 1
            self.newlines += 1
        # Without its newline a line may still grow, unless it is a whole object already: then
        # nothing but the newline can be missing, and a last `end` need not wait for it.
        if parse_line(tail):
            events += self._take(tail)
            self.offset += len(tail)
        return events

    def _read_new_bytes(self) -> bytes:
        try:
            with self.log.open("rb") as file:
                if os.fstat(file.fileno()).st_size < self.offset:
                    raise RunLogError(f"{self.log} was replaced while being read: start again")
                file.seek(self.offset)
                return file.read()
        except OSError as error:
            raise RunLogError(f"cannot read {self.log}: {error.strerror}") from error

    def _take(self, line: bytes) -> list[Event]:
        """The known events of a line; remembers a broken one until the next line is there."""
        if not line.strip():
            return []
        number = self.newlines + 1
        values = parse_line(line)
        if self.broken_line is not None:
            first = values[0] if values else None
            if not (isinstance(first, dict) and first.get("event") == "start"):
                what_now = "delete the line" if self.started else f"is this a {LOG_NAME}?"
                raise RunLogError(f"{self.log}, line {self.broken_line}: not JSON; {what_now}")
            self.broken_line = None
        if not values:
            self.broken_line = number
        events = [self._check(value, number) for value in values]
        return [event for event in events if event["event"] in KNOWN_EVENTS]

    def _check(self, value: Any, number: int) -> Event:
        """The value of a line as an event whose known fields can be relied on."""
        where = f"{self.log}, line {number}"
        if not isinstance(value, dict) or not isinstance(value.get("event"), str):
            raise RunLogError(f'{where}: no "event" in it; is this a {LOG_NAME}?')
        event = value["event"]
        if event == "start":
            self.started = True
            value["resumed_from_step"] = value.get("resumed_from_step") or 0
            need_count(value, "resumed_from_step", where)
        elif event in KNOWN_EVENTS and not self.started:
            raise RunLogError(f"{where}: {event} before any start; is this a whole {LOG_NAME}?")
        if event in FIELDS:
            need_count(value, "step", where)
            for name in FIELDS[event]:
                number_or_none = value.get(name)
                if not isinstance(number_or_none, int | float | None):
                    raise RunLogError(f"{where}: {name} is {number_or_none!r}, not a number")
        return value


def need_count(event: Event, name: str, where: str) -> None:
    """Raise unless the event's field is a whole number, 0 or more."""
    value = event.get(name)
    if type(value) is not int or value < 0:
        raise RunLogError(f"{where}: {name} of {event['event']} is {value!r}, not a whole number")


def parse_line(line: bytes) -> list[Any]:
    """The JSON values of a line: one, or none if it is broken, or what a glued `start` leaves.

    No beginning of an object is itself JSON, so a half-written line never passes for a whole one.
    """
    value = parse_json(line)
    if value is not None:
        return [value]
    values = [parse_json(piece) for piece in BEFORE_START.split(line)]
    return [] if values[-1] is None else [value for value in values if value is not None]


def parse_json(text: bytes) -> Any:
    """The JSON value of the text, None where there is none."""
    try:
        return json.loads(text.decode("utf-8"))
    except ValueError:
        return None
