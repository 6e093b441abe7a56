"""Scripts without a DataLoader, compared: what models are given stands for the samples. Rows of one
run are in programs.py."""

from collections.abc import Iterator
from pathlib import Path

import faults
import pytest
import torch
from crew import Crew
from programs import (
    BY_ALL_REDUCE,
    DRAWN_BATCH,
    FULL_BATCH,
    NOISY_ROWS,
    OF_RANK,
    OWN_BATCH,
    ROWS,
    WITHOUT_LOADER,
)
from test_against import compared
from tiers import but
from torch import nn

from ddp_doctor.against.inputs import common
from ddp_doctor.recorder.given import rows_of, tensors_of

ORDER = "torch.randperm(96, generator=torch.Generator().manual_seed(epoch))"
SHUFFLED = "torch.tensor(__import__('random').Random(epoch).sample(range(96), 96))"
SEEDED_BEFORE = (
    "torch.manual_seed(rank)\n", "", "optimizer = ", "torch.manual_seed(rank)\noptimizer = ",
)  # fmt: skip
COMPILED = "model\nddp = torch.compile(ddp, backend='eager')\n"
# What the comparison of one process with two says first; and with which parts taken out.
TWO_RUNS = {
    "shares": ((), "", ""),
    "shares, averaged by hand": (BY_ALL_REDUCE, "", ""),
    "shares in another order": ((OF_RANK, "[rank::world_size].flip(0)"), "", ""),
    "the share of rank 0": ((OF_RANK, "[::world_size]"), "", "rows:twice"),
    "no shares": ((OF_RANK, ""), "", "rows:twice"),
    "shares that overlap": ((OF_RANK, "[5 * rank :][: 16 // world_size]"), "", "rows:twice"),
    "shares that leave rows out": ((OF_RANK, "[rank :: 2 * world_size - 1]"), "", "batch"),
    "shares of another batch": (
        (OF_RANK, "[rank::world_size].add(rank).remainder(96)"), "", "rows"),
    "a full batch": (FULL_BATCH, "", ""),
    "parts of a full batch": ((*FULL_BATCH, "arange(96)", f"arange(96){OF_RANK}"), "", ""),
    "the loss times ranks": (("targets[batch])", "targets[batch]) * world_size"), "",
                             "gradients:processes"),
    "another seed": (("manual_seed(epoch)", "manual_seed(epoch + world_size)"), "", "rows:drawn"),
    "another seed of an own generator": (
        (ORDER, SHUFFLED.replace("epoch", "epoch + world_size")), "", "rows:order"),
    "another second epoch": (
        (ORDER, SHUFFLED.replace("epoch", "epoch * world_size")), "", "rows"),
    "noise": ((ROWS, NOISY_ROWS), "", "rows:drawn"),
    "noise that belongs to samples": ((ROWS, NOISY_ROWS, *SEEDED_BEFORE), "draws", ""),
    "batches that are drawn": ((OWN_BATCH, DRAWN_BATCH), "", "rows:drawn"),
    "batches drawn for samples": ((OWN_BATCH, DRAWN_BATCH, *SEEDED_BEFORE), "draws", ""),
    "dropout, and the share of rank 0": (
        (OF_RANK, "[::world_size]", "Dropout(0.0)", "Dropout(0.5)"), "dropout,draws", "rows:twice"),
    "numpy's batches, drawn by each rank": (
        ("        batch = order[start:][:16][rank::world_size]\n",
         "        batch = np.random.choice(96, 16 // world_size)\n",
         "import torch\n", "import numpy as np\nimport torch\n",
         "torch.manual_seed(rank)", "np.random.seed(rank)"), "draws", "rows:drawn"),
    "shares of another batch, without draws": (
        (OF_RANK, "[rank::world_size].add(rank).remainder(96)"), "draws", "rows"),
    "compiled with DDP": (("else model\n", f"else {COMPILED}"), "", "samples:unknown"),
    "compiled on one process": (
        ("else model\n", "else torch.compile(model, backend='eager', fullgraph=True)\n"), "", ""),
    "saved and copied": (
        ("nn.Dropout(0.0), ", "", "torch.manual_seed(rank)\n", """import copy, pickle
assert pickle.loads(pickle.dumps(model)).state_dict().keys() == model.state_dict().keys()
assert copy.deepcopy(model).__dict__.keys() == nn.Sequential(nn.Linear(1, 1)).__dict__.keys()
assert not model._forward_pre_hooks and torch.jit.script(model)(points).shape == (96, 4)
torch.compile(model, backend="eager", fullgraph=True)(points)
model(points)  # of no step
"""), "", ""),
    "half of the digits": (
        ("ddp(rows)", "ddp(rows.bfloat16() if world_size > 1 else rows)", "nn.Sequential(",
         "nn.Sequential(Exact(), ", "dist.init_process_group(", "class Exact(nn.Module):\n"
         "    def forward(self, rows):\n        return rows.float()\n\n\ndist.init_process_group("),
        "", "rows:kinds"),
    "padded to the longest": (
        ("ddp(rows)", "ddp(rows[:, : 6 + int(batch.max() > 90)])", "nn.Linear(8, 16)",
         "Padded(8, 16)", "dist.init_process_group(", "class Padded(nn.Linear):\n"
         "    def forward(self, rows):\n"
         "        return super().forward(nn.functional.pad(rows[:, :6], (0, 2)))\n\n\n"
         "dist.init_process_group("), "", "rows:kinds"),
}  # fmt: skip


