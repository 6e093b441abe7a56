"""The Slurm that the tests start: it is one, it is whole, and it leaves nothing behind."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from harness import finish, run, start
from slurm import MINI_SLURM, MiniSlurm, control, mini_slurm, needs_slurm


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


both = pytest.mark.parametrize("kind", ["cluster", "separated"])


@needs_slurm
@both
def test_up(kind: str, request: pytest.FixtureRequest) -> None:
    slurm = request.getfixturevalue(kind)
    assert slurm.checked("sinfo", "-h", "-N", "-o", "%N %T %G").splitlines() == [
        "n1 idle gpu:2",
        "n2 idle gpu:2",
    ]
    status = control("status", slurm.folder)
    assert status.returncode == 0 and re.findall(r"^n\d idle", status.stdout, re.M), status.output
    logs = control("status", slurm.folder, "--log").stdout.splitlines()
    assert {Path(log).name for log in logs} >= {"slurmctld.log", "slurmd.n1.log", "slurmd.n2.log"}
    assert all(Path(log).exists() for log in logs)


@needs_slurm
@both
def test_tasks(kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    """Four tasks on two nodes, in the user's folder and environment, each node knows the other."""
    say = "echo $SLURM_PROCID $SLURM_NODEID $SLURM_LOCALID $SLURMD_NODENAME $PWD $MINE"
    know = "getent hosts n1 n2 >/dev/null"
    command = ["-N2", "--ntasks-per-node=2", "env", "MINE=mine", "bash", "-c", f"{know} && {say}"]
    result = request.getfixturevalue(kind).srun(command, cwd=tmp_path)
    assert result.returncode == 0, result.output
    assert sorted(result.stdout.splitlines()) == [
        f"0 0 0 n1 {tmp_path} mine",
        f"1 0 1 n1 {tmp_path} mine",
        f"2 1 0 n2 {tmp_path} mine",
        f"3 1 1 n2 {tmp_path} mine",
    ]


@needs_slurm
@pytest.mark.parametrize(
    ("ask", "seen"),
    [
        (["-n1", "--gres=gpu:2"], ["0,1"]),
        (["-n1", "--gres=gpu:1"], ["0"]),
        (["-N1", "-n2", "--gpus-per-task=1"], ["0", "1"]),
        (["-n1"], [""]),
    ],
)
def test_gpus(cluster: MiniSlurm, ask: list[str], seen: list[str]) -> None:
    result = cluster.srun([*ask, "bash", "-c", "echo $CUDA_VISIBLE_DEVICES"])
    assert (result.returncode, sorted(result.stdout.splitlines())) == (0, seen), result.output


@needs_slurm
def test_too_many_gpus(cluster: MiniSlurm) -> None:
    result = cluster.srun(["-n1", "--gres=gpu:3", "true"])
    assert result.returncode != 0
    assert result.lines("Requested node configuration is not available"), result.output


# n2 says who has called, n1 calls.
CALL = """
import socket, time
if socket.gethostname() == "n2":
    server = socket.create_server(("0.0.0.0", 40404))
    server.settimeout(20)
    print(server.accept()[1][0])
else:
    assert socket.gethostname() == "n1"
    for _ in range(100):
        try:
            socket.create_connection(("n2", 40404), 5)
            break
        except ConnectionRefusedError:
            time.sleep(0.1)
"""


@needs_slurm
def test_separate_nodes(separated: MiniSlurm, tmp_path: Path) -> None:
    """Each has a host name and an address, and is reached by them from the other, also by what
    Slurm did not start. The machine itself does not learn their names."""
    result = separated.srun(["-N2", "bash", "-c", "hostname; hostname -i"])
    assert result.returncode == 0, result.output
    words = result.stdout.split()
    assert len(set(words)) == 4 and {"n1", "n2"} < set(words), result.output

    address = separated.exec("n1", ["hostname", "-i"]).stdout
    result = separated.srun(["-N2", sys.executable, "-c", CALL])
    assert (result.returncode, result.stdout) == (0, address), result.output
    started = [start(separated.on(n, sys.executable, "-c", CALL), tmp_path) for n in ("n1", "n2")]
    results = [finish(process, 30) for process in started]
    assert [result.stdout for result in results] == ["", address], results[0].output
    assert run(["getent", "hosts", "n1"], tmp_path, 30).returncode != 0


@needs_slurm
def test_exec(separated: MiniSlurm, tmp_path: Path) -> None:
    """Same folder, the exit code and the arguments of the command."""
    result = separated.exec(
        "n2", ["bash", "-c", 'hostname; pwd; echo "$1"; exit 3', "", "a  b"], 30, tmp_path
    )
    assert (result.returncode, result.stdout) == (3, f"n2\n{tmp_path}\na  b\n"), result.output


