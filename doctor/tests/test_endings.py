"""What keeps the doctor from its verdict is told: nothing counts as checked that was not recorded,
and no mistake of its own looks like one of the script."""

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from harness import PATIENCE, ROOT, Result, alive, finish, run, start
from test_doctor import ONE_RANK, TOOL, TORCHRUN, endless
from tiers import table
from warm import torchrun_environments

from ddp_doctor.job import Job
from ddp_doctor.recorder import ending
from ddp_doctor.recorder.notes import File

SCRIPT = """
import os
import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, TensorDataset

model = torch.nn.Linear(8, 3)
if "RANK" in os.environ:
    dist.init_process_group("gloo")
    model = torch.nn.parallel.DistributedDataParallel(model)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for epoch in range(50):
    for (batch,) in DataLoader(TensorDataset(torch.randn(32, 8)), 8):
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        optimizer.step()
torch.save({"module." + name: value for name, value in model.state_dict().items()}, "model.pt")
"""
ENDLESS = SCRIPT.replace("range(50)", "range(10**9)")
# Nothing is trained: an optimizer imports half of torch.
SHORT = """
import torch
from torch.utils.data import DataLoader

for batch in DataLoader(torch.ones(5, 2)):
    pass
torch.save({"module.weight": batch}, "model.pt")
"""
ALONE = [sys.executable, "script.py"]


def run_limited(kilobytes: int, words: list, folder: Path) -> Result:
    """No file may grow beyond it: as if the disk were full."""
    return run(["bash", "-c", f'ulimit -f {kilobytes}; exec "$0" "$@"', *words], folder)


@pytest.mark.parametrize("ranks", table([1, 2], [1]))
def test_a_full_disk(ranks: int, tmp_path: Path) -> None:
    """Only a part of the steps was recorded: the verdict says which, and vouches for nothing. And
    of a run without an end nobody counts the steps any more: it is ended."""
    (tmp_path / "script.py").write_text(SCRIPT if ranks == 2 else ENDLESS)
    launch = [*TORCHRUN, "script.py"] if ranks == 2 else ["--steps", "2000", *ALONE]
    words = [*TOOL, "--lang", "en", "--json", "verdict.json", *launch]
    result = run_limited(60, words, tmp_path)
    assert result.returncode == 3, result.output
    by = "status 0" if ranks == 2 else "the recorder had to stop"
    assert f"ended: {by}" in result.stdout, result.output
    written = json.loads((tmp_path / "verdict.json").read_text())
    assert written["checked"] == [] and "\nChecked:" not in result.stdout, result.output
    assert "same_order" in [row["id"] for row in written["not_checked"]]
    [why] = {row["why"] for row in written["not_checked"]}
    made, _, rest = why.removeprefix("recorded up to step ").partition(" of rank ")
    assert all(20 < int(count) < 190 for count in made.split(", ")), why
    who = ", ".join(map(str, range(ranks)))
    assert rest.startswith(f"{who}: File too large (TMPDIR: "), why
    assert "\nNothing found in what was recorded.\n" in result.stdout, result.output


def test_no_room_at_the_start(tmp_path: Path) -> None:
    result = run_limited(4, [*TOOL, "true"], tmp_path)
    assert result.returncode == 2 and result.stderr.count("\n") == 1, result.output
    assert "nothing can be recorded in TMPDIR: " in result.stderr, result.output
    assert result.stderr.endswith(": File too large\n"), result.output


SPAWNED = """
import multiprocessing
import os
import signal


def train():
    import torch  # not in the parent: it only waits

    model = torch.nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for images in torch.utils.data.DataLoader(torch.ones(5, 2)):
        model(images).sum().backward()
        optimizer.step()
    END


if __name__ == "__main__":
    child = multiprocessing.get_context("spawn").Process(target=train)
    child.start()
    child.join()
"""


@pytest.mark.parametrize(
    ("end", "status", "said"),
    [
        pytest.param("os._exit(0)", 0, "Checked: empty_epoch, ", marks=pytest.mark.proof),
        ("os.kill(os.getpid(), signal.SIGKILL)", 3, "5 of rank 0: a process ended without a last"),
    ],
    ids=["left", "killed"],
)
def test_the_last_word(end: str, status: int, said: str, tmp_path: Path) -> None:
    """One that leaves by itself has all its steps; of one that was killed, unseen by its parent,
    nobody knows what else it would have done."""
    (tmp_path / "script.py").write_text(SPAWNED.replace("END", end))
    result = run([*TOOL, "--lang", "en", *ALONE], tmp_path)
    assert result.returncode == status and said in result.stdout, result.output


