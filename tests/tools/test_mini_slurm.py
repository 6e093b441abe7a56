"""The Slurm that the tests start: it is one, it is whole, and it leaves nothing behind."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from harness import run, start
from slurm import MINI_SLURM, MiniSlurm, control, mini_slurm, needs_slurm

pytestmark = pytest.mark.xdist_group("slurm")


@pytest.fixture(scope="module")
def cluster() -> Iterator[MiniSlurm]:
    with mini_slurm() as cluster:
        yield cluster


@pytest.fixture(scope="module")
def separated() -> Iterator[MiniSlurm]:
    with mini_slurm(netns=True) as cluster:
        yield cluster


@pytest.fixture
def folder() -> Iterator[Path]:
    """A place for a cluster of the test's own."""
    place = Path(tempfile.mkdtemp(prefix="mini-slurm-", dir="/tmp"))
    yield place
    subprocess.run([MINI_SLURM, "down", "--dir", place], check=True, timeout=60)


def script(path: Path, *lines: str) -> Path:
    path.write_text("\n".join(["#!/bin/bash", *lines, ""]))
    path.chmod(0o755)
    return path


@needs_slurm
@pytest.mark.parametrize("kind", ["cluster", "separated"])
def test_up(kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    """Two idle nodes with two GPUs each, a status, logs; and four tasks on them, in the user's
    folder and environment, that find each node by its name."""
    slurm = request.getfixturevalue(kind)
    nodes = slurm.checked("sinfo", "-h", "-N", "-o", "%N %T %G").splitlines()
    assert nodes == ["n1 idle gpu:2", "n2 idle gpu:2"]
    status = control("status", slurm.folder)
    assert status.returncode == 0 and re.findall(r"^n\d idle", status.stdout, re.M), status.output
    logs = [Path(log) for log in control("status", slurm.folder, "--log").stdout.splitlines()]
    assert {log.name for log in logs} >= {"slurmctld.log", "slurmd.n1.log", "slurmd.n2.log"}
    assert all(log.exists() for log in logs)

    say = "echo $SLURM_PROCID $SLURM_NODEID $SLURM_LOCALID $SLURMD_NODENAME $PWD $MINE"
    know = "getent hosts n1 n2 >/dev/null"
    command = ["-N2", "--ntasks-per-node=2", "env", "MINE=mine", "bash", "-c", f"{know} && {say}"]
    result = slurm.srun(command, cwd=tmp_path)
    assert result.returncode == 0, result.output
    tasks = ["0 0 0 n1", "1 0 1 n1", "2 1 0 n2", "3 1 1 n2"]
    assert sorted(result.stdout.splitlines()) == [f"{task} {tmp_path} mine" for task in tasks]


@needs_slurm
def test_separate_nodes(separated: MiniSlurm, tmp_path: Path) -> None:
    """Each has a host name and an address of its own, which the machine itself does not learn.
    `exec` keeps the folder, the arguments and the exit code. (test_slurm.py trains across them.)"""
    result = separated.srun(["-N2", "bash", "-c", "hostname; hostname -i"])
    assert result.returncode == 0, result.output
    words = result.stdout.split()
    assert len(set(words)) == 4 and {"n1", "n2"} < set(words), result.output
    assert run(["getent", "hosts", "n1"], tmp_path, 30).returncode != 0
    command = ["bash", "-c", 'hostname; pwd; echo "$1"; exit 3', "", "a  b"]
    result = separated.exec("n2", command, 30, tmp_path)
    assert (result.returncode, result.stdout) == (3, f"n2\n{tmp_path}\na  b\n"), result.output


@needs_slurm
def test_up_twice(cluster: MiniSlurm) -> None:
    """The second changes nothing, and says how to use the first."""
    before = sorted(cluster.folder.iterdir())
    result = control("up", cluster.folder)
    assert (result.returncode, result.stdout) == (1, ""), result.output
    assert f"already up; type: export SLURM_CONF={cluster.folder}/slurm.conf" in result.stderr
    assert sorted(cluster.folder.iterdir()) == before
    assert cluster.srun(["-N2", "true"]).returncode == 0


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
    return [
        line
        for line in run(["ip", "-o", "link"], folder.parent, 30).stdout.splitlines()
        if str(folder) in line
    ]


@needs_slurm
@pytest.mark.parametrize(
    ("netns", "killed"),
    [(False, []), (True, ["slurmctld", "slurmd.n1", "munged"])],
    ids=["together", "netns, daemons killed"],
)
def test_down(folder: Path, tmp_path: Path, netns: bool, killed: list[str]) -> None:
    """Nothing is left: of the jobs, not even what hides from Slurm, nor of killed daemons."""
    up = control("up", folder, *(["--netns"] if netns else []))
    assert up.returncode == 0, up.output
    assert up.stdout == f"export SLURM_CONF={folder}/slurm.conf\n"
    slurm = MiniSlurm(folder, netns)
    hidden = "env -i setsid bash -c 'trap : TERM; echo $$ >hidden; while :; do sleep 100; done' &"
    job = script(tmp_path / "job.sh", hidden, "trap : TERM", "while :; do sleep 100; done")
    slurm.sbatch(job)
    srun = start(["env", "-u", "LAUNCHED_BY_TEST", "srun", "sleep", "1000"], tmp_path, slurm.env)
    deadline = time.monotonic() + 20
    while not (tmp_path / "hidden").exists() or slurm.checked("squeue", "-h").count(" R ") < 2:
        assert time.monotonic() < deadline, slurm.checked("squeue")
        time.sleep(0.1)
    assert len(processes_of(folder)) >= 6
    assert bool(interfaces_of(folder)) == netns
    for daemon in killed:
        os.kill(int((folder / f"{daemon}.pid").read_text()), signal.SIGKILL)
    left = f"left over from a cluster that has died; type: tools/mini_slurm.sh down --dir {folder}"
    assert (left if killed else "already up") in control("up", folder).stderr

    down = control("down", folder)
    assert (down.returncode, down.stdout, down.stderr) == (0, "", ""), down.output
    assert not folder.exists()
    assert processes_of(folder) == [] and interfaces_of(folder) == []
    srun.communicate(timeout=10)
    assert control("down", folder).returncode == 0, "twice is once"


@needs_slurm
def test_failed_up(folder: Path, tmp_path: Path) -> None:
    """It shows why, and cleans up."""
    script(tmp_path / "slurmd", "echo the daemon is not well; exit 1")
    env = {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    result = run([MINI_SLURM, "up", "--netns", "--dir", folder], tmp_path, 60, env)
    assert (result.returncode, result.stdout) == (1, ""), result.output
    assert "could not start" in result.stderr and "the daemon is not well" in result.stderr
    assert not folder.exists() and not processes_of(folder) and not interfaces_of(folder)


@needs_slurm
def test_not_its_folder(tmp_path: Path) -> None:
    """Somebody's folder is neither filled nor removed."""
    place = Path(tempfile.mkdtemp(prefix="mini-slurm-", dir="/tmp"))
    (place / "mine").touch()
    for command in ("up", "down", "status"):
        result = control(command, place)
        assert result.returncode == 1 and len(result.stderr.splitlines()) == 1, result.output
        assert ("is not up" if command == "status" else "is not a mini Slurm's") in result.stderr
        assert [path.name for path in place.iterdir()] == ["mine"]
    shutil.rmtree(place)


@pytest.mark.parametrize(
    "argv",
    [[], ["up", "--fast"], ["down", "--netns"], ["exec", "n1"], ["up", "--dir"]],
    ids=" ".join,
)
def test_usage(argv: list[str], tmp_path: Path) -> None:
    """One line that says what to type."""
    result = run([MINI_SLURM, *argv], tmp_path, 30)
    assert (result.returncode, result.stdout) == (2, ""), result.output
    assert re.fullmatch(r"mini_slurm: .*; type: .*\n", result.stderr), result.output


def test_not_root(tmp_path: Path) -> None:
    nobody = ["setpriv", "--reuid", "65534", "--clear-groups"] if os.geteuid() == 0 else []
    result = run([*nobody, "bash", "-c", MINI_SLURM.read_text(), "mini", "up"], tmp_path, 30)
    assert (result.returncode, result.stdout) == (1, ""), result.output
    assert result.stderr == "mini_slurm: needs root; type: sudo tools/mini_slurm.sh up\n"


@needs_slurm
def test_no_packages(tmp_path: Path) -> None:
    for word in ("bash", "id", "realpath", "cksum", "cut"):
        (tmp_path / word).symlink_to(shutil.which(word))
    result = run([MINI_SLURM, "up"], tmp_path, 30, {"PATH": str(tmp_path)})
    assert result.returncode == 1, result.output
    assert re.fullmatch(
        r"mini_slurm: there is no \w+ here; type: sudo tools/mini_slurm.sh install\n", result.stderr
    ), result.output


@pytest.mark.skipif(
    not shutil.which("shellcheck"), reason="needs shellcheck: apt-get install shellcheck"
)
def test_shellcheck(tmp_path: Path) -> None:
    result = run(["shellcheck", MINI_SLURM], tmp_path, 60)
    assert result.returncode == 0, result.output
