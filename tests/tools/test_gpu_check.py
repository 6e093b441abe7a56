"""gpu_check.py on CPUs: what fails is reported as failed, what hangs is ended, and a run that is
cut off leaves whole files. And what else somebody meets there: the smoke tests with torch alone,
and what `make` says meanwhile."""

import json
import re
import shutil
import signal
import sys
import time
import warnings
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import gpu_check
import pytest
from harness import CHAPTERS, ROOT, SESSION, STRICT, finish, kill_all, marked, run, start
from pretended_gpus import OLD_DRIVER, environment, why_not

TOOL = ROOT / "tools/gpu_check.py"
# The kit with one of its parts.
ONE = "import sys, gpu_check as g; n = sys.argv.pop(1); g.PARTS = {n: g.PARTS[n]}; g.main()"


def results(out: Path) -> dict[str, dict]:
    assert not list(out.glob("*.tmp")) and (out / "gpu.md").read_text().startswith("# GPU check")
    return {row["part"]: row for row in json.loads((out / "gpu.json").read_text())["parts"]}


def program(text: str) -> list:
    return [*gpu_check.PYTHON, "-c", f"import subprocess, time\n{text}"]


PROGRAMS = {
    "works": "pass",
    "fails": "raise ValueError('this is the error')",
    "hangs": "subprocess.run(['sleep', '600'])",
    "leaves a child": "subprocess.Popen(['sleep', '600'], start_new_session=True)",
    "is slow": "for n in range(15): time.sleep(0.3); print(n)",
}


def test_what_becomes_of_a_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that fails, one that hangs with a child or leaves one, one that breaks: the others run
    all the same, and one that takes as long as the one that hangs, but talks, is ok."""

    def part(kit: gpu_check.Kit, text: str) -> str:
        kit.run(program(text), 3)
        return "done"

    def breaks(kit: gpu_check.Kit) -> str:
        return {}["loss"]

    parts = {name: partial(part, text=text) for name, text in PROGRAMS.items()}
    parts |= {"breaks": breaks}
    monkeypatch.setattr(gpu_check, "PARTS", parts)
    mark = f"{SESSION}-parts"
    monkeypatch.setenv("LAUNCHED_BY_TEST", mark)
    monkeypatch.setattr(sys, "argv", ["gpu_check.py", "--device", "cpu", "--out", str(tmp_path)])
    with pytest.raises(SystemExit) as ended:
        gpu_check.main()
    assert ended.value.code == 1 and not marked(mark)
    found = results(tmp_path)
    failed = {name: row["text"] for name, row in found.items() if row["status"] == "FAILED"}
    assert failed == {
        "fails": "status 1: ValueError: this is the error",
        "hangs": "hangs: no output for 3 s",
        "leaves a child": "leaves 1 processes behind",
        "breaks": "KeyError: 'loss'",
    }
    assert {found[name]["status"] for name in found.keys() - failed.keys()} == {"ok"}
    assert "this is the error" in (tmp_path / "gpu.md").read_text()


def test_smoke_tests_become_numbers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And the exit status: whatever pytest says of them is shown, and not kept."""
    file, words = tmp_path / "test_some.py", ["tests/chapters"]
    file.write_text(
        "import pytest\n"
        "@pytest.mark.smoke\ndef test_a(): pass\n"
        "@pytest.mark.smoke\ndef test_b(): assert 1 == 2\n"
        "@pytest.mark.smoke\ndef test_c(): pytest.skip('no')\n"
    )
    own = gpu_check.Kit.run

    def run_these(kit: gpu_check.Kit, command: list, *args: object, **kwargs: object) -> str:
        assert command[-1:] == words
        return own(kit, [*command[:-1], file, "-c", ROOT / "pyproject.toml"], *args, **kwargs)

    monkeypatch.setattr(gpu_check.Kit, "run", run_these)
    kit = gpu_check.Kit("cpu", tmp_path)
    with pytest.raises(gpu_check.Failed, match="^1 failed, 1 passed, 1 skipped, status 1$"):
        gpu_check.smoke_tests(kit)
    assert not kit.output
    monkeypatch.setattr(gpu_check, "find_spec", lambda name: None)
    with pytest.raises(gpu_check.NotHere, match="pip install pytest"):
        gpu_check.smoke_tests(kit)


def test_an_impatient_ctrl_c_leaves_whole_files_and_no_process(tmp_path: Path) -> None:
    out = tmp_path / "out"
    process = start([sys.executable, TOOL, "--device", "cpu", "--out", out], tmp_path)
    try:
        for line in process.stdout:
            if "test session starts" in line:
                break
        for _ in range(3):
            process.send_signal(signal.SIGINT)
            time.sleep(0.005)
        result = finish(process)  # which fails where a process is left
    finally:
        kill_all(process)
    assert result.returncode == 130 and "Traceback" not in result.output
    said = {name: row["status"] for name, row in results(out).items()}
    assert said == {"machine": "ok", "smoke tests": "cut off"}


