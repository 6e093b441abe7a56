"""The user's command, with a recorder in each of its Python processes."""

import json
import os
import shutil
import signal
import subprocess
import time
from contextlib import suppress
from importlib import resources
from pathlib import Path

from .recorder.notes import AGAINST, ENDED, FIRST, FOLDER, STOPPED, WHOLE

ENDS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Job:
    """folder: for the recorder and its events. without: of a run that is compared, what without/
    takes out; told: of the second one, what it needs to know of the first.

    Raises OSError where the folder cannot be written."""

    def __init__(self, folder: Path, without: str | None = None, told: dict | None = None) -> None:
        self.traces = folder / "traces"
        self.traces.mkdir()
        (self.traces / WHOLE).touch()
        self.counted: dict[Path, tuple[int, int]] = {}  # bytes of a file that were read, its steps
        self.ended = ""  # by what, if not by itself
        first = folder / "first"

        # A copy: the doctor itself may be a zip file, or have names that the script has, too.
        own = resources.files(__package__)
        for room in ("recorder", "against", "without", "speed"):
            (first / "_doctor" / room).mkdir(parents=True)
            for file in (own / room).iterdir():
                if file.name.endswith(".py"):
                    (first / "_doctor" / room / file.name).write_bytes(file.read_bytes())
        (first / "_doctor/attach.py").write_bytes((own / "attach.py").read_bytes())
        (first / "_doctor/recorder/sitecustomize.py").rename(first / "sitecustomize.py")

        paths = [str(first), os.environ.get("PYTHONPATH", "")]
        self.ours = {FOLDER: str(self.traces), "PYTHONPATH": os.pathsep.join(filter(None, paths))}
        if without is not None:
            self.ours[AGAINST] = without
        if told is not None:
            (folder / "told.json").write_text(json.dumps(told))
            self.ours[FIRST] = str(folder / "told.json")

    def start(self, command: list[str]) -> None:
        """Raises OSError where the command cannot be started."""
        self.guard()
        env = os.environ | self.ours
        self.process = subprocess.Popen(command, env=env, start_new_session=True)

    def guard(self) -> None:
        """A process that outlives a doctor who is killed, and then ends the job."""
        reading, self.alive = os.pipe()
        self.guards = os.fork()
        if self.guards:
            os.close(reading)
            return
        try:
            os.setsid()
            for number in ENDS:
                signal.signal(number, signal.SIG_IGN)
            os.close(self.alive)
            if not os.read(reading, 1):  # nobody has called over()
                self.end()
                shutil.rmtree(self.traces.parent, ignore_errors=True)
        finally:
            os._exit(0)

    def over(self) -> None:
        """The command has ended; what it has left running on purpose is left alone."""
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(5)
        os.write(self.alive, b"1")
        os.close(self.alive)
        os.waitpid(self.guards, 0)

    def stopped(self) -> str:
        """Why a process could not record all that it did; the disk may have been full."""
        if (self.traces / WHOLE).exists():
            return ""
        numbers = [path.name.removeprefix(STOPPED) for path in self.traces.glob(f"{STOPPED}*")]
        why = os.strerror(int(numbers[0])) if numbers else ""
        return f"{why} (TMPDIR: {self.traces.parent.parent})" if why else "deleted"

    def wait(self, steps: int, seconds: float, still: float) -> None:
        start = moved = time.monotonic()
        written = 0
        while self.process.poll() is None:
            time.sleep(0.2)
            now = time.monotonic()
            stopped = self.stopped()
            size = sum(path.stat().st_size for path in self.traces.glob("*.jsonl"))
            if size != written:
                written, moved = size, now
            if still and now > moved + still and not stopped:
                self.ended = "still"
                return
            if seconds and now > start + seconds:
                self.ended = "seconds"
                return
            if steps and (stopped or self.made(steps)):
                self.ended = "the recorder had to stop" if stopped else "steps"
                return

    def made(self, steps: int) -> bool:
        """Whether every process that makes steps has made so many."""
        for path in self.traces.glob("*.jsonl"):
            read, count = self.counted.get(path, (0, 0))
            with path.open("rb") as file:
                file.seek(read)
                lines = file.read().rpartition(b"\n")[0]  # the last may be half written
            self.counted[path] = read + len(lines), count + lines.count(b'{"e": "step"')
        trained = [count for _, count in self.counted.values() if count]
        return bool(trained) and min(trained) >= steps

    def end(self) -> None:
        """Ask, wait, then kill what is left of it, in other sessions too."""
        with suppress(OSError):
            (self.traces / ENDED).touch()
        for number, patience in ((signal.SIGTERM, 10), (signal.SIGKILL, 5)):
            for pid in self.left():
                with suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, number)
            limit = time.monotonic() + patience
            while self.left() and time.monotonic() < limit:
                time.sleep(0.1)

    def left(self) -> list[int]:
        mark = f"{FOLDER}={self.traces}".encode()
        found = []
        for path in Path("/proc").glob("[0-9]*/environ"):
            with suppress(OSError):
                if mark in path.read_bytes().split(b"\0"):
                    found.append(int(path.parent.name))
        return found
