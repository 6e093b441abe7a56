"""gpu_check.py on CPUs: what is broken is reported as broken, what hangs is ended, what is slow is
cut short, and a run that is cut off leaves whole files. (`make proof` runs all checks.) And what
else somebody meets there: the smoke tests with torch alone, and what `make` says meanwhile."""

import json
import re
import shutil
import signal
import sys
import time
from pathlib import Path

import gpu_check
import pytest
from harness import CHAPTERS, ROOT, STRICT, finish, kill_all, run, start

TOOL = ROOT / "tools/gpu_check.py"
TALKS = "import time\nfor n in range({}): time.sleep(0.3); print(n)"


def results(out: Path) -> dict[str, dict]:
    return {row["name"]: row for row in json.loads((out / "gpu.json").read_text())["checks"]}


def told(patch: pytest.MonkeyPatch, checks: list, out: Path, *words: str) -> tuple[int, dict]:
    """The exit status and the results where these are all checks."""
    patch.setattr(gpu_check, "CHECKS", checks)
    patch.setattr(sys, "argv", ["gpu_check.py", "--device", "cpu", "--out", str(out), *words])
    with pytest.raises(SystemExit) as ended:
        gpu_check.main()
    return ended.value.code, results(out)


def a_check_that(what: str) -> tuple[str, str, object]:
    def function(box: gpu_check.Box) -> str:
        if what == "fails":
            box.run([sys.executable, "-c", "raise ValueError('this is the error')"])
        elif what == "hangs":
            sleeper = "import subprocess; subprocess.run(['sleep', '600'])"
            box.run([sys.executable, "-c", sleeper])
        elif what == "leaves a child":
            leaves = "import subprocess; subprocess.Popen(['sleep', '600'], start_new_session=True)"
            box.run([sys.executable, "-c", leaves])
        elif what == "is slow":
            box.run([*gpu_check.PYTHON, "-c", TALKS.format(15)])
        elif what == "breaks":
            raise KeyError("loss")
        elif what == "is not here":
            raise gpu_check.NotHere("no GPU")
        return "it is so"

    return "machine", what, function


