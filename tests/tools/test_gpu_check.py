"""gpu_check.py on CPUs: what fails is reported as failed, what hangs is ended, and a run that is
cut off leaves whole files."""

import json
import shutil
import signal
import sys
import time
from functools import partial
from pathlib import Path

import gpu_check
import pytest
from harness import ROOT, SESSION, finish, kill_all, marked, run, start
from warm import run_warm

# Groups begin first. As the last tests of all, these had one worker wait for half a minute, alone.
pytestmark = pytest.mark.xdist_group("gpu_check")
TOOL = ROOT / "tools/gpu_check.py"


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


@pytest.mark.proof
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
    assert said == {"machine": "ok", "links": "ok", "smoke tests": "cut off"}


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


def test_planted_fault(tmp_path: Path) -> None:
    """Chapter 02 without DDP: gradients are not averaged."""
    wrapped = "DistributedDataParallel(raw_model, gradient_as_bucket_view=True)"
    shutil.copytree(ROOT / "tools", tmp_path / "tools")
    shutil.copytree(ROOT / "02_distributed", tmp_path / "02_distributed")
    main = tmp_path / "02_distributed/main.py"
    assert main.read_text().count(wrapped) == 1
    main.write_text(main.read_text().replace(wrapped, "raw_model"))
    (tmp_path / "out").mkdir()
    kit = gpu_check.Kit("cpu", tmp_path / "out")
    places = [str(tmp_path / "tools"), str(tmp_path / "tools/benchmark")]
    before = f"import runpy, sys\nsys.path[:0] = {places}\n"  # before those of this session
    before += "runpy.run_path(sys.argv.pop(1), run_name='__main__')\n"
    (tmp_path / "start.py").write_text(before)

    def in_warm_processes(words: list, quiet: float) -> None:
        at = words.index(gpu_check.PROBE[0])
        probe = tmp_path / "tools/gpu_check.py"
        codes, _, errors = run_warm([tmp_path / "start.py", probe, *words[at + 1 :]], tmp_path, 2)
        assert codes == [0, 0], errors

    kit.run = in_warm_processes
    with pytest.raises(gpu_check.Failed, match="must be less than 1e-10"):
        gpu_check.exactness(kit)


def test_smoke_tests_that_passed(tmp_path: Path) -> None:
    """They are named in gpu.json, also if one fails: pages say of them where they ran."""
    kit = gpu_check.Kit("cpu", tmp_path)
    names = (
        "test_smoke.py::test_runs[02_distributed] PASSED [ 50%]",
        "test_smoke.py::test_ends FAILED",
    )
    command = [*gpu_check.PYTHON, "-c", f"print({chr(10).join(names)!r}); raise SystemExit(1)"]
    real = kit.run
    kit.run = lambda words, *args, **options: real(command, *args, **options)
    with pytest.raises(gpu_check.Failed):
        gpu_check.smoke_tests(kit)
    assert kit.data == {"passed": ["test_runs[02_distributed]"]}


@pytest.mark.proof
def test_all_of_it_on_cpus(tmp_path: Path) -> None:
    command = [sys.executable, TOOL, "--device", "cpu", "--out", tmp_path / "out"]
    result = run(command, tmp_path, 1300, {"CI": ""})
    assert result.returncode == 0, result.output
    found = results(tmp_path / "out")
    assert [row["status"] for row in found.values()] == ["ok"] * 5
    assert found["smoke tests"]["text"] in result.stdout and "ok        speed: 02" in result.stdout
    [rows] = found["speed"]["data"]["2 CPU processes"]["runs"].values()
    assert {row["variant"] for row in rows} == {"reference", "02"}