def test_a_verdict_that_cannot_be_written(tmp_path: Path) -> None:
    """A disk that is full at the end costs the file alone; of words that the terminal's ASCII has
    not, none is lost."""
    (tmp_path / "script.py").write_text(SHORT + "raise ValueError('\\udcff 图')\n")
    words = [*TOOL, "--lang", "zh", "--json", "/dev/full", *ALONE]
    result = run(words, tmp_path, env={"PYTHONIOENCODING": "ascii"})
    assert result.returncode == 2 and "\\u63d0\\u793a  wrapped_keys" in result.stdout, result.output
    assert "ValueError('\\udcff \\u56fe')" in result.stdout, result.output
    said = "doctor: error: --json /dev/full: No space left on device"
    assert said in result.stderr.splitlines(), result.output
    assert result.stderr.count("Traceback") == 1, result.output  # the script's own


def test_a_crash_of_its_own(tmp_path: Path) -> None:
    """Status 1 would mean a wrong result."""
    copy = shutil.copytree(ROOT / "doctor/ddp_doctor", tmp_path / "doctor")
    (copy / "job.py").write_text((copy / "job.py").read_text().replace("os.pipe()", "1 / 0", 1))
    result = run([sys.executable, copy, "true"], tmp_path)
    assert result.returncode == 2 and "ZeroDivisionError" in result.stderr, result.output
    assert "a mistake of its own" in result.stderr.splitlines()[-1], result.output


def test_a_doctor_that_is_killed(tmp_path: Path) -> None:
    """Its job ends too, and the folder of the events goes."""
    room = tmp_path / "room"
    room.mkdir()
    words = [*TOOL, sys.executable, endless(tmp_path)]
    process = start(words, tmp_path, env=torchrun_environments(1)[0] | {"TMPDIR": str(room)})
    deadline = time.monotonic() + PATIENCE
    while not (tmp_path / "checkpoint.pt").exists():
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.2)
    assert list(room.glob("doctor-*")) and len(alive(process)) > 2
    os.kill(process.pid, signal.SIGKILL)
    finish(process)  # looks for what is left behind
    assert not list(room.glob("doctor-*"))


def test_steps_are_counted_once(tmp_path: Path) -> None:
    """A file of events is read from where it was read last; half a line is no step."""
    job = Job(tmp_path)
    events = job.traces / "a.jsonl"
    line = b'{"e": "step", "n": 1}\n'
    events.write_bytes(2 * line + line[:16])
    assert job.made(2) and not job.made(3)
    with events.open("r+b") as file:
        file.write(b" " * len(line))  # what was counted is not looked at again
    with events.open("ab") as file:
        file.write(line[16:] + line)
    assert job.made(4) and not job.made(5)


NAMELESS = """
import ctypes
import os
import time


def forget():
    \"\"\"As setproctitle does: a title takes the memory of the environment.\"\"\"
    begin, end = map(int, open("/proc/self/stat").read().split()[49:51])
    ctypes.memset(begin, 0, end - begin)
    open(f"{os.getpid()}.begun", "w").close()
    time.sleep(40)
    open(f"{os.getpid()}.lived", "w").close()


if os.fork() == 0:
    os.setsid()
    forget()
forget()
"""


@pytest.mark.parametrize("how", ["a title", "env -i"], ids=["title", "env"])
def test_nothing_goes_on(how: str, tmp_path: Path) -> None:
    """Two processes, one in a session of its own, of which none has our mark any more."""
    text = NAMELESS if how == "a title" else NAMELESS.replace("ctypes.memset", "print")
    (tmp_path / "script.py").write_text(text)
    words = ["env", "-i"] if how == "env -i" else []
    process = start([*TOOL, "--lang", "en", *words, *ALONE], tmp_path)
    deadline = time.monotonic() + PATIENCE
    while len(list(tmp_path.glob("*.begun"))) < 2:
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    result = finish(process)
    assert result.returncode == 2 and "it was ended (ctrl-c), and no Python" in result.stderr
    assert not list(tmp_path.glob("*.lived"))  # their output kept finish() waiting


