"""Same training: every chapter, with any number of ranks, ends with the parameters that a plain
loop in one process ends with. (By real launches: test_slurm.py compares with the same loop, and
test_faults.py with the crew that takes the launchers' place here.)"""

from pathlib import Path

import pytest
import torch
from crew import Crew
from harness import CHAPTERS, HOROVOD, load_state, rows
from plain_training import (
    HIGH_RATE,
    arguments,
    assert_is_plain_training,
    train,
)
from tiers import table
from torch import Tensor, nn
from with_tiny_model import tiny_other_on_each_rank

WORLD_SIZES = {"01_dataparallel": (1,)}
CASES = [(chapter, size) for chapter in CHAPTERS for size in WORLD_SIZES.get(chapter, (1, 2, 3))]
# DDP averages over three ranks, and trains on one, in one chapter as in another. (03 trains with
# the functions of 02, see test_static.py.)
CORE = [case for case in CASES if case[1] == 2 and case[0] != "03_multiprocessing"]
CORE += [("01_dataparallel", 1), ("02_distributed", 1), ("02_distributed", 3), (HOROVOD, 1)]


@pytest.mark.parametrize(("chapter", "world_size"), table(CASES, CORE))
def test_trains_as_one_process_would(
    chapter: str, world_size: int, crew: Crew, tmp_path: Path
) -> None:
    """All ranks bit for bit, though only rank 0 has begun with the weights that count."""
    argv, build = arguments(tmp_path, HIGH_RATE, chapter), tiny_other_on_each_rank
    answers = crew.run(train, chapter, argv, build, world_size=world_size)
    state = load_state(tmp_path / "checkpoint.pt")
    saved = {name: weight.tolist() for name, weight in state["model"].items()}
    assert answers == [saved] * world_size
    assert all(weight.dtype == torch.float64 for weight in state["model"].values())
    assert rows(tmp_path, "start")[0].get("world_size", 1) == world_size
    assert_is_plain_training(state, build, HIGH_RATE, 1e-10, tmp_path)


def smooth_float64(args: object, num_classes: int) -> nn.Module:
    """In place of build_model: one that sees each pixel, so that no two crops are alike to it."""
    layers = nn.Sequential(nn.Flatten(), nn.Linear(3 * 16 * 16, 8), nn.Tanh(), nn.Linear(8, 3))
    return InFloat64(layers.double())


class InFloat64(nn.Module):
    def __init__(self, layers: nn.Module) -> None:
        super().__init__()
        self.layers = layers

    def forward(self, images: Tensor) -> Tensor:
        return self.layers(images.double())


VIEWS = [(1, 0), (1, 3), (2, 1), (3, 0), (3, 3)]


def test_same_views(crew: Crew, image_folder: Path, tmp_path: Path) -> None:
    """Of real JPEGs, with random crops and flips: any number of ranks and of loader workers trains
    on the same views, in the same order, and so ends with the same parameters."""
    argv = ["--data", str(image_folder), "--image-size", "16", "--batch-size", "12", "--lr", "0.3"]
    argv += ["--epochs", "3", "--seed", "3"]
    found = {}
    for world_size, workers in VIEWS:
        folder = tmp_path / f"{world_size}-{workers}"
        words = [*argv, "--workers", str(workers), "--output-dir", str(folder)]
        crew.run(train, "02_distributed", words, smooth_float64, world_size=world_size)
        found[world_size, workers] = load_state(folder / "checkpoint.pt")["model"]
    first = found[1, 0]
    for case, weights in found.items():
        for name, tensor in first.items():
            assert torch.allclose(tensor, weights[name], rtol=0, atol=1e-10), (case, name)
