"""What recipes.md and tools.md say of libraries, by the libraries themselves. Each is installed
into an environment of its own, in the version that the pages name; torch is that of the tests."""

import ast
import functools
import importlib.util
import json
import os
import re
import shlex
import sys
import sysconfig
import venv
from collections.abc import Callable
from pathlib import Path

import pytest
from check_twins import but_rounding, commands
from harness import HOROVOD, ROOT, Result, command_for, download, run, run_short
from test_recipes import RECORDS, tar_of

# One after the other: `fabric run` always takes port 29400, and each library is installed once.
pytestmark = [pytest.mark.proof, pytest.mark.xdist_group("libraries")]
NAMES = ("recipes", "tools")
PAGES = [ROOT / f"docs/{language}/{name}.md" for language in ("en", "zh") for name in NAMES]
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node"]


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., dict]:
    """The variables by which commands find libraries beside what the tests have."""

    @functools.cache
    def environment(*libraries: str) -> dict[str, str]:
        pinned = []
        for library in libraries:
            found = [re.findall(rf"\b{library} \d+\.\d+\.\d+", p.read_text()) for p in PAGES]
            [version] = set(sum(found, []))
            pinned.append(version.replace(" ", "=="))
        folder = tmp_path_factory.mktemp(libraries[0])
        venv.create(folder)
        [packages] = folder.glob("lib/python*/site-packages")
        (packages / "tests.pth").write_text(sysconfig.get_path("purelib"))
        pip = [sys.executable, "-m", "pip", "--python", folder / "bin/python", "install", "--quiet"]
        result = run([*pip, *pinned], ROOT, env={"PYTHONPATH": ""})
        assert result.returncode == 0, result.output
        programs = f"{folder / 'bin'}:{Path(sys.executable).parent}:{os.environ['PATH']}"
        return {"PATH": programs, "PYTHONPATH": str(packages), "PYTHONWARNINGS": "ignore"}

    return environment


@pytest.fixture(scope="module")
def play(installed: Callable) -> Callable[..., list]:
    """What the ranks of a script answer, that has a library beside torch, and what it said."""

    def played(library: str, script: str, folder: Path, ranks: int = 2) -> tuple[list, Result]:
        (folder / "script.py").write_text(script)
        env = dict(installed(library))
        env["PYTHONPATH"] += f":{ROOT / 'docs/examples/convert'}"
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


# ------------------------------------------------- the same training, on one process and on two

