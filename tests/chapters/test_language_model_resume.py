"""09 saves, stops and goes on: on the same ranks bit for bit, on others as one process would."""

import json
import os
import pickle
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from crew import Crew
from harness import ROOT, events, load_chapter, rows
from plain_language_model import LM, SHAPE, TRAIN, furthest, main_as, plain_training, weights_of
from refusals import Bomb, snapshot
from run_log import read_run
from test_language_model import large_crew, refused, train  # noqa: F401
from tiers import table
from warm import run_warm

ARGV = [*TRAIN, "--eval-steps", "2", "--resume"]


def told(argv: list[str], step: int, rank: int, number: int = signal.SIGTERM) -> dict:
    """In a crew member: one rank is told to stop as it trains this step of the run, from 1."""
    chapter = load_chapter(LM)
    micro_batches = chapter.micro_batches

    def asking(args: object, data: object, now: int, work: object) -> Iterator:
        if now + 1 == step and os.environ["CREW_RANK"] == str(rank):
            os.kill(os.getpid(), number)
        return micro_batches(args, data, now, work)

    return main_as(torch.float64, argv, {"micro_batches": asking})


def stop(crew: Crew, ranks: int, argv: list, step: int) -> None:
    words = [str(word) for word in argv]
    answers = crew.run(told, words, step, ranks - 1, world_size=ranks)
    assert [answer["exit"] for answer in answers] == [75] * ranks, answers


# The ranks and flags of a run before it is stopped, and after.
PAIRS = {
    "sequence, then shard": (2, ["--sequence", 2], 2, []),
    "shard, then one": (2, [], 1, []),
    "one, then tensor": (1, [], 2, ["--tensor", 2]),
    "replicas, then three": (2, ["--replicas", 2], 3, ["--batch-size", 6]),
    "shard x tensor, then sequence": (4, ["--tensor", 2], 2, ["--sequence", 2]),
    "replicas x shard, then tensor x sequence": (
        4,
        ["--replicas", 2],
        4,
        ["--sequence", 2, "--tensor", 2],
    ),
    "eight, then two": (8, ["--replicas", 2, "--tensor", 2, "--accumulate", 2], 2, []),
}


@pytest.mark.parametrize("case", table(PAIRS, ["sequence, then shard"]))
def test_on_another_mesh(case: str, large_crew: Crew, tmp_path: Path) -> None:  # noqa: F811
    """Stopped after step 3, inside a round; the other ranks end as one process would."""
    before, flags, after, others = PAIRS[case]
    argv = [*ARGV, "--output-dir", tmp_path]
    if "--batch-size" in others:  # three ranks divide no 8
        argv, flags, others = [*argv, *others], [*flags], []
    stop(large_crew, before, [*argv, *flags], 3)
    assert events(tmp_path)[-1]["event"] == "stopped"
    assert json.loads((tmp_path / "checkpoints.json").read_text())["whole"][0]["step"] == 3
    train(large_crew, after, [*argv, *others])
    expected, losses, last = plain_training([str(word) for word in argv])
    assert furthest(weights_of(tmp_path), expected) < 1e-10
    run = read_run(tmp_path)
    assert [row["loss"] for row in run.train] == pytest.approx(losses, rel=1e-10)
    assert run.eval[-1]["loss"] == pytest.approx(last, rel=1e-10)
    assert len(run.eval) == 3 and run.end


@pytest.mark.proof
def test_saved_at_every_step(crew: Crew, tmp_path: Path) -> None:
    """A run that saves whenever ranks meet ends with the bits of one that does not; two folders
    are kept, and what is not in the record stays."""
    train(crew, 2, [*ARGV, "--output-dir", tmp_path / "whole"])
    folder = tmp_path / "saved"
    (folder / "step999").mkdir(parents=True)
    (folder / "step999/notes").write_text("mine")
    train(crew, 2, [*ARGV, "--output-dir", folder, "--save-minutes", 0])
    ours, expected = (weights_of(one) for one in (folder, tmp_path / "whole"))
    assert all(torch.equal(ours[name], expected[name]) for name in expected)
    kept = sorted(path.name for path in folder.glob("step*"))
    assert kept == ["step4", "step5", "step999"] and (folder / "step999/notes").exists()
    assert len(rows(folder, "train")) == 5


@pytest.mark.proof
def test_stopped_before_an_evaluation(crew: Crew, tmp_path: Path) -> None:
    """Asked at the last step of a round, it saves at once and evaluates when it goes on; a second
    stop there writes the same step no second time."""
    argv = [*ARGV, "--output-dir", tmp_path]
    stop(crew, 2, argv, 2)
    assert not rows(tmp_path, "eval")
    saved = (tmp_path / "step2/.metadata").stat().st_mtime_ns
    train(crew, 2, [*argv, "--keep", 0])
    assert (tmp_path / "step2/.metadata").stat().st_mtime_ns == saved
    run = read_run(tmp_path)
    assert [row["at"] for row in run.eval] == sorted(row["at"] for row in run.eval)
    assert len(run.eval) == 3
    answers = train(crew, 2, argv)
    assert "nothing to train" in answers[0]["stdout"]
    assert len(read_run(tmp_path).eval) == 3


