"""Exact evaluation: any number of ranks reports the numbers that one process reports, for any
number of images; and what chapter 07 writes about them is true. (That a checkpoint gives the number
of its log when it is evaluated again: test_smoke.py.)"""

import csv
import inspect
import os
from collections import Counter
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
import torch
from crew import Crew, call_main
from harness import AS_OTHERS, CHAPTERS, FSDP, HOROVOD, SLURM, load_chapter, rows
from plain_training import normalised
from tiers import table
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset
from with_tiny_model import tiny_batchnorm, tiny_float32, tiny_float64

WORLD_SIZES = {"01_dataparallel": (1,)}
CASES = [(chapter, size) for chapter in CHAPTERS for size in WORLD_SIZES.get(chapter, (1, 2, 3))]
EVAL = "07_dist_eval"
# What divides and adds up is the same to the letter in the others. For as many ranks as divide
# nothing evenly, two and three are alike.
CORE = [case for case in CASES if case[1] == 2 or case[0] in ("01_dataparallel", "02_distributed")]

# ------------------------------------------------------------- every number of images from 1 to 17

COUNTS, CLASSES = range(1, 18), 8
# The place of the true class among the guesses, image by image: 0 is right, 5 not in the top 5.
PLACES = [0, 2, 5, 0, 1, 7, 0, 4, 6, 0, 3, 0, 7, 1, 0, 5, 0]


def guesser() -> nn.Module:
    torch.manual_seed(2)
    return tiny_float32("", CLASSES)


def validation_images() -> tuple[Tensor, Tensor]:
    """17 images and their classes, chosen so that the guesser is right about some of them."""
    generator = torch.Generator().manual_seed(1)
    images = torch.randint(256, (17, 3, 8, 8), dtype=torch.uint8, generator=generator)
    places = torch.tensor(PLACES)[:, None]
    with torch.no_grad():
        return images, guesser()(normalised(images)).argsort(1, True).gather(1, places)[:, 0]


def guess_plainly(model: nn.Module, images: Tensor, targets: Tensor) -> list[dict]:
    """What the model says of one image after the other, with none of the chapters' code."""
    model.eval()
    guesses = []
    for image, target in zip(images, targets.tolist(), strict=True):
        with torch.no_grad():
            logits = model(normalised(image[None]))[0].double()
        order = logits.argsort(descending=True).tolist()[:5]
        shares = logits.softmax(0)
        guess = {"true": target, "loss": -shares[target].log().item(), "top": order}
        guesses.append(guess | {"probabilities": shares[order].tolist()})
    return guesses


def summed_up(guesses: list[dict]) -> dict:
    """The numbers of an evaluation, counted one by one."""
    count = len(guesses)
    right = sum(guess["true"] == guess["top"][0] for guess in guesses)
    among_five = sum(guess["true"] in guess["top"] for guess in guesses)
    loss = sum(guess["loss"] for guess in guesses) / count
    acc1, acc5 = 100 * right / count, 100 * among_five / count
    return {"loss": loss, "acc1": acc1, "acc5": acc5, "images": count}


def assert_same_result(result: dict, expected: dict) -> None:
    """Counts and accuracies to the last bit, the loss but for the rounding of sums."""
    for name in ("images", "acc1", "acc5"):
        assert result[name] == expected[name], (name, result, expected)
    assert result["loss"] == pytest.approx(expected["loss"], rel=1e-6)


def enter(chapter: str) -> tuple[ModuleType, SimpleNamespace, int, int]:
    """In a crew member: the chapter, its arguments, rank and world size, other ranks joined. (The
    crew takes them apart again.)"""
    module = load_chapter(chapter)
    argv = ["--synthetic", "--image-size", "8", "--batch-size", "6", "--workers", "0"]
    argv += ["--evaluate", "--pretrained"]
    args = module.build_parser().parse_args([*argv, *AS_OTHERS.get(chapter, [])])
    rank, world_size = int(os.environ["CREW_RANK"]), int(os.environ["CREW_SIZE"])
    if chapter == SLURM:
        module.join_slurm(0, 1)
    if chapter == HOROVOD:
        module.hvd.init()
    elif chapter != "01_dataparallel":
        torch.distributed.init_process_group("gloo", rank=rank, world_size=world_size)
    return module, args, rank, world_size


def val_loader(module: ModuleType, args: SimpleNamespace, val_set: TensorDataset) -> DataLoader:
    """The chapter's, of this rank."""
    rank, world_size = int(os.environ["CREW_RANK"]), int(os.environ["CREW_SIZE"])
    ranks = () if module.__name__.endswith("01_dataparallel") else (rank, world_size)
    return module.build_loaders(args, val_set, val_set, *ranks)[1]


def evaluate(module: ModuleType, args: SimpleNamespace, model: nn.Module, loader: object) -> dict:
    """The numbers that the chapter's evaluate returns."""
    known = {"args": args, "model": model, "loader": loader, "num_classes": CLASSES}
    wanted = inspect.signature(module.evaluate).parameters
    answer = module.evaluate(**{name: known[name] for name in wanted})
    return answer if isinstance(answer, dict) else answer.scores  # 07 returns more


