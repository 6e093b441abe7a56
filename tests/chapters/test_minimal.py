"""minimal.py of the chapters are a chain: the same lines in the same order, so that a diff of two
shows the idea. And they train: each as 02's does."""

import ast
import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from harness import HOROVOD, ROOT, SLURM, run_short
from slurm import shared_cluster
from tiers import table
from torch import nn
from warm import run_warm

from tools.site.approaches import CHAPTERS, HUB, ROWS, SINGLE, lines_of, minimal

# In what each differs from 02: for which of these purposes it has other lines.
DIFFERS = {
    HUB: set(),
    "01_dataparallel": {"who", "others", "sampler", "wrap", "call", "save", "end"},
    "03_multiprocessing": {"start", "who", "others"},
    "04_apex": {"call", "average"},
    HOROVOD: {"who", "others", "sampler", "wrap", "call", "average", "end"},
    SLURM: {"start", "who", "others"},
    "07_dist_eval": {"evaluate"},
    "08_fsdp2": {"wrap", "call", "evaluate", "save"},
    SINGLE: {"who", "others", "sampler", "wrap", "call", "save", "end"},
}
# Lines of 02 that say something else there.
OTHER_COMMENTS = {
    **{name: set() for name in CHAPTERS},
    "01_dataparallel": {"batch_size = 64", "loss.backward()"},
    "03_multiprocessing": {'if __name__ == "__main__":'},
    HOROVOD: {"loss.backward()", "optimizer.step()"},
    "08_fsdp2": {"optimizer = torch.optim.SGD(model.parameters(), lr=0.1)", "loss.backward()"},
    SINGLE: {"batch_size = 64", "loss.backward()"},
}


def of_row(chapter: str, row: str) -> list[tuple[int, str]]:
    """Its lines for a purpose, each with the number of lines of training that stand above it."""
    found, above = [], 0
    for _, line, purpose in lines_of(chapter):
        found += [(above, line)] * (purpose == row)
        above += not purpose
    return found


def test_every_minimal_is_here() -> None:
    there = sorted(str(path.relative_to(ROOT)) for path in ROOT.glob("0[1-8]*/minimal*.py"))
    assert there == sorted(map(minimal, CHAPTERS))
    assert DIFFERS.keys() == {*CHAPTERS, SINGLE}


@pytest.mark.text
@pytest.mark.parametrize("chapter", DIFFERS)
def test_chain(chapter: str) -> None:
    """Training is in all the same, to the letter and in 02's order; what is around it is the same,
    in the same places, but for the purposes named above."""
    ours, hub = (["".join(line[1:]) for line in of_row(name, "")] for name in (chapter, HUB))
    assert ours == hub and len(hub) > 10
    assert {row for row in ROWS if of_row(chapter, row) != of_row(HUB, row)} == DIFFERS[chapter]


@pytest.mark.text
@pytest.mark.parametrize("chapter", DIFFERS)
def test_comments(chapter: str) -> None:
    """A line that is 02's has 02's comment, or a diff would show it; but for those named here."""
    hub = {line.strip() for line in (ROOT / minimal(HUB)).read_text().splitlines()}
    known = {line for _, line, _ in lines_of(HUB)}
    ours = (ROOT / minimal(chapter)).read_text().splitlines()
    same = {
        ours[n - 1].strip(): line
        for n, line, row in lines_of(chapter)
        if line in known and row != "evaluate"
    }
    assert {line for text, line in same.items() if text not in hub} == OTHER_COMMENTS[chapter]


# ---- they train ----
def trained(chapter: str, folder: Path) -> list[str]:
    """In warm processes, as torchrun would: what they say, by rank."""
    folder.mkdir(exist_ok=True)
    codes, said, errors = run_warm([ROOT / minimal(chapter)], folder, 2, cwd=folder)
    assert codes == [0, 0], errors
    return "".join(said).splitlines()


def launched(chapter: str, folder: Path) -> list[str]:
    """As its docstring says, on two processes, in a folder of its own."""
    folder.mkdir(exist_ok=True)
    path = minimal(chapter)
    docstring = ast.get_docstring(ast.parse((ROOT / path).read_text()))
    line = docstring.splitlines()[-1].removesuffix(" [fp16]").replace(path, f"{ROOT / path}")
    command = ["bash", "-euc", line]
    if chapter == SLURM:
        command = shared_cluster().user(*command)
    env = {
        "CUDA_VISIBLE_DEVICES": "",
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
    }
    done = run_short(command, folder, env=env)
    assert done.returncode == 0, done.output
    return done.said


def evaluated(folder: Path) -> str:
    """What one process finds out about the saved model, on the points that 07 and 08 evaluate."""
    torch.manual_seed(1)
    points = torch.randn(103, 8)
    model = nn.Sequential(nn.Linear(8, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 2)).eval()
    model.load_state_dict(torch.load(folder / "model.pt"))
    right = (model(points).argmax(1) == (points.sum(1) > 0)).sum().item()
    return f"accuracy {100 * right / 103:.2f}%, 103 images"


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp(HUB)
    trained(HUB, folder)  # test_site_commands.py launches it
    assert evaluated(folder) > "accuracy 85"  # it learns
    return folder


@pytest.mark.xdist_group("minimal")
@pytest.mark.parametrize(
    ("chapter", "how"),
    table(
        [*((name, launched) for name in DIFFERS if name != HUB), ("08_fsdp2", trained)],
        [("08_fsdp2", trained)],
    ),
)
def test_trains_as_02(chapter: str, how: Callable, hub: Path, tmp_path: Path) -> None:
    """On two processes each ends with 02's weights, 04 with nearly these; on one process, where
    other images meet in a batch, 01 with those of the script for one GPU. Evaluation is exact."""
    if chapter == SLURM and not shared_cluster():
        pytest.skip("needs Slurm as root: sudo tools/mini_slurm.sh install")
    if chapter == HOROVOD:
        pytest.importorskip("horovod", reason="PYTHON=python bash 05_horovod/install.sh")
    said = how(chapter, tmp_path)
    alone = chapter in (SINGLE, "01_dataparallel")
    if alone:
        launched(SINGLE, hub := tmp_path / "single")
    ours, expected = (torch.load(folder / "model.pt") for folder in (tmp_path, hub))
    close = {"rtol": 0, "atol": 0.01} if chapter == "04_apex" else {}
    torch.testing.assert_close(ours, expected, **close)
    if "evaluate" in DIFFERS[chapter]:
        assert said[-1] == evaluated(tmp_path)
