"""What recipes.md says of libraries, by the libraries themselves. Each is installed into a folder
of its own, in the version that the page names; torch is that of the tests."""

import functools
import json
import re
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from harness import ROOT, Result, run, run_short
from test_recipes import RECORDS, tar_of

pytestmark = pytest.mark.proof
PAGES = [ROOT / f"docs/{language}/recipes.md" for language in ("en", "zh")]
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node"]


@pytest.fixture(scope="module")
def play(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., list]:
    """What the ranks of a script answer, that has a library beside torch, and what it said."""

    @functools.cache
    def installed(library: str) -> Path:
        said = [re.findall(rf"\b{library} \d+\.\d+\.\d+", page.read_text()) for page in PAGES]
        [pinned] = set(sum(said, []))
        folder = tmp_path_factory.mktemp(library)
        install = [sys.executable, "-m", "pip", "install", "--quiet", "--target", folder]
        if library == "torchmetrics":  # it would bring a torch of its own
            install += ["--no-deps", "lightning-utilities"]
        result = run([*install, pinned.replace(" ", "==")], ROOT)
        assert result.returncode == 0, result.output
        return folder

    def played(library: str, script: str, folder: Path, ranks: int = 2) -> tuple[list, Result]:
        (folder / "script.py").write_text(script)
        paths = f"{installed(library)}:{ROOT / 'docs/examples/convert'}"
        env = {"PYTHONPATH": paths, "PYTHONWARNINGS": "ignore"}
        env |= {"HF_HOME": str(folder / "hf"), "HF_HUB_OFFLINE": "1", "WANDB_MODE": "offline"}
        result = run_short([*TORCHRUN, ranks, folder / "script.py"], folder, env=env)
        assert result.returncode == 0, result.output
        return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(ranks)], result

    return played


# ------------------------------------------------------------------------------ files of records

BEGIN = """\
import json
from pathlib import Path
import torch.distributed as dist
from torch.utils.data import DataLoader, DistributedSampler

dist.init_process_group("gloo")
rank, world_size = dist.get_rank(), dist.get_world_size()


def epochs(dataset, numbers, persistent=True, workers=2):
    lives = {"num_workers": workers, "persistent_workers": persistent and workers > 0}
    loader = DataLoader(dataset, 4, collate_fn=numbers, **lives)
    seen = []
    for epoch in range(2):
        if hasattr(dataset, "set_epoch"):
            dataset.set_epoch(epoch)
        seen.append(sum(loader, []))
    return seen
"""
END = """
Path(f"{rank}.json").write_text(json.dumps(answers))
dist.barrier()
dist.destroy_process_group()
"""
WEBDATASET = """
import webdataset as wds


def seen(files, persistent=True, **changed):
    options = {"nodesplitter": wds.split_by_node, "shardshuffle": 100, "detshuffle": True}
    urls = [f"{number}.tar" for number in range(files)]
    try:
        dataset = wds.WebDataset(urls, **options | changed)
        numbers = lambda records: [int(record["cls"].split()[1]) for record in records]
        return epochs(dataset, numbers, persistent)
    except ValueError as error:
        return str(error)


answers = {
    "as on the page": seen(8),
    "without detshuffle": seen(8, detshuffle=False),
    "without workers that live on": seen(8, persistent=False),
    "without nodesplitter": seen(8, nodesplitter=wds.shardlists.single_node_only),
    "too few files": seen(3),
    "too few files, unchecked": seen(3, empty_check=False),
}
"""
DATASETS = """
import pyarrow
import pyarrow.parquet
from datasets import load_dataset
from datasets.distributed import split_dataset_by_node

if rank == 0:
    for number in range(8):
        rows = {"number": list(range(20 * number, 20 * number + 20))}
        pyarrow.parquet.write_table(pyarrow.table(rows), f"{number}.parquet")
dist.barrier()


def seen(files, split=True, **shuffled):
    names = [f"{number}.parquet" for number in range(files)]
    dataset = load_dataset("parquet", data_files=names, streaming=True, split="train")
    dataset = dataset.shuffle(buffer_size=1000, **shuffled)
    if split:
        dataset = split_dataset_by_node(dataset, rank, world_size)
    return epochs(dataset, lambda rows: [row["number"] for row in rows])


def without_streaming():
    names = [f"{number}.parquet" for number in range(8)]
    dataset = load_dataset("parquet", data_files=names, split="train")
    sampler, seen = DistributedSampler(dataset), []
    loader = DataLoader(dataset, 4, sampler=sampler, num_workers=2)
    for epoch in range(2):
        sampler.set_epoch(epoch)
        seen.append(sum((batch["number"].tolist() for batch in loader), []))
    return seen


from recipes import RecordFiles
from pyarrow.parquet import ParquetFile

READ_PARQUET
files = [f"{number}.parquet" for number in range(8)]
shared = RecordFiles(files, read_parquet, rank, world_size)
answers = {
    "parquet": epochs(shared, lambda rows: [row["number"] for row in rows]),
    "as on the page": seen(8, seed=0),
    "without a seed": seen(8),
    "without a split": seen(8, split=False, seed=0),
    "odd number of files": seen(3, seed=0),
    "without streaming": without_streaming(),
}
"""