def test_no_gpu(tmp_path: Path) -> None:
    """It does not go on with CPUs by itself. The machine's table says what to do."""
    out, env = tmp_path / "out", {"CUDA_VISIBLE_DEVICES": ""}
    result = run([sys.executable, TOOL, "--out", out], tmp_path, env=env)
    assert (result.returncode, result.stdout) == (1, "") and not out.exists()
    assert result.stderr == "error: torch sees no GPU: try --machine, or --device cpu\n"
    result = run([sys.executable, TOOL, "--out", out, "--machine"], tmp_path, env=env)
    assert result.returncode == 1 and list(results(out)) == ["machine"]
    assert result.lines("| GPUs | none | type nvidia-smi"), result.output
    assert result.lines("FAILED    machine: to put right: ")


def test_what_a_machine_lacks(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    """A row with something to do for each."""

    def no_address(name: str) -> str:
        raise OSError

    answers = {
        "torch.__version__": "2.5.1",
        "torch.set_float32_matmul_precision": lambda kind: warnings.warn("old", stacklevel=2),
        "shutil.disk_usage": lambda path: SimpleNamespace(free=64 << 20),
        "resource.getrlimit": lambda limit: (1024, 4096),
        "socket.gethostbyname": no_address,
    }
    for name, answer in answers.items():
        monkeypatch.setattr(name, answer)
    gpu_check.probe_machine("cpu")
    rows = json.loads(capsys.readouterr().out.removeprefix("PROBE "))["rows"]
    lacking = [name for name, _, do in rows if do]
    assert lacking == ["torch", "TF32 switch", "/dev/shm", "open files", "host name"]


def test_machines_with_gpus(tmp_path: Path) -> None:
    """One that is fit, and one whose driver torch cannot use."""
    if reason := why_not():
        pytest.skip(reason)
    for name, env, status in (("fit", {}, 0), ("old", {OLD_DRIVER: "1"}, 1)):
        words = ["--machine", "--out", tmp_path / name]
        result = run([sys.executable, TOOL, *words], tmp_path, env=environment(2, **env))
        assert result.returncode == status, result.output
        assert bool(result.lines("GPUs | 2 x Pretended GPU |")) == (name == "fit"), result.output
        assert bool(result.lines("no | the driver is too old")) == (name == "old"), result.output


def test_speed_of_one_gpu_and_of_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def benchmark(kit: gpu_check.Kit, words: list, quiet: float, env: dict) -> None:
        rate = {"5": 100, None: 300}[env.get("CUDA_VISIBLE_DEVICES")]
        rates = [("reference", rate / 2), ("02", rate)]
        rows = [{"variant": name, "training images/s": number} for name, number in rates]
        Path(words[-1]).write_text(json.dumps({"runs": {"training": rows}}))

    monkeypatch.setattr(gpu_check.Kit, "run", benchmark)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "5,6,7,8")
    kit = gpu_check.Kit("cuda", tmp_path)
    kit.gpus = 4
    assert gpu_check.speed(kit) == "02 trains 300 images/s on 4 GPUs, 3.00 times those of one"
    assert kit.table[1:] == [["1 GPU", "50", "100", "2.00"], ["4 GPUs", "150", "300", "2.00"]]
    kit.gpus = 1
    assert gpu_check.speed(kit) == "02 trains 100 images/s on 1 GPU"


# Mistakes in chapter 02, and what tells them from one process.
PLANTED = {
    "gradients are not averaged": (
        "DistributedDataParallel(raw_model, gradient_as_bucket_view=True)", "raw_model"),
    "all ranks have one share": ("train_set, world_size, rank,", "train_set, world_size, 0,"),
}  # fmt: skip


@pytest.mark.parametrize("name", PLANTED)
def test_planted_fault(name: str, tmp_path: Path) -> None:
    old, new = PLANTED[name]
    shutil.copytree(ROOT / "tools", tmp_path / "tools")
    shutil.copytree(ROOT / "02_distributed", tmp_path / "02_distributed")
    main = tmp_path / "02_distributed/main.py"
    assert main.read_text().count(old) == 1
    main.write_text(main.read_text().replace(old, new))
    words = ["exactness", "--device", "cpu", "--out", tmp_path / "out"]
    result = run([sys.executable, "-c", ONE, *words], tmp_path / "tools")
    assert result.returncode == 1, result.output
    found = results(tmp_path / "out")["exactness"]
    assert found["status"] == "FAILED" and "must be less than 1e-10" in found["text"], found


@pytest.mark.proof
@pytest.mark.parametrize("gpus", [1, 2])
def test_on_pretended_gpus(gpus: int, tmp_path: Path) -> None:
    """A rank on each GPU, and its own words where there is one alone."""
    if reason := why_not():
        pytest.skip(reason)
    result = run([sys.executable, "-c", ONE, "exactness", "--out", tmp_path / "out"],
                 ROOT / "tools", env=environment(gpus))  # fmt: skip
    assert result.returncode == 0, result.output
    found = results(tmp_path / "out")["exactness"]
    assert len(found["data"]["ranks"]) == gpus
    assert ("one rank: nothing was averaged" in found["text"]) == (gpus == 1)


