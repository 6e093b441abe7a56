"""tools/backend_table.py: what the site shows of the backends still holds, and is its JSON's."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import backend_table
import pytest
import torch
from harness import ROOT, TOOLS, run

SHOWN = ROOT / "docs/assets/results/backends"
# One of each kind: right values, an error of the backend, an operation and a dtype it lacks.
CELLS = ("send, recv", "functions/scatter", "functions/gather_into_tensor", "ops/AVG/",
         "ops/PREMUL_SUM/all_reduce", "dtypes/int16/all_reduce")  # fmt: skip


def tool(*argv: object) -> list:
    return [sys.executable, TOOLS / "backend_table.py", *argv]


def test_tables_come_from_the_json_alone(tmp_path: Path) -> None:
    (tmp_path / "backends.json").write_text((SHOWN / "backends.json").read_text())
    result = run(tool("--render", "--out", tmp_path), ROOT, 120)
    assert result.returncode == 0, result.output
    for name in ("table.en.md", "table.zh.md"):
        assert (tmp_path / name).read_text() == (SHOWN / name).read_text(), "run --render"


def test_json_has_every_trial() -> None:
    shown = json.loads((SHOWN / "backends.json").read_text())
    assert list(shown["trials"]) == list(backend_table.TRIALS)
    ran = [column for column, n in shown["ranks"].items() if n]
    assert "gloo CPU" in ran
    for name, columns in shown["trials"].items():
        assert list(columns) == ran, name
        assert all(said["state"] in ("yes", "no", "skipped") for said in columns.values()), name
    assert "/" not in shown["machine"]["kind"] and set(shown["machine"]) == {"cpus", "kind", "gpus"}


def test_some_cells_are_still_so() -> None:
    """In fresh processes; of this torch version only, another one may differ."""
    shown = json.loads((SHOWN / "backends.json").read_text())
    if shown["torch"].split("+")[0] != torch.__version__.split("+")[0]:
        pytest.skip(f"the table is of torch {shown['torch']}")
    result = run(tool("--check", "--only", *CELLS), ROOT, 240)
    assert result.returncode == 0, result.output
    assert "9 trials end as shown" in result.stdout


@pytest.mark.parametrize("trial,state,says", [
    (lambda r: [(r.mine(), r.full(2))], "wrong", "3., 3."),  # of rank 1 alone
    (lambda r: 1 / r.rank, "no", "ZeroDivisionError: division by zero"),  # of rank 0 alone
    (lambda r: backend_table.os._exit(7), "crash", "exit status 7"),
    (lambda r: backend_table.time.sleep(60), "timeout", "5 s"),
], ids=["wrong", "error", "crash", "hang"])  # fmt: skip
def test_what_goes_wrong_is_told(
    monkeypatch: pytest.MonkeyPatch, trial: backend_table.Trial, state: str, says: str
) -> None:
    monkeypatch.setitem(backend_table.TRIALS, "broken", trial)
    said = backend_table.attempt("broken", "gloo CPU", 5)
    assert said["state"] == state and says in said["says"], said


def test_differences_are_found() -> None:
    shown = json.loads((SHOWN / "backends.json").read_text())
    fresh = json.loads((SHOWN / "backends.json").read_text())
    assert backend_table.differences(fresh, shown) == []
    fresh["trials"]["functions/scatter"]["gloo CPU"] = {"state": "no", "says": "?"}
    (line,) = backend_table.differences(fresh, shown)
    assert line == "functions/scatter (gloo CPU): yes became no"


@pytest.mark.parametrize("argv,line", [
    (["--only", "no_such"], "no trial has no_such in its name"),
    (["--timeout", "0"], "--timeout must be above zero"),
    (["--render", "--check"], "--render tries nothing"),
    (["--render", "--out", "/no/such/folder"], "cannot read /no/such/folder/backends.json"),
])  # fmt: skip
def test_mistakes_get_one_line(argv: list[str], line: str) -> None:
    with pytest.raises(SystemExit, match=line) as ended:
        backend_table.main(argv)
    assert str(ended.value).startswith("backend_table: error: ") and "\n" not in str(ended.value)


def test_another_file_is_refused(tmp_path: Path) -> None:
    for text in ("{", "[]", '{"format": 2}', '{"format": 1}'):
        (tmp_path / "backends.json").write_text(text)
        with pytest.raises(SystemExit, match="backend_table: error: .*backends.json"):
            backend_table.main(["--render", "--out", str(tmp_path)])
