"""The table of backends: what the site shows still holds, and is its JSON's."""

import json
import multiprocessing
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from harness import ROOT

from tools.site import backend_table
from tools.site.backend_table import TRIALS, attempt, dist

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
    ran = [column for column, n in RESULT["ranks"].items() if n]
    assert "gloo CPU" in ran
    assert all(list(columns) == ran for columns in RESULT["trials"].values())
    assert set(RESULT["machine"]) == {"cpus", "kind", "gpus"}


@of_this_torch
@pytest.mark.parametrize("name", CELLS)
def test_cell_is_still_so(name: str, tmp_path: Path) -> None:
    said = attempt(name, "gloo CPU", 2, str(tmp_path / "store"))
    assert said == RESULT["trials"][name]["gloo CPU"]


@of_this_torch
@pytest.mark.proof
def test_all_cells_are_still_so() -> None:
    trials = backend_table.run_all()["trials"]
    said = {name: columns["gloo CPU"]["state"] for name, columns in trials.items()}
    shown = RESULT["trials"].items()
    assert said == {name: columns["gloo CPU"]["state"] for name, columns in shown}


def hang(r: backend_table.Rank) -> None:
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM, signal.SIGINT])
    time.sleep(60)


# On one rank alone, and the other waits for it or sees it go: what it did is the cause.
@pytest.mark.parametrize("trial,says", [
    (lambda r: (r.mine(), r.full(2)), "wrong values: [3.0, 3.0]"),
    (lambda r: 1 / 0 if r.rank else time.sleep(60), "ZeroDivisionError: division by zero"),
    (lambda r: dist.barrier() if r.rank else backend_table.os._exit(7), "exit status 7"),
    (hang, "no end"),
], ids=["wrong", "error", "crash", "hang"])  # fmt: skip
def test_what_goes_wrong_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, trial: Callable, says: str
) -> None:
    monkeypatch.setitem(TRIALS, "broken", trial)
    monkeypatch.setattr(backend_table, "LIMIT", 3)
    before = set(multiprocessing.active_children())  # of other test files
    said = attempt("broken", "gloo CPU", 2, str(tmp_path / "store"))
    assert said == {"state": "no", "says": says}
    assert set(multiprocessing.active_children()) <= before


def test_cells_of_a_machine_with_gpus() -> None:
    """No test here has a GPU; the words of its cells can be read all the same."""
    no = {"state": "no", "says": "E: no"}
    trials = {"functions/send, recv": {}, "ops/AVG/reduce": {"nccl CUDA": no},
              "ops/AVG/all_reduce": {"nccl CUDA": {"state": "yes"}}}  # fmt: skip
    result = {"torch": "2.15.0", "nccl": "2.30.7", "ranks": {"gloo CPU": 0, "nccl CUDA": 1},
              "machine": {"cpus": 16, "kind": "x86_64", "gpus": ["H", "H"]},
              "trials": trials}  # fmt: skip
    lines = backend_table.fragment(result, "en").splitlines()
    assert "a machine with 16 x86_64 CPUs, 2 x H, NCCL 2.30.7: nccl CUDA (ranks: 1)" in lines[1]
    assert lines[1].endswith("Could not be tried there: `gloo CPU`.")
    assert "| `send, recv` |  |" in lines
    assert "| `AVG` | `reduce` ✘ 1, `all_reduce` ✓ |" in lines and "1. `E: no`" in lines
