"""The flags: the same in every chapter, and where each is seen to change something."""

import contextlib
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
from harness import CHAPTERS, ROOT, flags_of, load_chapter
from refusals import ALONE, HUB, SPAWNS

# What a chapter cannot honour. What it has of its own is shown below for 03, and for the others in
# tests/pretended, test_amp, test_horovod, test_slurm_ranks and test_exact_eval.
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


def test_warm_up() -> None:
    """Five epochs of ninety: up to the peak, half of it half-way, then down along a cosine to 0.
    (A tenth of a few, and the peak: test_equivalence.py.)"""
    hub = load_chapter(HUB)
    args = hub.build_parser().parse_args(["--synthetic"])
    factors = [hub.lr_factor(args, epoch) for epoch in (2.5, 5, 47.5, 90)]
    assert factors == pytest.approx([0.5, 1, 0.5, 0])


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
def test_without_docstrings(chapter: str) -> None:
    """python -OO takes them away."""
    path = ROOT / chapter / "main.py"
    names = {"__name__": chapter, "__file__": str(path), "__doc__": None}
    exec(compile(path.read_text(), path, "exec", optimize=2), names)
    assert names["build_parser"]().description is None


@pytest.mark.parametrize("chapter", CHAPTERS)
def test_help(chapter: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture) -> None:
    """`python main.py --help` needs no launcher. Every flag is explained, with its default."""
    monkeypatch.delenv("RANK", raising=False)
    with contextlib.suppress(SystemExit), mock.patch("faulthandler.enable"):
        load_chapter(chapter).main(["--help"])
    text, flags = capsys.readouterr().out, declared(chapter)
    assert all(flag["help"] for flag in flags.values())
    assert text.count("(default:") == len(flags)


# Where each flag is seen to change something. Half of all tests would fail without these;
# --image-size: test_equivalence.py; --workers, --bf16, --compile, --sync-bn: test_sampling.py and
# tests/pretended; --arch: test_errors.py; --pretrained: test_elsewhere.py;
# --save-minutes: test_stop.py.
USED_EVERYWHERE = "--data --synthetic --epochs --batch-size --output-dir --resume --evaluate"
USED_EVERYWHERE += " --print-freq --image-size --workers --bf16 --compile --sync-bn --arch"
USED_EVERYWHERE += " --pretrained --save-minutes"
# The plain loop of test_equivalence.py has the same numbers.
IN_THE_PLAIN_LOOP = "--lr --weight-decay --label-smoothing --seed --clip-grad"
# Or a new flag that all chapters have would not be tested.
assert {*USED_EVERYWHERE.split(), *IN_THE_PLAIN_LOOP.split()} == {*flags_of(HUB)}


def test_places_of_spawned_processes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """03 without starting anything: how many it spawns, and the rank and environment of local rank
    1. With as many threads as cores in each, two ranks on two cores train at a third of the
    speed."""
    module, spawned = load_chapter(SPAWNS), []
    ended = SimpleNamespace(join=lambda grace_period: True)
    monkeypatch.setattr("signal.signal", lambda *_: None)
    monkeypatch.setattr(
        "torch.multiprocessing.spawn", lambda *call, join: spawned.append(call) or ended
    )
    build_loaders = mock.Mock(side_effect=StopIteration)
    monkeypatch.setattr(module, "build_loaders", build_loaders)
    monkeypatch.setattr("torch.get_num_threads", lambda: 6)
    parent = SimpleNamespace(is_alive=lambda: True)
    monkeypatch.setattr("torch.multiprocessing.parent_process", lambda: parent)
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
