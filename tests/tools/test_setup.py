"""Set-up: it waits for apt's locks, tries again what may succeed, and says what is missing."""

import fcntl
import hashlib
import shutil
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import TextIO

import every_session
import pytest
from harness import CHAPTERS, PATIENCE, ROOT, TOOLS, Result, finish, run, start

PREPARE = ROOT / "tests/support/prepare.sh"
SCRIPTS = (PREPARE, *TOOLS.glob("*.sh"), *ROOT.glob("05_horovod/*.sh"),
           *ROOT.glob("06_slurm/*.sbatch"), *ROOT.glob("docs/examples/slurm/*.sbatch"))  # fmt: skip


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


def test_what_smoke_tests_need(tmp_path: Path) -> None:
    """On a machine that has torch, torchvision, tqdm and pytest alone they are found, and nothing
    is skipped: no other file of tests, which may import more, is opened."""
    for package in ("cmarkgfm", "jieba", "markdown", "matplotlib", "mkdocs", "playwright",
                    "pymdownx", "safetensors"):  # fmt: skip
        (tmp_path / f"{package}.py").write_text("raise ModuleNotFoundError")
    command = [sys.executable, "-m", "pytest", "-m", "smoke", "--collect-only", "-q"]
    result = run(command, ROOT, env={"PYTHONPATH": str(tmp_path)})
    assert result.returncode == 0 and "SKIPPED" not in result.stdout, result.output
    assert result.stdout.count("tests/chapters/test_smoke.py::") == len(CHAPTERS), result.output
    # Nor what `make doctor.pyz` leaves in the root.
    (tmp_path / "doctor.pyz").write_bytes(b"PK\xb1")
    config = SimpleNamespace(option=SimpleNamespace(markexpr="smoke"))
    assert every_session.pytest_ignore_collect(tmp_path / "doctor.pyz", config)


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


def test_waiting_has_an_end(apt: Path) -> None:
    lock = apt / LOCKS[0]
    with hold(lock):
        env = {"APT_CONFIG": str(apt / "apt.conf"), "APT_PATIENCE": "0"}
        result = run([TOOLS / "apt_install.sh", "tiny"], apt, env=env)
    assert result.returncode == 1, result.output
    said = f"waited 0 seconds for apt: Could not get lock {lock}. It is held by process "
    assert said in result.stderr, result.output
    assert "tiny" not in (apt / "dpkg.log").read_text()


# -------------------------------------------------------------------------------------- prepare.sh


class Machine:
    """A copy of prepare.sh on a machine that has only what a test gives it. Each of what it starts
    is a stand-in that writes its name and ends with a given status."""

    def __init__(self, root: Path) -> None:
        self.root, self.bin, self.stamp = root, root / "bin", root / "ready"
        self.bin.mkdir()
        for word in ("bash", "dirname", "mktemp", "rm", "setsid", "tail", "touch"):
            (self.bin / word).symlink_to(shutil.which(word))
        self.script = executable(root / "tests/support/prepare.sh", PREPARE.read_text())
        for script in ("05_horovod/install.sh", "tools/mini_slurm.sh", "tools/apt_install.sh"):
            name = Path(script).stem
            executable(
                root / script, f"#!{self.bin}/bash\necho {name} >>calls\nexit ${{{name}:-0}}\n"
            )
        executable(self.bin / "id", f"#!{self.bin}/bash\necho ${{user:-0}}\n")
        executable(self.bin / "apt-get", f"#!{self.bin}/bash\n")

    def prepare(self, **statuses: int | str) -> tuple[Result, list[str]]:
        """What became of it, and what it says is not here."""
        (self.root / "calls").unlink(missing_ok=True)
        env = {"PATH": str(self.bin), "CI": ""}
        env |= {name: str(status) for name, status in statuses.items()}
        result = run([self.bin / "bash", self.script, "test", self.stamp], self.root, env=env)
        said = [line for line in result.stderr.splitlines() if "so not tested" in line]
        return result, [line.removeprefix("not here, so not tested: ") for line in said]

    def calls(self) -> list[str]:
        return (self.root / "calls").read_text().split()


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_a_fresh_machine(machine: Machine) -> None:
    """What failed is said and tried again by the next make, and the tests run without it; in CI
    that is an error."""
    fails = {"apt_install": 1, "mini_slurm": 1, "install": 75}
    result, missing = machine.prepare(**fails)
    assert result.returncode == 0 and not machine.stamp.exists(), result.output
    named = ["g++ cmake", "Slurm", "shellcheck chromium fonts-noto-cjk", "Horovod"]
    for line, what in zip(missing, named, strict=True):
        assert line.startswith(what) and line.endswith("; make tries it again next time")
    assert machine.prepare(**fails, CI="true")[0].returncode == 1
    result, missing = machine.prepare(CI="true")
    assert (result.returncode, missing) == (0, []) and machine.stamp.exists(), result.output
    assert sorted(machine.calls()) == ["apt_install", "apt_install", "install", "mini_slurm"]


@pytest.mark.parametrize("lacks", ["root", "apt-get"])
def test_what_a_machine_cannot_have(machine: Machine, lacks: str) -> None:
    """It is said, and not tried again; nor is a Horovod that does not compile."""
    if lacks == "apt-get":
        (machine.bin / lacks).unlink()
    result, missing = machine.prepare(user=1000 if lacks == "root" else 0, install=1)
    assert result.returncode == 0 and machine.calls() == ["install"], result.output
    assert [line.split()[0].strip(",:") for line in missing] == [
        "Slurm", "shellcheck", "Chromium", "Horovod",
    ]  # fmt: skip
    assert "again" not in result.stderr and machine.stamp.exists()


# ---------------------------------------------------------------------------------- the Makefile


def copy_makefile(folder: Path) -> None:
    """With what an environment is made of."""
    for file in (ROOT / "Makefile", ROOT / "constraints.txt", *ROOT.glob("requirements*.txt")):
        shutil.copy(file, folder)


@pytest.mark.parametrize("breaks", [1, 2])
def test_a_download_that_breaks_off(tmp_path: Path, breaks: int) -> None:
    """Once it goes on by itself; twice it ends, and the next make goes on."""
    copy_makefile(tmp_path)
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


def test_the_site_needs_no_torch(tmp_path: Path) -> None:
    """Where nobody has made the other environment, which has all of it."""
    copy_makefile(tmp_path)
    for target in ("site", "offline", "serve"):
        fresh = run(["make", "-n", target], tmp_path).stdout
        assert "-r requirements-docs.txt" in fresh and "requirements-dev.txt" not in fresh
    (tmp_path / ".venv").mkdir()
    (tmp_path / ".venv/ready").touch()
    made = run(["make", "-n", "site"], tmp_path).stdout
    assert ".venv/bin/python -m mkdocs build" in made and "pip install" not in made


def test_environment_of_the_shell() -> None:
    """A variable VENV that somebody's shell has names an environment of theirs: it stays."""
    typed = run(["make", "-n", "clean"], ROOT, env={"VENV": "/home/me/mine"}).stdout
    assert "/home/me/mine" not in typed and "\nrm -rf .venv " in f"\n{typed}"
