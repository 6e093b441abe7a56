"""The flags: the same in every chapter, each one read, each one changing something, and never
changed once they are parsed."""

import argparse
import contextlib
import os
import re
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
import torch
from crew import Crew
from harness import CHAPTERS, HOROVOD, ROOT, flags_of, load_chapter, rows
from refusals import ALONE, HUB, RANKED, SPAWNS, call
from tiers import table
from torch import nn

# What a chapter cannot honour, and what it has of its own. What those change is shown below for 01
# and 03, and for 04 to 07 in test_amp.py, test_horovod.py, test_slurm_ranks.py, test_exact_eval.py.
LEFT_OUT = {
    "01_dataparallel": ["--sync-bn", "--dist-timeout"],
    "04_apex": ["--bf16"],
    "05_horovod": ["--dist-timeout"],
}
OWN = {
    "01_dataparallel": "--gpus",
    "02_distributed": "",
    "03_multiprocessing": "--nprocs --nnodes --node-rank --master-addr --master-port",
    "04_apex": "--impl --amp-dtype --clip-grad --loss-scale --fused-sgd --opt-level",
    "05_horovod": "--fp16-allreduce",
    "06_slurm": "--procs-per-task --dist-file",
    "07_dist_eval": "--save-predictions --compare-naive",
}
# The order and the defaults of the flags that all have; ...: depends on chapter or machine.
DEFAULTS = {
    "--data": None, "--synthetic": None, "--arch": "resnet50", "--image-size": 224, "--epochs": 90,
    "--batch-size": 256, "--lr": 0.1, "--warmup-epochs": None, "--weight-decay": 1e-4,
    "--label-smoothing": 0.0, "--workers": ..., "--bf16": False, "--compile": False,
    "--sync-bn": False, "--pretrained": False, "--output-dir": ..., "--resume": None,
    "--evaluate": False, "--seed": 0, "--print-freq": 20, "--dist-timeout": 600,
}  # fmt: skip


def actions(chapter: str) -> dict[str, argparse.Action]:
    """What a chapter's parser knows, by flag, without --help."""
    known = load_chapter(chapter).build_parser()._actions
    return {action.option_strings[-1]: action for action in known if action.dest != "help"}


# ------------------------------------------------------------------------- (a) the same everywhere


def declared(action: argparse.Action) -> dict[str, Any]:
    """A flag but for its default."""
    told = {k: v for k, v in vars(action).items() if k not in ("container", "default", "type")}
    return told | {"type": getattr(action.type, "__name__", None), "action": type(action)}


@pytest.mark.parametrize("chapter", CHAPTERS)
def test_declared_alike(chapter: str) -> None:
    """Names, order, groups, and of a shared flag its type, choices, default and help."""
    own, hub = actions(chapter), actions(HUB)
    shared = [flag for flag in DEFAULTS if flag not in LEFT_OUT.get(chapter, [])]
    last = OWN[chapter].split()
    assert list(own) == shared + last and len(last) <= 8
    groups = load_chapter(chapter).build_parser()._action_groups
    in_group = {g.title: [a.option_strings[-1] for a in g._group_actions] for g in groups}
    assert in_group.get("of this chapter", []) == last
    for flag in shared:
        assert declared(own[flag]) == declared(hub[flag])
        assert DEFAULTS[flag] in (own[flag].default, ...), flag
    assert own["--output-dir"].default == f"runs/{chapter}"


@pytest.mark.parametrize(
    ("argv", "warmup"),
    [("--epochs 90", 5), ("--epochs 10", 1), ("--epochs 1", 0.1), ("--epochs 9 --warmup 4", 4)],
)
def test_warm_up(argv: str, warmup: float) -> None:
    """As typed, or at most a tenth of all epochs: up to the peak, half of it half-way, then down
    along a cosine to 0. The peak grows with the batch."""
    hub = load_chapter(HUB)
    argv = argv.replace("--warmup", "--warmup-epochs") + " --synthetic --batch-size 512"
    args = hub.build_parser().parse_args(argv.split())
    assert args.synthetic == 1280
    middle = warmup + (args.epochs - warmup) / 2
    factors = [hub.lr_factor(args, at) for at in (warmup / 2, warmup, middle, args.epochs)]
    assert factors == pytest.approx([0.5, 1, 0.5, 0])
    (group,) = hub.build_optimizer(args, nn.Linear(1, 1)).param_groups
    assert group["lr"] == pytest.approx(0.2)