@pytest.mark.proof
def test_all_of_it_on_cpus(tmp_path: Path) -> None:
    command = [sys.executable, TOOL, "--device", "cpu", "--out", tmp_path / "out"]
    result = run(command, tmp_path, 1300, {"CI": ""})
    assert result.returncode == 0, result.output
    found = results(tmp_path / "out")
    assert [row["status"] for row in found.values()] == ["ok"] * 4
    assert found["smoke tests"]["text"] in result.stdout and "ok        speed: 02" in result.stdout
    [rows] = found["speed"]["data"]["2 CPU processes"]["runs"].values()
    assert {row["variant"] for row in rows} == {"reference", "02"}


# As if nothing were installed but these and what they need. (A module that is None is not there.)
BARE = """
import re, sys
from importlib.metadata import packages_distributions, requires
plain = lambda name: re.sub("[-_.]+", "-", name).lower()
modules = {name: set(map(plain, owners)) for name, owners in packages_distributions().items()}
installed, kept = set().union(*modules.values()), ["torch", "torchvision", "tqdm", "pytest"]
kept += sys.argv[1:]
for name in kept:  # which grows
    needs = {plain(re.match(r"[\\w.-]+", n)[0]) for n in requires(name) or () if "extra" not in n}
    kept += sorted(needs & installed - set(kept))
sys.modules |= {name: None for name, owners in modules.items() if not owners & set(kept)}
import pytest
sys.exit(pytest.main("-m smoke --collect-only -q -p no:cacheprovider".split()))
"""


@pytest.mark.parametrize("more", [[], ["playwright"]])  # the latter without mkdocs
def test_smoke_tests_need_torch_alone(more: list[str]) -> None:
    """All are collected, no other file's imports are in their way, and in CI that does not pass."""
    env = {"CI": "true", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    result = run([sys.executable, "-c", BARE, *more], ROOT, env=env)
    assert result.returncode == 1, result.output  # 2 would be an error of collecting
    assert all(f"evaluates[{chapter}]" in result.stdout for chapter in CHAPTERS), result.output
    for needs in ("needs requirements-dev.txt", "in CI a skip is a failure"):
        assert needs in result.stdout, result.output


# What the package says on being imported, word for word.
PYNVML = """
import warnings
warnings.warn(
    "The pynvml package is deprecated. Please install nvidia-ml-py instead. If you did not install "
    "pynvml directly, please report this to the maintainers of the package that installed pynvml "
    "for you.", FutureWarning, stacklevel=2)
"""


def test_old_pynvml(tmp_path: Path) -> None:
    """Where this package is installed, `import torch` warns of it: no program fails for that, nor
    pytest. Any other warning of its kind is an error."""
    (tmp_path / "pynvml.py").write_text(PYNVML)
    own = "import warnings; warnings.warn('own', FutureWarning)"
    for env in ({}, STRICT):
        for program, status in (("import torch", 0), (own, 1)):
            path = {"PYTHONPATH": str(tmp_path)}
            result = run([sys.executable, "-c", program], tmp_path, env=env | path)
            assert result.returncode == status, result.output
    collects = "-m pytest -q -m smoke --collect-only -p no:cacheprovider tests/chapters"
    result = run([sys.executable, *collects.split()], ROOT, env=path)
    assert result.returncode == 0, result.output


def test_pinning_is_not_ours(tmp_path: Path) -> None:
    """What the DataLoader of torch 2.8 to 2.11 calls where there are GPUs; on a CPU it warns alike.
    The smoke tests do not see it, and see any other."""
    pins = "import torch\ntorch.zeros(1).is_pinned('cuda')\n"
    pins += "try: torch.zeros(1).pin_memory('cuda')\nexcept RuntimeError: pass  # no GPU"
    own = "import warnings\nwarnings.warn('own', DeprecationWarning)"
    all_seen = {"PYTHONWARNINGS": "default::DeprecationWarning"}
    for program, env, count in ((pins, STRICT, 0), (own, STRICT, 1), (pins, all_seen, 3)):
        result = run([sys.executable, "-c", program], tmp_path, env=env)
        assert result.returncode == 0, result.output
        assert len(result.lines("DeprecationWarning:")) == count, result.output


@pytest.mark.parametrize("kind", ["", "-oldest"])
def test_set_up_says_what_it_does(kind: str, tmp_path: Path) -> None:
    """One line for each step, with its size, before pip is silent for minutes."""
    python = tmp_path / f"venv{kind}/bin/python"  # does nothing
    python.parent.mkdir(parents=True)
    python.write_text("#!/bin/sh\n")
    python.chmod(0o755)
    words = [f"PYTHON={python}", f"VENV={tmp_path / 'venv'}", tmp_path / f"venv{kind}/ready"]
    result = run(["make", "--no-print-directory", "-C", ROOT, *words], tmp_path)
    assert result.returncode == 0, result.output
    first, *more = result.stdout.splitlines()
    assert re.fullmatch(rf"setting up \S*venv{kind}: .* GB on disk.*", first)
    assert all(line.startswith("setting up ") for line in more), result.output
