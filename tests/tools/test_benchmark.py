"""The benchmark: its arithmetic, its baseline, what it writes, that it leaves no process."""

import json
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any
from unittest import mock

import benchmark
import parts
import pytest
import reference
import report
import run_log
import torch
import torchvision
from crew import Crew
from harness import PATIENCE, ROOT, TOOLS, left_behind, run
from refusals import snapshot
from with_tiny_model import TinyModel

BENCHMARK = TOOLS / "benchmark"
RESULTS = set(ROOT.glob("docs/assets/results/*/benchmark.json"))
COMPLETE = ROOT / "docs/assets/results/cpu-2-cores/benchmark.json"
TINY = ["--steps", "2", "--image-size", "32", "--batch-size-per-rank", "4", "--rounds", "1"]
# torchvision 0.29 announces that decode_image will move to TorchCodec; the chapters use it.
pytestmark = pytest.mark.filterwarnings("ignore:The image decoding and encoding:DeprecationWarning")


def tiny_model() -> Any:
    """A context in which torchvision's models are tiny ones."""
    tiny = lambda arch, num_classes: TinyModel(num_classes)  # noqa: E731
    return mock.patch.object(torchvision.models, "get_model", tiny)


def one_run(number: int, variant: str, train: float, cpu: float, foreign: float) -> dict:
    row = {"round": number, "variant": variant, "train": train, "cpu": cpu, "foreign": foreign}
    other = {"val": 80, "first_step": 1, "wall": 20.0, "memory": 900}
    return row | other | {"failed": None}


def three_rounds() -> list[dict]:
    """The machine is half as fast in the second round, and busy with other work in the third."""
    runs = []
    for number, speed, foreign in ((0, 1.0, 0.1), (1, 0.5, 0.1), (2, 1.0, 0.8)):
        runs.append(one_run(number, "reference", 20 * speed, 10.0, foreign))
        runs.append(one_run(number, "02", (24, 30, 5)[number] * speed, 8.0 + number, 0.1))
    return runs


def variants_of(runs: list[dict]) -> dict:
    """The figures of a committed result, had its training comparison had these runs."""
    result = json.loads(COMPLETE.read_text()) | {"runs": runs}
    result["summary"] = report.summarise(result)
    assert report.tables(result, "zh")
    return result["summary"]["variants"]


def test_ratios_are_taken_within_a_round_and_loaded_runs_are_marked() -> None:
    variants = variants_of(three_rounds())
    # 24/20 and 15/10; of the third round the reference was disturbed. Not (median 15)/(median 15).
    assert variants["02"]["train_ratio"] == pytest.approx((1.2 + 1.5) / 2)
    assert variants["02"]["cpu_ratio"] == pytest.approx(0.9)  # of all three
    assert variants["reference"]["loaded"] == 1 and variants["reference"]["train"]["n"] == 2
    assert variants["02"]["train"] == {"median": 15, "min": 5, "max": 24, "n": 3}
    everywhere = [dict(row, foreign=0.9) for row in three_rounds()]
    assert variants_of(everywhere)["02"]["train_ratio"] == pytest.approx(1.2)


def test_failed_runs_count_for_nothing() -> None:
    runs = three_rounds()
    runs[1] = {key: runs[1][key] for key in ("round", "variant", "foreign")} | {"failed": "why"}
    variants = variants_of(runs)
    assert variants["02"]["runs"] == 2 and variants["02"]["train_ratio"] == 1.5
    assert variants_of(runs[1:2])["02"]["train_ratio"] is None


def test_a_log_tells_rates_without_the_first_step() -> None:
    first = {"max_memory": 900, "seconds": 9.0, "step": 1, "time": 1000}
    last = {"max_memory": 901, "seconds": 19.0, "step": 20, "time": 1020}
    validated = {"time": 1025, "images": 100}
    log = run_log.Run(Path("log"), [{"global_batch_size": 32}], [first, last], [validated])
    expected = {"train": 32, "val": 20, "first_step": 10, "memory": 901}
    assert benchmark.measures(log, begun=990.0) == pytest.approx(expected)


@pytest.mark.parametrize("result", sorted(RESULTS), ids=lambda path: path.parent.name)
def test_committed_results_are_rendered_as_they_stand(result: Path, tmp_path: Path) -> None:
    benchmark.main(["--render", str(result), "--out", str(tmp_path)])
    shown = [path for path in result.parent.iterdir() if path != result]
    assert {"RESULT.en.md", "RESULT.zh.md"} <= {path.name for path in shown}
    for path in shown:
        assert path.read_bytes() == (tmp_path / path.name).read_bytes(), path


def test_no_result_is_overwritten(tmp_path: Path) -> None:
    (tmp_path / "benchmark.json").write_text("{}")
    with pytest.raises(SystemExit, match="holds a benchmark.json: give another --out"):
        benchmark.main(["--out", str(tmp_path)])
    assert snapshot(tmp_path) == {"benchmark.json": b"{}"}


PROCESSES = """
import json, sys
from pathlib import Path
import processes
# It outlives its parent, and notes its own CPU seconds as it ends.
burn = "import time\\nwhile time.process_time() < 0.2: pass\\n"
burn += f"print(time.process_time(), file=open({str(Path('cpu').resolve())!r}, 'a'))"
orphan = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {burn!r}])"
lost = "import os, time\\nif os.fork(): time.sleep(300)\\nos.setsid()\\ntime.sleep(300)"
# One write: both copies write into one file, and a line must stay a line.
bad = "import os; os.write(2, b'first\\\\n02_distributed: error: no such thing\\\\n'); os._exit(1)"
codes, found = dict(burn=orphan, lost=lost, bad=bad), {}
processes.end_on_signals()
for name, code in codes.items():
    commands = [[sys.executable, "-c", code]] * 2
    timeout = 5.0 if name == "lost" else 300.0
    found[name] = processes.run_timed(commands, {}, timeout, Path("log.txt").resolve())
print(json.dumps(found))
"""


