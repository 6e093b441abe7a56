"""The benchmark: its arithmetic, its baseline, what it writes, that it leaves no process."""

import json
import os
import re
import signal
import sys
import time
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import benchmark
import options
import parts
import pytest
import report
import run_log
import torch
from harness import ROOT, TOOLS, alive, finish, kill_all, left_behind, run, run_short, start

BENCHMARK = TOOLS / "benchmark"
TOOL = BENCHMARK / "benchmark.py"
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
TINY = ["--steps", "2", "--image-size", "32", "--batch-size-per-rank", "4", "--rounds", "1"]
# torchvision 0.29 announces that decode_image will move to TorchCodec; the chapters use it.
pytestmark = pytest.mark.filterwarnings("ignore:The image decoding and encoding:DeprecationWarning")


def made_up_run(number: int, variant: str, train: float, cpu: float = 10.0, **other: Any) -> dict:
    row = {"round": number, "variant": variant, "train": train, "val": 4 * train, "cpu": cpu}
    row |= {"first_step": 100 / train, "data_wait": 0.01, "wall": 20.0, "memory": 900}
    return row | {"host_memory": 900, "foreign": 0.1, "load": 1.0, "failed": None} | other


def made_up_result(runs: list[dict], **settings: Any) -> dict:
    usual = dict(arch="resnet18", image_size=224, batch_size_per_rank=16, processes=2, steps=20)
    usual |= dict(device="cpu", images="generated JPEGs", rounds=3, parts=list(benchmark.PARTS))
    result = {"format": 1, "date": "2026-11-21T10:00:00+00:00", "commit": "0" * 40, "dirty": False}
    result |= {"machine": {"cpu": "a CPU", "cores": 2, "memory_gib": 24, "gpus": []}}
    result |= {"versions": {"torch": "2.15.0"}, "settings": usual | settings, "command": "python x"}
    result |= {"commands": {}, "runs": runs, "input": [], "collectives": [], "smoke": None}
    seconds = {"reference": 2.0, "ours": 1.0, "PIL decode": 0.5, "torchvision decode": 0.4}
    facts = {"file_kb": 90, "largest_difference": 1, "mean_difference": 0.04}
    rounds = [{"round": 0, "images": 100, "seconds": seconds}]
    result["input"] = [{"size": "500x375", "rounds": rounds} | facts]
    rounds = [{"ours": {"wall": 2.0, "cpu": 2.0, "foreign": 0}, "bare": {"wall": 2.0, "cpu": 1.9,
               "foreign": 0}}]  # fmt: skip
    mode = {"mode": "fp32", "images": 100, "rounds": rounds, "limits": {"flop": 1e10, "bytes": 1e9}}
    mode |= {"flop_per_image": 1e8, "bytes_per_image": 1e7}
    result["loop"] = {"device": "cpu", "modes": [mode]}
    rows = [{"bytes": 1024, "seconds": 1e-3, "bus_bytes_per_second": 1e6}]
    result["collectives"] = [{"backend": "gloo", "world_size": 2, "rows": rows, "failed": None}]
    # bf16 takes half of the CPU time; its wall time in the third round is that of other work.
    rounds = [{"round": number, "turns": {
        name: {"wall": 20 if name == "bf16" and foreign else cpu, "cpu": cpu, "foreign": foreign}
        for name, cpu in (("plain", 8.0), ("bf16", 4.0))}}
        for number, foreign in ((0, 0.0), (1, 0.0), (2, 0.8))]  # fmt: skip
    facts = {"steps": 4, "first_step": {"plain": 3, "bf16": 4}, "rounds": rounds, "failed": None}
    facts |= {"batch_size": 4, "image_size": 112}
    result["options"] = [{"group": "step", "world_size": 1, **facts}]
    result["options"] += [{"group": "ddp", "world_size": 2, **facts}]
    return result


def three_rounds() -> list[dict]:
    """The machine is half as fast in the second round, and busy with other work in the third."""
    runs = []
    for number, speed, foreign in ((0, 1.0, 0.1), (1, 0.5, 0.1), (2, 1.0, 0.8)):
        runs.append(made_up_run(number, "reference", 20 * speed, 10.0, foreign=foreign))
        runs.append(made_up_run(number, "02", (24, 30, 5)[number] * speed, 8.0 + number))
        runs.append(made_up_run(number, "02 bf16", 60 * speed, 5.0, foreign=foreign))
    return runs


