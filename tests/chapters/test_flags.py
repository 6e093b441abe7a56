"""The flags: the same in every chapter, each one read, each one changing something, and never
changed once they are parsed."""

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
from harness import CHAPTERS, ROOT, flags_of, load_chapter
from refusals import ALONE, HUB, SPAWNS, call
from tiers import table
from torch import nn

# What a chapter cannot honour. What it has of its own is shown below for 03, and for the others in
# test_dataparallel, test_amp, test_horovod, test_slurm_ranks and test_exact_eval.
LEFT_OUT = {"01_dataparallel": ["--sync-bn"], "04_apex": ["--bf16"]}


def declared(chapter: str) -> dict[str, dict[str, Any]]:
    """What a chapter's parser knows, by flag, without --help."""
    parser = load_chapter(chapter).build_parser()
    own = [g for g in parser._action_groups if g.title == "of this chapter"]
    own = [action for group in own for action in group._group_actions]
    known = [action for action in parser._actions if action.dest != "help"]
    return {
        action.option_strings[-1]: {k: v for k, v in vars(action).items() if k != "container"}
        | {"action": type(action), "own": action in own}
        for action in known
    }


# ------------------------------------------------------------------------- (a) the same everywhere


@pytest.mark.parametrize("chapter", CHAPTERS)
def test_declared_alike(chapter: str) -> None:
    """The flags of 02, in its order, with its types, choices, defaults and words; then at most 8 of
    the chapter's own, in a group of theirs."""
    ours, hub = declared(chapter), declared(HUB)
    for flag in LEFT_OUT.get(chapter, []):
        del hub[flag]
    assert str(ours["--output-dir"].pop("default")) == f"runs/{chapter}"
    del hub["--output-dir"]["default"]
    own = [flag for flag in ours if ours[flag]["own"]]
    assert list(ours) == [*hub, *own] and len(own) <= 8
    # 01 speaks of one process in its words.
    words = ("--batch-size", "--workers") if chapter == ALONE else ()
    for flag in hub:
        ignored = {"help": ""} if flag in words else {}
        assert ours[flag] | ignored == hub[flag] | ignored, flag


@pytest.mark.parametrize(("epochs", "warmup"), [(90, 5), (10, 1), (1, 0.1)])
def test_warm_up(epochs: int, warmup: float) -> None:
    """A tenth of all epochs, at most five: up to the peak, half of it half-way, then down along a
    cosine to 0. The peak grows with the batch."""
    hub = load_chapter(HUB)
    argv = ["--synthetic", "--batch-size", "512", "--epochs", str(epochs)]
    args = hub.build_parser().parse_args(argv)
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
        assert declared(chapter)["--workers"]["default"] == expected


@pytest.mark.parametrize("chapter", CHAPTERS)
def test_help(chapter: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture) -> None:
    """`python main.py --help` needs no launcher. Every flag is explained, with its default."""
    monkeypatch.delenv("RANK", raising=False)
    with contextlib.suppress(SystemExit), mock.patch("faulthandler.enable"):
        load_chapter(chapter).main(["--help"])
    text, flags = capsys.readouterr().out, declared(chapter)
    assert all(flag["help"] for flag in flags.values())
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

    build = lambda arch, num_classes: Watched(num_classes)  # noqa: E731
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
# Half of all tests would fail without these; --sync-bn: tests/pretended; --arch: test_errors.py;
# --workers: test_sampling.py; --pretrained: test_elsewhere.py.
USED_EVERYWHERE = "--data --synthetic --epochs --batch-size --output-dir --resume --evaluate"
USED_EVERYWHERE += " --print-freq --sync-bn --arch --workers --pretrained"
# The plain loop of test_equivalence.py has the same numbers.
IN_THE_PLAIN_LOOP = "--lr --weight-decay --label-smoothing --seed"
# Or a new flag that all chapters have would not be tested.
assert {*CHANGES, *USED_EVERYWHERE.split(), *IN_THE_PLAIN_LOOP.split()} == {*flags_of(HUB)}


@pytest.mark.parametrize("chapter", table(CHAPTERS, [HUB]))
def test_each_changes_something(crew: Crew, chapter: str, tmp_path: Path) -> None:
    """A run without these flags and one with all of them: each is seen in its own place."""
    changes = [change for flag, change in CHANGES.items() if flag in flags_of(chapter)]
    words = " ".join([BASE, *(words for words, _, _ in changes)])
    (without,) = crew.run(observe, chapter, BASE.split(), tmp_path / "without")
    (seen,) = crew.run(observe, chapter, words.split(), tmp_path / "with")
    for words, look, expected in changes:
        assert seen[look] == expected != without[look], words


def test_places_of_spawned_processes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """03 without starting anything: how many it spawns, and the rank and environment of local rank
    1. With as many threads as cores in each, two ranks on two cores train at a third of the
    speed."""
    module, spawned = load_chapter(SPAWNS), []
    ended = SimpleNamespace(join=lambda: True)
    monkeypatch.setattr(
        "torch.multiprocessing.spawn", lambda *call, join: spawned.append(call) or ended
    )
    build_loaders = mock.Mock(side_effect=StopIteration)
    monkeypatch.setattr(module, "build_loaders", build_loaders)
    monkeypatch.setattr("torch.get_num_threads", lambda: 6)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    argv = ["--synthetic", "8", "--image-size", "8", "--batch-size", "6", "--nprocs", "2"]
    argv += ["--nnodes", "3", "--node-rank", "1", "--output-dir", str(tmp_path)]
    argv += ["--master-addr", "10.0.0.9", "--master-port", "29501"]
    with mock.patch.dict(os.environ):
        module.main(argv)
        ((function, args, nprocs),) = spawned
        with pytest.raises(StopIteration):
            function(1, *args)
        env = dict(os.environ)
    assert nprocs == 2
    assert build_loaders.call_args.args[3:] == (3, 6)  # rank and world size
    assert (env["LOCAL_WORLD_SIZE"], env["OMP_NUM_THREADS"]) == ("2", "3")
    assert args[1] == "tcp://10.0.0.9:29501"
