"""minimal.py of every chapter and the converted script: on two pretended GPUs they print what they
print on two CPUs."""

import contextlib
import io
import os
import re
import runpy
import sys
from pathlib import Path
from unittest import mock

import pytest
from crew import Crew
from harness import ROOT
from pretended_gpus.members import on_gpus

ONE_PROCESS = "01_dataparallel/minimal.py"
SPAWNS = "03_multiprocessing/minimal.py"  # which a crew cannot stand for
SCRIPTS = {f"{path.parent.name}/minimal.py" for path in ROOT.glob("0[1-7]_*/minimal.py")}
SCRIPTS = sorted(SCRIPTS - {SPAWNS}) + ["docs/examples/convert/multi.py"]
NUMBER = r"-?\d+\.\d+"


def play(script: str, chapter: str, folder: Path) -> str:
    """In a crew member: what a script prints. Its chapter tells the crew which launcher it has."""
    printed, before = io.StringIO(), os.getcwd()
    os.environ["SLURM_STEP_NODELIST"] = "n1"
    nodes = mock.patch("subprocess.check_output", return_value="127.0.0.1\n")
    paths = mock.patch("sys.path", [str((ROOT / script).parent), *sys.path])
    os.chdir(folder)
    try:
        with contextlib.redirect_stdout(printed), nodes, paths, mock.patch("sys.argv", [script]):
            runpy.run_path(str(ROOT / script), run_name="__main__")
    finally:
        os.chdir(before)
    return printed.getvalue()


def assert_alike(one: str, other: str) -> None:
    """The same words, and numbers that are equal but for rounding."""
    assert re.split(NUMBER, one) == re.split(NUMBER, other)
    ones, others = ([float(word) for word in re.findall(NUMBER, t)] for t in (one, other))
    assert ones == pytest.approx(others, abs=2e-4)


@pytest.mark.parametrize("script", SCRIPTS)
def test_script(script: str, crew: Crew, gpu_crew: Crew, tmp_path: Path) -> None:
    size = 1 if script == ONE_PROCESS else 2
    task, folders = (play, script, script.split("/")[0]), [tmp_path / "gpu", tmp_path / "cpu"]
    for folder in folders:
        folder.mkdir()
    found = gpu_crew.run(on_gpus, 2, {}, *task, folders[0], world_size=size)
    for rank, seen in enumerate(found):
        own = {0, 1} if script == ONE_PROCESS else {rank}
        assert seen.values("layer", "place") == {f"cuda:{gpu}" for gpu in own}
        assert seen.values("init", "backend") <= {"nccl"}
    assert found[0].answer
    expected = crew.run(*task, folders[1], world_size=size)
    for seen, text in zip(found, expected, strict=True):
        assert_alike(seen.answer, text)