# Where a run is killed: a function of the chapter, its call, and before or after it.
KILLED = """
import os, signal, sys
sys.path[:0] = {paths!r}
import torch
from harness import load_chapter
chapter = load_chapter({lm!r})
torch.set_default_dtype(torch.float64)
owner, name, call, when, rank = {at!r}
owner = getattr(chapter, owner) if owner else chapter
function, calls = getattr(owner, name), []


def striking(*given, **more):
    calls.append(0)
    strikes = len(calls) == call and os.environ["RANK"] == str(rank)
    if strikes and when == "before":
        os.kill(os.getpid(), signal.SIGKILL)
    answer = function(*given, **more)
    if strikes:
        os.kill(os.getpid(), signal.SIGKILL)
    return answer


setattr(owner, name, striking)
chapter.main(sys.argv[1:])
"""
# Records are written before and after each save: the third is that before the second save.
PHASES = {
    "in a step": ("", "losses", 4, "before", 1),
    "before a record": ("", "write_record", 3, "before", 0),
    "after it": ("", "write_record", 3, "after", 0),
    "in a save": ("dcp", "save", 2, "before", 1),
    "after a save": ("dcp", "save", 2, "after", 0),
    "before it is whole": ("", "write_record", 4, "before", 0),
    "when it is whole": ("", "write_record", 4, "after", 0),
    "as old ones are removed": ("shutil", "rmtree", 1, "before", 0),
    "in an evaluation": ("", "evaluate", 2, "before", 0),
    "in the export": ("", "export", 1, "before", 0),
}


@pytest.mark.parametrize("case", table(PHASES, ["after a save"]))
def test_killed(case: str, crew: Crew, tmp_path: Path) -> None:
    """Whatever it was doing: the next start ends with the bits of a run that nobody killed."""
    script = tmp_path / "killed.py"
    paths = [str(ROOT / "tests/support"), str(ROOT / "tools")]
    script.write_text(KILLED.format(paths=paths, lm=LM, at=PHASES[case]))
    argv = [*ARGV, "--output-dir", tmp_path / "run", "--keep", "1"]
    codes, _, wrong = run_warm([script, *argv], tmp_path, 2, cwd=tmp_path)
    assert -signal.SIGKILL in codes and 0 not in codes, wrong
    train(crew, 2, argv)
    train(crew, 2, [*ARGV, "--output-dir", tmp_path / "whole"])
    ours, expected = (weights_of(tmp_path / one) for one in ("run", "whole"))
    assert all(torch.equal(ours[name], expected[name]) for name in expected)
    assert [path.name for path in (tmp_path / "run").glob("step*")] == ["step5"]
    assert len(read_run(tmp_path / "run").eval) == 3


# ---- what must not go on ----
@pytest.fixture(scope="module")
def finished(large_crew: Crew, tmp_path_factory: pytest.TempPathFactory) -> Path:  # noqa: F811
    folder = tmp_path_factory.mktemp("finished") / "run"
    train(large_crew, 1, [*ARGV, "--output-dir", folder])
    return folder


@pytest.fixture
def copy_of(finished: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(finished, tmp_path / "run"))


def no_resume(crew: Crew, folder: Path, *more: str) -> str:
    argv = [*ARGV, "--steps", "9", "--output-dir", folder, *more]
    [line] = refused(crew, argv, 1, folder)
    return line


def test_damaged_files(crew: Crew, copy_of: Path) -> None:
    """A byte of a checkpoint, or all of a file."""
    path = copy_of / "step5/__0_0.distcp"
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    assert "__0_0.distcp is damaged or gone" in no_resume(crew, copy_of)
    path.unlink()
    assert "__0_0.distcp is damaged or gone" in no_resume(crew, copy_of)


def test_metadata_that_runs_a_program(crew: Crew, copy_of: Path) -> None:
    """Also with a record that knows its checksum: it is not run."""
    chapter, path = load_chapter(LM), copy_of / "step5/.metadata"
    for content in (Bomb(), {"a": Bomb()}, b"x"):
        path.write_bytes(pickle.dumps(content))
        record = json.loads((copy_of / "checkpoints.json").read_text())
        record["whole"][0]["files"] |= chapter.checksums(path.parent, ".metadata")
        (copy_of / "checkpoints.json").write_text(json.dumps(record))
        assert "cannot read" in no_resume(crew, copy_of)
        assert not (copy_of / "exploded").exists()


