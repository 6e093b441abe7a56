"""minimal.py of every chapter, the converted script and the handbook's two examples that ask for
GPUs: on pretended ones they print what they print on as many CPUs."""

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
from harness import ROOT, run
from pretended_gpus import environment, notes
from pretended_gpus.members import on_gpus
from tiers import table

CIFAR = "docs/examples/handbook/cifar_train.py"
SPAWNS, ONE_PROCESS = "03_multiprocessing/minimal.py", "01_dataparallel/minimal.py"
SINGLE = "docs/examples/convert/single.py"  # on one GPU
# Each script, and how many GPUs one of its processes uses.
SCRIPTS = {f"{path.parent.name}/minimal.py": 1 for path in ROOT.glob("0[1-7]_*/minimal.py")}
SCRIPTS |= {"docs/examples/convert/multi.py": 1, "docs/examples/handbook/ddp_two_devices.py": 2}
SCRIPTS |= {SINGLE: 1, "docs/examples/convert/complete.py": 1}
del SCRIPTS[SPAWNS]
CASES = [(script, n) for script in SCRIPTS for n in (1, 2, 4) if script != SINGLE or n == 1]
CORE = [(script, 1 if script == SINGLE else 2) for script in SCRIPTS]
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


@pytest.mark.parametrize(("script", "ranks"), table(CASES, CORE))
def test_script(script: str, ranks: int, crew: Crew, gpu_crew: Crew, tmp_path: Path) -> None:
    size, each = (1, ranks) if script == ONE_PROCESS else (ranks, SCRIPTS[script])
    task, folders = (play, script, script.split("/")[0]), [tmp_path / "gpu", tmp_path / "cpu"]
    for folder in folders:
        folder.mkdir()
    found = gpu_crew.run(on_gpus, size * each, {}, *task, folders[0], world_size=size)
    for rank, seen in enumerate(found):
        assert seen.values("layer", "place") == {f"cuda:{rank * each + n}" for n in range(each)}
        assert seen.values("init", "backend") <= {"nccl"}
    assert found[0].answer
    if size <= crew.size:
        expected = crew.run(*task, folders[1], world_size=size)
        for seen, text in zip(found, expected, strict=True):
            assert_alike(seen.answer, text)


@pytest.mark.proof
@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_cifar(ranks: int, gpu_crew: Crew, tmp_path: Path) -> None:
    """On GPUs it has SyncBatchNorm, and so no output that is the CPU's."""
    found = gpu_crew.run(on_gpus, ranks, {}, play, CIFAR, "", tmp_path, world_size=ranks)
    accuracies = re.findall(r"accuracy (\S+) on 1001 test images", found[0].answer)
    assert len(accuracies) == 3 and float(accuracies[-1]) > 0.9
    gathers = [seen.of("collective", name="all_gather", backend="nccl") for seen in found]
    assert all(gathers) == (ranks > 1)


@pytest.mark.proof
def test_a_script_that_spawns(tmp_path: Path) -> None:
    """03's minimal.py starts as many processes as there are GPUs."""
    done = run([sys.executable, ROOT / SPAWNS], tmp_path, env=environment(3, tmp_path))
    assert done.returncode == 0 and done.lines("epoch 2  loss of the last batch"), done.output
    inits = [row for row in notes.read(tmp_path) if row["what"] == "init"]
    places = sorted((row["backend"], row["current"]) for row in inits)
    assert places == [("nccl", str(rank)) for rank in range(3)]