def targets(result: dict) -> dict[str, dict]:
    return {row["name"]: row for row in report.summarise(result)["reach"]}


def test_each_round_begins_with_another_variant() -> None:
    orders = [benchmark.rotated("abc", number) for number in range(4)]
    assert orders == [list("abc"), list("bca"), list("cab"), list("abc")]


def test_ratios_are_taken_within_a_round_and_loaded_runs_are_marked() -> None:
    variants = report.summarise(made_up_result(three_rounds()))["variants"]
    ours = variants["02"]["ratio"]
    # 24/20 and 15/10; of the third round the reference was disturbed. Not (median 15)/(median 15).
    assert ours["train"]["n"] == 2 and ours["train"]["median"] == pytest.approx((1.2 + 1.5) / 2)
    assert ours["cpu"]["n"] == 3 and ours["cpu"]["median"] == pytest.approx(0.9)
    assert variants["reference"]["loaded"] == 1 and variants["02"]["loaded"] == 0
    assert variants["reference"]["train"]["median"] == 15 and variants["02"]["train"]["n"] == 3
    assert variants["02"]["train"] == {"median": 15, "min": 5, "max": 24, "n": 3}
    everywhere = [dict(row, foreign=0.9) for row in three_rounds()]
    loaded = report.summarise(made_up_result(everywhere))["variants"]["02"]
    assert loaded["ratio"]["train"]["n"] == 3 and loaded["ratio"]["train"]["loaded"]


def test_failed_runs_count_for_nothing() -> None:
    runs = three_rounds()
    runs[1] = {key: runs[1][key] for key in ("round", "variant", "foreign")} | {"failed": "why"}
    variants = report.summarise(made_up_result(runs))["variants"]
    assert variants["02"]["runs"] == 2 and variants["02"]["ratio"]["train"]["median"] == 1.5
    only_failed = [dict(runs[1], round=number) for number in range(3)]
    variants = report.summarise(made_up_result(only_failed))["variants"]
    assert variants["02"]["train"] is None and variants["02"]["ratio"]["train"] is None
    assert report.fragment(with_summary(only_failed), "zh")


def with_summary(runs: list[dict]) -> dict:
    result = made_up_result(runs)
    return result | {"summary": report.summarise(result)}


def test_targets_hold_or_fail_only_in_their_setting() -> None:
    found = targets(made_up_result(three_rounds()))
    assert found["train_fp32"]["holds"] is True and found["train_bf16"]["holds"] is True
    assert found["input_small"]["holds"] is True and found["input_levels"]["holds"] is True
    assert found["loop"]["holds"] is False and found["loop"]["measured"]["median"] == 0.95
    assert found["ddp"]["holds"] is None and found["ddp"]["measured"] is None
    slower = [dict(row, train=row["train"] * (0.9 if row["variant"] == "02" else 1))
              for row in three_rounds()]  # fmt: skip
    slower += [made_up_run(0, "03", 20, cpu=20), made_up_run(0, "03 spawned", 15, cpu=25)]
    found = targets(made_up_result(slower))
    assert found["train_fp32"]["measured"]["median"] == pytest.approx(1.215)
    assert found["spawn_cpu"]["measured"]["median"] == 0.8
    assert found["spawn_cpu"]["holds"] is False  # these are to be at most so much
    found = targets(made_up_result(three_rounds(), image_size=64))
    assert found["train_fp32"]["measured"] and found["train_fp32"]["holds"] is None


def test_a_log_tells_rates_without_the_first_steps() -> None:
    log = run_log.Run(Path("metrics.jsonl"), starts=[{"global_batch_size": 32}])
    for epoch in (0, 1):
        first, last = 20 * epoch + 1, 20 * epoch + 20
        row = {"epoch": epoch, "max_memory": 900 + epoch, "data_wait": 0.5, "seconds": 9.0}
        log.train.append(row | {"step": first, "time": 1000 + 100 * epoch})
        row |= {"data_wait": 0.1, "seconds": 19.0}
        log.train.append(row | {"step": last, "time": 1020 + 100 * epoch})
        log.eval.append({"epoch": epoch, "time": 1025 + 100 * epoch, "images": 100})
    found = benchmark.measures(log, begun=990.0)
    expected = {"train": 32, "val": 20, "first_step": 10, "data_wait": 0.1, "memory": 901}
    assert found == pytest.approx(expected)


