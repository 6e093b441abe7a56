"""Fixtures, the choice of devices, and an account of every skip."""

from __future__ import annotations

import importlib.util
import os
import signal
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from crew import Crew
from fault_table import FaultTable
from harness import HOROVOD, TOOLS, left_behind, run

# A job in the background of a shell ignores Ctrl-C, and so would all that the tests start.
signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A chapter whose library is not here is skipped, in every table of chapters."""
    if importlib.util.find_spec("horovod") is None:
        needs = pytest.mark.skip(reason="needs Horovod: PYTHON=python bash 05_horovod/install.sh")
        for item in items:
            if HOROVOD in getattr(getattr(item, "callspec", None), "params", {}).values():
                item.add_marker(needs)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--write-faults", action="store_true", help="into tests/FAULTS.md")
    parser.addoption("--write-outputs", action="store_true", help="of the handbook's examples")


@pytest.fixture(scope="session")
def fault_table(request: pytest.FixtureRequest) -> Iterator[FaultTable]:
    """Takes the rows of tests/FAULTS.md, see fault_table.py."""
    table = FaultTable()
    yield table
    if request.config.getoption("--write-faults") and table.rows:
        table.write()


@pytest.fixture(scope="session")
def crew() -> Iterator[Crew]:
    """Three warm processes, see crew.py."""
    with Crew(3) as members:
        yield members


@pytest.fixture(scope="session")
def image_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny ImageNet tree of real JPEG files: 3 classes, 24 training and 11 validation images,
    a number that neither 2 nor 3 ranks divide."""
    folder = tmp_path_factory.mktemp("data") / "toy"
    toy = [sys.executable, TOOLS / "toy_imagenet.py", folder, "--classes", "3", "--size", "64"]
    result = run([*toy, "--per-class", "8", "--val-per-class", "4"], folder.parent, 120)
    assert result.returncode == 0, result.output
    next((folder / "val").glob("*/*.jpg")).unlink()
    assert len(list(folder.glob("train/*/*.jpg"))) == 24
    assert len(list(folder.glob("val/*/*.jpg"))) == 11
    return folder


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """The last lines say what was skipped, why, and so how to have it run."""
    skipped = terminalreporter.stats.get("skipped", [])
    reasons = Counter(str(report.longrepr[2]).removeprefix("Skipped: ") for report in skipped)
    for reason, count in reasons.items():
        terminalreporter.write_line(f"not run here: {count} x {reason}")
    if reasons and os.environ.get("CI"):
        terminalreporter.write_line("in CI a skip is a failure: the needs above must be installed")


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """In CI everything that can run must have run; what needs a GPU is allowed to be missing."""
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    skipped = reporter.stats.get("skipped", []) if reporter else []
    other = [r for r in skipped if "needs a GPU" not in str(r.longrepr[2])]
    if other and os.environ.get("CI") and exitstatus == 0:
        session.exitstatus = 1
    if orphans := left_behind():
        reporter.write_line(f"processes left behind by this session: {orphans}", red=True)
        session.exitstatus = session.exitstatus or 1
