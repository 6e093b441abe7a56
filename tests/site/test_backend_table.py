"""The table of backends: what the site shows still holds, and is its JSON's."""

import json
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from harness import ROOT

from tools.site import backend_table
from tools.site.backend_table import TRIALS, attempt

SHOWN = ROOT / "docs/assets/results/backends"
RESULT = json.loads((SHOWN / "backends.json").read_text())
# One of each kind: to a peer, to all, objects, one that gloo lacks, an operation, a dtype.
CELLS = ("functions/send with tag", "functions/gather_object",
         "functions/all_gather, unequal sizes", "ops/BXOR/reduce_scatter_tensor",
         "dtypes/float8_e4m3fn/broadcast")  # fmt: skip

of_this_torch = pytest.mark.skipif(
    RESULT["torch"].split("+")[0] != torch.__version__.split("+")[0],
    reason=f"the table is of torch {RESULT['torch']}",
)


@pytest.fixture(autouse=True)
def on_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")


def test_json_has_every_trial_and_makes_the_tables() -> None:
    for language in ("en", "zh"):
        shown = (SHOWN / f"table.{language}.md").read_text()
        assert backend_table.fragment(RESULT, language) == shown, "run --render"
    assert list(RESULT["trials"]) == list(TRIALS)
    assert list(RESULT["ranks"]) == list(backend_table.COLUMNS)


@of_this_torch
@pytest.mark.parametrize("name", CELLS)
def test_cell_is_still_so(name: str, tmp_path: Path) -> None:
    said = attempt(name, "gloo CPU", str(tmp_path / "store"))
    assert said == RESULT["trials"][name]["gloo CPU"]


@of_this_torch
@pytest.mark.proof
def test_all_cells_are_still_so() -> None:
    said = backend_table.run_all()["trials"]
    for name, shown in RESULT["trials"].items():
        assert said[name]["gloo CPU"] == shown["gloo CPU"], name


# On one rank alone, and the other waits for it or sees it go: what it did is the cause.
@pytest.mark.parametrize("trial,says", [
    (lambda r: (r.mine(), r.full(2)), "wrong values: [3.0, 3.0]"),
    (lambda r: 1 / 0 if r.rank else time.sleep(60), "ZeroDivisionError: division by zero"),
], ids=["wrong", "error"])  # fmt: skip
def test_what_goes_wrong_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, trial: Callable, says: str
) -> None:
    monkeypatch.setitem(TRIALS, "broken", trial)
    monkeypatch.setattr(backend_table, "LIMIT", 3)
    said = attempt("broken", "gloo CPU", str(tmp_path / "store"))
    assert said == says
