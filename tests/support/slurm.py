"""A real Slurm for the tests: two small nodes on this machine, see tools/mini_slurm.sh."""

import atexit
import functools
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from harness import PATIENCE, TOOLS, Result, free_port, run

MINI_SLURM = TOOLS / "mini_slurm.sh"


def slurm_is_here() -> bool:
    """Can a cluster be started? Its daemons lie outside of many users' PATH."""
    path = os.environ.get("PATH", "") + ":/usr/sbin:/sbin"
    words = ("slurmctld", "slurmd", "munged", "sbatch")
    return os.geteuid() == 0 and all(shutil.which(word, path=path) for word in words)


def skip_without_slurm() -> None:
    if not slurm_is_here():
        pytest.skip("needs Slurm as root: sudo tools/mini_slurm.sh install")


class MiniSlurm:
    """A running cluster. Everything on it is bounded, and what fails says what it printed."""

    def __init__(self, folder: Path, netns: bool) -> None:
        self.folder = folder
        self.netns = netns
        self.env = {"SLURM_CONF": str(folder / "slurm.conf")}

    def user(self, *command) -> list:
        """A command as the user of a cluster would give it."""
        # The tests' choice of loopback must not get from the user's shell into separate nodes.
        # Nodes that are this machine get a free port: another test's cluster, which has jobs of the
        # same numbers, would work out the same one.
        where = ["-u", "GLOO_SOCKET_IFNAME"] if self.netns else [f"MASTER_PORT={free_port()}"]
        return ["env", *where, f"SLURM_CONF={self.env['SLURM_CONF']}", *command]

    def run(self, *command, timeout: float = PATIENCE, cwd: Path | None = None) -> Result:
        """A command of Slurm or another, with this cluster's SLURM_CONF."""
        return run(self.user(*command), cwd or Path.cwd(), timeout, self.env)

    def checked(self, *command, cwd: Path | None = None) -> str:
        """The output of a command that must succeed."""
        result = self.run(*command, cwd=cwd)
        assert result.returncode == 0, result.output
        return result.stdout

    def on(self, node: str, *command) -> list:
        """The words that run a command on a node without Slurm, as if logged in there."""
        return self.user(MINI_SLURM, "exec", "--dir", self.folder, node, "--", *command)


def control(command: str, folder: Path, *args) -> Result:
    """One of the tool's commands on the cluster of a folder."""
    return run([MINI_SLURM, command, "--dir", folder, *args], Path.cwd())


@contextmanager
def mini_slurm(netns: bool = False) -> Iterator[MiniSlurm]:
    """A cluster that lives as long as the context. Its folder's name must be short."""
    skip_without_slurm()
    folder = Path(tempfile.mkdtemp(prefix="mini-slurm-", dir="/tmp"))
    try:
        result = control("up", folder, *(["--netns"] if netns else []))
        assert result.returncode == 0, result.output
        yield MiniSlurm(folder, netns)
    finally:
        # Not through harness.run: whatever happens above, this happens too.
        subprocess.run([MINI_SLURM, "down", "--dir", folder], check=True, timeout=PATIENCE)


@functools.cache
def shared_cluster() -> MiniSlurm | None:
    """One for all tests of a session that only want to launch; None where there can be none, and
    on a machine with GPUs, of which it would know nothing."""
    import torch

    if not slurm_is_here() or torch.cuda.is_available():
        return None
    context = mini_slurm()
    cluster = context.__enter__()
    atexit.register(context.__exit__, None, None, None)
    return cluster
