"""The Slurm of one machine. (What runs on it, and that it leaves no process: test_slurm.py.)"""

import re
from pathlib import Path

import pytest
from slurm import control, shared_cluster, skip_without_slurm

pytestmark = pytest.mark.xdist_group("slurm")


def test_a_folder_of_others(tmp_path: Path) -> None:
    """It is neither filled nor removed: one line says what to type."""
    skip_without_slurm()
    (tmp_path / "mine").touch()
    for command in ("up", "down"):
        result = control(command, tmp_path)
        assert (result.returncode, result.stdout) == (1, ""), result.output
        assert "is not a mini Slurm's" in result.stderr
        assert [path.name for path in tmp_path.iterdir()] == ["mine"]


def test_only_this_machine_can_reach_it() -> None:
    """Its daemons run as root: they listen on loopback alone."""
    skip_without_slurm()
    cluster = shared_cluster()
    ports = re.findall(r"Port=(\d+)", (cluster.folder / "slurm.conf").read_text())
    listening = [line.split()[3] for line in cluster.checked("ss", "-Hltn").splitlines()]
    found = [place for place in listening if place.rpartition(":")[2] in ports]
    assert len(found) == len(set(ports)) == 3
    assert {place.rpartition(":")[0] for place in found} == {"127.0.0.1"}
