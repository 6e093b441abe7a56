"""05_horovod/install.sh: what it answers without building, and that what it built is right."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest
from harness import ROOT, Result, run

SCRIPT = ROOT / "05_horovod" / "install.sh"
needs_horovod = pytest.mark.skipif(
    importlib.util.find_spec("horovod") is None,
    reason="needs Horovod: bash 05_horovod/install.sh",
)


def install(folder: Path, *argv: str, **env: str) -> Result:
    """Run the script with an empty store of wheels and an empty folder for its temporary files,
    which must be empty again when it ends. What it asks torch about, a stand-in answers at once;
    it wants a CUDA that is nowhere."""
    scratch, torch = folder / "scratch", folder / "path/torch"
    scratch.mkdir(parents=True)
    (torch / "utils").mkdir(parents=True)
    (torch / "__init__.py").write_text("from . import cuda, version\n__version__ = '9.9'\n")
    (torch / "version.py").write_text("cuda = '99.0'\n")
    (torch / "cuda.py").write_text("def is_available():\n    return False\n")
    (torch / "utils/cpp_extension.py").write_text("# -std=c++17\n")
    env = {
        "PYTHON": sys.executable,
        "PYTHONPATH": str(folder / "path"),
        "XDG_CACHE_HOME": str(folder / "cache"),
        "TMPDIR": str(scratch),
    } | env
    result = run([shutil.which("bash"), SCRIPT, *argv], folder, 60, env)
    assert not list(scratch.iterdir()), result.output
    return result


def test_mistakes(tmp_path: Path) -> None:
    """-I -S hides what is installed, as an environment without torch would; a PATH with little
    more than a shell lacks all compilers; the toolkit at hand is of another CUDA than torch's."""
    bare, nvcc, tools = (tmp_path / name for name in ("python", "bin/nvcc", "tools"))
    for path, text in (bare, f'exec "{sys.executable}" -I -S "$@"'), (nvcc, "echo release 8.0,"):
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"#!/bin/sh\n{text}\n")
        path.chmod(0o755)
    tools.mkdir()
    for name in ("bash", "basename", "mktemp", "rm", "uname"):
        (tools / name).symlink_to(shutil.which(name))
    few = {"PATH": str(tools), "CXX": ""}
    for number, (argv, env, says) in enumerate([
        (["--gpu"], {}, "unknown argument --gpu"),
        ([], {"PYTHON": "no-such-python"}, "no no-such-python here"),
        ([], {"PYTHON": str(bare)}, "has no torch"),
        (["--cpu"], few, "missing: g++ cmake make"),
        (["--nccl"], {"CUDA_HOME": str(tmp_path)}, "no nvcc of CUDA 99"),
    ]):  # fmt: skip
        result = install(tmp_path / str(number), *argv, **env)
        assert result.returncode != 0, result.output
        assert result.stderr.startswith("error: "), result.output
        assert result.stderr.count("\n") == 1 and says in result.stderr, result.output


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
    assert result.returncode != 0, result.output
    assert result.lines("DO NOT MATCH THE HASHES"), result.output
    assert result.lines("error: the source of Horovod was not fetched"), result.output
    assert not result.lines("it ran") and not list(tmp_path.glob("cache/**/*.whl")), result.output


@needs_horovod
def test_what_is_installed() -> None:
    """The release that the chapter is written for, with PyTorch and Gloo and nothing like MPI."""
    import horovod.torch as hvd

    assert version("horovod") == "0.28.1"
    assert hvd.gloo_built() and not hvd.mpi_built()
