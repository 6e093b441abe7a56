"""Sampling: which images each rank gets in which epoch, and that each look at one is a new one.

(That a run shuffles anew in each epoch: test_equivalence.py, whose plain loop does.)
"""

import os
from argparse import Namespace
from itertools import combinations
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch
from crew import Crew, call_main
from harness import SLURM, load_chapter
from torch.utils.data import DataLoader, Dataset, Subset
from with_tiny_model import TinyModel, tiny_float32

WORLD_SIZES = {"01_dataparallel": (1,)}
# build_loaders of the other chapters is that of 02, or differs from it in a comment.
HUB = "02_distributed"
LOADERS = ["01_dataparallel", HUB, SLURM]
BATCH, EPOCHS = 12, 4


# ------------------------------------------------------------------------- what the loaders deliver


def training_loader(
    module: ModuleType, args: Namespace, items: Dataset, rank: int, world_size: int
) -> DataLoader:
    """Of a rank; 01 has none."""
    ranks = () if module.__name__.endswith("01_dataparallel") else (rank, world_size)
    return module.build_loaders(args, items, items, *ranks)[0]


def set_epoch(module: ModuleType, args: Namespace, loader: DataLoader, epoch: int) -> None:
    """As main does before each epoch."""
    if hasattr(loader.sampler, "set_epoch"):
        loader.sampler.set_epoch(epoch)
    else:
        loader.sampler.generator.manual_seed(args.seed * 1_000_003 + epoch)


def deliveries(chapter: str, images: int, world_size: int) -> list[list[list[set[int]]]]:
    """The image numbers by epoch, rank and step."""
    module = load_chapter(chapter)
    argv = ["--synthetic", "--batch-size", str(BATCH), "--seed", "5", "--workers", "0"]
    args = module.build_parser().parse_args(argv)
    numbers, ranks = range(images), range(world_size)  # in a data set item n is n
    loaders = [training_loader(module, args, numbers, rank, world_size) for rank in ranks]
    epochs = []
    for epoch in range(EPOCHS):
        for loader in loaders:
            set_epoch(module, args, loader, epoch)
        epochs.append([[batch.tolist() for batch in loader] for loader in loaders])
    return epochs


