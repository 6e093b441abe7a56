"""A process's own file of events, a JSON line each; ../EVENTS.md lists them.

An event is written at once: a process that is killed has left all that happened to it.
"""

import fcntl
import functools
import json
import os
import re
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from contextlib import suppress

FOLDER = "DOCTOR_FOLDER"  # environment variable: where the events are written
AGAINST = "DOCTOR_AGAINST"  # of a run that is compared: what --without takes out
FIRST = "DOCTOR_FIRST"  # of the second of two runs: a file that tells of the first
WHERE = "DOCTOR_WHERE"  # of a run that is compared: the step whose modules are looked at
ENDED = "ended"  # a file there: the doctor is ending the job
WHOLE = "whole"  # a file there, until a process has to stop: a full disk takes no last word
STOPPED = "stopped-"  # what it is then renamed to; the number of the error follows
NAMELESS = "parameter "  # begins the name of one that is in no module; its number follows
PADDING = 0.05  # of a model's numbers: so much may be added where each rank has a part
INPUTS = 100  # steps of which it is noted what models are given
LOADED = 4  # so many where a loader gives the samples: do ranks take other parts of them?
GOLDEN = 0.6180339887498949  # n * GOLDEN % 1: neighbours have unlike weights
IDLE = 20  # seconds without an event: then the stack is written down
HIGH = 1000  # numbers of our files: who closes all files, or needs the lowest number, is below
HERE = os.path.dirname(os.path.dirname(__file__)) + os.sep
STANDARD = os.path.dirname(os.__file__)