def test_a_recorded_process_is_its_own(tmp_path: Path) -> None:
    """One of another session, without our mark, is known by the file that it writes; its number
    alone, as of a process of a container, is not enough."""
    job = Job(tmp_path)
    others = [subprocess.Popen(["sleep", "600"], start_new_session=True)]
    trace = job.traces / f"host-{others[0].pid}-1.jsonl"
    with trace.open("w") as file:
        others.append(subprocess.Popen(["sleep", "600"], start_new_session=True, stdout=file))
    try:
        trace.with_name(f"host-{others[1].pid}-2.jsonl").touch()
        assert job.left() == [others[1].pid]
    finally:
        for process in others:
            process.kill()
            process.wait()


def test_what_still_runs(tmp_path: Path) -> None:
    """PYTHONPATH of what the command leaves has our folder: nobody else may make it anew."""
    room = tmp_path / "room"
    room.mkdir()
    words = [*TOOL, "--lang", "en", "sh", "-c", "sleep 600 > /dev/null 2>&1 &"]
    process = start(words, tmp_path, env={"TMPDIR": str(room)})
    out, err = process.communicate(timeout=PATIENCE)
    try:
        pid, folder = re.search(r"1 of its processes still running: (\d+); (\S+) is", out).groups()
    finally:
        for left in alive(process):
            os.kill(left, signal.SIGKILL)
    assert "left processes that have not used torch so far" in err, err
    assert Path(folder).parent == room and Path(folder).stat().st_mode & 0o777 == 0o700
    assert [str(path.relative_to(folder)) for path in Path(folder).rglob("*")] == ["first"]
    result = run([*TOOL, "true"], tmp_path, env={"TMPDIR": str(room)})
    assert list(room.iterdir()) == [Path(folder)], result.output


LISTENER = """
import signal
import sys
import time

signal.signal(signal.NAME, lambda *_: sys.exit(7))
open("ready", "w").close()
time.sleep(600)
"""


@pytest.mark.parametrize("name", table(["SIGUSR1", "SIGUSR2", "SIGQUIT"], ["SIGUSR1"]))
def test_signals_that_are_passed_on(name: str, tmp_path: Path) -> None:
    """Slurm warns by them before it ends a job: the command may save itself."""
    (tmp_path / "script.py").write_text(LISTENER.replace("NAME", name))
    process = start([*TOOL, "--lang", "en", *ALONE], tmp_path)
    deadline = time.monotonic() + PATIENCE
    while not (tmp_path / "ready").exists():
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.1)
    process.send_signal(getattr(signal, name))
    result = finish(process)
    assert result.returncode == 2 and "it ended with status 7, and had not used" in result.stderr


