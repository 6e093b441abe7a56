"""Fixtures, the three tiers, and an account of every test that was not run."""

from __future__ import annotations

import importlib.util
import os
import signal
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from crew import Crew
from fault_table import FaultTable
from harness import HOROVOD, TOOLS, left_behind, run

# A job in the background of a shell ignores Ctrl-C, and so would all that the tests start.
signal.signal(signal.SIGINT, signal.default_int_handler)

# By tier: how many tests were collected, less those that were selected.
LEFT_OUT: Counter[str] = Counter()
ORPHANS: list[int] = []


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--write-faults", action="store_true", help="into tests/FAULTS.md")
    parser.addoption("--write-verdicts", action="store_true", help="of the doctor, for its page")
    parser.addoption("--write-outputs", action="store_true", help="of the handbook's examples")


def tier_of(item: pytest.Item) -> str:
    """The command that is the first to run a test; a test has one marker or none."""
    tiers = [name for name in ("smoke", "proof") if item.get_closest_marker(name)]
    if len(tiers) > 1:
        raise pytest.UsageError(f"{item.nodeid} is marked both smoke and proof")
    return f"make {tiers[0]}" if tiers else "make test"


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A chapter whose library is not here is skipped, in every table of chapters."""
    LEFT_OUT.update(tier_of(item) for item in items)
    if importlib.util.find_spec("horovod") is None:
        needs = pytest.mark.skip(reason="needs Horovod: PYTHON=python bash 05_horovod/install.sh")
        for item in items:
            if HOROVOD in getattr(getattr(item, "callspec", None), "params", {}).values():
                item.add_marker(needs)


def pytest_collection_finish(session: pytest.Session) -> None:
    """What a marker has deselected is what a later command would run."""
    LEFT_OUT.subtract(tier_of(item) for item in session.items)


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


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any, error: object) -> None:
    """Under pytest-xdist the workers collect, each of them all; the controller has the terminal."""
    output = getattr(node, "workeroutput", {})
    LEFT_OUT.update(output.get("left_out", {}) if not LEFT_OUT else {})
    ORPHANS.extend(output.get("orphans", []))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """The last lines say what was not run, why, and so how to have it run."""
    skipped = terminalreporter.stats.get("skipped", [])
    reasons = Counter(str(report.longrepr[2]).removeprefix("Skipped: ") for report in skipped)
    for reason, count in reasons.items():
        terminalreporter.write_line(f"not run here: {count} x {reason}")
    if reasons and os.environ.get("CI"):
        terminalreporter.write_line("in CI a skip is a failure: the needs above must be installed")
    by_tier = terminalreporter.config.option.markexpr and not terminalreporter.config.option.keyword
    for command in ("make test", "make proof") if by_tier else ():
        if LEFT_OUT[command] > 0:
            terminalreporter.write_line(f"not run: {LEFT_OUT[command]} tests, type: {command}")


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """In CI everything that can run must have run; what needs a GPU is allowed to be missing.
    Nothing that a test has started may live on."""
    ORPHANS.extend(left_behind())
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput |= {"left_out": dict(LEFT_OUT), "orphans": ORPHANS}
        return
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    skipped = reporter.stats.get("skipped", []) if reporter else []
    other = [r for r in skipped if "needs a GPU" not in str(r.longrepr[2])]
    if other and os.environ.get("CI") and exitstatus == 0:
        session.exitstatus = 1
    if ORPHANS:
        reporter.write_line(f"processes left behind by this session: {ORPHANS}", red=True)
        session.exitstatus = session.exitstatus or 1
