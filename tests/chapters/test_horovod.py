"""What only chapter 05 has: compression, ranks and loader workers that share the cores, install.sh.

What it shares with the others (equal training, exact evaluation, resume, errors, a rank that is
killed) is in their tables.
"""

import importlib.util
import os
import shutil
import subprocess
import sys
from argparse import Namespace
from pathlib import Path
from unittest import mock

import pytest
import torch
from crew import Crew, call_main
from harness import HOROVOD, ROOT, Result, load_chapter, load_state, run
from plain_training import LOW_RATE, arguments, difference, train, train_plainly
from with_tiny_model import tiny_float32

CHAPTER = ROOT / HOROVOD
needs_horovod = pytest.mark.skipif(
    importlib.util.find_spec("horovod") is None,
    reason="needs Horovod: PYTHON=python bash 05_horovod/install.sh",
)


@needs_horovod
def test_compression_rounds_and_no_more(crew: Crew, tmp_path: Path) -> None:
    """Gradients sent in 16 bits: close to those in 32, and not the same, on ranks that agree."""
    argv = [*arguments(tmp_path, LOW_RATE), "--fp16-allreduce"]
    answers = crew.run(train, HOROVOD, argv, tiny_float32, world_size=2)
    assert answers[0] == answers[1]
    state = load_state(tmp_path / "checkpoint.pt")
    far = difference(train_plainly(tiny_float32, LOW_RATE)[0], state)
    moved = difference(train_plainly(tiny_float32, LOW_RATE, epochs=0)[0], state)
    print(f"\nlargest difference with --fp16-allreduce: {far:.1e}, of weights moved by {moved:.1e}")
    assert 1e-6 < far < 1e-3 and 100 * far < moved


def threads_of_rank(chapter: str) -> int:
    """In a crew member: with how many threads it computes where torch would take six."""

    def stop(args: Namespace, world_size: int) -> None:
        raise SystemExit(str(torch.get_num_threads()))

    with mock.patch.dict(os.environ):
        del os.environ["OMP_NUM_THREADS"]
        torch.set_num_threads(6)
        answer = call_main(chapter, ["--synthetic"], {"check_flags": stop})
    torch.set_num_threads(1)
    return int(answer["exit"])


@needs_horovod
def test_ranks_share_the_cores(crew: Crew) -> None:
    """With as many threads as cores in each, two ranks on two cores train at a fifth of the speed.
    (03: test_flags.py; 06: test_slurm_ranks.py; torchrun sees to it itself.)"""
    assert crew.run(threads_of_rank, HOROVOD, world_size=2) == [3, 3]


# horovodrun; and mpirun of Open MPI, and of MPICH.
LOCAL_SIZES = ["HOROVOD_LOCAL_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS"]


@pytest.mark.parametrize("name", LOCAL_SIZES)
def test_loader_workers_share_the_cores(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever has started the ranks of this machine."""
    for other in LOCAL_SIZES:
        monkeypatch.delenv(other, raising=False)
    monkeypatch.setenv(name, "4")
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(12)), raising=False)
    assert load_chapter(HOROVOD).build_parser().parse_args(["--synthetic"]).workers == 3


@pytest.mark.parametrize("missing", [pytest.param(False, marks=needs_horovod), True])
def test_not_set_up(missing: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Not installed, or built for another torch, as far as the import can tell; or not launched:
    one process where many were meant is no fallback. One line says what to type."""
    says = "start it with horovodrun -np 2 -H localhost:2 --gloo python"
    if missing:
        says = "cannot import Horovod: install.sh of this chapter"
        monkeypatch.setitem(sys.modules, "horovod.torch", None)  # an import of it fails
    spec = importlib.util.spec_from_file_location("afresh", CHAPTER / "main.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    with pytest.raises(SystemExit, match=f"^error: {says}") as ended:
        module.main(["--synthetic", "--output-dir", str(tmp_path / "run")])
    assert "\n" not in ended.value.code and not (tmp_path / "run").exists()


# -------------------------------------------------------------------------------------- install.sh


def install(folder: Path, *argv: str, **env: str) -> Result:
    """Run the script with an empty store of wheels and an empty folder for its temporary files,
    which must be empty again when it ends."""
    scratch = folder / "scratch"
    scratch.mkdir(parents=True)
    env = {
        "PYTHON": sys.executable,
        "XDG_CACHE_HOME": str(folder / "cache"),
        "TMPDIR": str(scratch),
    } | env
    result = run([shutil.which("bash"), CHAPTER / "install.sh", *argv], folder, env=env)
    assert not list(scratch.iterdir()), result.output
    return result


def test_other_source_is_refused(tmp_path: Path) -> None:
    """A package that calls itself Horovod 0.28.1 and is not the release is not unpacked."""
    for tool in ("g++", "cmake", "make"):
        if shutil.which(tool) is None:
            pytest.skip(f"needs a compiler: apt-get install {tool}")
    fake, index = tmp_path / "horovod-0.28.1", tmp_path / "index"
    fake.mkdir()
    index.mkdir()
    (fake / "setup.py").write_text("raise SystemExit('it ran')\n")
    tar = ["tar", "-czf", index / "horovod-0.28.1.tar.gz", fake.name]
    subprocess.run(tar, cwd=tmp_path, check=True)
    result = install(tmp_path, "--cpu", PIP_NO_INDEX="1", PIP_FIND_LINKS=str(index))
    assert result.returncode == 75, result.output  # what prepare.sh knows it by
    assert result.lines("DO NOT MATCH THE HASHES"), result.output
    assert result.lines("error: the source of Horovod was not fetched"), result.output
    assert not result.lines("it ran") and not list(tmp_path.glob("cache/**/*.whl")), result.output