@pytest.mark.parametrize("chapter", CHAPTERS)
def test_default_of_workers(chapter: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The CPUs that this process may use, shared by the ranks of the machine; not too many."""
    for cpus, ranks, workers in ((1, 1, 1), (6, 4, 1), (64, 1, 16), (64, 8, 8)):
        monkeypatch.setattr(os, "sched_getaffinity", lambda _, cpus=cpus: set(range(cpus)))
        monkeypatch.setenv("LOCAL_WORLD_SIZE", str(ranks))
        monkeypatch.setenv("HOROVOD_LOCAL_SIZE", str(ranks))
        expected = min(16, cpus) if chapter == ALONE else workers
        assert actions(chapter)["--workers"].default == expected


@pytest.mark.parametrize("chapter", CHAPTERS)
def test_help(chapter: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture) -> None:
    """`python main.py --help` needs no launcher. Every flag is explained, with its default."""
    monkeypatch.delenv("RANK", raising=False)
    with contextlib.suppress(SystemExit), mock.patch("faulthandler.enable"):
        load_chapter(chapter).main(["--help"])
    text, flags = capsys.readouterr().out, actions(chapter)
    assert all(action.help for action in flags.values())
    assert text.count("(default:") == len(flags)


@pytest.mark.parametrize("chapter", CHAPTERS)
def test_args_are_never_changed(chapter: str) -> None:
    """Derived values have names of their own."""
    changed = r"\bargs\.\w+ [-+*/|]?= |setattr\(args|vars\(args\)\["
    assert re.findall(changed, (ROOT / chapter / "main.py").read_text()) == []


# ------------------------------------------------- (b) each flag is read, and changes something


class Watched(nn.Module):
    """Remembers what it has seen: the sizes of images, and in training or not the type inside."""

    sizes: set[tuple] = set()
    types: set[tuple] = set()

    def __init__(self, num_classes: int = 1000) -> None:
        super().__init__()
        self.body, self.norm = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)
        self.head = nn.Linear(4, num_classes)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        inside = self.body(images)
        self.sizes.add(tuple(images.shape[2:]))
        self.types.add((self.training, str(inside.dtype)))
        return self.head(self.norm(inside).relu().mean((2, 3)))


@contextlib.contextmanager
def watched(module: Any, seen: dict) -> Iterator[None]:
    """A chapter spied upon."""
    Watched.sizes.clear()
    Watched.types.clear()
    steps = mock.Mock(return_value=None)

    def compiled(model: nn.Module) -> nn.Module:
        outer = nn.Sequential(model)
        outer.register_forward_hook(steps)
        return outer

    build = lambda arch, num_classes, pretrained: Watched(num_classes)  # noqa: E731
    with mock.patch.object(module, "build_model", build), mock.patch("torch.compile", compiled):
        yield
    seen["compiled"] = steps.call_count


def observe(chapter: str, argv: list[str], cwd: Path) -> dict:
    """In a crew member: everything that can be seen of a run."""
    seen: dict = {"sizes": Watched.sizes, "types": Watched.types}
    cwd.mkdir()
    answer = call(chapter, argv, cwd, lambda module: watched(module, seen))
    assert answer["exit"] is None, answer
    return seen


# 32 images, batches of 8: 4 steps an epoch.
BASE = "--synthetic 32 --image-size 8 --epochs 2 --batch-size 8 --workers 0 --output-dir out"
# What is typed, where to look for the difference, and what must be there.
CHANGES = {
    "--image-size": ("--image-size 12", "sizes", {(12, 12)}),
    "--bf16": ("--bf16", "types", {(True, "torch.bfloat16"), (False, "torch.bfloat16")}),
    # Of the steps of training only: evaluation takes the bare model.
    "--compile": ("--compile", "compiled", 8),
}
# Half of all tests would fail without these; --sync-bn: below; --arch: test_errors.py; --workers:
# test_sampling.py; --pretrained, --dist-timeout: tests/faults.
USED_EVERYWHERE = "--data --synthetic --epochs --batch-size --output-dir --resume --evaluate"
USED_EVERYWHERE += " --print-freq --sync-bn --arch --workers --pretrained --dist-timeout"
# The plain loop of test_equivalence.py has the same numbers.
IN_THE_PLAIN_LOOP = "--lr --warmup-epochs --weight-decay --label-smoothing --seed"
# Or a new flag that all chapters have would not be tested.
assert {*CHANGES, *USED_EVERYWHERE.split(), *IN_THE_PLAIN_LOOP.split()} == set(DEFAULTS)


@pytest.mark.parametrize("chapter", table(CHAPTERS, [HUB]))
def test_each_changes_something(crew: Crew, chapter: str, tmp_path: Path) -> None:
    """A run without these flags and one with all of them: each is seen in its own place."""
    changes = [change for flag, change in CHANGES.items() if flag in flags_of(chapter)]
    words = " ".join([BASE, *(words for words, _, _ in changes)])
    (without,) = crew.run(observe, chapter, BASE.split(), tmp_path / "without")
    (seen,) = crew.run(observe, chapter, words.split(), tmp_path / "with")
    for words, look, expected in changes:
        assert seen[look] == expected != without[look], words


@pytest.mark.parametrize("chapter", RANKED)
def test_sync_bn(chapter: str) -> None:
    """What wrapping does to a model; DDP itself would want a GPU."""
    module, model = load_chapter(chapter), Watched()
    args = module.build_parser().parse_args(["--synthetic", "--sync-bn"])
    broadcast = "horovod.torch.broadcast_parameters" if chapter == HOROVOD else "os.getppid"
    bare = lambda model, **_: model  # noqa: E731
    with (
        mock.patch.object(module, "DistributedDataParallel", bare, create=True),
        mock.patch(broadcast),
    ):
        module.wrap_model(args, model)
    assert type(model.norm).__name__ == "SyncBatchNorm"  # Horovod has one of its own


def test_places_of_spawned_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    """03 without starting anything: how many it spawns, and the environment of local rank 1. With
    as many threads as cores in each, two ranks on two cores train at a third of the speed."""
    module, env, spawned = load_chapter(SPAWNS), {}, []
    ended = SimpleNamespace(join=lambda: True)
    monkeypatch.setattr(
        "torch.multiprocessing.spawn", lambda *call, join: spawned.append(call) or ended
    )
    monkeypatch.setattr(module, "run", lambda *_: env.update(os.environ))
    monkeypatch.setattr("torch.get_num_threads", lambda: 6)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    argv = "--synthetic --batch-size 6 --nprocs 2 --nnodes 3 --node-rank 1"
    with mock.patch.dict(os.environ):
        address = ["--master-addr", "10.0.0.9", "--master-port", "29501"]
        module.main([*argv.split(), *address])
        ((function, args, nprocs),) = spawned
        function(1, *args)
    assert nprocs == 2
    assert [env[name] for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE")] == ["3", "1", "6"]
    assert (env["LOCAL_WORLD_SIZE"], env["OMP_NUM_THREADS"]) == ("2", "3")
    assert env["INIT_METHOD"] == "tcp://10.0.0.9:29501"


@pytest.mark.parametrize(
    ("chapter", "supported", "flags", "told"),
    [
        (HUB, False, "--bf16", 1),
        (HUB, False, "", 0),
        (HUB, True, "--bf16", 0),
        ("04_apex", False, "", 1),
        ("04_apex", False, "--amp-dtype fp32", 0),
        ("04_apex", True, "", 0),
    ],
)
def test_emulated_bf16_is_told(
    chapter: str,
    supported: bool,
    flags: str,
    told: int,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    """On a GPU without it torch emulates bf16, many times slower. (run up to its first evaluation,
    as on CUDA. It is that of 02 in most chapters, test_static.py.)"""
    module = load_chapter(chapter)
    for name in ("setup_distributed", "check_same", "train_one_epoch"):
        monkeypatch.setattr(module, name, lambda *_: None)
    monkeypatch.setattr(module, "setup_device", lambda _: torch.device("cuda"))
    monkeypatch.setattr(module, "wrap_model", lambda _, model: model)
    monkeypatch.setattr(module, "evaluate", mock.Mock(side_effect=StopIteration))
    monkeypatch.setattr(module, "build_model", lambda *_: nn.Linear(1, 1))
    monkeypatch.setattr(nn.Module, "to", lambda model, *_, **__: model)
    monkeypatch.setattr("torch.cuda.get_device_name", lambda: "T4")
    monkeypatch.setattr("torch.cuda.is_bf16_supported", lambda including_emulation: supported)
    argv = ["--synthetic", "8", "--batch-size", "4", "--output-dir", str(tmp_path), *flags.split()]
    args = module.build_parser().parse_args([*argv, "--image-size", "8", "--workers", "0"])
    with mock.patch.dict(os.environ, {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1"}):
        with pytest.raises(StopIteration):
            module.run(args)
    (start,) = rows(tmp_path, "start")
    assert start["device"] == "T4" and len(rows(tmp_path, "warning")) == told