@pytest.fixture(scope="module")
def crew() -> Iterator[Crew]:
    with Crew(3) as members:
        yield members


ALIKE = {
    "padded to the longest", "batches drawn for samples", "shares of another batch, without draws",
    "parts of a full batch", "dropout, and the share of rank 0", "shares that leave rows out",
    "shares that overlap", "shares, averaged by hand", "no shares", "another second epoch",
    "batches that are drawn", "another seed", "compiled on one process", "compiled with DDP",
}  # fmt: skip


@pytest.mark.parametrize("kind", but(TWO_RUNS, ALIKE), ids=lambda kind: kind.replace(" ", "-"))
def test_two_runs(kind: str, crew: Crew, tmp_path: Path) -> None:
    words, without, name = TWO_RUNS[kind]
    text = faults.changed(WITHOUT_LOADER, words)
    for comparison in compared(crew, text, tmp_path, without=without).values():
        first = next((seen.name for seen in comparison.seen if seen.kind != "same"), "")
        assert first == name, comparison.text()
        assert name or "rows:same" in {seen.name for seen in comparison.seen}


@pytest.mark.filterwarnings("ignore:Sparse CSR")
def test_numbers_of_rows() -> None:
    """They go with their rows, in any order, of any type, padded or not; some say too little."""
    rows = torch.randint(1, 9, (6, 10))
    numbers = rows_of([rows])
    assert numbers.shape == (6,) and len(set(numbers.tolist())) == 6
    torch.testing.assert_close(rows_of([rows[[3, 1]].bfloat16()]), numbers[[3, 1]])
    torch.testing.assert_close(rows_of([nn.functional.pad(rows, (0, 3))]), numbers)
    assert not torch.isclose(rows_of([rows, torch.ones(6, 1)]), numbers).any()
    assert len(rows_of([torch.ones(2, 3, 200, 200), torch.ones(5)])) == 2
    seen = []
    torch.vmap(lambda row: seen.append(tensors_of((row,))) or row)(rows)
    assert [*seen, tensors_of((rows, "a text")), tensors_of((rows.to_sparse_csr(),))] == [[]] * 3
    assert len(rows_of(tensors_of((rows, rows.double().to_sparse())))) == 6
    assert len(tensors_of(([rows], {"more": rows, "scale": 0.5, "none": None}))) == 2


@pytest.mark.parametrize(
    ("mine", "theirs", "count"),
    [([1, 2, 3], [3, 2, 1], 3), ([1, 1, 2], [1, 2, 2], 2), ([1, 5], [2, 4], 0), ([], [1], 0),
     ([1.0, 2.0], [1.0 + 1e-9, 3.0], 1)],
)  # fmt: skip
def test_rows_in_common(mine: list, theirs: list, count: int) -> None:
    assert common(mine, theirs) == count
