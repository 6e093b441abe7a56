"""The long proofs: what is too slow for every test run, and is run before a release."""

import shutil
from pathlib import Path

import pytest
from crew import Crew, call_main
from harness import CHAPTERS, TINY, launch, rows

pytestmark = pytest.mark.proof


@pytest.mark.parametrize("chapter", [c for c in CHAPTERS if c != "01_dataparallel"])
def test_many_exits(chapter: str, tmp_path: Path) -> None:
    """A job that has done its work also ends: no hang and no abort on the way out. That is a race
    between gloo's threads and Python's end, so once proves nothing; chapters end by the same code.
    (Forks of a process that has imported torch are faster, and do not show the race.)"""
    for number in range(20 if chapter == "02_distributed" else 10):
        argv = ["--synthetic", 16, *TINY, "--epochs", 1, "--output-dir", f"run{number}"]
        result = launch(chapter, argv, tmp_path)
        assert result.returncode == 0, f"run {number}\n{result.output}"
        assert rows(tmp_path / f"run{number}", "end")
        shutil.rmtree(tmp_path / f"run{number}")  # 180 MB of checkpoints


def test_toy_learns(crew: Crew, tmp_path: Path) -> None:
    """From chance, 10 %, to most of the generated images, with BatchNorm."""
    argv = ["--synthetic", "480", "--arch", "resnet18", "--image-size", "32", "--epochs", "4"]
    argv += ["--batch-size", "24", "--workers", "0", "--output-dir", str(tmp_path)]
    crew.run(call_main, "02_distributed", argv, world_size=2, timeout=600)
    assert rows(tmp_path, "eval")[-1]["acc1"] > 80
