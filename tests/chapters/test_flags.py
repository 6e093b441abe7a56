"""The flags: the same in every chapter, each one read, each one changing something, and never
changed once they are parsed."""

from __future__ import annotations

import argparse
import ast
import contextlib
import copy
import gc
import inspect
import operator
import os
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import nullcontext as nothing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

import apex_stand_in as stand_in
import numpy as np
import pytest
import torch
from crew import Crew, call_main
from harness import CHAPTERS, HOROVOD, ROOT, events, flags_of, load_chapter, load_state
from PIL import Image
from torch import nn
from torch.utils.data import DataLoader

HUB = "02_distributed"
# What a chapter cannot honour, and what it has of its own: a chapter that is new goes in here.
LEFT_OUT = {
    "01_dataparallel": ["--sync-bn", "--dist-timeout"],
    "04_apex": ["--bf16"],
    "05_horovod": ["--dist-timeout"],
}
OWN = {
    "01_dataparallel": ["--gpus"],
    "02_distributed": [],
    "03_multiprocessing": [
        "--nprocs",
        "--nnodes",
        "--node-rank",
        "--master-addr",
        "--master-port",
    ],
    "04_apex": [
        "--impl",
        "--amp-dtype",
        "--clip-grad",
        "--loss-scale",
        "--fused-sgd",
        "--opt-level",
        "--keep-batchnorm-fp32",
    ],
    "05_horovod": ["--fp16-allreduce", "--backward-passes-per-step"],
    "06_slurm": ["--procs-per-task", "--dist-file"],
    "07_dist_eval": ["--save-predictions", "--compare-naive"],
}
# The order and the defaults of the flags that all have; --output-dir and --workers: see below.
DEFAULTS = {
    "--data": None,
    "--synthetic": None,
    "--arch": "resnet50",
    "--image-size": 224,
    "--epochs": 90,
    "--batch-size": 256,
    "--lr": 0.1,
    "--warmup-epochs": 5.0,
    "--weight-decay": 1e-4,
    "--label-smoothing": 0.0,
    "--workers": ...,
    "--bf16": False,
    "--compile": False,
    "--sync-bn": False,
    "--pretrained": False,
    "--output-dir": ...,
    "--resume": None,
    "--evaluate": False,
    "--seed": 0,
    "--print-freq": 20,
    "--dist-timeout": 600,
}


def actions(chapter: str) -> dict[str, argparse.Action]:
    """What a chapter's parser knows, by flag, without --help."""
    known = load_chapter(chapter).build_parser()._actions
    return {action.option_strings[-1]: action for action in known if action.dest != "help"}


def shared(chapter: str) -> list[str]:
    """The flags that a chapter must have in common with the others, in order."""
    return [flag for flag in DEFAULTS if flag not in LEFT_OUT.get(chapter, [])]


# ------------------------------------------------------------------------- (a) the same everywhere


@pytest.mark.parametrize("chapter", CHAPTERS)
def test_names_and_order(chapter: str) -> None:
    """The shared flags as listed above, then the chapter's own."""
    assert flags_of(chapter) == shared(chapter) + OWN[chapter]
    assert len(OWN[chapter]) <= 8
    assert list(DEFAULTS) == flags_of(HUB)  # the hub leaves nothing out


@pytest.mark.parametrize("chapter", CHAPTERS)
def test_each_flag_is_the_hub_s(chapter: str) -> None:
    """Not only its name: type, choices, default, the value of a bare flag, and its help."""
    what = "option_strings dest type nargs const choices metavar default required help".split()
    own, hub = actions(chapter), actions(HUB)
    for flag in shared(chapter):
        assert type(own[flag]) is type(hub[flag]), flag
        for name in what:
            mine, theirs = getattr(own[flag], name), getattr(hub[flag], name)
            if (flag, name) == ("--output-dir", "default"):
                assert (mine, theirs) == (Path("runs", chapter), Path("runs", HUB))
            else:
                assert mine == theirs, f"{flag}: {name}"