def test_render_makes_tables_and_charts_from_the_json_alone(tmp_path: Path) -> None:
    source = tmp_path / "benchmark.json"
    source.write_text(json.dumps(made_up_result(three_rounds())))
    assert benchmark.main(["--render", str(source)]) == 0
    english, chinese = ((tmp_path / f"RESULT.{x}.md").read_text() for x in ("en", "zh"))
    assert "2 of 9 runs met more than 0.35 CPUs" in english
    assert "| 02 | 15 (5–24) | 1.35 |" in english and "| 02 | 15 (5–24) | 1.35 |" in chinese
    assert [x.count("|") for x in english.split("\n")] == [
        x.count("|") for x in chinese.split("\n")
    ]
    assert "训练" in chinese and "训练" not in english
    for language, title in (("en", "training"), ("zh", "训练")):
        drawing = ElementTree.parse(tmp_path / f"chart.{language}.svg").getroot()
        texts = ["".join(x.itertext()) for x in drawing.iter("{http://www.w3.org/2000/svg}text")]
        assert title in texts[0] and "02 bf16" in texts and any("×1.35" in x for x in texts)
    for language in ("en", "zh"):
        parts = (tmp_path / f"SUMMARY.{language}.md").read_text().split("<!-- ")
        rows = {p[:3].strip(" -"): re.findall(r"^\| ([\w ]+) \| [\d-]", p, re.M) for p in parts[1:]}
        assert rows["all"] == ["reference", "02", "02 bf16"] and "| 02 | 15 | 1.35 |" in parts[1]
        assert rows["02"] == rows["all"] and len(rows) == 2
    before = (tmp_path / "RESULT.en.md").read_text()
    with pytest.raises(SystemExit, match="holds a RESULT.en.md: --force"):
        benchmark.main(["--render", str(source)])
    assert benchmark.main(["--render", str(source), "--force"]) == 0
    assert (tmp_path / "RESULT.en.md").read_text() == before


def test_single_measures_are_compared_within_a_round() -> None:
    result = made_up_result([])
    found = report.summarise(result)["options"]
    assert found["step"]["bf16"]["ratio"] == {"median": 2, "min": 2, "max": 2, "n": 3}  # CPU time
    assert found["ddp"]["bf16"]["ratio"] == {"median": 2, "min": 2, "max": 2, "n": 2}  # not loaded
    assert found["step"]["plain"]["milliseconds"]["median"] == 2000
    result["settings"]["device"] = "cuda"
    assert report.summarise(result)["options"]["step"]["bf16"]["ratio"]["n"] == 2
    result["summary"] = report.summarise(result)
    english, chinese = (report.fragment(result, language) for language in ("en", "zh"))
    assert "| `bf16` | 2 (2–2) | 1000 | 4 | `--bf16` |" in english
    assert "2 processes, batch 4, 112 px" in english and "2 个进程，batch 4，112 像素" in chinese
    result["options"][1] = {"group": "ddp", "world_size": 2, "failed": "exit status 1"}
    result["summary"] = report.summarise(result)
    assert "112 px" not in report.fragment(result, "en")
    del result["options"]  # an older result
    assert report.summarise(result)["options"] == {}


MISTAKES = [
    (["--rounds", "0"], "--rounds 0"),
    (["--steps", "1"], "--steps 1"),
    (["--arch", "list_models"], "--arch list_models"),
    (["--data", "nowhere"], "--data nowhere"),
    (["--data", ".", "--synthetic"], "not both"),
    (["--chapters", "2"], "--chapters 2"),
    (["--variants", "reference,02 fast"], "'02 fast'"),
    (["--render", "nowhere.json"], "nowhere.json"),
    (["--render", "other.json"], "other.json"),
    (["--render", "half.json"], "half.json is no benchmark.json of this tool: KeyError('machine')"),
    (["--chapters", "02", "--variants", "02"], "not both"),
    (["--out", "used"], "used holds a benchmark.json"),
    (["--out", "other.json"], "other.json"),
]