def test_a_guard_that_is_ended(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(
        "import os, pathlib, signal\n"
        "for path in pathlib.Path('/proc').glob('[0-9]*/stat'):\n"
        "    pid, parent = int(path.parent.name), path.read_text().rpartition(')')[2].split()[1]\n"
        "    if parent == str(os.getppid()) and pid != os.getpid():\n"
        "        os.kill(pid, signal.SIGKILL)\n"
        "        print('ended', pid)\n"
    )
    result = run([*TOOL, *ALONE], tmp_path)
    assert result.stdout.count("ended") == 1 and "mistake" not in result.stderr, result.output


def test_nobody_reads_it(tmp_path: Path) -> None:
    """And Python has thrown the docstrings away, and writes ASCII: the verdict is in the file all
    the same."""
    (tmp_path / "script.py").write_text(SHORT)
    words = [sys.executable, "-OO", TOOL[1], "--lang", "zh", "--json", "v.json", *ALONE]
    pipe = '"$0" "$@" | true; exit ${PIPESTATUS[0]}'
    result = run(["bash", "-c", pipe, *words], tmp_path, env={"PYTHONIOENCODING": "ascii"})
    assert result.returncode == 0 and result.stderr == "", result.output
    [found] = json.loads((tmp_path / "v.json").read_text("utf-8"))["findings"]
    assert found["id"] == "wrapped_keys"


@pytest.mark.proof
def test_both_runs_begin_alike(tmp_path: Path) -> None:
    """The second one can be ended by a signal, and reads the file that the first has read."""
    (tmp_path / "script.py").write_text(
        SHORT + "import signal\n"
        "print([int(signal.getsignal(n)) for n in (signal.SIGTERM, signal.SIGUSR1)], input())\n"
    )
    (tmp_path / "lines").write_text("one\ntwo\n")
    words = [*TOOL, "--lang", "en", "--against", f"{sys.executable} script.py", *ALONE]
    result = run(["bash", "-c", '"$0" "$@" < lines', *words], tmp_path)
    assert result.said.count("[0, 0] one") == 2, result.output


@pytest.mark.proof
def test_waits_for_threads_of_gloo(tmp_path: Path) -> None:
    """A process that was in a group, and no other, gives them a moment before Python ends."""
    said = {}
    for group in ("", "dist.init_process_group('gloo')\ndist.destroy_process_group()\n"):
        (tmp_path / "script.py").write_text(
            f"import time\n\nimport torch.distributed as dist\n\n{SHORT}{group}own = time.sleep\n"
            "time.sleep = lambda s: (print('waits', s, flush=True), own(s))\n"
        )
        result = run([*TOOL, *ONE_RANK, "script.py"], tmp_path)
        assert "model.pt" in os.listdir(tmp_path) and "Traceback" not in result.output
        said[group] = result.output.count("waits 0.1")
    assert [*said.values()] == [0, 1], result.output


def test_an_error_has_its_files_name() -> None:
    """repr() of an OSError leaves it out."""
    with pytest.raises(OSError) as caught:
        open("/nowhere/image.jpg")
    error = ending.told(caught.value)["error"]
    assert error == "FileNotFoundError(2, 'No such file or directory', '/nowhere/image.jpg')"
    assert ending.told(SystemExit(3))["error"] == "3"


@pytest.mark.parametrize("taken", [False, True], ids=["closed", "taken"])
def test_a_number_of_the_scripts(taken: bool, tmp_path: Path) -> None:
    """One that closes all files may get a socket by a number that was ours: ours is opened again,
    and nothing is written into its own."""
    file = File(str(tmp_path / "events"))
    file.write(b"one\n")
    os.close(file.number)
    mine, theirs = socket.socketpair()
    if taken:
        os.dup2(mine.fileno(), file.number)
    number = file.number
    file.write(b"two\n")
    assert (tmp_path / "events").read_text() == "one\ntwo\n"
    mine.close()
    if taken:
        os.close(number)
    assert theirs.recv(100) == b""
    os.close(file.number)
    theirs.close()


TIDY = """
import os
import socket
import sys
from pathlib import Path

os.environ.clear()
sys.path = [path for path in sys.path if "doctor-" not in path]
sys.argv = [Path("script.py")]

import torch
from torch.utils.data import DataLoader

model = torch.nn.Linear(2, 2)
optimizer = torch.optim.SGD(model.parameters(), 0.1)  # imports what asks for the current folder
os.closerange(3, 4096)
one, other = socket.socketpair()
os.mkdir("gone")
os.chdir("gone")
os.rmdir("../gone")
if child := os.fork():
    os.waitpid(child, 0)
else:
    for images in DataLoader(torch.ones(5, 2)):
        model(images).sum().backward()
        optimizer.step()
    one.shutdown(socket.SHUT_WR)
    sys.stdout.write(f"its socket has {other.recv(100)}\\n")
"""


@pytest.mark.proof
def test_a_script_that_tidies_up(tmp_path: Path) -> None:
    """As daemons do, and launchers. It trains as without the doctor, and is recorded."""
    (tmp_path / "script.py").write_text(TIDY)
    result = run([*TOOL, "--lang", "en", *ALONE], tmp_path)
    assert result.returncode == 0 and "its socket has b''" in result.stdout, result.output
    assert "doctor: ranks 0; steps 5; ended: status 0" in result.stdout, result.output
    assert result.stderr == "", result.output


OTHER_TOOL = """
import os, sys
from importlib.machinery import PathFinder
from importlib.util import module_from_spec
print("tool", flush=True)
paths = [path for path in sys.path if path != os.path.dirname(__file__)]
spec = PathFinder.find_spec("sitecustomize", paths)
spec.loader.exec_module(module_from_spec(spec))
"""
MODULES = """
import statistics, sys
from sitecustomize import own_modules

theirs = sys.modules["statistics"]
with own_modules():
    import fractions, statistics
    assert statistics.median([1, 2, 6]) == 2 and fractions.Fraction(1, 2)
import fractions, statistics
assert statistics is theirs and statistics.X == fractions.X == 1
print("modules")
"""


def started(folder: Path, paths: list[Path], env: dict[str, str], code: str = "") -> str:
    """What a Python says that has these in PYTHONPATH, and no torch."""
    known = os.environ | env | {"PYTHONPATH": os.pathsep.join(map(str, paths))}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=folder, env=known, capture_output=True, text=True
    )
    assert done.returncode == 0 and done.stderr == "", done
    return done.stdout