@needs_slurm
def test_requeue(cluster: MiniSlurm, tmp_path: Path) -> None:
    """A job that is requeued starts again, and soon; so does one whose node goes down."""
    job = script(
        tmp_path / "job.sh",
        "echo restart ${SLURM_RESTART_COUNT-unset} >>runs",
        '[ "${SLURM_RESTART_COUNT:-0}" = 2 ] || srun sleep 100',
    )
    job_id = cluster.sbatch(job, "-N2", "--requeue", "--open-mode=append")

    def runs(number: int) -> None:
        deadline = time.monotonic() + 30
        while not (tmp_path / "runs").exists() or len(lines()) < number:
            assert time.monotonic() < deadline, cluster.job(job_id)
            time.sleep(0.1)

    def lines() -> list[str]:
        return (tmp_path / "runs").read_text().splitlines()

    runs(1)
    cluster.checked("scontrol", "requeue", str(job_id))
    runs(2)
    assert cluster.job(job_id)["Restarts"] == "1"
    cluster.checked("scontrol", "update", "NodeName=n2", "State=DOWN", "Reason=test")
    time.sleep(1)  # it does not come back by itself
    assert cluster.checked("sinfo", "-h", "-n", "n2", "-o", "%T") == "down\n"
    cluster.checked("scontrol", "update", "NodeName=n2", "State=RESUME")
    runs(3)
    assert cluster.wait(job_id)["JobState"] == "COMPLETED"
    assert lines() == ["restart unset", "restart 1", "restart 2"]


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


def used_namespaces() -> list[str]:
    return run(["lsns", "--noheadings", "--output", "NS"], Path("/"), 30).stdout.split()


@needs_slurm
@pytest.mark.parametrize(
    "killed", [[], ["slurmctld"], ["slurmctld", "slurmd.n1", "munged"]], ids=len
)
@pytest.mark.parametrize("netns", [False, True], ids=["together", "netns"])
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
    pid = int((tmp_path / "hidden").read_text())
    kinds = ("mnt", "net", "uts") if netns else ("mnt",)
    namespaces = {re.sub(r"\D", "", os.readlink(f"/proc/{pid}/ns/{kind}")) for kind in kinds}
    assert namespaces <= set(used_namespaces())
    assert len(processes_of(folder)) >= 6
    assert bool(interfaces_of(folder)) == netns
    for daemon in killed:
        os.kill(int((folder / f"{daemon}.pid").read_text()), signal.SIGKILL)

    began = time.monotonic()
    down = control("down", folder)
    assert (down.returncode, down.stdout, down.stderr) == (0, "", ""), down.output
    assert time.monotonic() - began < 10
    assert not folder.exists()
    assert processes_of(folder) == [] and interfaces_of(folder) == []
    assert not namespaces & set(used_namespaces())
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
def test_killed_up(folder: Path, tmp_path: Path) -> None:
    """What a killed `up` leaves is known as such, and `down` takes it away."""
    script(tmp_path / "slurmd", "touch reached", "sleep 100")
    env = {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    process = start([MINI_SLURM, "up", "--netns", "--dir", folder], tmp_path, env)
    deadline = time.monotonic() + 20
    while not (tmp_path / "reached").exists():
        assert time.monotonic() < deadline
        time.sleep(0.05)
    process.kill()
    process.communicate(timeout=10)
    result = control("up", folder)
    assert result.returncode == 1 and "type: " in result.stderr, result.output
    assert interfaces_of(folder)
    assert control("down", folder).returncode == 0
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
    [
        [],
        ["start"],
        ["up", "--fast"],
        ["up", "n1"],
        ["down", "--netns"],
        ["exec", "n1"],
        ["exec", "--", "true"],
        ["exec", "n3", "--", "true"],
        ["up", "--dir"],
    ],
    ids=" ".join,
)
def test_usage(argv: list[str], tmp_path: Path) -> None:
    """One line that says what to type."""
    result = run([MINI_SLURM, *argv], tmp_path, 30)
    assert (result.returncode, result.stdout) == (2, ""), result.output
    assert re.fullmatch(r"mini_slurm: .*; type: .*\n", result.stderr), result.output


def test_help(tmp_path: Path) -> None:
    result = run([MINI_SLURM, "--help"], tmp_path, 30)
    assert result.returncode == 0 and result.stdout.startswith("usage: "), result.output


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
