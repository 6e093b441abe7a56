"""The table of backends: what the site shows still holds, and is its JSON's."""

from __future__ import annotations

import json
import multiprocessing
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from harness import ROOT, TOOLS, finish, run, start

from tools.site import backend_table

SHOWN = ROOT / "docs/assets/results/backends"
# All functions, and one cell of each kind of the others: right values, an operation and a dtype
# that gloo lacks. The whole, `--check` alone, takes three times as long.
CELLS = ("functions/", "ops/AVG/", "ops/BXOR/", "ops/PREMUL_SUM/all_reduce", "ops/BOR of",
         "dtypes/float8", "dtypes/bool", "dtypes/complex64")  # fmt: skip


def tool(*argv: object) -> list:
    return [sys.executable, TOOLS / "site/backend_table.py", *argv]


def shown() -> dict:
    return json.loads((SHOWN / "backends.json").read_text())


def test_tables_come_from_the_json_alone(tmp_path: Path) -> None:
    (tmp_path / "backends.json").write_text((SHOWN / "backends.json").read_text())
    backend_table.main(["--render", "--out", str(tmp_path)])
    for name in ("table.en.md", "table.zh.md"):
        assert (tmp_path / name).read_text() == (SHOWN / name).read_text(), "run --render"
    assert len(list(tmp_path.iterdir())) == 3


def test_json_has_every_trial() -> None:
    result = shown()
    assert list(result["trials"]) == list(backend_table.TRIALS)
    assert list(result["ranks"]) == list(backend_table.COLUMNS)
    ran = [column for column, n in result["ranks"].items() if n]
    assert "gloo CPU" in ran
    for name, columns in result["trials"].items():
        assert list(columns) == ran, name
        assert all(said["state"] in ("yes", "no", "skipped") for said in columns.values()), name
    assert set(result["machine"]) == {"cpus", "kind", "gpus"}


def test_cells_are_still_so() -> None:
    """With this torch version only: another one may differ."""
    if shown()["torch"].split("+")[0] != torch.__version__.split("+")[0]:
        pytest.skip(f"the table is of torch {shown()['torch']}")
    result = run(tool("--check", "--only", *CELLS), ROOT, 240)
    assert result.returncode == 0, result.output
    count = sum(any(text in name for text in CELLS) for name in backend_table.TRIALS)
    assert count > 40 and f"{count} trials end as shown" in result.stdout


def hang(r: backend_table.Rank) -> None:
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM, signal.SIGINT])
    time.sleep(60)


@pytest.mark.parametrize("trial,state,says", [
    (lambda r: (r.mine(), r.full(2)), "wrong", "[3.0, 3.0]"),  # on rank 1 alone
    # One rank alone, and the other waits for it: what it did is the cause.
    (lambda r: backend_table.dist.barrier() if r.rank else 1 / 0, "no",
     "ZeroDivisionError: division by zero"),
    (lambda r: backend_table.os._exit(7) if r.rank else backend_table.dist.barrier(), "crash",
     "exit status 7"),
    (hang, "timeout", "3 s"),
], ids=["wrong", "error", "crash", "hang"])  # fmt: skip
def test_what_goes_wrong_is_told(
    monkeypatch: pytest.MonkeyPatch, trial: Callable, state: str, says: str
) -> None:
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    monkeypatch.setitem(backend_table.TRIALS, "broken", trial)
    before = set(multiprocessing.active_children())  # of other test files
    said = backend_table.attempt("broken", "gloo CPU", 2, 3 if trial is hang else 30)
    assert said["state"] == state and says in said["says"], said
    assert set(multiprocessing.active_children()) <= before