SINGLE = ROOT / "docs/examples/convert/single.py"
LOSS = "nn.functional.cross_entropy(model(inputs), targets)"
POINTS = """\
import torch
from torch.utils.data import TensorDataset


def points(count, seed):
    centres = torch.randn(10, 32, generator=torch.Generator().manual_seed(0))
    generator = torch.Generator().manual_seed(seed)
    targets = torch.randint(10, (count,), generator=generator)
    noise = torch.randn(count, 32, generator=generator)
    return TensorDataset(centres[targets] + 2 * noise, targets)


"""
TRAINER = (
    POINTS
    + """\
import os
import sys

from torch import nn
from transformers import Trainer, TrainingArguments

world_size = int(os.environ.get("WORLD_SIZE", "1"))


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 10))

    def forward(self, inputs, labels):
        logits = self.model(inputs)
        loss = nn.functional.cross_entropy(logits, labels)
        return {"loss": loss, "logits": logits}


def batch_of(rows):
    inputs, labels = zip(*rows)
    return {"inputs": torch.stack(inputs), "labels": torch.stack(labels)}


def count_right(answers):
    right = answers.predictions.argmax(1) == answers.label_ids
    print(f"{right.sum()} of {len(right)} right")
    return {}


options = TrainingArguments(
    sys.argv[1],
    num_train_epochs=2,
    per_device_train_batch_size=48 // world_size,
    optim="sgd",
    optim_args="momentum=0.9",
    learning_rate=0.05,
    lr_scheduler_type="constant",
    max_grad_norm=0.0,
    eval_strategy="epoch",
    use_cpu=True,
    report_to="none",
    save_strategy="epoch",
)
train_set, val_set = points(960, 1), points(304, 2)
trainer = Trainer(
    Classifier(), options, batch_of, train_set, val_set, compute_metrics=count_right
)
trainer.train()
"""
)
LIGHTNING = (
    POINTS
    + """\
import sys

import lightning as L
from torch import nn
from torch.utils.data import DataLoader

devices = int(sys.argv[1])


class Classifier(L.LightningModule):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 10))

    def training_step(self, batch, batch_idx):
        inputs, targets = batch
        loss = nn.functional.cross_entropy(self.model(inputs), targets)
        return loss

    def validation_step(self, batch, batch_idx):
        inputs, targets = batch
        right = (self.model(inputs).argmax(1) == targets).double().mean()
        self.log("accuracy", right, on_epoch=True, sync_dist=True)

    def on_validation_epoch_end(self):
        self.print(f"accuracy {self.trainer.callback_metrics['accuracy']:.4f}")

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.05, momentum=0.9)


trainer = L.Trainer(
    accelerator="cpu", devices=devices, max_epochs=2, logger=False, num_sanity_val_steps=0,
    default_root_dir=f"on_{devices}",
)
train_loader = DataLoader(points(960, 1), 48 // devices, shuffle=True)
val_loader = DataLoader(points(304, 2), 16)
trainer.fit(Classifier(), train_loader, val_loader)
"""
)
TWICE = "torchrun --standalone --nproc-per-node 2 script.py"
# Its libraries, the program, and its launch lines: on one process, or without it, and on two.
PROGRAMS = {
    "Fabric": (["lightning"], "with_fabric.py", f"python {SINGLE}", ""),
    "accelerate": (["accelerate"], "with_accelerate.py", f"python {SINGLE}", ""),
    "Trainer": (["transformers", "accelerate"], TRAINER, "python script.py one", f"{TWICE} two"),
    "Lightning": (["lightning"], LIGHTNING, "python script.py 1", "python script.py 2"),
}
FINE_TUNING = ROOT / "docs/examples/transformers"
HOROVOD_FLAGS = ["--synthetic", "640", "--image-size", "32", "--arch", "shufflenet_v2_x0_5",
                 "--batch-size", "32", "--epochs", "1", "--workers", "0",
                 "--print-freq", "5"]  # fmt: skip
# Of each program: what is changed in it, and what the comparison then says first.
WRONG = [
    ("Fabric", LOSS, f"{LOSS} * world_size", "gradients:processes"),
    ("Fabric", "args.batch_size // world_size", "args.batch_size", "batch"),
    ("accelerate", LOSS, f"{LOSS} * accelerator.num_processes", "gradients:processes"),
    ("accelerate", "args.batch_size // accelerator.num_processes", "args.batch_size", "batch"),
    # The answers of the filled-up batches are counted with the others.
    ("accelerate", "accelerator.gather_for_metrics", "accelerator.gather", "printed"),
    ("Trainer", "(logits, labels)", "(logits, labels) * world_size", "gradients:processes"),
    # eval_loss is no mean over the images where the last batches are not full.
    ("Trainer", "304", "301", "printed"),
    ("Lightning", "return loss", "return loss * devices", "gradients:processes"),
    # Its sampler fills the shares up, and the repeated image counts twice.
    ("Lightning", "304", "301", "printed"),
    ("Horovod", "model.named_parameters(),", "model.named_parameters(), op=hvd.Sum,",
     "gradients:processes"),
]  # fmt: skip


def compared(installed: Callable, program: str, folder: Path, old: str = "", new: str = "") -> dict:
    """What `doctor --against` says of it on one process and on two, and its status."""
    if program == "Horovod":
        if importlib.util.find_spec("horovod") is None:
            pytest.skip("needs Horovod: PYTHON=python bash 05_horovod/install.sh")
        text, env = (ROOT / HOROVOD / "main.py").read_text(), {"PYTHONWARNINGS": "ignore"}
        one, two = (
            command_for(HOROVOD, [*HOROVOD_FLAGS, "--output-dir", str(n)], n, folder / "script.py")
            for n in (1, 2)
        )
    else:
        libraries, text, one, two = PROGRAMS[program]
        env = installed(*libraries)
        if not two:
            text = (ROOT / "docs/examples/tools" / text).read_text()
            two = re.sub(r"\S+\.py$", "script.py", ast.get_docstring(ast.parse(text)))
        one, two = shlex.split(one), shlex.split(two.splitlines()[-1])
    assert not old or text.count(old) == 1, text
    (folder / "script.py").write_text(text.replace(old, new) if old else text)
    doctor = [sys.executable, ROOT / "doctor", "--lang", "en", "--without", "all"]
    # To their end: Lightning deletes its older checkpoint, and one of two runs may be cut before.
    against = ["--steps", "1000", "--json", "verdict.json", "--against", shlex.join(map(str, one))]
    result = run([*doctor, *against, *two], folder, env=env)
    print(result.output)
    found = json.loads((folder / "verdict.json").read_text())["against"]
    return found | {"status": result.returncode}


