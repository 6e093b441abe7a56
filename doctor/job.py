"""The user's command, with a recorder in each of its Python processes."""

import json
import os
import signal
import subprocess
import time
from contextlib import suppress
from importlib import resources
from pathlib import Path

from .recorder.notes import AGAINST, ENDED, FIRST, FOLDER


class Job:
    def __init__(
        self, command: list[str], folder: Path, without: str | None = None, told: dict | None = None
    ) -> None:
        """without: of a run that is compared, what without/ takes out; told: of the second one,
        what it needs to know of the first."""
        self.traces = folder / "traces"
        self.traces.mkdir()
        first = folder / "first"

        # A copy: the doctor itself may be a zip file, or have names that the script has, too.
        own = resources.files(__package__)
        for room in ("recorder", "against", "without"):
            (first / "_doctor" / room).mkdir(parents=True)
            for file in (own / room).iterdir():
                if file.name.endswith(".py"):
                    (first / "_doctor" / room / file.name).write_text(file.read_text())
        (first / "_doctor/attach.py").write_text((own / "attach.py").read_text())
        (first / "_doctor/recorder/sitecustomize.py").rename(first / "sitecustomize.py")

        paths = [str(first), os.environ.get("PYTHONPATH", "")]
        ours = {FOLDER: str(self.traces), "PYTHONPATH": os.pathsep.join(filter(None, paths))}
        if without is not None:
            ours[AGAINST] = without
        if told is not None:
            (folder / "told.json").write_text(json.dumps(told))
            ours[FIRST] = str(folder / "told.json")
        self.process = subprocess.Popen(command, env=os.environ | ours, start_new_session=True)
        self.ended = ""  # by what, if not by itself

    def wait(self, steps: int, seconds: float, still: float) -> None:
        start = moved = time.monotonic()
        written = 0
        while self.process.poll() is None:
            time.sleep(0.2)
            now = time.monotonic()
            size = sum(path.stat().st_size for path in self.traces.glob("*.jsonl"))
            if size != written:
                written, moved = size, now
            if still and now > moved + still:
                self.ended = "still"
                return
            if seconds and now > start + seconds:
                self.ended = "seconds"
                return
            if steps and self.made(steps):
                self.ended = "steps"
                return

    def made(self, steps: int) -> bool:
        """Whether every process that makes steps has made so many."""
        traces = self.traces.glob("*.jsonl")
        counts = [path.read_bytes().count(b'{"e": "step"') for path in traces]
        trained = [count for count in counts if count]
        return bool(trained) and min(trained) >= steps

    def end(self) -> None:
        """Ask, wait, then kill what is left of it, in other sessions too."""
        (self.traces / ENDED).touch()
        for number, patience in ((signal.SIGTERM, 10), (signal.SIGKILL, 5)):
            for pid in self.left():
                with suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, number)
            limit = time.monotonic() + patience
            while self.left() and time.monotonic() < limit:
                self.process.poll()
                time.sleep(0.1)
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(5)

    def left(self) -> list[int]:
        mark = f"{FOLDER}={self.traces}".encode()
        found = []
        for path in Path("/proc").glob("[0-9]*/environ"):
            with suppress(OSError):
                if mark in path.read_bytes().split(b"\0"):
                    found.append(int(path.parent.name))
        return found