def test_what_becomes_of_a_check(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that fails, one that hangs with a child or leaves one, one that breaks: the others run
    all the same, and one that takes as long as the one that hangs, but talks, is ok."""
    kinds = ["works", "fails", "hangs", "leaves a child", "is slow", "breaks", "is not here"]
    checks = [a_check_that(kind) for kind in kinds]
    monkeypatch.setattr(gpu_check, "QUIET", 3)
    code, found = told(monkeypatch, checks, tmp_path, "--machine", "--minutes", "1")
    assert code == 1
    said = [row["status"] for row in found.values()]
    assert said == ["ok", "FAILED", "FAILED", "FAILED", "ok", "FAILED", "not here"]
    assert found["leaves a child"]["text"] == "leaves 1 processes behind"
    assert "status 1, not 0: ValueError: this is the error" in found["fails"]["text"]
    assert found["hangs"]["text"] == "hangs: no output for 3 s"
    assert "KeyError" in found["breaks"]["text"]


def test_minutes_are_shared_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A group that takes all of its time leaves the next one its own; what is left is listed. That
    is no failure, but not status 0 either."""

    def slow(box: gpu_check.Box) -> str:
        return box.run([*gpu_check.PYTHON, "-c", TALKS.format(2000)])

    checks = [("machine", "slow", slow), ("machine", "late", slow), ("speed", "quick", str)]
    code, found = told(monkeypatch, checks, tmp_path, "--minutes", "0.15")
    assert code == 3
    assert [row["status"] for row in found.values()] == ["cut short", "cut short", "ok"]
    assert found["slow"]["text"].startswith("by --minutes") and found["slow"]["output"]
    assert found["late"]["text"].startswith("not begun")


def test_an_impatient_ctrl_c_leaves_whole_files_and_no_process(tmp_path: Path) -> None:
    out = tmp_path / "out"
    process = start([sys.executable, TOOL, "--device", "cpu", "--out", out], tmp_path)
    try:
        assert process.stdout.readline().startswith("ok          machine: GPUs, driver")
        for _ in range(3):
            process.send_signal(signal.SIGINT)
            time.sleep(0.005)
        result = finish(process)  # which fails where a process is left
    finally:
        kill_all(process)
    assert result.returncode == 130 and "Traceback" not in result.output
    assert [*results(out)][:1] == ["GPUs, driver and torch"]
    assert not list(out.glob("*.tmp"))


def test_no_gpu(tmp_path: Path) -> None:
    """It does not go on with CPUs by itself."""
    command = [sys.executable, TOOL, "--out", tmp_path / "out"]
    result = run(command, tmp_path, env={"CUDA_VISIBLE_DEVICES": ""})
    assert result.returncode == 1 and "Traceback" not in result.output
    assert "error: torch sees no GPU: try --machine, or --device cpu" in result.stderr


def box_of(ranks: int, folder: Path) -> gpu_check.Box:
    return gpu_check.Box("cpu", folder, ranks)


def arguments(words: list) -> dict[str, str]:
    """Of a chapter: the last of each flag counts."""
    words = list(map(str, words))
    return {a: b for a, b in zip(words, words[1:], strict=False) if a.startswith("--")}


@pytest.mark.parametrize("ranks", [1, 8, 24])
def test_any_number_of_ranks_trains_as_long(
    ranks: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """20 steps an epoch at the same rate, and 07's images are no multiple of the ranks."""
    started = []
    monkeypatch.setattr(gpu_check.Box, "run", lambda _, words, *rest, **more: started.append(words))
    box = box_of(ranks, tmp_path)
    box.chapter("02_distributed", out="a")
    with pytest.raises(IndexError):  # as nothing has run
        gpu_check.evaluation(box)
    training, evaluation = map(arguments, started[:2])
    batch = int(training["--batch-size"])
    assert batch % ranks == 0 and int(training["--synthetic"]) == 20 * batch
    assert float(training["--lr"]) * batch / 256 == pytest.approx(0.0125)
    assert training["--nproc-per-node"] == str(ranks)
    images = int(evaluation["--synthetic"])
    assert images >= int(evaluation["--batch-size"]) and (images // 4 % ranks == 1 or ranks == 1)


def test_horovod_without_nccl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Is what the machine lacks, and no failure; anything else that 05 says is one."""
    box, says = box_of(2, tmp_path), "this Horovod has no nccl"
    assert f'fail("{says}: ' in (ROOT / "05_horovod/main.py").read_text()
    monkeypatch.setattr(Path, "is_file", lambda path: True)

    def ends(box: gpu_check.Box, *args: object, **more: object) -> None:
        raise gpu_check.Failed("status 1, not 0")

    monkeypatch.setattr(gpu_check.Box, "run", ends)
    for output, outcome in ((f"error: {says}: bash", gpu_check.NotHere), ("", gpu_check.Failed)):
        box.output = output
        with pytest.raises(outcome):
            box.chapter("05_horovod", out="a")


@pytest.mark.parametrize("kind", ["fp32", "bf16"])
def test_other_guesses(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """07 is compared without TF32. One guess that differs counts in fp32, at the same accuracy."""

    def chapter(box: gpu_check.Box, name: str, *flags: object, **more: object) -> list[dict]:
        if "--evaluate" not in flags:
            return []
        assert more["env"] == {"NVIDIA_TF32_OVERRIDE": "0"}
        file = Path(arguments(list(flags))["--save-predictions"])
        guess = 2 if file.stem == f"{kind}-128" else 1
        file.write_text(f"path,label,class1\nimage 0,0,{guess}\nimage 1,0,1\n")
        return [{"event": "eval", "acc1": 0.0}]

    monkeypatch.setattr(gpu_check.Box, "chapter", chapter)
    if kind == "fp32":
        with pytest.raises(gpu_check.Failed, match="1 guesses differ"):
            gpu_check.evaluation(box_of(2, tmp_path))
    else:
        found = gpu_check.evaluation(box_of(2, tmp_path))
        assert found == "fp32 equal, in bf16 1 of 2 guesses differ"


def test_tf32(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A warning, or a switch that does nothing, is a failure."""
    for said in ({"warnings": ["old"]}, {"convolutions": False}, {"products": False}):
        answer = {"warnings": [], "convolutions": True, "products": True} | said
        monkeypatch.setattr(gpu_check.Box, "probe", lambda *args, answer=answer: answer)
        with pytest.raises(gpu_check.Failed):
            gpu_check.tf32(box_of(2, tmp_path))


def test_processes_are_for_cpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def ranks(box: gpu_check.Box) -> str:
        return str(box.ranks)

    code, found = told(monkeypatch, [("machine", "ranks", ranks)], tmp_path, "--processes", "5")
    assert code == 0 and found["ranks"]["text"] == "5"
    result = run([sys.executable, TOOL, "--processes", "4", "--out", tmp_path / "o"], tmp_path)
    assert result.returncode == 2 and "--processes is for --device cpu" in result.stderr


# Faults, and the check that must see each: group, file, what is there, what comes instead.
PLANTED = {
    "04_apex --amp-dtype fp32": (
        "chapters", "04_apex/main.py", 'if "RANK" not in os.environ', "if True"),
    "02_distributed": (
        "chapters", "02_distributed/main.py", '["initial_lr"] * factor', '["initial_lr"] * 0'),
    "01_dataparallel": (
        "chapters", "01_dataparallel/main.py", "    model.train()\n",
        "    model.train()\n    print('Grad strides do not match bucket view strides.')\n"),
    "waits in an ordinary step": (
        "exactness", "02_distributed/main.py", "optimizer.zero_grad()",
        "optimizer.zero_grad(); loss.item()"),
    "memory over many all-reduces": (
        "exactness", "tools/gpu_probes.py", "        if step % 500 == 0:",
        "        vars(torch).setdefault('leak', []).append(torch.ones(20_000))\n"
        "        if step % 500 == 0:"),
    "resume bit for bit": (
        "exactness", "02_distributed/main.py",
        'state["state"] = checkpoint["optimizer"]["state"]', 'state["state"] = {}'),
    "06 stops on SIGUSR1 and goes on": (
        "exactness", "06_slurm/main.py", "    ASKED_TO_STOP.append(number)", "    pass"),
    "a broken JPEG": (
        "exactness", "02_distributed/main.py",
        '        raise ValueError(f"cannot read {path}: {error}") from error',
        "        return torch.zeros(3, 64, 64, dtype=torch.uint8)"),
    "compiled once": (
        "exactness", "02_distributed/main.py", "    model.train()\n",
        "    model.train()\n    torch.use_deterministic_algorithms(epoch > 0)\n"),
    "two ranks on one device, over gloo": (
        "exactness", "02_distributed/main.py", "    model.train()\n",
        "    model.train()\n    __import__('time').sleep(1e6)\n"),
    "two ranks on one device, over nccl": (
        "exactness", "02_distributed/main.py", "    model.train()\n",
        "    model.train()\n    1 / (1 - rank)\n"),
    "JPEG images a second, one core": (
        "speed", "02_distributed/main.py", "image = decode_image(", "raise OSError("),
}  # fmt: skip
SLOW = ["01_dataparallel", "resume bit for bit", "a broken JPEG", "compiled once"]
SLOW += ["two ranks on one device, over gloo", "two ranks on one device, over nccl"]
SLOW += ["memory over many all-reduces", "waits in an ordinary step"]


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[pytest.mark.proof] * (n in SLOW)) for n in PLANTED]
)
def test_planted_fault(name: str, tmp_path: Path) -> None:
    group, file, old, new = PLANTED[name]
    for folder in ("tools", *(path.name for path in ROOT.glob("0[1-7]_*"))):
        shutil.copytree(ROOT / folder, tmp_path / folder)
    text = (tmp_path / file).read_text()
    assert text.count(old) == 1
    (tmp_path / file).write_text(text.replace(old, new))
    quiet = 25 if "sleep" in new else 90
    only = (
        f"import gpu_check as g; g.QUIET, g.SOON = {quiet}, 10; "
        f"g.CHECKS[:] = [c for c in g.CHECKS if c[1] == {name!r}]; g.main()"
    )
    argv = ["--device", "cpu", "--only", group, "--minutes", 8, "--out", tmp_path / "out"]
    result = run([sys.executable, "-c", only, *argv], tmp_path / "tools")
    assert result.returncode == 1, result.output
    found = results(tmp_path / "out")[name]
    says = "still trains" if file.startswith("06") else "hangs" if "sleep" in new else ""
    assert found["status"] == "FAILED" and says in found["text"], result.output
    assert bool(says) == bool(re.search("hangs|still", found["text"])), result.output


@pytest.mark.proof
def test_three_ranks_resume_bit_for_bit(tmp_path: Path) -> None:
    """And any number: DDP keeps the buckets that it has begun with."""
    only = (
        "import gpu_check as g; "
        "g.CHECKS[:] = [c for c in g.CHECKS if c[1] == 'resume bit for bit']; g.main()"
    )
    argv = ["--device", "cpu", "--processes", 3, "--only", "exactness", "--out", tmp_path / "out"]
    result = run([sys.executable, "-c", only, *argv], ROOT / "tools")
    assert result.returncode == 0, result.output


@pytest.mark.proof
def test_all_checks_on_cpus(tmp_path: Path) -> None:
    out = tmp_path / "out"
    result = run(
        [sys.executable, TOOL, "--device", "cpu", "--minutes", "20", "--out", out], tmp_path, 1300
    )
    assert result.returncode == 0, result.output
    assert {row["status"] for row in results(out).values()} == {"ok", "not here"}


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


@pytest.mark.parametrize("more", [[], ["tensorboard", "playwright"]])  # the latter without mkdocs
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