@pytest.mark.parametrize("program", [*PROGRAMS, "Horovod"])
def test_the_same_as_on_one_process(program: str, installed: Callable, tmp_path: Path) -> None:
    """Fabric and accelerate: as single.py. The Trainer writes settings and random states, too,
    Lightning counts of batches, chapter 05 its metrics.jsonl: these are seen and not compared. The
    Trainer's last line has rank 0's own training loss."""
    found = compared(installed, program, tmp_path)
    kinds = {"same"} if program in ("Fabric", "accelerate") else {"same", "note"}
    printed = "printed:same"
    if program == "Trainer":
        kinds, printed = kinds | {"cause"}, "printed:share"
    assert found["status"] == 0 and {seen["kind"] for seen in found["seen"]} == kinds
    names = {seen["name"] for seen in found["seen"]}
    assert names >= {"start:same", "samples:same", "numbers:same", printed}


@pytest.mark.parametrize("language", ["en", "zh"])
def test_the_command_of_the_page(language: str, installed: Callable, tmp_path: Path) -> None:
    """It prints what stands below it."""
    text = (ROOT / f"docs/{language}/tools.md").read_text()
    [command] = [found for found in commands(text) if found.printed]
    download(command.words, tmp_path)
    env = installed("accelerate") | {"LC_ALL": "C.UTF-8"}
    result = run_short(["bash", "-euc", shlex.join(command.words)], tmp_path, env=env)
    assert but_rounding(command.printed) in but_rounding(result.stdout), result.output


@pytest.mark.parametrize(("program", "old", "new", "name"), WRONG)
def test_another_than_on_one_process(
    program: str, old: str, new: str, name: str, installed: Callable, tmp_path: Path
) -> None:
    found = compared(installed, program, tmp_path, old, new)
    assert found["status"] == 1 and found["first_difference"]["name"] == name


@pytest.mark.parametrize(
    ("program", "old", "new", "shown"),
    [
        ("accelerate", "cpu=not torch.cuda.is_available()", "", "WRONG RESULT  same_samples"),
        ("Fabric", "", "", "WRONG RESULT  no_averaging"),
    ],
)
def test_processes_that_do_not_find_each_other(
    program: str, old: str, new: str, shown: str, installed: Callable, tmp_path: Path
) -> None:
    """Without a GPU, under torchrun."""
    libraries, name, *_ = PROGRAMS[program]
    text = (ROOT / "docs/examples/tools" / name).read_text()
    assert old in text
    (tmp_path / "script.py").write_text(text.replace(old, new))
    doctor = [sys.executable, ROOT / "doctor", "--lang", "en", *shlex.split(TWICE)]
    result = run(doctor, tmp_path, env=installed(*libraries))
    assert len(result.lines("epoch 0: ")) == 2 and result.lines(shown), result.output


