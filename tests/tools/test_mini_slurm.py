"""The Slurm that the tests start: it is one, it is whole, and it leaves nothing behind."""

import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from harness import PATIENCE, run, start
from slurm import MINI_SLURM, MiniSlurm, control, skip_without_slurm

pytestmark = pytest.mark.xdist_group("slurm")


@pytest.fixture
def folder() -> Iterator[Path]:
    """A place for a cluster of the test's own."""
    skip_without_slurm()
    place = Path(tempfile.mkdtemp(prefix="mini-slurm-", dir="/tmp"))
    yield place
    subprocess.run([MINI_SLURM, "down", "--dir", place], check=True, timeout=PATIENCE)


def processes_of(folder: Path) -> list[str]:
    """What lives in a cluster's namespaces or was told its folder; srun among them. A process
    that is dead, and only not yet collected, has no memory map."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            told = str(folder).encode() in (entry / "cmdline").read_bytes()
            inside = "mini-slurm-hosts-" in (mounts := (entry / "mountinfo").read_text())
            if (told or inside and str(folder) in mounts) and (entry / "maps").read_text():
                found.append(f"{entry.name} {(entry / 'comm').read_text()}")
        except OSError:
            continue  # it ended while we looked
    return found


def interfaces_of(folder: Path) -> list[str]:
    links = run(["ip", "-o", "link"], folder.parent).stdout.splitlines()
    return [line for line in links if str(folder) in line]


def assert_nothing_is_left(folder: Path) -> None:
    assert not folder.exists()
    assert processes_of(folder) == [] and interfaces_of(folder) == []


def test_up_and_down(folder: Path, tmp_path: Path) -> None:
    """Nothing is left: of the jobs, not even what hides from Slurm, nor of killed daemons. (What
    runs on it: tests/chapters/test_slurm.py.)"""
    up = control("up", folder, "--netns")
    assert up.returncode == 0, up.output
    assert up.stdout == f"export SLURM_CONF={folder}/slurm.conf\n"
    slurm = MiniSlurm(folder, netns=True)
    hidden = "env -i setsid bash -c 'trap : TERM; echo $$ >hidden; while :; do sleep 100; done' &"
    job = tmp_path / "job.sh"
    job.write_text(f"#!/bin/bash\n{hidden}\ntrap : TERM\nwhile :; do sleep 100; done\n")
    unmarked = ["env", "-u", "LAUNCHED_BY_TEST"]  # what it starts goes on when it has ended
    slurm.checked(*unmarked, "sbatch", job, cwd=tmp_path)
    srun = start([*unmarked, "srun", "sleep", "1000"], tmp_path, slurm.env)
    deadline = time.monotonic() + PATIENCE
    while not (tmp_path / "hidden").exists() or slurm.checked("squeue", "-h").count(" R ") < 2:
        assert time.monotonic() < deadline, slurm.checked("squeue")
        time.sleep(0.1)
    assert len(processes_of(folder)) >= 6 and interfaces_of(folder)

    assert "already up" in control("up", folder).stderr
    for daemon in ("slurmctld", "slurmd.n1", "munged"):
        os.kill(int((folder / f"{daemon}.pid").read_text()), signal.SIGKILL)
    again = control("up", folder)
    left = f"left over from a cluster that has died; type: tools/mini_slurm.sh down --dir {folder}"
    assert again.returncode == 1 and left in again.stderr
    for _ in range(2):  # twice is once
        down = control("down", folder)
        assert (down.returncode, down.stdout, down.stderr) == (0, "", ""), down.output
    assert_nothing_is_left(folder)
    srun.communicate(timeout=PATIENCE)


def test_a_folder_of_others(tmp_path: Path) -> None:
    """It is neither filled nor removed: one line says what to type."""
    skip_without_slurm()
    (tmp_path / "mine").touch()
    for command in ("up", "down"):
        result = control(command, tmp_path)
        assert (result.returncode, result.stdout) == (1, ""), result.output
        assert "is not a mini Slurm's" in result.stderr
        assert [path.name for path in tmp_path.iterdir()] == ["mine"]
