"""Sampling: which images each rank gets in which epoch, and that each look at one is a new one."""

from __future__ import annotations

import os
from itertools import combinations
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from crew import Crew, call_main
from harness import CHAPTERS, HOROVOD, SLURM, load_chapter
from tiers import table
from torch.utils.data import DataLoader, Dataset, TensorDataset
from with_tiny_model import tiny_float32

WORLD_SIZES = {"01_dataparallel": (1,)}
CASES = [(chapter, size) for chapter in CHAPTERS for size in WORLD_SIZES.get(chapter, (1, 2, 3))]
AT_TWO = [case for case in CASES if case[1] == max(WORLD_SIZES.get(case[0], (2,)))]
# build_loaders is the same in all chapters but 06, which test_static.py holds.
LOADERS = ["02_distributed", SLURM]
BATCH, EPOCHS = 12, 4


class Numbers(Dataset):
    """Stands for a training set: item n is n."""

    def __init__(self, count: int) -> None:
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> int:
        return index


# ------------------------------------------------------------------------- what the loaders deliver


def deliveries(chapter: str, images: int, world_size: int) -> list[list[list[set[int]]]]:
    """The image numbers by epoch, rank and step."""
    module = load_chapter(chapter)
    argv = ["--synthetic", "--batch-size", str(BATCH), "--seed", "5", "--workers", "0"]
    args = module.build_parser().parse_args(argv)
    data = Numbers(images)
    loaders = [
        module.build_loaders(args, data, data, rank, world_size)[0] for rank in range(world_size)
    ]
    epochs = []
    for epoch in range(EPOCHS):
        for loader in loaders:
            loader.sampler.set_epoch(epoch)
        epochs.append([[batch.tolist() for batch in loader] for loader in loaders])
    return epochs


# As many as fit exactly, one more, one less, the fewest; and such that ranks' shares are uneven.
@pytest.mark.parametrize("images", [12, 13, 23, 48, 49, 59])
@pytest.mark.parametrize("chapter", table(CHAPTERS, LOADERS))
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


def note_targets(args: object, model: object, loader: DataLoader, *others: object) -> None:
    """In place of train_one_epoch: note what comes."""
    NOTED.append([targets.tolist() for _, targets in loader])


def numbered_sets(args: SimpleNamespace) -> tuple[Dataset, Dataset, int]:
    """In place of build_datasets: training images with their number as the target."""
    images, numbers = torch.zeros(50, 3, 8, 8, dtype=torch.uint8), torch.arange(50)
    return TensorDataset(images, numbers), TensorDataset(images[:3], 0 * numbers[:3]), 10


NOTED: list = []


def noted_by_run(chapter: str, argv: list[str]) -> list[list[list[int]]]:
    """In a crew member: the image numbers that train_one_epoch got from run, by epoch and step."""
    NOTED.clear()
    patches = {"train_one_epoch": note_targets, "build_datasets": numbered_sets}
    answer = call_main(chapter, argv, patches | {"build_model": tiny_float32})
    assert answer["exit"] is None, answer
    return NOTED[:]


@pytest.mark.parametrize(("chapter", "world_size"), table(CASES, AT_TWO))
def test_a_run_shuffles_anew_each_epoch(
    chapter: str, world_size: int, crew: Crew, tmp_path: Path
) -> None:
    """It tells the sampler its epoch: the orders are those of DistributedSampler's recipe."""
    argv = ["--synthetic", "50", "--batch-size", str(BATCH), "--epochs", str(EPOCHS)]
    argv += ["--seed", "5", "--workers", "0", "--image-size", "8", "--output-dir", str(tmp_path)]
    answers = crew.run(noted_by_run, chapter, argv, world_size=world_size)
    assert [len(answer) for answer in answers] == [EPOCHS] * world_size
    for epoch in range(EPOCHS):
        order = torch.randperm(50, generator=torch.Generator().manual_seed(5 + epoch)).tolist()
        for rank, answer in enumerate(answers):
            assert sum(answer[epoch], []) == order[rank:48:world_size]


# ------------------------------------------------------------------------------------ augmentation


class OneImage(Dataset):
    """A data set that gives its first image for any number."""

    def __init__(self, images: Dataset) -> None:
        self.images = images

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> tuple:
        return self.images[0]


def note_images(args: object, model: object, loader: DataLoader, *others: object) -> None:
    """In place of train_one_epoch: note what each view of the image looks like."""
    NOTED.append([[image.numpy().tobytes() for image in images] for images, _ in loader])


