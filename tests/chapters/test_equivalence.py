"""Same training: every chapter, with any number of ranks, ends with the parameters that a plain
loop in one process ends with."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from crew import Crew
from harness import CHAPTERS, HOROVOD, ROOT, SLURM, command_for, load_state, rows, run
from plain_training import (
    HIGH_RATE,
    LOW_RATE,
    arguments,
    assert_is_plain_training,
    difference,
    train,
    train_plainly,
)
from tiers import table
from with_tiny_model import (
    tiny_batchnorm,
    tiny_float32,
    tiny_float64,
    tiny_frozen_batchnorm,
    tiny_other_on_each_rank,
)

WORLD_SIZES = {"01_dataparallel": (1,)}
CASES = [(chapter, size) for chapter in CHAPTERS for size in WORLD_SIZES.get(chapter, (1, 2, 3))]


@pytest.mark.parametrize(
    ("build", "lr", "tolerance"),
    [
        pytest.param(tiny_float64, HIGH_RATE, 1e-10, id="float64"),
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
    crew.run(train, chapter, arguments(tmp_path, lr, chapter), build, world_size=world_size)
    state = load_state(tmp_path / "checkpoint.pt")
    dtype = torch.float64 if build is tiny_float64 else torch.float32
    assert all(p.dtype == dtype for p in state["model"].values())
    assert rows(tmp_path, "start")[0]["world_size"] == world_size
    assert_is_plain_training(state, build, lr, tolerance, tmp_path)


@pytest.mark.proof
@pytest.mark.parametrize("chapter", ["02_distributed", "03_multiprocessing", HOROVOD, SLURM])
def test_so_does_a_real_launch(chapter: str, tmp_path: Path) -> None:
    """The crew takes the place of the launcher: here torchrun, mp.spawn, horovodrun and srun do."""
    argv = [chapter, *arguments(tmp_path / "run", HIGH_RATE)]
    launcher = ROOT / "tests/support/with_tiny_model.py"
    # On CPUs, where two ranks always have room.
    result = run(
        command_for(chapter, argv, 2, launcher), tmp_path, env={"CUDA_VISIBLE_DEVICES": ""}
    )
    assert result.returncode == 0, result.output
    assert rows(tmp_path / "run", "start")[0]["world_size"] == 2
    state = load_state(tmp_path / "run/checkpoint.pt")
    assert_is_plain_training(state, tiny_float64, HIGH_RATE, 1e-10, tmp_path / "run")


SEVERAL = [case for case in CASES if case[1] > 1]


@pytest.mark.parametrize(
    ("chapter", "world_size"), table(SEVERAL, [case for case in SEVERAL if case[1] == 2])
)
def test_all_ranks_end_alike(chapter: str, world_size: int, crew: Crew, tmp_path: Path) -> None:
    """Bit for bit, and as if all had begun with rank 0's weights."""
    argv = arguments(tmp_path, HIGH_RATE, chapter)
    answers = crew.run(train, chapter, argv, tiny_other_on_each_rank, world_size=world_size)
    assert len(answers) == world_size
    assert all(answer == answers[0] for answer in answers)
    state = load_state(tmp_path / "checkpoint.pt")
    parameters = dict(train_plainly(tiny_float64, HIGH_RATE)[0].named_parameters())
    assert parameters.keys() == answers[0].keys()
    for name, values in answers[0].items():
        assert state["model"][name].tolist() == values
        assert (parameters[name] - torch.tensor(values, dtype=torch.float64)).abs().max() < 1e-10


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
