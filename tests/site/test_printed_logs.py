"""What pages show of a run is what a reader gets, on any CPU: digits that depend on it are cut."""

import importlib.util
import re
from pathlib import Path

import pytest
from crew import Crew, call_main
from harness import HOROVOD, ROOT

needs_horovod = pytest.mark.skipif(
    importlib.util.find_spec("horovod") is None,
    reason="needs Horovod: PYTHON=python bash 05_horovod/install.sh",
)
pytestmark = pytest.mark.proof
SMALL = "--synthetic 256 --image-size 32 --arch resnet18"
# The page and the heading above the log; chapter, flags, ranks.
LOGS = [
    ("getting-started", "first-output", "02_distributed", f"{SMALL} --epochs 2 --batch-size 64", 2),
    ("chapters/01_dataparallel", "log", "01_dataparallel",
     f"{SMALL} --batch-size 64 --epochs 1", 1),
    ("chapters/02_distributed", "log", "02_distributed",
     f"{SMALL} --batch-size 64 --epochs 1 --print-freq 2", 2),
    ("chapters/04_apex", "log", "04_apex",
     f"{SMALL} --epochs 1 --batch-size 16 --amp-dtype fp16 --print-freq 1", 2),
    pytest.param(
        "chapters/05_horovod", "log", HOROVOD,
        "--synthetic 256 --epochs 1 --arch resnet18 --image-size 64 --batch-size 32", 2,
        marks=needs_horovod,
    ),
]  # fmt: skip


def shown(page: str, place: str) -> list[str]:
    """The lines of the first log below a heading."""
    text = (ROOT / f"docs/en/{page}.md").read_text("utf-8")
    lines = re.search(rf'<a id="{place}"></a>$.*?^```text\n(.*?)^```', text, re.M | re.S)[1]
    return [line.removeprefix("[0]<stdout>:") for line in lines.splitlines() if line != "…"]


def pattern(line: str) -> str:
    """`1.8…` is a number that begins so, `…` at the end whatever comes."""
    line = re.sub(r"torch \S+", "torch …", line)  # of this environment
    return re.sub(r"…$", ".*", re.escape(line)).replace("…", r"\S*")


@pytest.mark.parametrize(("page", "place", "chapter", "flags", "ranks"), LOGS)
def test_logs_are_what_is_printed(
    crew: Crew, tmp_path: Path, page: str, place: str, chapter: str, flags: str, ranks: int
) -> None:
    argv = [*flags.split(), "--output-dir", str(tmp_path / "run")]
    first, *others = crew.run(call_main, chapter, argv, world_size=ranks)
    assert [answer["exit"] for answer in (first, *others)] == [None] * ranks, first
    printed = first["stdout"].splitlines()
    lines = shown(page, place)
    assert len(lines) > 3
    found = [
        [n for n, line in enumerate(printed) if re.fullmatch(pattern(one), line)] for one in lines
    ]
    assert all(found), [one for one, at in zip(lines, found, strict=True) if not at]
    assert [at[0] for at in found] == sorted(at[0] for at in found)