TINY_MODEL = """
import sys
import torch
import transformers
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode
from transformers import AutoConfig, AutoModelForCausalLM

kind, folder, *exported = sys.argv[1:]
sizes = {"vocab_size": 256, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2}
sizes |= {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8}
torch.manual_seed(0)
if not exported:
    config = getattr(transformers, f"{kind}Config")(**sizes, dtype="bfloat16")
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)
for path in exported:
    import main as chapter
    argv = "--synthetic 3000 --context 16 --weights model --batch-size 8".split()
    args = chapter.build_parser().parse_args(argv)
    train, val, coder = chapter.build_data(args, 0, 1)
    windows = torch.stack([val[number] for number in range(len(val))])
    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()
    with torch.no_grad(), FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH):
        logits = model(windows[:, :-1]).logits.flatten(0, 1)
    loss = torch.nn.functional.cross_entropy(logits, windows[:, 1:].flatten())
    print(f"loss {loss:.6f}")
    norms = sum(weight.numel() for weight in model.parameters() if weight.dim() == 1)
    print(f"flops {3 * counter.get_total_flops() / windows[:, :-1].numel() + 6 * norms}")
"""
# Ranks and flags: each is the same training as that of one rank.
SAME_TRAINING = {
    "Llama": [(2, "--recompute --accumulate 2"), (2, "--sequence 2")],
    "Qwen3": [(2, "--replicas 2")],
    "Mistral": [(2, "")],
    "Gemma2": [(2, "--recompute")],
}


@pytest.mark.parametrize("kind", SAME_TRAINING)
def test_in_09(kind: str, installed: Callable, tmp_path: Path) -> None:
    """A model of transformers in chapter 09, with LoRA or without: the same on one rank and on two,
    and transformers loads what it exports. (Gemma2's embeddings are tied.)"""
    (tmp_path / "main.py").write_text((ROOT / "09_language_model/main.py").read_text())
    (tmp_path / "tiny.py").write_text(TINY_MODEL)
    env = installed("transformers") | {"HF_HUB_OFFLINE": "1"}

    def said(*words: object) -> list[float]:
        result = run_short(words, tmp_path, env=env)
        assert result.returncode == 0, result.output
        pattern = r"^(?:eval .*)?(?:loss|flops) ([\d.]+)"
        return [float(number) for number in re.findall(pattern, result.stdout, re.M)]

    for name in ("transformers", "lora"):
        said("git", "apply", "-p0", ROOT / f"docs/examples/language_model/{name}.diff")
    said(sys.executable, "tiny.py", kind, "model")
    counted = [ROOT / "tools/fits.py", "main.py", *"--weights model --context 16 --ranks 2".split()]
    counted += "--batch-size 8 --memory 24".split()
    result = run_short([sys.executable, *counted], tmp_path, env=env)
    assert "million parameters, 2 units" in result.output and "FSDP2 on 2" in result.output
    argv = "main.py --weights model --synthetic 3000 --context 16 --batch-size 8 --lr 0.01"
    argv += " --steps 10 --print-freq 1 --eval-steps 5 --sample 5"
    for lora in ("", "--lora 4"):
        losses = []
        for number, (ranks, flags) in enumerate([(1, ""), *SAME_TRAINING[kind]]):
            words = [*argv.split(), *lora.split(), *flags.split()]
            folder = f"run{len(lora)}{number}"
            said(*TORCHRUN, ranks, *words, "--output-dir", folder)
            log = [json.loads(line) for line in (tmp_path / folder / "metrics.jsonl").open()]
            losses.append([row["loss"] for row in log if "loss" in row])
        assert len(losses[0]) == 12 and losses[0][-1] < losses[0][0] - 0.1
        for found in losses[1:]:
            assert found == pytest.approx(losses[0], rel=1e-4)
        loss, flops = said(sys.executable, "tiny.py", kind, "-", folder)
        assert loss == pytest.approx(losses[-1][-1], rel=1e-4)
        if not lora:  # 1e-3: transformers makes angles by a product of matrices
            row = next(row for row in log if row["event"] == "train")
            told = 1e12 * row["model_tflops_per_second"] / row["tokens_per_second"]
            assert told == pytest.approx(flops, rel=1e-3)
    refused = run_short([*TORCHRUN, 2, *argv.split(), "--tensor", 2], tmp_path, env=env)
    assert "--tensor divides the model of the chapter alone" in refused.output
    if kind != "Llama":
        refused = run_short([*TORCHRUN, 2, *argv.split(), "--sequence", 2], tmp_path, env=env)
        assert f"--sequence is for Llama here, not for {kind.lower()}" in refused.output


