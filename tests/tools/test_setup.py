"""Set-up: it waits for apt's locks, tries again what may succeed, and says what is missing."""

import fcntl
import hashlib
import os
import shutil
import sys
import time
from pathlib import Path
from typing import TextIO

import pytest
from harness import PATIENCE, ROOT, TOOLS, Result, finish, run, start

PREPARE = ROOT / "tests/support/prepare.sh"
SCRIPTS = (PREPARE, TOOLS / "apt_install.sh", ROOT / "05_horovod/install.sh")


def executable(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)
    return path


@pytest.mark.skipif(
    not shutil.which("shellcheck"), reason="needs shellcheck: apt-get install shellcheck"
)
def test_shellcheck(tmp_path: Path) -> None:
    result = run(["shellcheck", *SCRIPTS], tmp_path)
    assert result.returncode == 0, result.output


# ------------------------------------------------------------------------------------- apt's locks


@pytest.fixture
def apt(tmp_path: Path) -> Path:
    """A folder in which the real apt-get finds its lists, locks and a package named `tiny`; what it
    would tell dpkg goes into the file dpkg.log."""
    if not shutil.which("apt-get"):
        pytest.skip("needs apt-get: Debian or Ubuntu")
    root = tmp_path / "apt"
    for folder in ("etc/apt/preferences.d", "var/log/apt", "var/cache/apt", "var/lib/apt/lists"):
        (root / folder).mkdir(parents=True)
    (root / "var/lib/dpkg").mkdir()
    for lock in LOCKS:
        (root / lock).touch()
    (root / "var/lib/dpkg/status").touch()
    package = root / "tiny.deb"
    package.write_text("not looked into")
    (root / "Packages").write_text(
        "Package: tiny\nVersion: 1\nArchitecture: all\nFilename: ./tiny.deb\nDescription: a file\n"
        f"Size: {package.stat().st_size}\n"
        f"SHA256: {hashlib.sha256(package.read_bytes()).hexdigest()}\n"
    )
    (root / "etc/apt/sources.list").write_text(f"deb [trusted=yes] copy:{root} ./\n")
    executable(root / "dpkg", f'#!/bin/sh\necho "$@" >>{root}/dpkg.log\n')
    (root / "apt.conf").write_text(
        f'Dir "{root}/"; Dir::State::status "{root}/var/lib/dpkg/status";\n'
        f'Dir::Bin::dpkg "{root}/dpkg"; APT::Sandbox::User "";\n'
    )
    return root


LOCKS = ("var/lib/apt/lists/lock", "var/lib/dpkg/lock-frontend")  # of update, and of install


def hold(lock: Path) -> TextIO:
    """Lock a file as apt does; closing it gives the lock back."""
    file = lock.open("r+")
    fcntl.lockf(file, fcntl.LOCK_EX)
    return file


def refused(lock: Path) -> str:
    return f"Could not get lock {lock}. It is held by process {os.getpid()} "


def test_locks_are_waited_for(apt: Path) -> None:
    """Each of the two locks is named, waited for and taken when it is free."""
    log, held = apt / "log", [hold(apt / lock) for lock in LOCKS]
    install = f"exec {TOOLS}/apt_install.sh tiny >{log} 2>&1"
    process = start(["bash", "-c", install], apt, {"APT_CONFIG": str(apt / "apt.conf")})
    try:
        deadline = time.monotonic() + PATIENCE
        for number, lock in enumerate(LOCKS):
            waits = (
                f"waiting until another program has done with apt: Could not get lock {apt}/{lock}"
            )
            while not log.exists() or waits not in log.read_text():
                assert process.poll() is None and time.monotonic() < deadline, log.read_text()
                time.sleep(0.1)
            held[number].close()
    finally:
        result = finish(process)
    assert result.returncode == 0, log.read_text()
    assert log.read_text().count("waiting") == 2, log.read_text()
    assert "tiny" in (apt / "dpkg.log").read_text()