def once(first: list, second: list, files: int) -> bool:
    """Each record once in each epoch, over both ranks."""
    every = list(range(files * RECORDS))
    return all(sorted(ours + theirs) == every for ours, theirs in zip(first, second, strict=True))


def test_webdataset(play: Callable, tmp_path: Path) -> None:
    for number in range(8):
        tar_of(tmp_path / f"{number}.tar", number * RECORDS)
    both, _ = play("webdataset", BEGIN + WEBDATASET + END, tmp_path)
    for name in ("as on the page", "without detshuffle", "without workers that live on"):
        first, second = (answers[name] for answers in both)
        assert once(first, second, 8), name
        assert (first[0] == first[1]) == (name != "as on the page"), name
    for answers in both:
        assert "you need to add an explicit nodesplitter" in answers["without nodesplitter"]
    assert "perhaps you have fewer shards than workers" in both[1]["too few files"]
    assert once(*(answers["too few files, unchecked"] for answers in both), 3)


def test_datasets(play: Callable, tmp_path: Path) -> None:
    fence = re.search(r"^def read_parquet.*?(?=```)", PAGES[0].read_text(), re.M | re.S)
    script = BEGIN + DATASETS.replace("READ_PARQUET", fence[0]) + END
    both, _ = play("datasets", script, tmp_path)
    assert once(*(answers["parquet"] for answers in both), 8)
    first, second = (answers["as on the page"] for answers in both)
    assert once(first, second, 8) and first[0] != first[1]
    assert not once(*(answers["without a seed"] for answers in both), 8)
    for answers in both:
        assert sorted(answers["without a split"][0]) == list(range(8 * RECORDS))
    first, second = (answers["without streaming"] for answers in both)
    assert once(first, second, 8) and first[0] != first[1]
    first, second = (answers["odd number of files"] for answers in both)
    assert once(first, second, 3)
    for file in range(3):  # both ranks read each of the three
        records = set(range(file * RECORDS, (file + 1) * RECORDS))
        assert records & set(first[0]) and records & set(second[0])


# ---------------------------------------------------------------------------------------- metrics

TORCHMETRICS = """
import torch
from torchmetrics.classification import BinaryAUROC, MulticlassF1Score

torch.manual_seed(0)
scores, targets = torch.rand(31, 3), torch.arange(31) % 3
answers = []
for metric, columns, of in (
    (MulticlassF1Score, slice(None), targets), (BinaryAUROC, 0, (targets == 0).int())
):
    options = {"num_classes": 3, "average": "macro"} if metric is MulticlassF1Score else {}
    shared, alone = metric(**options), metric(**options, sync_on_compute=False)
    alone.update(scores[:, columns], of)
    for mine in torch.arange(31).tensor_split(world_size)[rank].split(4):
        shared.update(scores[mine][:, columns], of[mine])
    answers.append([shared.compute().item(), alone.compute().item()])
"""


def test_torchmetrics(play: Callable, tmp_path: Path) -> None:
    """From sums, and from all predictions, of unequal shares."""
    both, _ = play("torchmetrics", BEGIN + TORCHMETRICS + END, tmp_path)
    assert both[0] == both[1]
    for shared, alone in both[0]:
        assert shared == pytest.approx(alone, abs=1e-6)


# ---------------------------------------------------------------------------------------- loggers

LOGGED = """\
import json
import sys
from pathlib import Path
import torch
import torch.distributed as dist
import {library} as logger
from recipes import log_loss

dist.init_process_group("gloo")
rank = dist.get_rank()
if {who}:
    logger.init(project="test", id={id}, resume="allow", {offline})
write = lambda loss, step: logger.log({{"loss": loss}}, step=step)
for step in (20, 40, 30):
    log_loss(write, torch.tensor(1.0 + rank), step)
if {who}:
    logger.finish()
Path(f"{{rank}}.json").write_text("0")
dist.barrier()
dist.destroy_process_group()
"""


@pytest.mark.parametrize(
    ("library", "offline", "runs"),
    [
        ("wandb", 'mode="offline"', "wandb/offline-run-*"),
        ("swanlab", 'mode="offline", logdir="swanlog"', "swanlog/run-*"),
    ],
)
def test_logger_on_rank_0(
    play: Callable, library: str, offline: str, runs: str, tmp_path: Path
) -> None:
    """One run, and a run for each rank without the point; started again, the id is the same."""

    def ids(folder: Path) -> list[str]:
        return [path.name.split("-", 3 if library == "wandb" else 2)[-1] for path in
                folder.glob(runs)]  # fmt: skip

    (rank_0 := tmp_path / "rank 0").mkdir()
    words = {"library": library, "offline": offline}
    for _ in range(2):
        _, result = play(library, LOGGED.format(who="rank == 0", id='"kept"', **words), rank_0)
    assert set(ids(rank_0)) == {"kept"}
    if library == "wandb":
        assert "Tried to log to step 30 that is less than the current step 40" in result.output
    (all_ranks := tmp_path / "all ranks").mkdir()
    play(library, LOGGED.format(who="True", id="None", **words), all_ranks)
    assert len(ids(all_ranks)) == len(set(ids(all_ranks))) == 2
