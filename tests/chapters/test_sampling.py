"""Sampling: which images each rank gets in which epoch, and that each look at one is a new one.

(That a run shuffles anew in each epoch: test_equivalence.py, whose plain loop does.)
"""

from itertools import combinations
from pathlib import Path

import pytest
from crew import Crew, call_main
from harness import CHAPTERS, SLURM, load_chapter
from tiers import table
from torch.utils.data import DataLoader, Dataset, Subset
from with_tiny_model import tiny_float32

WORLD_SIZES = {"01_dataparallel": (1,)}
# build_loaders is the same in all chapters but 06, which test_static.py holds.
LOADERS = ["02_distributed", SLURM]
BATCH, EPOCHS = 12, 4


# ------------------------------------------------------------------------- what the loaders deliver


def deliveries(chapter: str, images: int, world_size: int) -> list[list[list[set[int]]]]:
    """The image numbers by epoch, rank and step."""
    module = load_chapter(chapter)
    argv = ["--synthetic", "--batch-size", str(BATCH), "--seed", "5", "--workers", "0"]
    args = module.build_parser().parse_args(argv)
    numbers = range(images)  # stands for a data set: item n is n
    loaders = [
        module.build_loaders(args, numbers, numbers, rank, world_size)[0]
        for rank in range(world_size)
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


# ------------------------------------------------------------------------------------ augmentation


NOTED: list = []


def note_images(args: object, model: object, loader: DataLoader, *others: object) -> None:
    """In place of train_one_epoch: note what each view of the image looks like."""
    NOTED.append([[image.numpy().tobytes() for image in images] for images, _ in loader])


def views_of_one_image(chapter: str, argv: list[str]) -> list[list[list[bytes]]]:
    """In a crew member: the image as training gets it, by epoch, step and place in the batch."""
    build_datasets = load_chapter(chapter).build_datasets

    def one_image(args: object) -> tuple[Dataset, Dataset, int]:
        train_set, val_set, classes = build_datasets(args)
        again_and_again = Subset(train_set, [0] * len(train_set))
        return again_and_again, Subset(val_set, range(1)), classes

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
    """One image, cropped again and again: no rank, epoch, loader worker or seed (they differ by one
    here) sees what another sees, and the same ones see the same when they are repeated."""
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
