"""The lines for GPUs are found, and seen when they run (pretended_gpus/lines.py, line_report.py).
The report itself is judged at the end of a session, see line_report.py."""

import sys
from pathlib import Path

import pytest
from harness import run
from line_report import judge, matching, reasons
from pretended_gpus import HERE
from pretended_gpus.lines import lines_of, programs

PROGRAM = '''\
import os, signal, sys, threading
import torch

def setup(number):
    """Where to compute."""
    if not torch.cuda.is_available():
        return "cpu"
    gpus = torch.cuda.device_count()
    if number >= gpus:
        raise SystemExit("too many")
    return "cuda"

def only_for_gpus():
    os._exit(0)

def name():
    return "GPU" if torch.cuda.is_available() else "CPU"

def many():
    found = []
    found += ["some"] if found else ["none"]
    device = torch.device("cpu")
    on_cuda, number = device.type == "cuda", 0
    return on_cuda and number, not on_cuda or number, [n for n in range(torch.cuda.device_count())]

print(setup(0))
thread = threading.Thread(target=name)
thread.start()
thread.join()
if os.fork() == 0:
    many()
    os._exit(0)
os.wait()
if torch.cuda.is_available() and os.fork() == 0:
    only_for_gpus()
'''
THERE = [
    "setup: gpus = torch.cuda.device_count()",
    "setup: if number >= gpus:",
    'setup: raise SystemExit("too many")',
    'setup: return "cuda"',
    "only_for_gpus: os._exit(0)",
    'name: "GPU"',
    "many: number",
    "many: number",
    "many: n",
    "os.fork() == 0",
    "only_for_gpus()",
]
# torch, as far as the program asks it.
TORCH = """\
import os
from types import SimpleNamespace
count = int(os.environ["COUNT"])
cuda = SimpleNamespace(is_available=lambda: count > 0, device_count=lambda: count)
device = lambda name: SimpleNamespace(type="cuda" if count else name)
"""
WATCH = """\
import runpy, sys
sys.path[:0] = [{folder!r}, {support!r}]
from pathlib import Path
from pretended_gpus import lines
lines.programs = lambda: dict([("some/program.py", Path({original!r}).read_text())])
lines.watch({out!r})
sys.argv = [{program!r}]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def test_lines_for_gpus_are_found() -> None:
    assert sorted(line.name for line in lines_of("program.py", PROGRAM)) == sorted(THERE)


@pytest.mark.parametrize(("count", "unrun"), [(0, set(THERE)), (1, {THERE[2]})])
def test_lines_that_run_are_seen(count: int, unrun: set[str], tmp_path: Path) -> None:
    """In a copy of the file, in threads and forks, and though the processes end at once."""
    places = {"folder": tmp_path, "support": HERE.parent, "original": tmp_path / "program.py"}
    places |= {"program": tmp_path / "copy/program.py", "out": tmp_path / "out"}
    (tmp_path / "out").mkdir()
    (tmp_path / "copy").mkdir()
    (tmp_path / "torch.py").write_text(TORCH)
    for name in ("original", "program"):
        places[name].write_text(PROGRAM)
    (tmp_path / "watch.py").write_text(WATCH.format(**{k: str(v) for k, v in places.items()}))
    done = run([sys.executable, tmp_path / "watch.py"], tmp_path, env={"COUNT": str(count)})
    assert done.returncode == 0 and done.stdout == ("cuda\n" if count else "cpu\n"), done.output

    rows = [row for file in (tmp_path / "out").iterdir() for row in file.read_text().splitlines()]
    assert all(row.endswith("\tcopy/program.py") for row in rows)
    ran = {int(row.split("\t")[1]) for row in rows}
    lines = lines_of("some/program.py", PROGRAM)
    assert {line.name for n, line in enumerate(lines) if n not in ran} == unrun


def test_a_line_needs_a_reason_and_a_reason_a_line() -> None:
    ran = {"a.py: f: x = 1": {"a.py"}, "a.py: f: y[0]": set(), "b.py: g: z": set()}
    page, wrong = judge(ran, {"No such GPU.": ["a.py: f: y[0]", "b.py: *"]})
    assert "1 of 3" in page and page.count("    - `") == 2 and not wrong
    assert judge(ran, {"No such GPU.": ["*: g: z"]})[1] == ["nothing has run it: a.py: f: y[0]"]
    assert len(judge(ran, {"Why.": ["*"]})[1]) == 1
    assert len(judge(ran, {"Why.": ["a.py: f: y[0]", "b.py: *", "b.py: h"]})[1]) == 1


def test_reasons_are_for_lines_that_are_there() -> None:
    lines = {f"{p}: {line.name}" for p, text in programs().items() for line in lines_of(p, text)}
    assert len(lines) > 150
    for patterns in reasons().values():
        assert patterns and all(matching(pattern, lines) for pattern in patterns)