DAMAGE = {
    "cut": lambda text: text[:40],
    "below 0": lambda text: text.replace('"step": 5', '"step": -5'),
    "at 0": lambda text: text.replace('"step": 5', '"step": 0'),
    "begun": lambda text: text.replace('"begun": 0', '"begun": "../other"'),
    "file": lambda text: text.replace("__0_0.distcp", "../../x"),
    "no list": lambda text: "[]",
    "begun and whole": lambda text: text.replace('"begun": 0', '"begun": 5'),
    "evaluated": lambda text: text.replace('"evaluated": true', '"evaluated": "no"'),
    "deep": lambda text: "[" * 99999,
}


@pytest.mark.parametrize("case", DAMAGE)
def test_damaged_record(case: str, crew: Crew, copy_of: Path) -> None:
    path = copy_of / "checkpoints.json"
    before, damaged = path.read_text(), DAMAGE[case](path.read_text())
    assert damaged != before
    path.write_text(damaged)
    assert "checkpoints.json is damaged" in no_resume(crew, copy_of)
    assert {"step4", "step5"} <= {one.name for one in copy_of.iterdir()}


OTHERS = {
    "seed": (["--seed", "1"], "--seed 0"),
    "batch": (["--batch-size", "4"], "--batch-size 8"),
    "model": (["--layers", "1"], "--layers 2 --heads"),
    "text": (["--synthetic", "3333"], "windows (checksum"),
}


@pytest.mark.parametrize("case", OTHERS)
def test_another_run(case: str, crew: Crew, copy_of: Path) -> None:
    flags, words = OTHERS[case]
    line = no_resume(crew, copy_of, *flags)
    assert line.startswith("error: --resume: ") and words in line


def test_record_of_another_model(crew: Crew, copy_of: Path) -> None:
    """Edited by hand, so that it says what the checkpoint is not."""
    path = copy_of / "checkpoints.json"
    path.write_text(path.read_text().replace("--layers 2", "--layers 3"))
    assert "cannot load" in no_resume(crew, copy_of, "--layers", "3")


def test_from_another_folder(crew: Crew, finished: Path, tmp_path: Path) -> None:
    """--resume PATH: a new run goes on from a checkpoint of another one, which stays as it is; and
    from the newest, if PATH is the run's folder."""
    argv, before = ARGV[:-1], snapshot(finished)  # without --resume
    train(crew, 2, [*argv, "--output-dir", tmp_path / "a", "--resume", finished / "step4"])
    assert furthest(weights_of(tmp_path / "a"), weights_of(finished)) < 1e-10
    assert [row["step"] for row in rows(tmp_path / "a", "start")] == [4]
    longer = [*argv, "--steps", "6", "--output-dir", tmp_path / "b", "--resume", finished]
    train(crew, 1, longer)
    assert [row["step"] for row in rows(tmp_path / "b", "start")] == [5]
    assert snapshot(finished) == before
    for folder, path in (
        (tmp_path / "b", finished),
        (finished, finished / "step4"),
        (finished, finished),
    ):
        words = [*argv, "--output-dir", folder, "--resume", path]
        assert "holds a run: use --resume without PATH" in refused(crew, words, 1, tmp_path)[0]
    words = [*argv, "--output-dir", tmp_path / "c", "--resume", finished / "step3"]
    assert "names no checkpoint" in refused(crew, words, 1, tmp_path)[0]


def test_evaluated(crew: Crew, finished: Path, tmp_path: Path) -> None:
    """--evaluate: what was logged after that step, by any checkpoint and by the exported file, on
    other ranks and with other flags; the run's own files stay. Another model's file is a line."""
    before = snapshot(finished)
    losses = [row["loss"] for row in rows(finished, "eval")]
    weights = ["--weights", finished / "model.safetensors"]
    for flags, loss in (
        (["--resume", finished / "step4"], losses[1]),
        (["--resume", finished, "--sequence", "2"], losses[2]),
        ([*weights, "--tensor", "2"], losses[2]),
    ):
        argv = [*ARGV[:-1], "--evaluate", "--seed", "3", "--batch-size", "6", *flags]
        train(crew, 2, [*argv, "--output-dir", tmp_path / "new"])
        found = events(tmp_path / "new", "evaluate.jsonl")[-2]
        assert found["loss"] == pytest.approx(loss, rel=1e-10)
    assert not (tmp_path / "new/metrics.jsonl").exists() and snapshot(finished) == before
    words = [*ARGV, *weights, "--width", "64", "--output-dir", tmp_path / "other"]
    [line] = refused(crew, words, 1, tmp_path)
    assert "tokens.weight must have the shape [256, 64], and it has [256, 32]" in line