@pytest.mark.parametrize(("argv", "words"), MISTAKES, ids=[" ".join(argv) for argv, _ in MISTAKES])
def test_mistakes_end_in_one_line(
    argv: list[str], words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "used").mkdir()
    (tmp_path / "used" / "benchmark.json").write_text("{}")
    (tmp_path / "other.json").write_text('{"format": 2}')
    half = made_up_result(three_rounds())
    del half["machine"]
    (tmp_path / "half.json").write_text(json.dumps(half))
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(SystemExit) as ended:
        benchmark.main(
            [*argv, *([] if "--out" in argv or "--render" in argv else ["--out", "new"])]
        )
    line = str(ended.value)
    assert line.startswith("benchmark: error: ") and words in line and "\n" not in line
    assert sorted(tmp_path.rglob("*")) == before


def test_chapters_of_the_training_comparison(monkeypatch: pytest.MonkeyPatch) -> None:
    """All variants of the chosen chapters, --quick or not; without Horovod, never a silent gap."""

    def chosen(*argv: str) -> list[str]:
        return benchmark.variants_of(benchmark.parse_args(["--processes", "1", *argv]), False)

    assert chosen("--chapters", "03") == ["reference", "03", "03 spawned"]
    assert chosen("--quick", "--chapters", "04") == ["reference", "04"]
    monkeypatch.setattr(benchmark, "HOROVODRUN", Path("nowhere"))
    assert "04" in chosen() and "05" not in chosen()
    for argv in (["--chapters", "05"], ["--variants", "05"]):
        with pytest.raises(SystemExit, match="05 needs Horovod"):
            chosen(*argv)


def test_a_full_disk_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(path: Path, *_: Any, **__: Any) -> None:
        path.touch()
        raise OSError(28, "No space left on device", str(path))

    (tmp_path / "benchmark.json").write_text("old")
    monkeypatch.setattr(Path, "write_text", full)
    with pytest.raises(OSError, match="No space"):
        report.save(made_up_result(three_rounds()), tmp_path)
    assert [path.read_text() for path in tmp_path.iterdir()] == ["old"]


PROCESSES = """
import json, os, sys
from pathlib import Path
import benchmark
burn = "import time\\nwhile time.process_time() < 0.7: pass"
nested = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {burn!r}])"
lost = "import os, time\\nif os.fork(): time.sleep(300)\\nos.setsid()\\ntime.sleep(300)"
# One write: both copies write into one file, and a line must stay a line.
bad = "import os; os.write(2, b'first\\\\n02_distributed: error: no such thing\\\\n'); os._exit(1)"
found = {}
for name, code in dict(burn=nested, lost=lost, bad=bad).items():
    command = [sys.executable, "-c", code]
    found[name] = benchmark.run_timed([command, command], {"X": "1"}, 5.0, Path("log.txt"))
print(json.dumps(found))
"""


def test_cpu_of_all_generations_counts_and_no_process_is_left(tmp_path: Path) -> None:
    begun = time.monotonic()
    result = run([sys.executable, "-c", PROCESSES], tmp_path, 60, {"PYTHONPATH": str(BENCHMARK)})
    assert result.returncode == 0, result.output
    found = json.loads(result.said[-1])
    assert found["burn"]["failed"] is None and 1.4 <= found["burn"]["cpu"] < 4
    assert found["burn"]["host_memory"] > 5 and found["burn"]["foreign"] >= 0
    assert found["lost"]["failed"] == "no end within 5 s" and time.monotonic() - begun < 50
    assert found["bad"]["failed"] == "status 1: 02_distributed: error: no such thing"
    assert not left_behind()


def test_our_pictures_are_those_of_pil(tmp_path: Path) -> None:
    pictures = parts.draw_pictures(tmp_path / "some", 3, (500, 375), portrait=False)
    assert all(70 < path.stat().st_size / 1000 < 110 for path in pictures)
    folder = parts.image_folder(tmp_path / "folder", pictures, 3, 3)
    threads = torch.get_num_threads()
    try:
        found = parts.input_pipeline(folder, 224, passes=1, rounds=2)
    finally:
        torch.set_num_threads(threads)
    assert found["largest_difference"] <= 1 and 0 < found["mean_difference"] < 0.2
    assert [len(row["seconds"]) for row in found["rounds"]] == [4, 4]
    assert found["rounds"][0]["images"] == 3