def views_of_one_image(chapter: str, argv: list[str]) -> list[list[list[bytes]]]:
    """In a crew member: the image as training gets it, by epoch, step and place in the batch."""
    build_datasets = load_chapter(chapter).build_datasets

    def one_image(args: object) -> tuple[Dataset, Dataset, int]:
        train_set, val_set, classes = build_datasets(args)
        return OneImage(train_set), torch.utils.data.Subset(val_set, range(1)), classes

    NOTED.clear()
    patches = {"train_one_epoch": note_images, "build_datasets": one_image}
    answer = call_main(chapter, argv, patches | {"build_model": tiny_float32})
    assert answer["exit"] is None, answer
    return NOTED[:]


@pytest.mark.parametrize(
    ("chapter", "workers"),
    table(
        [("02_distributed", workers) for workers in (0, 1, 2)]
        + [(chapter, 1) for chapter in CHAPTERS if chapter != "02_distributed"],
        [("02_distributed", 0), ("02_distributed", 2)],
    ),
)
def test_every_view_is_another(
    chapter: str, workers: int, crew: Crew, image_folder: Path, tmp_path: Path
) -> None:
    """One image, cropped again and again: no rank, epoch, loader worker or seed sees what another
    sees, and the same ones see the same when they are repeated."""
    world_size = max(WORLD_SIZES.get(chapter, (2,)))
    argv = ["--data", str(image_folder), "--batch-size", "6", "--epochs", "3", "--image-size", "32"]
    argv += ["--workers", str(workers)]
    views = {}
    for run, seed in (("first", 5), ("again", 5), ("other seed", 6)):
        more = ["--seed", str(seed), "--output-dir", str(tmp_path / run)]
        views[run] = crew.run(views_of_one_image, chapter, argv + more, world_size=world_size)
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
    assert len(batches) == 2 * world_size * 3 * 4
    assert {len(batch) for batch in batches} == {6 // world_size}
    assert len({tuple(batch) for batch in batches}) == len(batches)
    images = [image for batch in batches for image in batch]
    assert len(set(images)) > 0.95 * len(images)
    assert {len(image) for image in images} == {3 * 32 * 32}


# ------------------------------------------------------------------------------------------- seeds


def seeds_of_ranks(
    chapter: str, seed: int, ranks: range, world_size: int, folder: str
) -> list[list[int]]:
    """In a crew member: run as one rank after the other, with nobody else there; the seed in
    effect at the start of each epoch, by rank. Of a seed the generator takes the low 32 bits."""
    seeds = []
    patches = {
        "setup_distributed": lambda args: (rank, world_size, torch.device("cpu")),
        "wrap_model": lambda args, model: model,
        "all_reduce_sum": lambda tensor: tensor.mul_(world_size),
        "cleanup": lambda: None,
        "build_model": tiny_float32,
        "train_one_epoch": lambda *args: seeds[-1].append(torch.initial_seed() % 2**32),
        "save_checkpoint": lambda *args: None,
    }
    if chapter == HOROVOD:
        patches["build_optimizer"] = load_chapter("02_distributed").build_optimizer
    # In 07 it returns more, which may be nothing.
    patches["evaluate"] = lambda *args: (0.0,) if chapter == "07_dist_eval" else 0.0
    argv = ["--synthetic", "64", "--batch-size", "64", "--image-size", "8", "--workers", "0"]
    os.environ["WORLD_SIZE"] = str(world_size)
    for rank in ranks:
        seeds.append([])
        os.environ["RANK"] = str(rank)
        own = ["--seed", str(seed), "--output-dir", f"{folder}/seed{seed}rank{rank}"]
        answer = call_main(chapter, argv + own, patches)
        assert answer["exit"] is None, answer
    return seeds


@pytest.mark.parametrize("chapter", table(CHAPTERS, ["02_distributed"]))
def test_no_two_ranks_or_epochs_share_a_seed(chapter: str, crew: Crew, tmp_path: Path) -> None:
    """All 90 epochs of all 64 ranks of a run, and those of some ranks with the seed next to it."""
    world_size = 1 if chapter in WORLD_SIZES else 64
    seeds = []
    for seed, ranks in ((0, range(world_size)), (1, range(0, world_size, 9))):
        runs = crew.run(seeds_of_ranks, chapter, seed, ranks, world_size, str(tmp_path))[0]
        assert [len(epochs) for epochs in runs] == [90] * len(ranks)
        seeds += [seed for epochs in runs for seed in epochs]
    assert len(set(seeds)) == len(seeds)