def test_evaluates_other_text(crew: Crew, tmp_path: Path) -> None:
    """All of it, though shorter than a batch, at most --eval-windows. But of the text of the run,
    which its record and its export know, what is held out: what it has trained on is refused."""
    for name, count in (("ours", 300), ("other", 9)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "a.txt").write_text("Ada counts boats. " * count)  # of 18 bytes
    ours, other = ["--data", tmp_path / "ours"], ["--data", tmp_path / "other"]
    argv = [*SHAPE, "--batch-size", 16, "--steps", 1, "--tokens", tmp_path / "tokens"]
    first, second = (["--output-dir", tmp_path / name] for name in ("first", "second"))
    train(crew, 1, [*argv, *first, *ours])
    train(crew, 1, [*argv, *second, *ours, "--val", tmp_path / "other"])
    # As a run exports it that lacks the library.
    torch.save(weights_of(tmp_path / "first"), tmp_path / "first/model.pt")
    saved, windows = ["--weights", tmp_path / "first/model.safetensors"], 300 * 18 // 16
    for flags, count in (
        ([*other, *saved], 9 * 18 // 16),
        ([*other, *saved, "--eval-windows", 4], 4),
        ([*other, *first, "--resume"], 9 * 18 // 16),
        ([*other, *second, "--resume"], 9 * 18 // 16),
        ([*ours, *saved], windows // 20),
        ([*ours, "--weights", tmp_path / "first/model.pt"], windows // 20),
        ([*ours, *first, "--resume"], windows // 20),
        ([*ours, *second, "--resume", "--val", tmp_path / "other"], 9 * 18 // 16),
    ):
        where = first if "--resume" not in flags else []
        answers = train(crew, 1, [*argv, "--evaluate", *flags, *where])
        folder = tmp_path / ("second" if second[1] in flags else "first")
        row = events(folder, "evaluate.jsonl")[-2]
        assert row["tokens"] == 16 * count and row["step"] == ("--resume" in flags), flags
        assert f"evaluates {count} of " in answers[0]["stdout"]
    words = [*argv, "--evaluate", *ours, *second, "--resume"]
    assert "trained on all of" in refused(crew, words, 1, tmp_path)[0]


def test_others_may_read_it(finished: Path) -> None:
    """The export, as all other files, is for whom the umask has it."""
    log, weights = (finished / name for name in ("metrics.jsonl", "model.safetensors"))
    assert oct(weights.stat().st_mode) == oct(log.stat().st_mode)


def test_begins_with_weights(crew: Crew, finished: Path, tmp_path: Path) -> None:
    """On other ranks too: its first loss is not that of random weights, and Adam begins anew."""
    argv = [*ARGV[:-1], "--weights", finished / "model.safetensors"]
    for ranks, flags in ((1, []), (2, ["--sequence", "2"])):
        train(crew, ranks, [*argv, *flags, "--output-dir", tmp_path / str(ranks)])
    assert furthest(weights_of(tmp_path / "1"), weights_of(tmp_path / "2")) < 1e-10
    first, random = (rows(folder, "train")[0]["loss"] for folder in (tmp_path / "1", finished))
    assert first < random - 0.1


def test_another_folder_in_the_way(crew: Crew, copy_of: Path) -> None:
    (copy_of / "step6").mkdir()
    (copy_of / "step6/mine").write_text("")
    assert "step6 is not of this run" in no_resume(crew, copy_of, "--eval-steps", "6")
    assert (copy_of / "step6/mine").exists()


LOCKS = """
import fcntl, sys
file = open(sys.argv[1], "a")
fcntl.lockf(file, fcntl.LOCK_EX)
print("locked", flush=True)
sys.stdin.read()
"""


def test_another_run_at_work(crew: Crew, copy_of: Path) -> None:
    words = [sys.executable, "-c", LOCKS, str(copy_of / "metrics.jsonl")]
    pipe = subprocess.PIPE
    with subprocess.Popen(words, stdin=pipe, stdout=pipe, text=True) as process:
        assert process.stdout.readline() == "locked\n"
        assert "another run is at work" in no_resume(crew, copy_of)
        process.stdin.close()


def infinite(norm: torch.Tensor) -> torch.Tensor:
    return torch.tensor(float("inf"))


def test_infinite_gradients(crew: Crew, tmp_path: Path) -> None:
    """What the step has made of the weights is not saved, though its loss was finite."""
    argv = [*ARGV, "--output-dir", str(tmp_path), "--save-minutes", "0"]
    words = [str(word) for word in argv]
    [answer] = crew.run(main_as, torch.float64, words, {"whole": infinite})
    assert "is inf at step 1: use a lower --lr" in answer["exit"], answer
    assert not list(tmp_path.glob("step*"))
