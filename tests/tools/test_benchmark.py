"""The benchmark: its arithmetic, its baseline, and what pages say of its results. (What ends its
processes is of gpu_check.py, too: test_gpu_check.py.)"""

import json
import shutil
import statistics
import sys
import tempfile
from pathlib import Path
from unittest import mock

import allreduce
import benchmark
import pytest
import reference
import run_log
import table
import torch
import torchvision
from crew import Crew
from harness import ROOT, TOOLS, run
from with_tiny_model import TinyModel

TINY = ["--steps", "2", "--image-size", "32", "--batch-size-per-rank", "4", "--rounds", "1"]
# torchvision 0.29 announces that decode_image will move to TorchCodec; the chapters use it.
pytestmark = pytest.mark.filterwarnings("ignore:The image decoding and encoding:DeprecationWarning")


def test_ratios_are_taken_within_a_round() -> None:
    """The machine is half as fast in the second round, and a run of the third one failed."""
    rates = {"reference": (20, 10, 20), "02": (24, 15, 40), "02 --bf16": (60, 40, None)}
    rows = [
        {"round": n, "variant": name} | ({"training images/s": rate} if rate else {"failed": "x"})
        for name, found in rates.items()
        for n, rate in enumerate(found)
    ]
    cells = [line.strip("| ").split(" | ") for line in table.table(rows, "en")[2:5]]
    assert cells[0] == ["`reference`", "20", "1"]
    assert cells[1] == ["`02`", "24", "1.5 (1.2–2)"]  # not 24 / 20
    assert cells[2] == ["`02 --bf16`", "50", "3.5 (3–4)"]
    assert len(table.table(rows, "zh", "03")) == 4  # head, dashes, reference, ""
    failed = [row | {"failed": "x"} if row["variant"] == "reference" else row for row in rows]
    head, _, line, *_ = table.table(failed, "en")
    assert "x reference" in head and line.endswith("| - |")  # 02 takes nobody's place
    assert "x 02" in table.table(rows[3:], "en")[0]


@pytest.mark.parametrize(
    ("name", "one", "other", "figure"),
    [
        ("gpu-h200/speed", "02", "reference", "training"),
        (
            "gpu-h200/speed-bf16",
            "02 --bf16 --compile --synthetic",
            "02 --bf16 --synthetic",
            "training",
        ),
    ],
)
def test_the_pages_say_what_the_results_hold(name: str, one: str, other: str, figure: str) -> None:
    """In sentences: the tables are made from the results when the site is built."""
    rows = json.loads((ROOT / f"docs/assets/results/{name}.json").read_text())["runs"]["training"]
    rate = {(row["variant"], row["round"]): row[f"{figure} images/s"] for row in rows}
    ratios = [rate[one, n] / rate[other, n] for n in range(1 + max(row["round"] for row in rows))]
    numbers = [f"{f(ratios):.2f}" for f in (statistics.median, min, max)]
    for language in ("zh", "en"):
        lines = (ROOT / f"docs/{language}/performance.md").read_text("utf-8").splitlines()
        assert any(all(number in line for number in numbers) for line in lines), numbers


def test_no_result_is_overwritten(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    (tmp_path / "result.json").write_text("{}")
    with pytest.raises(SystemExit):
        benchmark.main(["--out", str(tmp_path / "result.json")])
    assert "result.json is there: give another --out" in capsys.readouterr().err
    assert (tmp_path / "result.json").read_text() == "{}"


def reduce_all() -> None:
    """In a crew member, on tiny sizes."""
    with mock.patch.object(allreduce, "SIZES", {"4 B": 4, "100 MiB": 1 << 20}):
        allreduce.main("gloo")


def one_rank(folder: Path) -> list:
    """In a crew member: the reference's weights, on tiny sizes."""
    torch.manual_seed(int(reference.os.environ["RANK"]))  # DDP is to give all the weights of rank 0
    flags = "--arch any --image-size 32 --batch-size 8 --workers 0".split()
    places = ["--data", str(folder / "data"), "--output-dir", str(folder / "run")]
    tiny = lambda arch, num_classes: TinyModel(num_classes)  # noqa: E731
    with mock.patch.object(torchvision.models, "get_model", tiny):
        model = reference.main([*flags, *places])
    return [weight.detach().numpy() for weight in model.parameters()]


def test_the_reference_trains_as_one(crew: Crew, tmp_path: Path) -> None:
    """Its ranks see different images and end with the same weights."""
    benchmark.picture_folder(tmp_path / "data", 64, 8, 16)
    # Each in a launch of its own: at one port a rank may meet the store of the launch before.
    crew.run(reduce_all, world_size=2)
    first, second = crew.run(one_rank, tmp_path, world_size=2)
    assert all((a == b).all() for a, b in zip(first, second, strict=True))
    log = run_log.read_run(tmp_path / "run")
    assert [row["step"] for row in log.train] == [1, 2] and log.eval[0]["images"] == 16


@pytest.mark.proof
def test_all_variants_and_parts_run(tmp_path: Path) -> None:
    """A real run on tiny sizes: chapters beside the reference, the input pipeline, all-reduce."""
    variants = "reference,reference --bf16 --synthetic,02,02 --bf16,02 --synthetic,02 doctor,01,03,"
    variants += "04 --amp-dtype fp32,06,07"
    # A short path: a loader worker puts a socket below it, whose name has at most 107 characters.
    temporary, out = Path(tempfile.mkdtemp(prefix="b-")), tmp_path / "out" / "NAME.json"
    command = [sys.executable, TOOLS / "benchmark/benchmark.py", *TINY, "--all"]
    command += ["--variants", variants, "--out", out]
    result = run(command, tmp_path, 1800, {"TMPDIR": str(temporary)})
    assert result.returncode == 0, result.output
    assert list(temporary.glob("benchmark-*")) == []
    shutil.rmtree(temporary)
    assert str(ROOT) not in out.read_text() and str(tmp_path) not in out.read_text()
    found = json.loads(out.read_text())["runs"]
    for row in found["training"]:
        assert all(value > 0 for name, value in row.items() if name not in ("round", "variant"))
    assert [row["variant"] for row in found["training"]] == variants.split(",")
    assert result.stdout.count("| --- |") == 3
    [gloo] = found["all-reduce"]  # each of two ranks sends the tensor once
    assert gloo["100 MiB GB/s"] == pytest.approx((100 << 20) / gloo["100 MiB ms"] / 1e6)