def test_both_loops_are_timed_in_each_precision(tmp_path: Path) -> None:
    threads, precision = torch.get_num_threads(), torch.get_float32_matmul_precision()
    try:
        found = parts.loop("resnet18", 32, 2, 2, 2, tmp_path)
    finally:
        torch.set_num_threads(threads)
        torch.set_float32_matmul_precision(precision)
    modes = {row["mode"]: row for row in found["modes"]}
    assert set(modes) >= {"fp32", "bf16"}
    for row in modes.values():
        assert row["images"] == 4 and len(row["rounds"]) == 2
        assert all(one[way]["cpu"] > 0 for one in row["rounds"] for way in ("ours", "bare"))
    # 11.2 M weights, forward and twice as much backward, on an image of 32 pixels.
    assert 1e8 < modes["fp32"]["flop_per_image"] < 1e9
    assert modes["fp32"]["bytes_per_image"] > 11e6


def test_all_reduce_is_timed_between_real_ranks(tmp_path: Path) -> None:
    script = [BENCHMARK / "parts.py", "gloo", tmp_path / "gloo.json"]
    result = run_short([*TORCHRUN, "--nproc-per-node", "3", *script], tmp_path, 240)
    assert result.returncode == 0, result.output
    found = json.loads((tmp_path / "gloo.json").read_text())
    assert (found["backend"], found["world_size"]) == ("gloo", 3)
    rows = {row["bytes"]: row for row in found["rows"]}
    assert len(rows) == 9 and max(rows) == 100 << 20
    for size, row in rows.items():  # each of three ranks sends 4/3 of the tensor
        assert row["bus_bytes_per_second"] == pytest.approx(size * 4 / 3 / row["seconds"])
    assert rows[4]["seconds"] < rows[100 << 20]["seconds"] / 10


def test_each_measure_is_in_both_languages() -> None:
    names = {name for group in options.GROUPS.values() for name in group}
    for language in ("en", "zh"):
        words = report.words_in(language)
        assert set(words["options_used"]) == names - {"plain", "without DDP"}
        assert all(f"options_{group}" in words for group in options.GROUPS)


@pytest.mark.parametrize("name", options.GROUPS["step"])
def test_a_measure_does_what_its_name_says(name: str) -> None:
    images, targets = torch.randn(2, 3, 32, 32), torch.tensor([1, 2])
    measure = options.GROUPS["step"][name]
    trainer = options.Trainer(measure, "resnet18", images, targets)
    compiled = isinstance(trainer.model, torch._dynamo.OptimizedModule)
    assert compiled is ("compile" in name)
    model = trainer.model._orig_mod if compiled else trainer.model
    types = set()
    model.fc.register_forward_hook(lambda _m, _inputs, output: types.add(output.dtype))
    weights, inputs = (
        tensor.is_contiguous(memory_format=torch.channels_last)
        for tensor in (model.conv1.weight, trainer.images)
    )
    assert (weights, inputs) == (name.count("channels_last") > name.count("only"), "last" in name)
    settings = trainer.optimizer.defaults
    assert (settings["fused"], settings["foreach"]) == ("fused" in name, "foreach" in name)
    if compiled:  # a minute each: not here
        return
    before = model.conv1.weight.detach().clone()
    trainer.step()
    gradient = model.conv1.weight.grad
    trainer.step()
    assert (model.conv1.weight.grad is gradient) is ("zero_grad" in name)
    assert types == {torch.bfloat16 if "bf16" in name else torch.float32}
    assert not torch.equal(model.conv1.weight, before)


@pytest.mark.parametrize(("group", "ranks"), [("ddp", 2), ("evaluation", 1), ("optimizer", 1)])
def test_measures_are_timed_by_real_ranks(group: str, ranks: int, tmp_path: Path) -> None:
    script = [BENCHMARK / "options.py", group, tmp_path / "out.json"]
    numbers = ["resnet18", "32", "2", "2", "2"]  # pixels, batch, steps, rounds
    command = [*TORCHRUN, "--nproc-per-node", str(ranks), *script, *numbers]
    result = run_short(command, tmp_path, 240)
    assert result.returncode == 0, result.output
    found = json.loads((tmp_path / "out.json").read_text())
    assert list(found["first_step"]) == list(options.GROUPS[group])
    for row in found["rounds"]:
        assert set(row["turns"]) == set(found["first_step"])
        assert all(turn["wall"] > 0 and turn["cpu"] > 0 for turn in row["turns"].values())
    assert [next(iter(row["turns"])) for row in found["rounds"]] == list(found["first_step"])[:2]


