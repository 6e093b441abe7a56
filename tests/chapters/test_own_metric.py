"""docs/examples/own/multilabel.py: 02 with another data set, model, loss, metric and optimizer. (It
resumes by the same functions, to the letter, and several rates as in test_resume.py.)"""

import ast
import csv
import importlib.util
from pathlib import Path
from types import ModuleType

import numpy
import pytest
import torch
from harness import ROOT, load_state, rows
from PIL import Image
from plain_training import normalised
from warm import run_warm

pytestmark = pytest.mark.xdist_group("own_metric")  # one run is what most of them look at
EXAMPLE = ROOT / "docs/examples/own/multilabel.py"
EPOCHS, RATES = 4, [0.003, 0.01]
FLAGS = ["--image-size", 24, "--batch-size", 12, "--epochs", EPOCHS, "--lr", *RATES]
# What no own data set, model, loss, metric or optimizer has to touch.
UNCHANGED = [
    "build_loaders", "batches", "lr_factor", "setup_device", "fail", "HelpFormatter",
    "cpus_of_rank", "check_launcher", "check_enough", "check_gpus", "check_finite", "check_ranks",
    "load_image", "seed_of", "SeededDataset", "ResumableSampler", "Meetings", "catch_signals",
    "ignore_signals", "kill_workers", "start_workers", "open_log", "log", "log_start",
    "describe_gpu", "describe_run", "check_same_run", "typed", "load_checkpoint", "check_best",
    "read_checkpoint", "is_finite", "restore", "peak_memory", "save_checkpoints",
    "save_checkpoint", "wait_for_gloo",
]  # fmt: skip


def definitions(path: Path) -> dict[str, str]:
    """The source of each function and class, decorators included."""
    text = path.read_text()
    found = {}
    for node in ast.parse(text).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            first = min([node.lineno, *(d.lineno for d in node.decorator_list)])
            found[node.name] = "\n".join(text.splitlines()[first - 1 : node.end_lineno])
    return found


def test_it_is_still_02() -> None:
    """What it did not have to change is that of 02 to the letter."""
    hub, ours = definitions(ROOT / "02_distributed/main.py"), definitions(EXAMPLE)
    assert [name for name in ours if ours[name] == hub.get(name)] == UNCHANGED


def draw(colours: list[int], seed: int) -> Image.Image:
    """Noise, and for each class that the picture shows a square of its colour."""
    generator = torch.Generator().manual_seed(seed)
    image = torch.randint(0, 60, (32, 32, 3), generator=generator)
    for colour in colours:
        x, y = torch.randint(0, 18, (2,), generator=generator).tolist()
        image[y : y + 14, x : x + 14, colour] = 250
    return Image.fromarray(image.byte().numpy())


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Every set of three labels again and again, the empty one too: 41 images to train on and 19
    to validate, which neither 2 nor 3 ranks divide."""
    folder = tmp_path_factory.mktemp("pictures")
    (folder / "images").mkdir()
    names = ["circle", "cross", "square"]
    for split, numbers in (("train", range(41)), ("val", range(41, 60))):
        with (folder / f"{split}.csv").open("w", newline="") as file:
            table = csv.writer(file)
            table.writerow(["file", "labels"])
            for number in numbers:
                shown = [i for i in range(3) if number >> i & 1]
                draw(shown, number).save(folder / f"images/{number}.png")
                table.writerow([f"images/{number}.png", "|".join(names[i] for i in shown)])
    return folder


def run(folder: Path, world_size: int, pictures: Path, *argv: object) -> Path:
    """The example on so many ranks. Returns its --output-dir, which is in the folder."""
    folder.mkdir()
    words = [EXAMPLE, "--data", pictures, *FLAGS, "--output-dir", folder / "run", *argv]
    codes, outs, errs = run_warm(words, folder, world_size)
    assert codes == [0] * world_size, (outs, errs)
    return folder / "run"


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory, pictures: Path) -> Path:
    """The output folder of a run on two ranks that nothing interrupted."""
    folder = tmp_path_factory.mktemp("whole") / "two"
    return run(folder, 2, pictures, "--workers", 1)


def module(path: Path = EXAMPLE) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    found = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(found)
    return found


def macro_f1(path: Path, pictures: Path) -> tuple[float, float]:
    """In percent, and that of exact matches: by counting, image after image."""
    example = module()
    argv = ["--data", str(pictures), "--image-size", "24"]
    _, data, classes = example.build_datasets(example.build_parser().parse_args(argv))
    model = example.build_model(None, len(classes)).eval()
    model.load_state_dict(load_state(path)["model"])
    pairs = []
    for image, target in data:
        images = normalised(image[None])
        with torch.inference_mode():
            pairs.append(((model(images)[0] > 0).tolist(), target.bool().tolist()))
    scores = []
    for i in range(len(classes)):
        found = [(guess[i], real[i]) for guess, real in pairs]
        tp, wrong = found.count((True, True)), found.count((True, False))
        missed = found.count((False, True))
        scores.append(2 * tp / max(1, 2 * tp + wrong + missed))
    return 100 * sum(scores) / len(classes), 100 * sum(a == b for a, b in pairs) / len(pairs)


def test_trains(whole: Path) -> None:
    """F1 rises, best.pt is the epoch with the highest one, and that is in the log's last row."""
    scores = [row["f1"] for row in rows(whole, "eval")]
    assert len(scores) == EPOCHS and scores[0] < 85 and max(scores) > 88, scores
    assert [row["images"] for row in rows(whole, "eval")] == [19] * EPOCHS
    best = load_state(whole / "best.pt")
    assert best["best"] == max(scores) == rows(whole, "end")[0]["best_f1"]
    assert best["epoch"] == scores.index(max(scores)) + 1
    assert "acc1" not in (whole / "metrics.jsonl").read_text()