def test_what_runs_at_the_start(tmp_path: Path) -> None:
    """Beside another tool that runs all sitecustomize.py, in a doctor, and without what the doctor
    has put into the environment (sudo, ssh)."""
    jobs = []
    for name in ("inner", "outer"):
        (tmp_path / name).mkdir()
        jobs.append(Job(tmp_path / name))
    firsts = [job.traces.parent / "first" for job in jobs]
    tool = tmp_path / "tool"
    tool.mkdir()
    (tool / "sitecustomize.py").write_text(OTHER_TOOL)
    finders = "import sys; print([f.here for f in sys.meta_path if hasattr(f, 'here')])"
    env = {"DOCTOR_FOLDER": jobs[0].ours["DOCTOR_FOLDER"]}
    assert started(tmp_path, firsts, env, finders) == f"{[str(firsts[0])]}\n"
    assert started(tmp_path, firsts[:1], {"DOCTOR_FOLDER": ""}, finders) == "[]\n"
    for paths in ([tool, *firsts], [*firsts, tool]):
        assert started(tmp_path, paths, env).count("tool") in (1, 2)


def test_modules_of_the_script(tmp_path: Path) -> None:
    """The recorder takes none of them for Python's, and leaves them what they are."""
    (tmp_path / "job").mkdir()
    job = Job(tmp_path / "job")
    for name in ("statistics", "fractions"):
        (tmp_path / f"{name}.py").write_text("X = 1\n")
    assert started(tmp_path, [tmp_path / "job/first"], job.ours, MODULES) == "modules\n"


def test_modules_beside_the_doctor(tmp_path: Path) -> None:
    """Its package, copied into a project that has names of Python's."""
    shutil.copytree(ROOT / "doctor/ddp_doctor", tmp_path / "ddp_doctor")
    for name in ("statistics", "argparse", "fractions"):
        (tmp_path / f"{name}.py").write_text("1 / 0\n")
    for words in (["ddp_doctor"], ["-m", "ddp_doctor"]):
        result = run([sys.executable, *words, "--explain", "no_sync"], tmp_path)
        assert result.returncode == 0 and "no_sync" in result.stdout, result.output


@pytest.mark.proof
def test_a_doctor_in_a_doctor(tmp_path: Path) -> None:
    """The inner one records, and the outer one says so."""
    (tmp_path / "script.py").write_text(SHORT)
    inner = [*TOOL, "--lang", "en", *ALONE]
    result = run([*TOOL, "--lang", "en", *inner], tmp_path)
    said = "doctor: error: a doctor in this command has recorded it, and its verdict is above"
    assert result.stdout.count("wrapped_keys") > 0 and result.returncode == 2, result.output
    assert result.stderr == f"{said}: take one of the two away\n", result.output


@pytest.mark.parametrize("how", ["script.py", "./script.py", "no shebang"])
def test_a_file_that_is_no_program(how: str, tmp_path: Path) -> None:
    file = tmp_path / "script.py"
    file.write_text(SHORT)
    if how == "no shebang":
        file.chmod(0o755)
        how = "./script.py"
    result = run([*TOOL, "--lang", "en", how], tmp_path)
    said = f"doctor: error: {how} is a file, and no program: put what runs it before it, such as"
    assert result.stderr == f"{said} python {how}\n" and result.returncode == 2, result.output