def test_cpu_of_all_generations_counts_and_no_process_is_left(tmp_path: Path) -> None:
    words = [sys.executable, "-c", PROCESSES]
    result = run(words, tmp_path, env={"PYTHONPATH": str(BENCHMARK)})
    assert result.returncode == 0, result.output
    found = json.loads(result.said[-1])
    children = sum(map(float, (tmp_path / "cpu").read_text().split()))
    assert found["burn"]["failed"] is None and found["burn"]["cpu"] >= children >= 0.4
    assert found["lost"]["failed"] == "no end within 5 s"
    assert found["bad"]["failed"] == "status 1: 02_distributed: error: no such thing"
    assert not left_behind()


def test_our_pictures_are_those_of_pil(tmp_path: Path) -> None:
    pictures = parts.draw_pictures(tmp_path / "some", 3, 500, 375)
    folder = parts.image_folder(tmp_path / "folder", pictures, 3)
    found = parts.input_pipeline(folder, 224, passes=1, rounds=2)
    assert found["largest_difference"] <= 1 and 0 < found["mean_difference"] < 0.2


@pytest.mark.parametrize("native", [True, False])
def test_both_loops_are_timed_in_each_precision(
    native: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """bf16 is left out where the hardware has none."""
    monkeypatch.setattr(parts, "has_bf16", lambda: native)
    with tiny_model():
        found = parts.loop("resnet18", 32, 2, 2, 2, tmp_path)
    assert ("bf16" in {row["mode"] for row in found["modes"]}) == native
    for row in found["modes"]:
        first, second = row["rounds"]
        assert [*first] == ["ours", "bare"] and [*second] == ["bare", "ours"]
        assert row["images"] == 4 and all(way["cpu"] > 0 for way in first.values())


def one_rank(folder: Path) -> list:
    """In a crew member: what runs between ranks, on tiny sizes; the reference's weights."""
    parts.measure_collectives("gloo", folder / "gloo.json", sizes=(4, 1 << 20))
    torch.manual_seed(int(reference.os.environ["RANK"]))  # DDP is to give all the weights of rank 0
    flags = "--arch any --image-size 32 --batch-size 8 --workers 0".split()
    places = ["--data", str(folder / "data"), "--output-dir", str(folder / "run")]
    with tiny_model():
        model = reference.main([*flags, *places])
    return [weight.detach().numpy() for weight in model.parameters()]


def test_ranks_are_timed_and_the_reference_trains_as_one(crew: Crew, tmp_path: Path) -> None:
    """Its ranks see different images and end with the same weights."""
    pictures = parts.draw_pictures(tmp_path / "pictures", 4, 500, 375)
    parts.image_folder(tmp_path / "data", pictures, 16)
    first, second = crew.run(one_rank, tmp_path, world_size=2)
    assert all((a == b).all() for a, b in zip(first, second, strict=True))
    log = run_log.read_run(tmp_path / "run")
    assert [row["step"] for row in log.train] == [1, 2] and log.eval[0]["images"] == 16
    gloo = json.loads((tmp_path / "gloo.json").read_text())
    assert (gloo["backend"], gloo["world_size"]) == ("gloo", 2)
    for row in gloo["rows"]:  # each of two ranks sends the tensor once
        assert row["bus_bytes_per_second"] == pytest.approx(row["bytes"] / row["seconds"])


def run_tool(argv: list[str], folder: Path, timeout: float = PATIENCE) -> dict:
    """A real run on tiny sizes: its JSON, after what holds of every run."""
    # A short path: a loader worker puts a socket below it, whose name has at most 107 characters.
    temporary = Path(tempfile.mkdtemp(prefix="b-"))
    command = [sys.executable, BENCHMARK / "benchmark.py", *TINY, *argv, "--out", folder / "out"]
    result = run(command, folder, timeout, {"TMPDIR": str(temporary)})
    assert result.returncode == 0, result.output
    assert list(temporary.glob("benchmark-*")) == []
    shutil.rmtree(temporary)
    found = json.loads((folder / "out" / "benchmark.json").read_text())
    assert str(ROOT) not in json.dumps(found) and str(folder) not in json.dumps(found)
    assert snapshot(folder / "out").keys() == snapshot(COMPLETE.parent).keys()
    for row in found["runs"]:
        assert row["failed"] is None and row["train"] > 0 and row["val"] > 0
        assert (row["memory"] > 100) == torch.cuda.is_available()
        assert 0 < row["first_step"] < row["wall"] and row["cpu"] > 1
    return found


def test_a_whole_run_writes_results_and_leaves_nothing(tmp_path: Path) -> None:
    alone = ["--variants", "reference", "--processes", "1", "--workers", "0"]
    found = run_tool(alone, tmp_path)
    assert found["summary"]["variants"]["reference"]["train_ratio"] == 1


@pytest.mark.proof
def test_all_variants_and_parts_run(tmp_path: Path) -> None:
    """The chapters beside the reference, the input pipeline, the loop, all-reduce."""
    variants = ["reference", "02", "02 bf16", "01", "03", "04", "06", "07", "2 x 01"]
    found = run_tool(["--all", "--variants", ",".join(variants)], tmp_path, 1800)
    assert [row["variant"] for row in found["runs"]] == variants
    text = (tmp_path / "out" / "RESULT.en.md").read_text()
    assert text.count("| --- |") == 4  # chapters, input, loop, gloo
    assert "104,857,600 B" in text