@pytest.mark.filterwarnings("ignore:The image decoding:DeprecationWarning")
def test_f1_is_exact(whole: Path, pictures: Path, tmp_path: Path) -> None:
    """One checkpoint has the same F1 on 1, 2 and 3 ranks, to the last bit: that of a count by hand.
    It is what the run logged as well."""
    best = whole / "best.pt"
    epoch = load_state(best)["epoch"]
    expected = {key: rows(whole, "eval")[epoch - 1][key] for key in ("f1", "exact_match", "images")}
    assert (expected["f1"], expected["exact_match"]) == pytest.approx(macro_f1(best, pictures))
    losses = []
    for ranks in (1, 2, 3):
        argv = ["--evaluate", "--resume", best, "--workers", 0]
        folder = run(tmp_path / f"on{ranks}", ranks, pictures, *argv)
        (row,) = rows(folder, "eval", "evaluate.jsonl")
        assert {key: row[key] for key in expected} == expected, ranks
        losses.append(row["loss"])
    assert losses == pytest.approx([losses[0]] * 3, rel=1e-6)


def test_table_of_excel(tmp_path: Path) -> None:
    """Its "CSV UTF-8" begins with a byte order mark; and ranks with other labels are told apart."""
    example, found = module(), []
    for labels in ("a|b", "b|a", "b"):
        table = tmp_path / "train.csv"
        table.write_text(f"file,labels\n1.jpg,{labels}\n2.jpg,a|b\n", encoding="utf-8-sig")
        found.append(example.LabelledImages(table, None))
    assert [data.classes for data in found] == [["a", "b"]] * 3
    same, also, other = map(example.fingerprint, found)
    assert same == also != other and same.startswith("2 ")


# What own-project.md names, and a model that takes one channel.
ONE_CHANNEL_OF_16_BITS = {
    "[0.485, 0.456, 0.406]": "[0.449]",
    "[0.229, 0.224, 0.225]": "[0.226]",
    "ImageReadMode.RGB": "ImageReadMode.GRAY",
    "image.dtype != torch.uint8": "image.dtype != torch.uint16",
    "    return image\n": "    return image.float() / 257\n",
    "view(3, 1, 1)": "view(-1, 1, 1)",
    "models.get_model(args.arch, weights=weights, num_classes=num_classes)": (
        "nn.Sequential(nn.Conv2d(1, 4, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten(),"
        " nn.Linear(4, num_classes))"
    ),
}


@pytest.mark.filterwarnings("ignore:The image decoding:DeprecationWarning")
def test_one_channel_of_16_bits(tmp_path: Path) -> None:
    """02 trains and evaluates on it, and no bit of an image is lost."""
    text = (ROOT / "02_distributed/main.py").read_text()
    for old, new in ONE_CHANNEL_OF_16_BITS.items():
        assert old in text
        text = text.replace(old, new)
    program = tmp_path / "main.py"
    program.write_text(text)
    for split in ("train", "val"):
        for label in range(2):
            folder = tmp_path / split / str(label)
            folder.mkdir(parents=True)
            for number in range(4):
                pixels = numpy.full((24, 24), 256 * number + 3 + label, numpy.uint16)
                Image.fromarray(pixels).save(folder / f"{number}.png")

    image = module(program).load_image(folder / "3.png")
    assert image.shape == (1, 24, 24) and (image * 257).unique().tolist() == [256 * 3 + 4]
    words = ["--data", tmp_path, "--image-size", 24, "--batch-size", 4, "--epochs", 1]
    words += ["--workers", 1, "--output-dir", tmp_path / "run"]
    codes, outs, errs = run_warm([program, *words], tmp_path, 2)
    assert codes == [0, 0], (outs, errs)
    assert rows(tmp_path / "run", "eval")[0]["images"] == 8