FOLDERS = """
import json
import transformers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import AutoModelForCausalLM, AutoTokenizer

sizes = {"vocab_size": 300, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1}
sizes |= {"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64}
for kind, more in (("Llama", {}), ("Qwen3Moe", {"num_experts": 4, "moe_intermediate_size": 16}),
                   ("GPT2", {"n_embd": 32, "n_layer": 1, "n_head": 4, "vocab_size": 300})):
    config = getattr(transformers, f"{kind}Config")(**(more if kind == "GPT2" else sizes | more))
    AutoModelForCausalLM.from_config(config).save_pretrained(kind)
alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
tokenizer = Tokenizer(models.BPE({name: at for at, name in enumerate(["</s>", *alphabet])}, []))
tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
tokenizer.decoder = decoders.ByteLevel()
for kind in ("Qwen3Moe", "GPT2"):
    tokenizer.save(f"{kind}/tokenizer.json")
tokenizer.save("tokenizer.json")
with open("Llama/tokenizer_config.json", "w") as file:
    told = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "</s>", "kept": 1}
    json.dump(told, file)
for name in ("checkpoints.json", "model.safetensors.index.json"):
    with open(f"Llama/{name}", "w") as file:
        file.write("{}")
"""
USED = """
from transformers import AutoModelForCausalLM, AutoTokenizer
found = AutoTokenizer.from_pretrained("run")("def main(")["input_ids"]
print(found == AutoTokenizer.from_pretrained("Llama")("def main(")["input_ids"], len(found))
AutoModelForCausalLM.from_pretrained("run")
"""


def test_folders_in_09(installed: Callable, tmp_path: Path) -> None:
    """The folder's tokenizer is taken, or missed; the export is such a folder again; another config
    beside a checkpoint, a longer context, another kind of model and a mistyped name are a line."""
    (tmp_path / "main.py").write_text((ROOT / "09_language_model/main.py").read_text())
    (tmp_path / "folders.py").write_text(FOLDERS)
    (tmp_path / "used.py").write_text(USED)
    env = installed("transformers") | {"HF_HUB_OFFLINE": "1", "LOCAL_RANK": "0"}
    env |= {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "localhost", "MASTER_PORT": "0"}

    def said(*words: object, status: int = 0) -> str:
        result = run_short(words, tmp_path, env=env)
        assert result.returncode == status, result.output
        return result.output

    def line(flags: str) -> str:
        [last] = re.findall("^error: .*", said(*argv, *flags.split(), status=1), re.M)
        return last

    said("git", "apply", "-p0", ROOT / "docs/examples/language_model/transformers.diff")
    said(sys.executable, "folders.py")
    argv = "main.py --synthetic 3000 --context 16 --batch-size 8 --steps 2 --sample 0".split()
    argv = [sys.executable, *argv, "--output-dir", "run", "--eval-steps", "2", "--weights"]
    assert "there is no Llama/tokenizer.json, and 300 tokens are no bytes" in line("Llama")
    (tmp_path / "tokenizer.json").rename(tmp_path / "Llama/tokenizer.json")
    assert "has no token '<|endoftext|>': add --end-token '</s>'" in line("Llama")
    ends = "--end-token </s>"
    assert "--context 65 is more than max_position_embeddings, 64" in line(
        f"Llama {ends} --context 65"
    )
    assert "qwen3_moe is not for this program, it has experts: use Llama" in line("Qwen3Moe")
    assert "gpt2 is not for this program, it has no model.embed_tokens, " in line("GPT2")
    assert "--weights Lama is no folder of a model: it has no config.json" in line("Lama")

    said(*argv, "Llama", *ends.split())
    assert "True 9" in said(sys.executable, "used.py").splitlines()
    run_dir = tmp_path / "run"
    assert json.loads((run_dir / "tokenizer_config.json").read_text())["kept"] == 1
    assert not (run_dir / "model.safetensors.index.json").exists()
    assert json.loads((run_dir / "checkpoints.json").read_text())["whole"]
    config = json.loads((tmp_path / "Llama/config.json").read_text())
    config["rope_parameters"]["rope_theta"] = 5e5  # which no shape tells
    (tmp_path / "Llama/config.json").write_text(json.dumps(config))
    assert "--resume: model: was 'llama of 1 layers, " in line(f"Llama {ends} --steps 4 --resume")


