"""The Slurm of one machine. (What runs on it, and that it leaves no process: test_slurm.py.)"""

from pathlib import Path

import pytest
from slurm import control, skip_without_slurm

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