@pytest.mark.parametrize("lock", LOCKS)
def test_waiting_has_an_end(apt: Path, lock: str) -> None:
    with hold(apt / lock):
        env = {"APT_CONFIG": str(apt / "apt.conf"), "APT_PATIENCE": "0"}
        result = run([TOOLS / "apt_install.sh", "tiny"], apt, env=env)
    assert result.returncode == 1, result.output
    assert f"waited 0 seconds for apt: {refused(apt / lock)}" in result.stderr, result.output
    assert "tiny" not in (apt / "dpkg.log").read_text()


def test_other_troubles_of_apt_are_not_waited_for(apt: Path) -> None:
    result = run([TOOLS / "apt_install.sh", "huge"], apt, env={"APT_CONFIG": str(apt / "apt.conf")})
    assert result.returncode == 1 and "Unable to locate package huge" in result.stderr, (
        result.output
    )
    assert "waiting" not in result.output


# -------------------------------------------------------------------------------------- prepare.sh


class Machine:
    """A copy of prepare.sh on a machine that has only what a test gives it. Each of what it starts
    is a stand-in that writes its name and ends with a given status."""

    def __init__(self, root: Path) -> None:
        self.root, self.bin, self.stamp = root, root / "bin", root / "venv/ready-for-tests"
        self.bin.mkdir()
        self.stamp.parent.mkdir()
        for word in ("bash", "dirname", "mktemp", "rm", "setsid", "tail", "tee", "touch"):
            (self.bin / word).symlink_to(shutil.which(word))
        shutil.copytree(PREPARE.parent, root / "tests/support", dirs_exist_ok=True)
        for script in ("05_horovod/install.sh", "tools/mini_slurm.sh", "tools/apt_install.sh"):
            name = Path(script).stem
            executable(
                root / script, f"#!{self.bin}/bash\necho {name} >>calls\nexit ${{{name}:-0}}\n"
            )
        executable(self.bin / "id", f"#!{self.bin}/bash\necho ${{user:-0}}\n")
        executable(self.bin / "python", f"#!{self.bin}/bash\necho {self.stamp.parent}\n")
        self.has("apt-get")

    def has(self, *commands: str) -> None:
        for command in commands:
            executable(self.bin / command, f"#!{self.bin}/bash\n")

    def prepare(self, tier: str, **statuses: int | str) -> Result:
        (self.root / "calls").unlink(missing_ok=True)
        env = {"PATH": str(self.bin), "PYTHON": "python", "CI": ""}
        env |= {name: str(status) for name, status in statuses.items()}
        script = self.root / "tests/support/prepare.sh"
        result = run([self.bin / "bash", script, tier, self.stamp], self.root, env=env)
        said = [line for line in result.stderr.splitlines() if "so not tested" in line]
        assert (self.stamp.parent / "not-tested").read_text().splitlines() == said, result.output
        result.missing = [line.removeprefix("not here, so not tested: ") for line in said]
        return result

    def calls(self) -> list[str]:
        return (self.root / "calls").read_text().split()


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_all_is_installed_once(machine: Machine) -> None:
    result = machine.prepare("test")
    assert (result.returncode, result.missing) == (0, []), result.output
    assert sorted(machine.calls()) == ["apt_install", "apt_install", "install", "mini_slurm"]
    assert machine.stamp.exists()


@pytest.mark.parametrize(
    ("statuses", "named"),
    [
        ({"apt_install": 1}, ["g++ cmake", "shellcheck chromium fonts-noto-cjk"]),
        ({"mini_slurm": 1}, ["Slurm"]),
        ({"install": 75}, ["Horovod"]),
    ],
    ids=["apt", "slurm", "horovod"],
)
def test_what_failed_is_tried_again(
    machine: Machine, statuses: dict[str, int], named: list[str]
) -> None:
    """The tests run without it; in CI that is an error."""
    result = machine.prepare("test", **statuses)
    assert result.returncode == 0 and len(result.missing) == len(named), result.output
    for line, what in zip(result.missing, named, strict=True):
        assert line.startswith(what) and line.endswith("; make tries it again next time")
    assert not machine.stamp.exists()
    assert machine.prepare("test", **statuses, CI="true").returncode == 1
    assert machine.prepare("test").missing == [] and machine.stamp.exists()