def evaluate_counts(chapter: str) -> list[dict]:
    """In a crew member: the first n images, for each n, in one process group."""
    module, args, _, _ = enter(chapter)
    images, targets = validation_images()
    model, answers = guesser(), []
    for count in COUNTS:
        loader = val_loader(module, args, TensorDataset(images[:count], targets[:count]))
        result = evaluate(module, args, model, loader)
        answers.append(result | {"own_images": len(loader.sampler)})
    return answers


@pytest.mark.parametrize(("chapter", "world_size"), table(CASES, CORE))
def test_every_count_is_exact(chapter: str, world_size: int, crew: Crew) -> None:
    guesses = guess_plainly(guesser(), *validation_images())
    answers = crew.run(evaluate_counts, chapter, world_size=world_size)
    not_trivial = 0
    for index, count in enumerate(COUNTS):
        expected = summed_up(guesses[:count])
        assert expected["acc1"] == 100 * PLACES[:count].count(0) / count
        not_trivial += 0 < expected["acc1"] < expected["acc5"] < 100
        for rank, answer in enumerate(answers):
            assert_same_result(answer[index], expected)
            # A rank that has no images at all has a part in the sum nevertheless.
            share = count // world_size + (rank < count % world_size)
            if chapter == FSDP:  # all ranks call the model equally often
                share = -(-count // world_size)
            assert answer[index]["own_images"] == share
    # Where all are right or all are wrong, other images would give the same.
    assert not_trivial > 10
    if world_size == 3 and chapter != FSDP:
        assert answers[2][0]["own_images"] == answers[2][1]["own_images"] == 0


# ------------------------------------------------------- statistics that differ between the ranks


def model_of_rank(rank: int) -> nn.Module:
    """One with BatchNorm that has seen other images than on any other rank."""
    torch.manual_seed(3)
    model = tiny_batchnorm("", CLASSES)
    model.head.weight.data *= 10
    model.norm.running_mean += rank
    model.norm.running_var *= 1 + 2 * rank
    model.norm.num_batches_tracked += rank
    return model


def evaluate_own_buffers(chapter: str) -> tuple[dict, dict]:
    """In a crew member: the result, and the buffers after it."""
    module, args, rank, _ = enter(chapter)
    loader = val_loader(module, args, TensorDataset(*validation_images()))
    model = model_of_rank(rank)
    result = evaluate(module, args, model, loader)
    return result, {name: buffer.tolist() for name, buffer in model.named_buffers()}


@pytest.mark.parametrize(("chapter", "world_size"), table(CASES, CORE))
def test_the_model_of_rank_0_is_evaluated(chapter: str, world_size: int, crew: Crew) -> None:
    images, targets = validation_images()
    models = [model_of_rank(rank) for rank in range(3)]
    by_rank = [summed_up(guess_plainly(model, images, targets)) for model in models]
    assert abs(by_rank[1]["loss"] - by_rank[0]["loss"]) > 0.1
    assert abs(by_rank[2]["loss"] - by_rank[0]["loss"]) > 0.1
    buffers = {name: buffer.tolist() for name, buffer in model_of_rank(0).named_buffers()}
    assert len(buffers) == 3
    for result, after in crew.run(evaluate_own_buffers, chapter, world_size=world_size):
        assert_same_result(result, by_rank[0])
        assert after == buffers


# ----------------------------------------------------------------------------- the files of 07


def run_main(crew: Crew, world_size: int, argv: list, patches: dict) -> None:
    """main(argv) of 07 on all ranks, which must end well."""
    words = [str(word) for word in argv]
    for answer in crew.run(call_main, EVAL, words, patches, world_size=world_size):
        assert answer["exit"] is None, answer


def read_csv(path: Path) -> list[list[str]]:
    with path.open(newline="") as file:
        return list(csv.reader(file))


def assert_details_are_true(
    written: list[Path], names: list[str], paths: list[str], guesses: list[dict]
) -> None:
    """The files of 07, predictions.csv, confusion.csv and per_class.csv, say what is counted by
    hand."""
    (header, *predictions), confusion, (titles, *classes) = map(read_csv, written)
    pairs = Counter((names[guess["true"]], names[guess["top"][0]]) for guess in guesses)
    counted = [[true, *(str(pairs[true, guess]) for guess in names)] for true in names]
    assert [confusion[0][1:], *confusion[1:]] == [names, *counted]

    assert titles == ["class", "images", "correct", "acc1", "most often mistaken for"]
    assert [line[0] for line in classes] == names
    for own, images, correct, acc1, mistaken_for in classes:
        wrong = {guess: n for (true, guess), n in pairs.items() if true == own != guess}
        assert int(images) == sum(wrong.values()) + pairs[own, own]
        assert int(correct) == pairs[own, own]
        assert acc1 == (f"{100 * int(correct) / int(images):.2f}" if int(images) else "")
        assert wrong.get(mistaken_for, 0) == max(wrong.values(), default=0)
        assert bool(mistaken_for) == bool(wrong)

    k = min(5, len(names))
    numbered = [f"{word}{i}" for i in range(1, k + 1) for word in ("class", "prob")]
    assert header == ["path", "label", *numbered]
    # Each image, once, in the order of the data set.
    assert [line[0] for line in predictions] == paths
    for line, guess in zip(predictions, guesses, strict=True):
        assert [line[1], *line[2::2]] == [names[n] for n in (guess["true"], *guess["top"])]
        probabilities = [float(cell) for cell in line[3::2]]
        assert probabilities == pytest.approx(guess["probabilities"], abs=1e-6)


# torchvision 0.29 says that its decoders will go some day.
@pytest.mark.filterwarnings("ignore:The image decoding:DeprecationWarning")
@pytest.mark.parametrize("files", [True, False], ids=["11 images", "1 image"])
def test_predictions_do_not_depend_on_ranks(
    files: bool, crew: Crew, image_folder: Path, tmp_path: Path
) -> None:
    """The same files, byte for byte, from any number of ranks, also when one has no image; and what
    they say of the images is counted by hand."""
    argv = ["--data", str(image_folder)] if files else ["--synthetic", "4"]
    argv += ["--image-size", "8", "--batch-size", "6", "--workers", "0"]
    argv += ["--evaluate", "--pretrained"]  # needs no checkpoint: the tiny model ignores it
    texts = []
    for world_size in (1, 2, 3):
        folder = tmp_path / str(world_size)
        folder.mkdir()
        written = [folder / f"{name}.csv" for name in ("predictions", "confusion", "per_class")]
        more = ["--output-dir", folder, "--save-predictions", written[0]]
        run_main(crew, world_size, [*argv, *more], {"build_model": tiny_float64})
        texts.append([file.read_text() for file in written])
        assert not list(tmp_path.rglob("*.tmp"))
    assert texts[0] == texts[1] == texts[2]

    module = load_chapter(EVAL)
    val_set = module.build_datasets(module.build_parser().parse_args(argv))[1]
    images = torch.stack([image for image, _ in val_set])
    targets = torch.tensor([int(target) for _, target in val_set])
    names = val_set.classes if files else [str(number) for number in range(10)]
    paths = [path for path, _ in val_set.samples] if files else ["image 0"]
    torch.manual_seed(0)
    model = tiny_float64("", len(names))
    guesses = guess_plainly(model, images, targets)
    assert len(guesses) == len(set(paths)) == (11 if files else 1)
    assert_details_are_true(written, names, paths, guesses)


def test_no_formula(tmp_path: Path) -> None:
    """A spreadsheet shows the name of a class, and computes nothing from it."""
    write_csv = load_chapter(EVAL).write_csv
    write_csv(tmp_path / "new.csv", [["=1+1", "@a", 3, "0.5", "cat"]])
    assert read_csv(tmp_path / "new.csv") == [["'=1+1", "'@a", "3", "0.5", "cat"]]


# ---------------------------------------------------------------- the error of the padded sampler


def some_images(args: SimpleNamespace) -> tuple[TensorDataset, TensorDataset, list[str]]:
    """In place of build_datasets: the first of the images above, as many as --synthetic."""
    dataset = TensorDataset(*(tensor[: args.synthetic] for tensor in validation_images()))
    return dataset, dataset, [str(label) for label in range(CLASSES)]


def guesser_of(args: object, num_classes: int) -> nn.Module:
    """In place of build_model."""
    return guesser()


@pytest.mark.parametrize(
    ("world_size", "images", "twice"),
    table([(2, 11, 1), (3, 10, 2), (3, 12, 0), (1, 11, 0)], [(2, 11, 1), (3, 10, 2)]),
)
def test_naive_evaluation_is_off_by_its_padding(
    world_size: int, images: int, twice: int, crew: Crew, tmp_path: Path
) -> None:
    """Where shares are padded, the first images count twice."""
    argv = ["--synthetic", images, "--image-size", 8, "--batch-size", 6, "--workers", 0]
    argv += ["--evaluate", "--pretrained", "--compare-naive", "--output-dir", tmp_path]
    patches = {"build_model": guesser_of, "build_datasets": some_images}
    run_main(crew, world_size, argv, patches)
    (exact,) = rows(tmp_path, "eval", "evaluate.jsonl")
    (naive,) = rows(tmp_path, "naive", "evaluate.jsonl")
    guesses = guess_plainly(guesser(), *validation_images())[:images]
    assert_same_result(exact, summed_up(guesses))
    padded = summed_up(guesses + guesses[:twice])
    assert (naive["images"], naive["counted_twice"]) == (images + twice, twice)
    assert naive["acc1"] == pytest.approx(padded["acc1"], abs=1e-9)
    assert naive["loss"] == pytest.approx(padded["loss"], rel=1e-6)
    assert naive["acc1_off_by"] == pytest.approx(padded["acc1"] - exact["acc1"], abs=1e-9)
    assert bool(twice) == (abs(naive["acc1_off_by"]) > 1)