def test_the_spawned_variant_can_be_made() -> None:
    assert (ROOT / "03_multiprocessing" / "main.py").read_text().count('"fork"') == 1


TWO_RANKS = """
import sys, torch
import reference
out, rank = sys.argv[1], reference.os.environ["RANK"]
torch.manual_seed(int(rank))  # DDP is to give all the weights of rank 0
flags = "--synthetic 16 --arch resnet18 --image-size 32 --epochs 1 --batch-size 8 --workers 0"
model = reference.main([*flags.split(), "--output-dir", out])
torch.save([p.detach() for p in model.parameters()], f"{out}/rank{rank}.pt")
"""


def test_the_reference_trains_as_one(tmp_path: Path) -> None:
    """On CPUs too: its ranks see different images and end with the same weights."""
    script = tmp_path / "two_ranks.py"
    script.write_text(TWO_RANKS)
    command = [*TORCHRUN, "--nproc-per-node", "2", script, tmp_path / "run"]
    result = run(command, tmp_path, 120, {"PYTHONPATH": str(BENCHMARK)})
    assert result.returncode == 0, result.output
    first, second = (torch.load(tmp_path / "run" / f"rank{rank}.pt") for rank in (0, 1))
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))
    log = run_log.read_run(tmp_path / "run")
    assert [row["step"] for row in log.train] == [1, 2] and log.eval[0]["images"] == 4


def test_a_whole_run_writes_results_and_leaves_nothing(tmp_path: Path) -> None:
    variants = ["--variants", "reference,02", "--out", str(tmp_path / "out")]
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    result = run(
        [sys.executable, TOOL, *TINY, *variants], tmp_path, 240, {"TMPDIR": str(temporary)}
    )
    assert result.returncode == 0, result.output
    found = json.loads((tmp_path / "out" / "benchmark.json").read_text())
    assert {"machine", "versions", "date", "commit", "dirty", "command", "settings"} <= set(found)
    assert [row["variant"] for row in found["runs"]] == ["reference", "02"]
    for row in found["runs"]:
        assert row["failed"] is None and 0 <= row["data_wait"] <= 1 and row["foreign"] >= 0
        assert row["train"] > 0 and row["val"] > 0 and row["memory"] > 100
        assert 0 < row["first_step"] < row["wall"] < 200 and row["cpu"] > 1
    [line] = found["commands"]["02"]
    assert line.startswith("OMP_NUM_THREADS=1 torchrun --standalone --nproc-per-node 2 02_dist")
    assert str(ROOT) not in json.dumps(found) and str(tmp_path) not in json.dumps(found)
    assert found["summary"]["variants"]["02"]["ratio"]["train"]["n"] == 1
    made = sorted(path.name for path in (tmp_path / "out").iterdir())
    assert made == sorted(["benchmark.json", *report.MADE])
    assert list(temporary.glob("benchmark-*")) == []


@pytest.mark.parametrize("signals", [[signal.SIGTERM], [signal.SIGINT] * 3], ids=["term", "int"])
def test_a_signal_ends_all_that_runs(signals: list[signal.Signals], tmp_path: Path) -> None:
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    command = [sys.executable, TOOL, *TINY, "--synthetic", "--variants", "02", "--out", "out"]
    tool = start(command, tmp_path, {"TMPDIR": str(temporary)})
    try:
        deadline = time.monotonic() + 60
        running = 0
        while running < 2 and time.monotonic() < deadline:  # until a run has begun
            time.sleep(0.05)
            begun = list(temporary.glob("benchmark-*/output.txt"))
            running = len(alive(tool)) if begun else 0
        for number in signals:  # an impatient Ctrl-C comes again while the first is dealt with
            os.kill(tool.pid, number)
            time.sleep(0.005)
        result = finish(tool, 30)  # which fails where a process is left
    finally:
        kill_all(tool)
    term = signals[0] == signal.SIGTERM
    assert running >= 2 and result.returncode == (1 if term else 130), result.output
    assert ("benchmark: told to end" in result.stderr) == term
    assert "Traceback" not in result.output
    assert list(temporary.glob("benchmark-*")) == []
