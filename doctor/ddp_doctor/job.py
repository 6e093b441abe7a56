"""The user's command, with a recorder in each of its Python processes."""

import json
import os
import shutil
import signal
import subprocess
import time
from collections import defaultdict
from contextlib import suppress
from importlib import resources
from pathlib import Path

from .recorder.notes import AGAINST, ENDED, FIRST, FOLDER, STOPPED, WHERE, WHOLE
from .report import last_line, short

ENDS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
PASSED = (signal.SIGUSR1, signal.SIGUSR2, signal.SIGQUIT)  # on to the command
HEARD = [  # what nohup or a shell ignores stays ignored
    number for number in (*ENDS, *PASSED) if signal.getsignal(number) != signal.SIG_IGN
]
OVER = b"over"
INNER = "inner"  # a file in the folder of a doctor around this one, which records in its place


class Job:
    """folder: for the recorder and its events. without: of a run that is compared, what without/
    takes out; told: of the second one, what it needs to know of the first; where: the step whose
    modules are looked at, without torch.compile.

    Raises OSError where the folder cannot be written."""

    def __init__(
        self,
        folder: Path,
        without: str | None = None,
        told: dict | None = None,
        where: int = 0,
    ) -> None:
        self.traces = folder / "traces"
        self.traces.mkdir()
        (self.traces / WHOLE).touch()
        self.counted: dict[Path, tuple[int, int]] = {}  # bytes of a file that were read, its steps
        self.ended = ""  # by what, if not by itself
        self.session = -1  # that of the command; 0 are those of other containers
        first = folder / "first"

        # A copy: the doctor itself may be a zip file, or have names that the script has, too.
        own = resources.files(__package__)
        for room in ("recorder", "without", "speed"):
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
        if where:
            self.ours |= {WHERE: str(where), "TORCHDYNAMO_DISABLE": "1"}
        if told is not None:
            (folder / "told.json").write_text(json.dumps(told))
            self.ours[FIRST] = str(folder / "told.json")

    def start(self, command: list[str]) -> None:
        """Raises OSError where the command cannot be started."""
        self.guard()
        with suppress(OSError, KeyError):
            Path(os.environ[FOLDER], INNER).touch()
        env = {name: os.environ[name] for name in os.environ if not name.startswith("DOCTOR_")}
        env |= self.ours
        self.process = subprocess.Popen(command, env=env, start_new_session=True)
        self.session = self.process.pid
        with suppress(BrokenPipeError):  # somebody has ended the guard
            os.write(self.alive, b"%d " % self.session)

    def pass_on(self, number: int, _: object) -> None:
        """As a terminal sends SIGQUIT, and kill the others."""
        with suppress(ProcessLookupError):
            if self.session > 0 and self.process.returncode is None:
                (os.killpg if number == signal.SIGQUIT else os.kill)(self.session, number)

    def guard(self) -> None:
        """A process that outlives a doctor who is killed, and then ends the job."""
        reading, self.alive = os.pipe()
        self.guards = os.fork()
        if self.guards:
            os.close(reading)
            return
        try:
            os.setsid()
            for number in (*ENDS, *PASSED):
                signal.signal(number, signal.SIG_IGN)
            os.close(self.alive)
            with os.fdopen(reading, "rb") as pipe:
                told = pipe.read().split()
            if OVER not in told:  # nobody has called over()
                self.session = int(told[0]) if told else -1
                self.end()
                self.clear()
        finally:
            os._exit(0)

    def over(self) -> None:
        """The command has ended; what it has left running on purpose is left alone."""
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(5)
        with suppress(BrokenPipeError):
            os.write(self.alive, OVER)
        os.close(self.alive)
        os.waitpid(self.guards, 0)
        self.wait_for_all(2)

    def clear(self) -> None:
        """The folder goes. Where processes are left, PYTHONPATH of theirs has its path: another
        user who makes it anew in /tmp would give them code. So there it stays, and is empty."""
        folder, first = self.traces.parent, self.traces.parent / "first"
        if not self.left():
            shutil.rmtree(folder, ignore_errors=True)
        for path in (*folder.glob("*"), *first.glob("*")):
            if path.is_file():
                path.unlink()
            elif path != first:
                shutil.rmtree(path, ignore_errors=True)

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

    def held(self) -> bool:
        """Whether a doctor in the command has recorded it."""
        return (self.traces / INNER).exists()

    def status(self) -> str:
        number = self.process.returncode
        names = {-one: f"{number} ({one.name})" for one in signal.Signals}
        return names.get(number, str(number))

    def why(self) -> str:
        """What ended it: the status, and what the first of its processes that failed has raised."""
        rows = []
        for path in self.traces.glob("*.jsonl") if self.process.returncode else ():
            lines = [line for line in path.open() if line.startswith('{"e": "exit"')]
            rows += [json.loads(line) for line in lines if line.endswith("}\n")]
        rows = [row for row in rows if row["error"] != "None" and not row["error"].isdigit()]
        for row in sorted(rows, key=lambda row: row["t"])[:1]:
            at = f" ({short(row['at'])})" if row["at"] else ""
            return f"{self.status()}, {last_line(row['error'])}{at}"
        return self.status()

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
            self.wait_for_all(patience)

    def wait_for_all(self, patience: float) -> None:
        limit = time.monotonic() + patience
        while self.left() and time.monotonic() < limit:
            time.sleep(0.1)

    def left(self) -> list[int]:
        """Its processes: those of its session, with our mark in their environment, or that record,
        and what these have started. A title that a process gives itself overwrites the mark, and
        env -i drops it."""
        mark = f"{FOLDER}={self.traces}".encode()
        recorded = {path.name.split("-")[-2] for path in self.traces.glob("*.jsonl")}
        found, children = [], defaultdict(list)
        for folder in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                pid, numbers = int(folder.name), (folder / "stat").read_text().rpartition(")")[2]
                state, parent, _, session, *_ = numbers.split()
                if state in "ZX":
                    continue
                children[int(parent)].append(pid)
                if (
                    int(session) == self.session
                    or mark in (folder / "environ").read_bytes().split(b"\0")
                    or (folder.name in recorded and self.writes(folder))
                ):
                    found.append(pid)
        for pid in found:
            found += [child for child in children[pid] if child not in found]
        return found

    def writes(self, process: Path) -> bool:
        """A number alone may be that of another process: in a container, or long since."""
        for link in (process / "fd").iterdir():
            with suppress(OSError):  # it has just been closed
                if os.readlink(link).startswith(str(self.traces)):
                    return True
        return False