class File:
    """To append to, by a number that the script may close, and then get for a file of its own."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.open()

    def open(self) -> None:
        notes.quiet = True
        self.number = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        notes.quiet = False
        with suppress(OSError):  # ulimit -n is lower
            low, self.number = self.number, fcntl.fcntl(self.number, fcntl.F_DUPFD_CLOEXEC, HIGH)
            os.close(low)
        self.mark = self.marked()

    def marked(self) -> tuple[int, int] | None:
        """Which file this number is of now."""
        try:
            found = os.fstat(self.number)
        except OSError:
            return None
        return found.st_dev, found.st_ino

    def write(self, line: bytes) -> None:
        if self.marked() != self.mark:
            self.open()
        while line:  # a disk that is nearly full takes a part
            line = line[os.write(self.number, line) :]


class Notes:
    def __init__(self) -> None:
        self.watched = False  # by the thread that notes where the process stands still
        self.told = {}

    def begin(self, told: Mapping[str, str]) -> None:
        """told: the environment as it was when Python began."""
        self.told = told
        self.folder = told[FOLDER]
        self.first = os.getpid()  # a fork lacks that thread
        self.pid = self.file = self.stacks = None
        self.moved = 0.0  # when the latest event was
        self.quiet = False  # while the recorder itself opens files
        self.failed = set()  # probes that are not asked any more
        self.active = True

    def event(self, what: str, /, **fields: object) -> None:
        if not self.active:
            return
        line = json.dumps({"e": what, "t": round(time.time(), 3), **fields}).encode() + b"\n"
        try:
            if self.pid != os.getpid():  # the first event, also of a forked process
                self.open_files()
            self.file.write(line)
        except OSError as error:  # a full disk, too many open files
            self.stop(error)
            return

        self.moved = time.monotonic()
        if self.pid == self.first and not self.watched:
            self.watched = True
            threading.Thread(target=self.watch, name="doctor", daemon=True).start()

    def stop(self, error: OSError) -> None:
        self.active = False
        with suppress(OSError):  # another process was first
            os.rename(f"{self.folder}/{WHOLE}", f"{self.folder}/{STOPPED}{error.errno}")

    def open_files(self) -> None:
        self.pid = os.getpid()
        host = socket.gethostname()
        base = f"{self.folder}/{host}-{self.pid}-{time.time_ns()}"
        self.file = File(f"{base}.jsonl")
        self.stacks = File(f"{base}.stacks")

        version = getattr(sys.modules.get("torch"), "__version__", "?")
        launched = os.environ.get("WORLD_SIZE", "")  # by torchrun, say
        own = {"parent": os.getppid(), "cwd": "", "compared": compares()}
        with suppress(OSError):  # that folder has gone
            own["cwd"] = os.getcwd()
        own["argv"] = [str(word) for word in getattr(sys, "argv", ())]
        self.event("process", pid=self.pid, host=host, torch=version, launched=launched, **own)

    def watch(self) -> None:
        """Note where the main thread stands, IDLE seconds after an event without another one.

        faulthandler has a timer for it, which reads frames while they change: now and then that
        kills the process (SIGSEGV; Python 3.10 to 3.13). This thread reads them under the GIL.
        """
        main = threading.main_thread()
        told = 0.0
        while main.is_alive():
            time.sleep(max(1, self.moved + IDLE - time.monotonic()))
            if not os.path.exists(self.folder):  # the doctor has gone, and left it running
                self.active = False
                return
            if told < self.moved <= time.monotonic() - IDLE:
                told = time.monotonic()
                frame = sys._current_frames().get(main.ident)
                row = json.dumps([round(time.time(), 3), *standing(frame)])
                with suppress(OSError):
                    self.stacks.write(row.encode() + b"\n")

    def call(self, probe: str, function: Callable | None, *args: object, **kwargs: object) -> None:
        """Call a part of the recorder. A mistake in it never ends the script: it is noted, and its
        probe is not asked again, because half of what it sees would mislead the checks."""
        if function is None or not self.active or probe in self.failed:
            return
        try:
            function(*args, **kwargs)
        except Exception:
            self.fail(probe, traceback.format_exc().splitlines()[-1])

    def fail(self, probe: str, text: str, missing: bool = False) -> None:
        self.failed.add(probe)
        self.event("trouble", probe=probe, text=text, missing=missing)


notes = Notes()


def compares() -> bool:
    return AGAINST in notes.told


def without(part: str) -> bool:
    """Whether --without takes it out of both runs."""
    return part in notes.told.get(AGAINST, "").split(",")


def place() -> tuple[int, int]:
    """Rank, and how many there are."""
    horovod, dist = map(sys.modules.get, ("horovod.torch", "torch.distributed"))
    if horovod and horovod.is_initialized():
        return horovod.rank(), horovod.size()
    several = dist and dist.is_available() and dist.is_initialized()
    return (dist.get_rank(), dist.get_world_size()) if several else (0, 1)


@functools.cache
def is_library(name: str) -> bool:
    """Whether a file of Python code is not the user's own."""
    if name.startswith(("<", STANDARD, HERE)):
        return True
    return bool(re.search(r"/(site|dist)-packages/|/lib/python3\.\d+/", name))


def error_line(error: object) -> list | None:
    """File and line of the user's own code where an exception came from."""
    at = None
    for frame, line in traceback.walk_tb(getattr(error, "__traceback__", None)):
        name = frame.f_code.co_filename
        at = at if is_library(name) else [name, line]
    return at


def standing(frame: object) -> tuple[list | None, str]:
    """The innermost line of the user's own code, and the function that it has called."""
    called = ""
    for inner, line in traceback.walk_stack(frame):
        name, function = inner.f_code.co_filename, inner.f_code.co_name
        if not is_library(name):
            return [name, line], called
        called = called if function == "wrapper" or name.startswith(HERE) else function
    return None, called


def user_line(made: object = None) -> list | None:
    """File and line of the innermost call in the user's own code.

    made: an object. The line is then that where it is made, not one in its class's __init__.
    """
    frame = sys._getframe(1)
    while frame and (is_library(frame.f_code.co_filename) or makes(frame, made)):
        frame = frame.f_back
    return [frame.f_code.co_filename, frame.f_lineno] if frame else None


def makes(frame: object, made: object) -> bool:
    if made is None or frame.f_code.co_name != "__init__":
        return False
    return frame.f_locals.get(frame.f_code.co_varnames[0]) is made