@pytest.mark.parametrize("chapter", CHAPTERS)
def test_own_flags_have_their_own_group(chapter: str) -> None:
    """--help shows them apart from the others."""
    groups = load_chapter(chapter).build_parser()._action_groups
    in_group = {g.title: [a.option_strings[-1] for a in g._group_actions] for g in groups}
    assert in_group.pop("of this chapter", []) == OWN[chapter]
    everywhere = sum(in_group.values(), [])
    assert [flag for flag in everywhere if flag != "--help"] == shared(chapter)


@pytest.mark.parametrize("chapter", CHAPTERS)
def test_defaults(chapter: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is declared, and what a run then gets."""
    monkeypatch.chdir(tmp_path)
    declared, module = actions(chapter), load_chapter(chapter)
    assert declared["--synthetic"].const == 1280
    args, checkpoint = module.parse_args(["--synthetic"])
    assert checkpoint == {} and args.synthetic == 1280
    for flag in shared(chapter):
        if DEFAULTS[flag] is not ...:
            assert declared[flag].default == DEFAULTS[flag], flag
            if flag != "--synthetic":
                assert getattr(args, declared[flag].dest) == DEFAULTS[flag], flag
    assert args.output_dir == Path("runs", chapter)
    for epochs, warmup in ((10, 1.0), (50, 5.0), (1, 0.1)):
        short, _ = module.parse_args(["--synthetic", "--epochs", str(epochs)])
        assert short.warmup_epochs == warmup
    typed, _ = module.parse_args(["--synthetic", "--epochs", "10", "--warmup-epochs", "5"])
    assert typed.warmup_epochs == 5.0


@pytest.mark.parametrize(
    ("cpus", "ranks", "workers"), [(1, 1, 1), (6, 1, 6), (6, 4, 1), (64, 1, 16), (64, 8, 8)]
)
@pytest.mark.parametrize("chapter", CHAPTERS)
def test_default_of_workers(
    chapter: str, cpus: int, ranks: int, workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The CPUs that this process may use, shared by the ranks of the machine; not too many."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(cpus)))
    monkeypatch.setenv("LOCAL_WORLD_SIZE", str(ranks))
    monkeypatch.setenv("HOROVOD_LOCAL_SIZE", str(ranks))
    if chapter == "01_dataparallel":  # always one process
        workers = min(16, cpus)
    assert actions(chapter)["--workers"].default == workers


# ------------------------------------------------- (b) each flag is read, and changes something


class Tiny(nn.Module):
    """A model that remembers what it has seen: (training, shape, type inside, sum of pixels)."""

    seen: list[tuple] = []

    def __init__(self, num_classes: int = 1000) -> None:
        super().__init__()
        self.body, self.norm = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)
        self.head = nn.Linear(4, num_classes)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        inside = self.body(images)
        pixels = round(images.double().sum().item(), 3)
        self.seen.append((self.training, tuple(images.shape), str(inside.dtype), pixels))
        return self.head(self.norm(inside).relu().mean((2, 3)))


class Compiled(nn.Module):
    """What the patched torch.compile returns; it counts its calls."""

    calls: list[int] = []

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        self.calls.append(1)
        return self.model(images)


class Loader(DataLoader):
    """A DataLoader whose number of workers is remembered."""

    workers: list[int] = []

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.workers.append(self.num_workers)


@contextlib.contextmanager
def watched(chapter: str, cwd: Path, seen: dict) -> Iterator[None]:
    """A chapter in a folder, without GPUs, with the tiny model, and spied upon."""
    module, before = load_chapter(chapter), os.getcwd()
    real_init, real_run = torch.distributed.init_process_group, module.run
    for memory in (Tiny.seen, Compiled.calls, Loader.workers):
        memory.clear()
    seen |= {"models": [], "timeout": None, "meeting": None, "args_changed": None}

    def get_model(name: str, weights: object = None, **options: Any) -> nn.Module:
        seen["models"].append((name, weights))
        model = Tiny(options.get("num_classes", 1000))
        if weights:
            nn.init.constant_(model.body.weight, 3.0)  # far from where training would get it
        return model

    def init_process_group(*args: Any, **kwargs: Any) -> None:
        given = inspect.signature(real_init).bind(*args, **kwargs).arguments
        seen["timeout"] = given["timeout"].total_seconds()
        seen["meeting"] = given["init_method"]
        real_init(*args, **kwargs)

    def run(args: argparse.Namespace, *others: Any) -> None:
        parsed = copy.deepcopy(vars(args))
        real_run(args, *others)
        seen["args_changed"] = vars(args) != parsed

    with (
        mock.patch("torch.cuda.is_available", return_value=False),
        mock.patch("torch.cuda.device_count", return_value=0),
        mock.patch("torchvision.models.get_model", get_model),
        mock.patch("torch.compile", Compiled),
        mock.patch("torch.distributed.init_process_group", init_process_group),
        mock.patch.object(module, "DataLoader", Loader),
        mock.patch.object(module, "run", run),
    ):
        os.chdir(cwd)
        try:
            yield
        finally:
            os.chdir(before)
    seen |= {"seen": list(Tiny.seen), "compiled": len(Compiled.calls)}
    seen |= {"workers": list(Loader.workers)}


def observe(chapter: str, argv: list[str], cwd: Path) -> dict:
    """In a crew member: everything that can be seen of a run."""
    seen: dict = {}
    cwd.mkdir()
    # What the last run has left is collected here, not in this one's forked loader's worker, which
    # has not the threads to end a process group. Torch itself is never garbage: 0.2 s less.
    gc.collect()
    if not gc.get_freeze_count():
        gc.freeze()
    with watched(chapter, cwd, seen):
        seen |= call_main(chapter, argv)
    seen["files"] = sorted(str(p.relative_to(cwd)) for p in cwd.rglob("*") if p.is_file())
    for name in ("metrics", "evaluate"):
        logs = list(cwd.rglob(f"{name}.jsonl"))
        seen[name] = events(logs[0].parent, logs[0].name) if logs else []
    checkpoints = list(cwd.rglob("checkpoint.pt"))
    model = load_state(checkpoints[0])["model"] if checkpoints else {}
    return seen | {"weights": {name: weight.tolist() for name, weight in model.items()}}


def observe_sync_bn(chapter: str, argv: list[str], cwd: Path) -> dict:
    """Its refusal on a CPU, and what wrapping does to a model; DDP itself would want a GPU."""
    module = load_chapter(chapter)
    refusal = observe(chapter, argv, cwd)["exit"]
    args, model = module.build_parser().parse_args(argv), Tiny()
    bare = lambda model, **_: model  # noqa: E731
    with (
        mock.patch("torch.nn.parallel.DistributedDataParallel", bare),
        mock.patch("horovod.torch.broadcast_parameters") if HOROVOD == chapter else nothing(),
    ):
        module.wrap_model(args, model, torch.device("cpu"))
    return {
        "refusal": refusal,
        "norm": type(model.norm).__name__,
        "head": type(model.head).__name__,
    }


def observe_apex(chapter: str, argv: list[str], cwd: Path) -> dict:
    """04 with the stand-in for Apex (what that shows and what not: apex_stand_in.py)."""
    cwd.mkdir()
    folder = stand_in.write_files(cwd / "packages")
    with watched(chapter, cwd, {}), stand_in.in_use(load_chapter(chapter), folder) as state:
        answer = call_main(chapter, argv)
    assert answer["exit"] is None, answer
    return {"calls": sorted(set(state.calls)), "fused": "FusedSGD" in state.calls} | state.arguments


def observe_optimizer(chapter: str, argv: list[str], cwd: Path) -> dict:
    """05: what Horovod's optimizer is told about compression."""
    module, given = load_chapter(chapter), []
    optimizer = lambda *arguments: given.append(arguments)  # noqa: E731
    with mock.patch("horovod.torch.DistributedOptimizer", optimizer):
        module.wrap_optimizer(module.build_parser().parse_args(argv), None, Tiny())
    return {"compression": given[0][2].__name__}


def observe_slurm(chapter: str, argv: list[str], cwd: Path) -> dict:
    """06 in a task of its own on each of two nodes, without starting anything: what is spawned."""
    module, spawned = load_chapter(chapter), []

    def spawn(function: Callable, args: tuple, nprocs: int, join: bool) -> mock.Mock:
        spawned.append((args[1], nprocs))
        return mock.Mock(join=lambda: True)

    task = {"SLURM_STEP_TASKS_PER_NODE": "1(x2)", "SLURM_NODEID": "1", "SLURM_PROCID": "1"}
    with (
        mock.patch.dict(os.environ, task),
        mock.patch("torch.multiprocessing.spawn", spawn),
        mock.patch.object(module, "worker", lambda number, argv, places: spawned.append(places)),
        mock.patch("signal.signal"),
    ):
        module.main(argv)
    return {"spawned": spawned}


def observe_gpus(chapter: str, argv: list[str], cwd: Path) -> dict:
    """01 on a machine that seems to have four GPUs: which hold the weights, which get images."""
    module, used = load_chapter(chapter), []
    args = module.build_parser().parse_args(argv)
    with (
        mock.patch("torch.cuda.device_count", return_value=4),
        mock.patch("torch.cuda.is_available", return_value=True),
        mock.patch("torch.cuda.set_device", used.append),
        mock.patch("torch.nn.DataParallel", lambda model, gpus: used.append(gpus)),
    ):
        device = module.setup_distributed(args)[2]
        module.wrap_model(args, Tiny(), device)
    return {"device": str(device), "used": used}


def observe_spawn(chapter: str, argv: list[str], cwd: Path) -> dict:
    """03 without starting anything: what spawn is given, and the environment of local rank 1."""
    module, spawned, env = load_chapter(chapter), [], {}
    spawn = lambda *call: spawned.append(call)  # noqa: E731
    with (
        mock.patch.dict(os.environ),
        mock.patch("torch.multiprocessing.spawn", spawn),
        mock.patch.object(module, "run", lambda *_: env.update(os.environ)),
    ):
        module.main(argv)
        ((function, args, nprocs),) = spawned
        assert function is module.worker
        function(1, *args)
    names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
    return {"nprocs": nprocs} | {name: env[name] for name in names}


def events_of(name: str, *keys: str) -> Callable[[dict], list]:
    """What an observation's log says in the events of a name."""

    def look(seen: dict) -> list:
        found = [row for row in seen["metrics"] if row["event"] == name]
        return [tuple(row[key] for key in keys) for row in found]

    return look


def of(*keys: str) -> Callable[[dict], tuple]:
    """Some entries of an observation."""
    return lambda seen: tuple(seen[key] for key in keys)


def first_batch(seen: dict) -> float:
    return next(pixels for training, _, _, pixels in seen["seen"] if training)


def squares(seen: dict) -> float:
    """The size of the weights that weight decay makes smaller."""
    return float(np.square(seen["weights"]["body.weight"]).sum())


def body(seen: dict) -> tuple[float, float]:
    weights = np.array(seen["weights"]["body.weight"])
    return weights.min(), weights.max()


@dataclass
class Change:
    """What to add to a command line (it may take away, too), where to look for the difference,
    and what must be there: a value, or a relation to what is there without the flag."""

    argv: list[str]
    look: Callable[[dict], Any]
    now: Any
    drop: list[str] = field(default_factory=list)
    base: list[str] = field(default_factory=list)  # added with and without the flag
    observe: Callable = observe


# 32 images, batches of 8: 4 steps an epoch.
BASE = {
    "--synthetic": "32",
    "--arch": "resnet18",
    "--image-size": "8",
    "--epochs": "2",
    "--batch-size": "8",
    "--warmup-epochs": "0",
    "--workers": "0",
    "--print-freq": "2",
    "--output-dir": "out",
}
IMAGES = events_of("start", "train_images", "val_images", "classes")
BATCH = events_of("start", "global_batch_size", "per_rank_batch_size", "steps_per_epoch")
RATES = events_of("train", "lr")
STEPS = events_of("train", "step")
NODES = ["--nnodes", "2", "--master-port", "29500"]
APEX = ["--impl", "apex"]
SHARED_CHANGES = {
    "--data": Change(["--data", "{images}"], IMAGES, [(16, 2, 2)], drop=["--synthetic"]),
    "--synthetic": Change(["--synthetic", "40"], IMAGES, [(40, 10, 10)]),
    "--arch": Change(["--arch", "alexnet"], of("models"), ([("alexnet", None)],)),
    "--image-size": Change(
        ["--image-size", "12"], lambda o: {shape[2:] for _, shape, _, _ in o["seen"]}, {(12, 12)}
    ),
    "--epochs": Change(["--epochs", "3"], events_of("eval", "epoch"), [(0,), (1,), (2,)]),
    "--batch-size": Change(["--batch-size", "16"], BATCH, [(16, 16, 2)]),
    "--lr": Change(
        # 0.1 per 256 images is the default; twice that is twice as much in every step.
        ["--lr", "0.2"], RATES, lambda a, b: np.allclose(b, 2 * np.array(a), rtol=1e-12)
    ),
    "--warmup-epochs": Change(
        # Half-way through the warm-up of 4 steps, and over it; without, it falls from the start.
        ["--warmup-epochs", "1"], RATES,
        lambda a, b: b[1][0] == pytest.approx(0.1 * 8 / 256 / 2) and b[1] < b[2] and a[0] > a[1],
    ),
    "--weight-decay": Change(["--weight-decay", "1"], squares, operator.gt),
    "--label-smoothing": Change(
        ["--label-smoothing", "0.5"], events_of("train", "loss"), lambda a, b: a[0] != b[0]
    ),
    "--workers": Change(["--workers", "1"], of("workers"), ([1, 1],)),
    "--bf16": Change(
        ["--bf16"], lambda o: {(training, inside) for training, _, inside, _ in o["seen"]},
        {(True, "torch.bfloat16"), (False, "torch.bfloat16")},
    ),
    # Of the steps of training only: evaluation takes the bare model.
    "--compile": Change(["--compile"], of("compiled"), (8,)),
    "--sync-bn": Change(
        ["--sync-bn"], of("norm", "head", "refusal"),
        lambda a, b: b[:2] == ("SyncBatchNorm", "Linear") and "--sync-bn needs GPUs" in b[2],
        observe=observe_sync_bn,
    ),
    "--pretrained": Change(
        # The own model, then the one with weights; what they brought is said.
        ["--pretrained"],
        lambda o: (o["models"], body(o), "new for 10 classes" in o["stdout"]),
        lambda a, b: b[0] == [("resnet18", None), ("resnet18", "DEFAULT")]
        and 2 < b[1][0] < b[1][1] < 4 and b[2],
    ),
    "--output-dir": Change(
        ["--output-dir", "some/where"], of("files"),
        lambda a, b: b == ([name.replace("out/", "some/where/") for name in a[0]],),
    ),
    "--resume": Change(
        ["--resume", "{checkpoint}"], events_of("start", "resumed_from_step"), [(8,)]
    ),
    "--evaluate": Change(
        ["--evaluate"],
        lambda o: (o["files"], len(o["evaluate"]), any(seen[0] for seen in o["seen"])),
        lambda a, b: "out/evaluate.jsonl" in b[0] and "out/checkpoint.pt" not in b[0]
        and "out/checkpoint.pt" in a[0] and a[1:] == (0, True) and b[1] > 0 and not b[2],
        base=["--resume", "{checkpoint}", "--epochs", "3"],
    ),
    "--seed": Change(
        # The weights and, though the images are the same, which of them come first.
        ["--seed", "1"], lambda o: (o["weights"]["body.weight"], first_batch(o)),
        lambda a, b: a[0] != b[0] and a[1] != b[1],
    ),
    "--print-freq": Change(["--print-freq", "1"], STEPS, [(step,) for step in range(1, 9)]),
    "--dist-timeout": Change(["--dist-timeout", "77"], of("timeout"), (77,)),
}  # fmt: skip
OWN_CHANGES = {
    "--gpus": Change(
        ["--gpus", "2,0"], of("device", "used"), ("cuda:2", [2, [2, 0]]), observe=observe_gpus
    ),
    "--nprocs": Change(
        ["--nprocs", "3"],
        of("nprocs", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "LOCAL_RANK"), (3, "3", "3", "1"),
        observe=observe_spawn,
    ),
    "--nnodes": Change(
        ["--nnodes", "3"], of("nprocs", "WORLD_SIZE", "LOCAL_WORLD_SIZE"), (2, "6", "2"),
        base=[*NODES, "--nprocs", "2"], observe=observe_spawn,
    ),
    "--node-rank": Change(
        ["--node-rank", "1"], of("RANK", "LOCAL_RANK"), ("3", "1"),
        base=[*NODES, "--nprocs", "2"], observe=observe_spawn,
    ),
    "--master-addr": Change(
        ["--master-addr", "10.0.0.9"], of("MASTER_ADDR"), ("10.0.0.9",),
        base=NODES, observe=observe_spawn,
    ),
    "--master-port": Change(
        ["--master-port", "29501"], of("MASTER_PORT"), ("29501",),
        base=NODES, observe=observe_spawn,
    ),
    "--impl": Change(
        ["--impl", "apex"], lambda o: o["calls"], lambda a, b: "initialize" in {*b} - {*a},
        observe=observe_apex,
    ),
    "--opt-level": Change(
        ["--opt-level", "O2"], of("opt_level"), ("O2",), base=APEX, observe=observe_apex
    ),
    "--keep-batchnorm-fp32": Change(
        ["--keep-batchnorm-fp32", "False"], of("keep_batchnorm_fp32"), ("False",),
        base=[*APEX, "--opt-level", "O2"], observe=observe_apex,
    ),
    "--fused-sgd": Change(["--fused-sgd"], of("fused"), (True,), base=APEX, observe=observe_apex),
    "--amp-dtype": Change(
        ["--amp-dtype", "fp16"], lambda o: {inside for _, _, inside, _ in o["seen"]},
        {"torch.float16"},
    ),
    "--clip-grad": Change(["--clip-grad", "1e-3"], squares, operator.ne),
    "--loss-scale": Change(
        ["--loss-scale", "1024"], events_of("train", "loss_scale"), [(1024.0,)] * 6,
        base=["--amp-dtype", "fp16"],
    ),
    "--fp16-allreduce": Change(
        # What it does to the gradients of two ranks: test_horovod.py.
        ["--fp16-allreduce"], of("compression"), ("FP16Compressor",), observe=observe_optimizer
    ),
    "--backward-passes-per-step": Change(
        ["--backward-passes-per-step", "2"],
        lambda o: {shape[0] for training, shape, _, _ in o["seen"] if training}, {4},
    ),
    "--procs-per-task": Change(
        ["--procs-per-task", "3"],
        lambda o: [(n, [p["RANK"] for p in places]) for places, n in o["spawned"]]
        if isinstance(o["spawned"][0], tuple) else "in this process",
        [(3, ["3", "4", "5"])], observe=observe_slurm,
    ),
    "--dist-file": Change(
        ["--dist-file", "."], of("meeting"),
        lambda a, b: a == ("env://",) and re.fullmatch(r"file:///.*/rendezvous-1-0-0", b[0]),
    ),
    "--save-predictions": Change(
        ["--save-predictions", "who.csv"], of("files"),
        lambda a, b: set(b[0]) - set(a[0]) == {"who.csv"},
    ),
    "--compare-naive": Change(["--compare-naive"], events_of("naive", "images"), [(8,)]),
}  # fmt: skip
CHANGES = SHARED_CHANGES | OWN_CHANGES


@pytest.fixture(scope="module")
def places(crew: Crew, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What a table's words may stand for: an image folder, and a checkpoint of two epochs."""
    folder = tmp_path_factory.mktemp("flags")
    pixels = np.random.default_rng(0).integers(0, 256, (9, 16, 16, 3)).astype(np.uint8)
    for name in ("a", "b"):
        for number in range(9):
            path = folder / "images" / ("val" if number == 8 else "train") / name / f"{number}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(pixels[number]).save(path)
    argv = [word for pair in BASE.items() for word in pair]
    crew.run(observe, HUB, argv, folder / "run")
    return {"images": str(folder / "images"), "checkpoint": str(folder / "run/out/checkpoint.pt")}


@pytest.fixture(scope="module")
def observed() -> dict:
    """What has been seen of runs without a flag: seen once, compared with often."""
    return {}


def test_every_flag_has_an_entry() -> None:
    """A flag that is new in a chapter, and one that is gone, are noticed here."""
    assert list(SHARED_CHANGES) == list(DEFAULTS)
    assert set(OWN_CHANGES) == set(sum((OWN[chapter] for chapter in CHAPTERS), []))
    for chapter in CHAPTERS:
        assert set(flags_of(chapter)) <= set(CHANGES)


@pytest.mark.parametrize(
    ("chapter", "flag"), [(chapter, flag) for chapter in CHAPTERS for flag in flags_of(chapter)]
)
def test_changes_something(
    crew: Crew, chapter: str, flag: str, places: dict, observed: dict, tmp_path: Path
) -> None:
    """The same run with and without the flag: they differ where they should, as they should."""
    change = CHANGES[flag]
    base = [word for pair in BASE.items() if pair[0] not in change.drop for word in pair]
    base += [word.format(**places) for word in change.base]
    plain = base + ["--synthetic", "32"] * bool(change.drop)
    key = (chapter, change.observe, *plain)
    if key not in observed:
        (observed[key],) = crew.run(change.observe, chapter, plain, tmp_path / "without")
    argv = base + [word.format(**places) for word in change.argv]
    (seen,) = crew.run(change.observe, chapter, argv, tmp_path / "with")
    if change.observe is observe:
        assert (observed[key]["exit"], seen["exit"]) == (None, None), seen
        assert (observed[key]["args_changed"], seen["args_changed"]) == (False, False)
    without, now = change.look(observed[key]), change.look(seen)
    assert without != now
    assert change.now(without, now) if callable(change.now) else now == change.now, now


# ---------------------------------------------------------------- (c) never changed after parsing


PARSED = re.compile(r"\(?args(, \w+)?\)? = (build_parser\(\)\.|parser\.)?parse_args\(argv\)")


def changes_of_args(source: str) -> list[str]:
    """Where a source changes `args`, or does what could: a second name for it, or its dictionary
    taken for more than reading."""
    tree, found = ast.parse(source), []
    parents = {child: node for node in ast.walk(tree) for child in ast.iter_child_nodes(node)}
    written = (ast.Store, ast.Del)
    for node in ast.walk(tree):
        if not (isinstance(node, ast.Name) and node.id == "args"):
            continue
        parent, statement = parents[node], node
        while not isinstance(statement, ast.stmt):
            statement = parents[statement]
        above = parents.get(parent)
        if isinstance(parent, ast.Attribute):  # args.x = 1, del args.x, args.x[0] = 1
            item = isinstance(above, ast.Subscript) and above.value is parent
            stored = isinstance((above if item else parent).ctx, written)
            bad = stored or parent.attr.startswith("__")
        elif isinstance(node.ctx, written):  # args = ..., but for what a parser has just made
            bad = not PARSED.fullmatch(ast.unparse(statement))
        elif isinstance(parent, ast.Call):
            name = ast.unparse(parent.func).split(".")[-1]
            reads = isinstance(above, ast.Attribute) and above.attr in ("items", "keys", "values")
            bad = name in ("setattr", "delattr", "__setattr__", "__delattr__")
            bad = bad or (name == "vars" and not reads)
        elif isinstance(parent, ast.keyword):  # parse_args(argv, namespace=args)
            bad = parent.arg == "namespace"
        else:  # other = args
            bad = isinstance(parent, ast.Assign | ast.AnnAssign | ast.NamedExpr)
        if bad:
            found.append(f"line {node.lineno}: {ast.unparse(statement)}")
    return found


@pytest.mark.parametrize("chapter", CHAPTERS)
def test_args_are_never_changed(chapter: str) -> None:
    """Derived values have names of their own."""
    assert changes_of_args((ROOT / chapter / "main.py").read_text()) == []


@pytest.mark.parametrize(
    "line",
    [
        "args.lr = 1",
        "args.lr: float = 1",
        "args.lr *= 2",
        "args.lr, x = 1, 2",
        "del args.lr",
        "for args.lr in (1, 2): pass",
        "with open('x') as args.file: pass",
        "setattr(args, 'lr', 1)",
        "delattr(args, 'lr')",
        "object.__setattr__(args, 'lr', 1)",
        "vars(args)['lr'] = 1",
        "vars(args).update(lr=1)",
        "vars(args).pop('lr')",
        "x = vars(args)",
        "args.__dict__['lr'] = 1",
        "args.betas[0] = 1",
        "other = args",
        "(other := args)",
        "args = Namespace(lr=1)",
        "args |= x",
        "parser.parse_args(argv, namespace=args)",
    ],
)
def test_a_change_of_args_is_found(line: str) -> None:
    """The test above can fail."""
    assert changes_of_args(f"def f(args):\n    {line}\n"), line


def test_reading_args_is_allowed() -> None:
    """And it does not fail for nothing."""
    reading = """
def f(argv):
    args = parser.parse_args(argv)
    args, checkpoint = parse_args(argv)
    for name, value in vars(args).items(): g(args, name, getattr(args, name))
    lr = args.lr * args.batch_size
    args.output_dir.mkdir()
    table[args.lr] = 1
"""
    assert changes_of_args(reading) == []


# ----------------------------------------------------------------------------------- (d) --help


def call_help(chapter: str, cwd: Path) -> dict:
    """`python main.py --help`, as a reader's first command: no launcher has been there."""
    module = load_chapter(chapter)
    with mock.patch.dict(os.environ), mock.patch.object(sys, "argv", ["main.py", "--help"]):
        for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR"):
            os.environ.pop(name, None)
        if hasattr(module, "worker"):  # 03: main answers, call_main would enter at the worker
            os.environ |= {"RANK": "0", "WORLD_SIZE": "1"}
            with mock.patch.object(module, "worker", lambda *_: module.main(["--help"])):
                return call_main(chapter, ["--help"])
        return call_main(chapter, ["--help"])


@pytest.mark.parametrize("chapter", CHAPTERS)
def test_help_without_a_launcher(crew: Crew, chapter: str, tmp_path: Path) -> None:
    """It is shown, and that is all."""
    (answer,) = crew.run(call_help, chapter, tmp_path)
    assert answer["exit"] in (0, None), answer["exit"]  # torch's record takes a 0 away
    assert all(flag in answer["stdout"] for flag in flags_of(chapter))


@pytest.mark.parametrize("chapter", CHAPTERS)
def test_help_of_every_rank(crew: Crew, chapter: str) -> None:
    """Behind a launcher as well: no rank waits for another."""
    for answer in crew.run(call_main, chapter, ["--help"], world_size=2):
        assert answer["exit"] in (0, None), answer
        assert all(flag in answer["stdout"] for flag in flags_of(chapter))


@pytest.mark.parametrize("chapter", CHAPTERS)
def test_help_says_the_defaults(chapter: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every flag has a line that says what it does, and the default that it really has; no text
    names another one."""
    monkeypatch.setenv("COLUMNS", "1000")
    module = load_chapter(chapter)
    text = module.build_parser().format_help()
    assert module.__doc__.splitlines()[0] in text
    # An entry is "  --flag NAME   its help", the help perhaps on a line of its own.
    joined = re.sub(r"\n {20,}", "   ", text)
    found = re.findall(r"^  (?:-h, )?(--[a-z0-9-]+).*?   ?(\S.*)$", joined, flags=re.MULTILINE)
    entries = dict(found)
    assert list(entries) == ["--help", *flags_of(chapter)]
    for flag, action in actions(chapter).items():
        said = re.findall(r"\bdefaults?\b(?: is|:)?\s*([^)]*)\)?", entries[flag])
        assert said == [str(action.default)], f"{flag}: {entries[flag]}"
        assert len(entries[flag].split(" (default")[0]) > 8, f"{flag}: {entries[flag]}"