@pytest.mark.parametrize("lacks", ["root", "apt-get"])
def test_what_a_machine_cannot_have(machine: Machine, lacks: str) -> None:
    """It is said, and not tried again."""
    user = 0
    if lacks == "root":
        user = 1000
    else:
        (machine.bin / lacks).unlink()
    result = machine.prepare("test", user=user)
    assert result.returncode == 0 and machine.calls() == ["install"], result.output
    assert [line.split()[0].strip(",:") for line in result.missing] == [
        "Slurm", "shellcheck", "Chromium",
    ]  # fmt: skip
    assert "again" not in result.stderr and machine.stamp.exists()
    machine.has("shellcheck", "chromium")
    result = machine.prepare("test", user=user)
    assert [line.split()[0] for line in result.missing] == ["Slurm,"], result.output


def test_horovod_that_does_not_compile(machine: Machine) -> None:
    result = machine.prepare("smoke", install=1)
    assert result.missing == ["Horovod: chapter 05"] and machine.stamp.exists(), result.output


def test_horovod_without_a_network(tmp_path: Path) -> None:
    """What prepare.sh knows it by."""
    for tool in ("g++", "cmake", "make"):
        if shutil.which(tool) is None:
            pytest.skip(f"needs a compiler: apt-get install {tool}")
    env = {"PYTHON": sys.executable, "XDG_CACHE_HOME": str(tmp_path)}
    env |= {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(tmp_path)}
    result = run(["bash", ROOT / "05_horovod/install.sh", "--cpu"], tmp_path, env=env)
    assert result.returncode == 75, result.output
    assert "error: the source of Horovod was not fetched" in result.stderr, result.output


def test_it_is_said_at_the_end(tmp_path: Path) -> None:
    """Once, also with workers of pytest-xdist, and as the last lines."""
    (tmp_path / "not-tested").write_text("not here, so not tested: a moon\n")
    argv = ["-q", "-n1", "tests/tools/test_setup.py::test_horovod_that_does_not_compile"]
    program = f"import pytest, sys; sys.prefix = {str(tmp_path)!r}; sys.exit(pytest.main({argv}))"
    result = run([sys.executable, "-c", program], ROOT)
    assert result.returncode == 0, result.output
    assert result.stdout.count("a moon") == 1, result.output
    assert result.said[-2:] == [
        "not here, so not tested: a moon",
        f"to set up again: rm {tmp_path}/ready-for-*",
    ]


# ---------------------------------------------------------------------------------- the Makefile


@pytest.mark.parametrize("breaks", [1, 2])
def test_a_download_that_breaks_off(tmp_path: Path, breaks: int) -> None:
    """Once it goes on by itself; twice it ends, and the next make goes on."""
    for file in ("Makefile", "requirements.txt", "requirements-dev.txt", "constraints.txt"):
        shutil.copy(ROOT / file, tmp_path)
    # A Python that makes environments of itself, and whose pip fails at first.
    python = f"""#!/bin/sh
        case $2 in
            venv) mkdir -p $3/bin; cp $0 $3/bin/python;;
            pip) echo >>calls; [ $(wc -l <calls) -gt {breaks} ];;
        esac
    """
    make = ["make", f"PYTHON={executable(tmp_path / 'python', python)}", ".venv/ready"]
    first = run(make, tmp_path)
    assert (first.returncode == 0) == (tmp_path / ".venv/ready").exists() == (breaks == 1)
    assert run(make, tmp_path).returncode == 0
    assert (tmp_path / "calls").read_text().count("\n") == breaks + 1
