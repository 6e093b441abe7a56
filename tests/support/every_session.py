"""Fixtures of tests/ and doctor/tests/, and what a session must not do: skip a test in CI, or leave
a process behind."""

import importlib.util
import os
import re
import signal
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from crew import Crew
from fault_table import fault_table  # noqa: F401
from harness import FSDP, HOROVOD, TOOLS, left_behind, run
from mutate import check_base, copy, take_touched  # noqa: F401

# A job in the background of a shell ignores Ctrl-C, and so would all that the tests start.
signal.signal(signal.SIGINT, signal.default_int_handler)

ORPHANS: list[int] = []
SHARDED = ("test_fsdp", "test_language_model")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--write-faults", action="store_true", help="into tests/FAULTS.md")
    parser.addoption("--write-verdicts", action="store_true", help="of the doctor, for its page")
    parser.addoption("--write-outputs", action="store_true", help="of the handbook's examples")
    parser.addoption(
        "--part", default="1/1", metavar="K/N", help="the K-th of N parts of the tests"
    )
    parser.addoption("--touched", metavar="BASE", help="patches that a change since BASE touches")


def pytest_configure(config: pytest.Config) -> None:
    # Here, as pytest-xdist shows a mistake of the collection as a traceback.
    part_of(config.getoption("part"))
    if base := config.getoption("touched"):
        check_base(base)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Smoke tests need requirements.txt and pytest; other files of tests, and their folders, import
    what is in requirements-dev.txt."""
    if config.option.markexpr != "smoke":
        return None
    files = [collection_path, *collection_path.glob("**/test_*.py")]
    files = [path for path in files if path.suffix == ".py" and path.is_file()]  # no doctor.pyz
    marked = any("pytest.mark.smoke" in path.read_text("utf-8") for path in files)
    return None if marked else True


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """A chapter whose library is not here is skipped, in every table of chapters; and so are 08
    and 09 where torch has no fully_shard for CPUs."""
    import torch  # not above, see harness.py

    take_part(config, items)
    if base := config.getoption("touched"):
        take_touched(base, config, items)
    too_old = torch.__version__ < torch.torch_version.TorchVersion("2.7")
    if too_old and not torch.cuda.is_available():
        new = pytest.mark.skip(reason="needs a GPU, or torch 2.7: fully_shard of 2.6 has no CPUs")
        for item in items:
            if FSDP in item.nodeid or item.path.name.startswith(SHARDED):
                item.add_marker(new)
    if importlib.util.find_spec("horovod") is None:
        needs = pytest.mark.skip(reason="needs Horovod: PYTHON=python bash 05_horovod/install.sh")
        for item in items:
            of = getattr(getattr(item, "callspec", None), "params", {}).values()
            if HOROVOD in of and item.get_closest_marker("text") is None:
                item.add_marker(needs)


def part_of(text: str) -> tuple[int, int]:
    part, parts = map(int, re.fullmatch(r"(\d+)/(\d+)|.*", text).groups("0"))
    if not 1 <= part <= parts:
        raise pytest.UsageError(f"--part {text}: which of how many, such as 3/10")
    return part, parts


def take_part(config: pytest.Config, items: list[pytest.Item]) -> None:
    """--part 3/10 takes a tenth, by the names of tests: a new test moves no other one."""
    part, parts = part_of(config.getoption("part"))
    mine, others = [], []
    for item in items:
        name = item.nodeid.partition("@")[0]  # behind it pytest-xdist puts its group
        is_mine = zlib.crc32(name.encode()) % parts == part - 1
        (mine if is_mine else others).append(item)
    items[:] = mine
    config.hook.pytest_deselected(items=others)


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
    result = run([*toy, "--per-class", "8", "--val-per-class", "4"], folder.parent)
    assert result.returncode == 0, result.output
    next((folder / "val").glob("*/*.jpg")).unlink()
    assert len(list(folder.glob("train/*/*.jpg"))) == 24
    assert len(list(folder.glob("val/*/*.jpg"))) == 11
    return folder


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any, error: object) -> None:
    """What a worker of pytest-xdist has left behind is told to the controller."""
    ORPHANS.extend(getattr(node, "workeroutput", {}).get("orphans", []))


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """In CI everything that can run must have run; what needs a GPU is allowed to be missing.
    Nothing that a test has started may live on."""
    ORPHANS.extend(left_behind())
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["orphans"] = ORPHANS
        return
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    skipped = reporter.stats.get("skipped", []) if reporter else []
    other = [r for r in skipped if "needs a GPU" not in str(r.longrepr[2])]
    if other and os.environ.get("CI") and exitstatus == 0:
        reporter.write_line("\nin CI a skip is a failure: what it needs must be installed")
        session.exitstatus = 1
    if ORPHANS:
        reporter.write_line(f"\nprocesses left behind by this session: {ORPHANS}", red=True)
        session.exitstatus = session.exitstatus or 1