# As many as fit exactly, one more, one less, the fewest; and such that ranks' shares are uneven.
@pytest.mark.parametrize("images", [12, 13, 23, 48, 49, 59])
@pytest.mark.parametrize("chapter", LOADERS)
def test_each_image_at_most_once(chapter: str, images: int) -> None:
    """Per epoch, over all ranks; at most one batch less one image is left out; and what a step
    sees does not depend on the number of ranks."""
    steps = images // BATCH
    of_one_rank = deliveries(chapter, images, 1)
    for world_size in WORLD_SIZES.get(chapter, (1, 2, 3)):
        epochs = deliveries(chapter, images, world_size)
        for epoch, ranks in enumerate(epochs):
            assert [len(batches) for batches in ranks] == [steps] * world_size
            assert {len(b) for batches in ranks for b in batches} == {BATCH // world_size}
            used = [number for batches in ranks for batch in batches for number in batch]
            assert len(used) == len(set(used)) > images - BATCH
            assert set(used) <= set(range(images))
            for step in range(steps):
                together = {number for batches in ranks for number in batches[step]}
                assert together == set(of_one_rank[epoch][0][step])
        # Also the images that were left out have their turn: not the same are in each epoch.
        for one, other in combinations(epochs, 2):
            assert one != other
            assert images == BATCH or one[0][0] != other[0][0]


# ------------------------------------------------------------------------------------ the workers


class Drawn(Dataset):
    """Numbers from numpy."""

    def __len__(self) -> int:
        return 40

    def __getitem__(self, index: int) -> float:
        return np.random.rand()


ARGV = ["--synthetic", "--batch-size", "4", "--workers", "1"]
FORKS: list[bool] = []  # for each fork of this process: whether a process group existed


def forks_of(chapter: str, argv: list[str]) -> list[bool]:
    """In a crew member."""
    if not FORKS:
        os.register_at_fork(before=lambda: FORKS.append(torch.distributed.is_initialized()))
    FORKS.clear()
    answer = call_main(chapter, argv, {"build_model": tiny_float32})
    assert answer["exit"] is None, answer
    return FORKS[:]


def test_workers_start_early(crew: Crew, tmp_path: Path) -> None:
    """A worker of each loader on each rank, before the process group, whose threads may hold locks;
    none later, though both loaders are used again in each epoch."""
    argv = [*ARGV, "--synthetic", "24", "--epochs", "3", "--image-size", "8"]
    argv += ["--output-dir", str(tmp_path)]
    assert crew.run(forks_of, HUB, argv, world_size=2) == [[False, False]] * 2


def test_numpy_differs_by_rank() -> None:
    """Numbers that a data set draws by numpy are not seeded by image, but no rank repeats those of
    another."""
    module = load_chapter(HUB)
    args = module.build_parser().parse_args(ARGV)
    for loader in (0, 1):
        drawn = []
        for rank in range(2):
            batches = module.build_loaders(args, Drawn(), Drawn(), rank, 2)[loader]
            drawn += [number for numbers in batches for number in numbers.tolist()]
        assert len(set(drawn)) == len(drawn) == 40


# ------------------------------------------------------------------------------------ augmentation


NOTED: list = []


class Noting(TinyModel):
    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Notes where dropout's random numbers begin."""
        if self.training:
            NOTED.append(torch.initial_seed())
        return super().forward(images)


def noting(args: object, num_classes: int) -> Noting:
    """In place of build_model."""
    return Noting(num_classes)


def seeds_of_dropout(argv: list[str]) -> list[int]:
    """In a crew member: by step."""
    NOTED.clear()
    answer = call_main(HUB, argv, {"build_model": noting})
    assert answer["exit"] is None, answer
    return NOTED[:]


def test_dropout_differs(crew: Crew, tmp_path: Path) -> None:
    """Between ranks, steps, epochs and neighbouring seeds."""
    argv = ["--synthetic", "16", "--image-size", "8", "--batch-size", "8", "--epochs", "3"]
    seeds = []
    for seed in ("0", "1"):
        more = ["--workers", "0", "--seed", seed, "--output-dir", str(tmp_path / seed)]
        for answer in crew.run(seeds_of_dropout, argv + more, world_size=2):
            seeds += answer
    assert len(set(seeds)) == len(seeds) == 24  # of 3 epochs of 2 steps


def note_images(
    args: object, log: object, model: object, loader: DataLoader, *_: object
) -> tuple[int, bool]:
    """In place of train_one_epoch: note what each view of the image looks like."""
    NOTED.append([[image.numpy().tobytes() for image in images] for images, _ in loader])
    return len(loader), False


def views_of_one_image(argv: list[str]) -> list[list[list[bytes]]]:
    """In a crew member: the image as training gets it, by epoch, step and place in the batch."""
    build_datasets = load_chapter(HUB).build_datasets

    def one_image(args: object) -> tuple[Dataset, Dataset, list[str]]:
        train_set, val_set, classes = build_datasets(args)
        again_and_again = Subset(train_set, [0] * len(train_set))
        return again_and_again, Subset(val_set, range(1)), classes

    NOTED.clear()
    patches = {"train_one_epoch": note_images, "build_datasets": one_image}
    answer = call_main(HUB, argv, patches | {"build_model": tiny_float32})
    assert answer["exit"] is None, answer
    return NOTED[:]


@pytest.mark.parametrize("workers", [0, 2])
def test_every_view_is_another(
    workers: int, crew: Crew, image_folder: Path, tmp_path: Path
) -> None:
    """One image, cropped again and again: no rank, epoch, loader worker or seed (they differ by one
    here) sees what another sees, and the same ones see the same when they are repeated."""
    argv = ["--data", str(image_folder), "--batch-size", "6", "--epochs", "3", "--image-size", "32"]
    argv += ["--workers", str(workers)]
    views = {}
    for run, seed in (("first", 5), ("again", 5), ("other seed", 6)):
        more = ["--seed", str(seed), "--output-dir", str(tmp_path / run)]
        views[run] = crew.run(views_of_one_image, argv + more, world_size=2)
    assert views["first"] == views["again"]

    # Steps in turn come from the workers in turn. Where one stream of random numbers feeds two
    # steps, ranks, epochs or seeds, a whole batch is repeated; one view may be so by chance.
    batches = [
        batch
        for run in ("first", "other seed")
        for epochs in views[run]
        for steps in epochs
        for batch in steps
    ]
    assert len(batches) == 2 * 2 * 3 * 4
    assert {len(batch) for batch in batches} == {3}
    assert len({tuple(batch) for batch in batches}) == len(batches)
    images = [image for batch in batches for image in batch]
    assert len(set(images)) > 0.95 * len(images)
    assert {len(image) for image in images} == {3 * 32 * 32}
