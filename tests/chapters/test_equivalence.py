"""Same training: every chapter, with any number of ranks, ends with the parameters that a plain
loop in one process ends with. (By real launches: test_slurm.py compares with the same loop, and
test_faults.py with the crew that takes the launchers' place here.)"""

from collections.abc import Callable
from pathlib import Path

import pytest
from crew import Crew
from harness import CHAPTERS, load_state, rows
from plain_training import (
    HIGH_RATE,
    LOW_RATE,
    arguments,
    assert_is_plain_training,
    difference,
    train,
    train_plainly,
)
from with_tiny_model import (
    tiny_batchnorm,
    tiny_float32,
    tiny_frozen_batchnorm,
    tiny_other_on_each_rank,
)

WORLD_SIZES = {"01_dataparallel": (1,)}
CASES = [(chapter, size) for chapter in CHAPTERS for size in WORLD_SIZES.get(chapter, (1, 2, 3))]


@pytest.mark.parametrize(
    ("build", "lr", "tolerance"),
    [
        pytest.param(tiny_other_on_each_rank, HIGH_RATE, 1e-10, id="float64"),
        pytest.param(tiny_float32, LOW_RATE, 1e-5, id="float32", marks=pytest.mark.proof),
    ],
)
@pytest.mark.parametrize(("chapter", "world_size"), CASES)
def test_trains_as_one_process_would(
    chapter: str,
    world_size: int,
    build: Callable,
    lr: float,
    tolerance: float,
    crew: Crew,
    tmp_path: Path,
) -> None:
    """All ranks bit for bit, though only rank 0 has begun with the weights that count."""
    argv = arguments(tmp_path, lr, chapter)
    answers = crew.run(train, chapter, argv, build, world_size=world_size)
    state = load_state(tmp_path / "checkpoint.pt")
    saved = {name: weight.tolist() for name, weight in state["model"].items()}
    assert answers == [saved] * world_size
    dtype = next(build("", 1, False).parameters()).dtype
    assert all(weight.dtype == dtype for weight in state["model"].values())
    assert rows(tmp_path, "start")[0]["world_size"] == world_size
    assert_is_plain_training(state, build, lr, tolerance, tmp_path)


def test_batchnorm_sees_the_batch_of_its_rank(crew: Crew, tmp_path: Path) -> None:
    """Without --sync-bn two ranks are not one: each normalises by the statistics of its own half
    of the batch. With statistics that are fixed, nothing of the difference is left."""
    differences = {}
    for build in (tiny_batchnorm, tiny_frozen_batchnorm):
        for world_size in (1, 2):
            folder = tmp_path / f"{build.__name__}{world_size}"
            argv = arguments(folder, HIGH_RATE)
            crew.run(train, "02_distributed", argv, build, world_size=world_size)
            state = load_state(folder / "checkpoint.pt")
            differences[build, world_size] = difference(train_plainly(build, HIGH_RATE)[0], state)
            assert any("running_mean" in name for name in state["model"])
    assert differences.pop((tiny_batchnorm, 2)) > 1e-3
    assert max(differences.values()) < 1e-10