# LoRA beside frozen weights of 4 bits, as the page has it, computed in float32: bfloat16 rounds so
# coarsely that the comparison is UNDECIDED.
FOUR_BITS = (
    ("get_peft_model\n", "get_peft_model, prepare_model_for_kbit_training\n"),
    ("import T5Config", "import BitsAndBytesConfig, T5Config"),
    ("    model = T5ForConditionalGeneration(config)\n", """\
    four = BitsAndBytesConfig(
        load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_compute_dtype=torch.float32
    )
    load = T5ForConditionalGeneration.from_pretrained
    model = load("base", quantization_config=four, device_map={"": "cpu"})
    model = prepare_model_for_kbit_training(model)
    assert str(model.shared.weight.dtype) == "torch.float32"
    assert str(model.encoder.block[0].layer[0].SelfAttention.q.weight.dtype) == "torch.uint8"
"""),
)  # fmt: skip


@pytest.mark.parametrize("wrong", [(), ("(loss * world_size)", "(loss)")])
def test_four_bits(wrong: tuple[str, ...], installed: Callable, tmp_path: Path) -> None:
    """QLoRA: the same on two processes, to rounding, and the doctor finds a mistake in it."""
    for name in ("single.py", "multi.py"):
        text = (FINE_TUNING / name).read_text()
        for old, new in FOUR_BITS:
            assert text.count(old) == 1, old
            text = text.replace(old, new)
        (tmp_path / name).write_text(text.replace(*wrong) if wrong else text)
    env = installed("transformers", "peft", "accelerate", "bitsandbytes")
    whole = (FINE_TUNING / "single.py").read_text().partition("    lora = ")[0]
    (tmp_path / "base.py").write_text(
        f'{whole}    model.save_pretrained("base")\n\nbuild_model()\n'
    )
    result = run([sys.executable, "base.py"], tmp_path, env=env)
    assert result.returncode == 0, result.output

    options = "--lang en --without shuffling,batchnorm,dropout,draws --steps 1000".split()
    doctor = [sys.executable, ROOT / "doctor", *options, "--against", "python single.py"]
    two = shlex.split("torchrun --standalone --nproc-per-node 2 multi.py")
    result = run([*doctor, *two], tmp_path, env=env)
    first = "DIFFERENT: At step 1" if wrong else "Nothing differs.\n"
    assert first in result.stdout and result.returncode == bool(wrong), result.output


# What is changed in multi.py of transformers, and what the comparison then says first.
FINE_TUNED = [
    ("", "", ""),
    ("dist.all_gather_object(shares, rows)", "shares = [rows] * world_size", "printed"),
    ("(loss * world_size)", "(loss)", "gradients:inverse"),
    ("            dist.all_reduce(tokens)  # of all ranks\n", "", "gradients"),
]


@pytest.mark.parametrize(("old", "new", "name"), FINE_TUNED)
def test_fine_tuning(old: str, new: str, name: str, installed: Callable, tmp_path: Path) -> None:
    """LoRA on a model of transformers, with random weights: the same on two processes, and one file
    of the adapter, which loads."""
    texts = {n: (FINE_TUNING / n).read_text() for n in ("single.py", "multi.py")}
    assert not old or texts["multi.py"].count(old) == 1
    (tmp_path / "single.py").write_text(texts["single.py"])
    changed = texts["multi.py"].replace(old, new) if old else texts["multi.py"]
    (tmp_path / "multi.py").write_text(changed)
    options = "--lang en --without all --steps 1000".split()
    doctor = [sys.executable, ROOT / "doctor", *options]
    against = ["--json", "verdict.json", "--against", "python single.py"]
    two = shlex.split("torchrun --standalone --nproc-per-node 2 multi.py")
    result = run([*doctor, *against, *two], tmp_path, env=installed("transformers", "peft"))
    found = json.loads((tmp_path / "verdict.json").read_text())["against"]
    assert result.returncode == bool(old), result.output
    if old:
        assert found["first_difference"]["name"] == name
    else:
        # peft's README.md and adapter_config.json are seen, and not compared.
        others = {seen["name"] for seen in found["seen"] if seen["kind"] != "same"}
        assert others <= {"left"}, result.output
        assert (tmp_path / "adapter/adapter_model.safetensors").is_file()