@pytest.mark.parametrize("signals", [[signal.SIGTERM], [signal.SIGINT] * 3], ids=["term", "int"])
def test_nothing_stays_when_it_is_stopped(signals: list[signal.Signals], tmp_path: Path) -> None:
    """finish() fails if a process is left."""
    command = tool("--only", "ops/AVG/", "scatter", "--out", tmp_path / "none")
    process = start(command, ROOT, {"TMPDIR": str(tmp_path)})
    assert process.stdout.readline() == "functions/scatter, gloo CPU, yes\n"
    for number in signals:
        process.send_signal(number)
        time.sleep(0.005)
    result = finish(process, 60)
    assert result.returncode == 128 + signals[0] and "Traceback" not in result.output
    assert list(tmp_path.iterdir()) == []


def test_cells_of_a_machine_with_gpus() -> None:
    """No test here has a GPU; the words of its cells can be read all the same."""
    no = {"state": "no", "says": "E: no"}
    trials = {"functions/send, recv": {"state": "skipped"},
              "functions/gather": {"state": "timeout"},
              "functions/scatter": {"state": "wrong"},
              "ops/AVG/reduce": no, "ops/AVG/all_reduce": {"state": "yes"}}  # fmt: skip
    result = {"torch": "2.15.0", "nccl": "2.30.7", "ranks": {"gloo CPU": 0, "nccl CUDA": 1},
              "machine": {"cpus": 16, "kind": "x86_64", "gpus": ["H", "H"]},
              "trials": {name: {"nccl CUDA": said} for name, said in trials.items()}}  # fmt: skip
    lines = backend_table.fragment(result, "en").splitlines()
    assert "a machine with 16 x86_64 CPUs, 2 x H, NCCL 2.30.7: nccl CUDA (ranks: 1)" in lines[1]
    assert lines[1].endswith("Could not be tried there: `gloo CPU`.")
    assert lines[3:8] == [
        "| function | nccl CUDA |", "| --- | --- |", "| `send, recv` | needs two GPUs |",
        "| `gather` | no end |", "| `scatter` | wrong values |"]  # fmt: skip
    assert "| `AVG` | `reduce` ✘ 1, `all_reduce` ✓ |" in lines and "1. `E: no`" in lines


def test_one_gpu_is_not_asked_to_send_to_itself() -> None:
    assert backend_table.attempt("functions/send, recv", "nccl CUDA", 1, 30)["state"] == "skipped"
    ranks = [0, 1, 2] if torch.distributed.is_nccl_available() else [0, 0, 0]
    assert [backend_table.ranks_for("nccl CUDA", gpus) for gpus in (0, 1, 8)] == ranks
    assert [backend_table.ranks_for("gloo CUDA", gpus) for gpus in (0, 1, 8)] == [0, 2, 2]


def test_differences_are_found() -> None:
    fresh = shown()
    assert backend_table.differences(fresh, shown()) == []
    fresh["trials"]["functions/scatter"]["gloo CPU"] = {"state": "no", "says": "?"}
    (line,) = backend_table.differences(fresh, shown())
    assert line == "functions/scatter (gloo CPU): yes became no"


@pytest.mark.parametrize("argv,line", [
    (["--only", "no_such"], "no trial has no_such in its name"),
    (["--timeout", "0"], "--timeout must be above 0"),
    (["--timeout", "nan"], "--timeout must be above 0"),
    (["--render", "--check"], "--render tries nothing"),
    (["--render", "--out", "/no/such/folder"], "No such file .*/no/such/folder/backends.json"),
    (["--out", "/dev/null/folder"], "/dev/null/folder"),
])  # fmt: skip
def test_mistakes_get_one_line(argv: list[str], line: str) -> None:
    with pytest.raises(SystemExit, match=line) as ended:
        backend_table.main(argv)
    assert str(ended.value).startswith("backend_table: error: ") and "\n" not in str(ended.value)


def test_another_file_is_refused(tmp_path: Path) -> None:
    for text in ("{", "[]", '{"format": 2}', '{"format": 1}', '{"format": 1, "ranks": 3}'):
        (tmp_path / "backends.json").write_text(text)
        with pytest.raises(SystemExit, match="backend_table: error: .*backends.json"):
            backend_table.main(["--render", "--out", str(tmp_path)])
