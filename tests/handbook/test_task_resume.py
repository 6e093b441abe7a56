"""docs/examples/tasks: those that resume end as if nobody had killed them, and what parts of them
do."""

import inspect
import math
import os
import re
import runpy
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from harness import ROOT, assert_same, load_state, run, start
from tiers import table
from warm import run_warm

FOLDER = ROOT / "docs/examples/tasks"
KILLED = ROOT / "tests/support/killed.py"


def script_of(task: str, size: int) -> Path:
    return FOLDER / task / ("multi.py" if size > 1 else "single.py")


def lines_of(script: Path, folder: Path, size: int, *argv: str, kill: tuple = ()) -> list[str]:
    """Start a script with --resume in the folder, on so many processes: the lines that it prints.

    kill: a rank, and when it is killed. The others miss it, and end by themselves.
    """
    logs = folder / f"start{len(list(folder.glob('start*')))}"
    logs.mkdir(parents=True)
    words = [KILLED, *kill] if kill else []
    words += [script, "--resume", *argv]
    codes, texts, errors = run_warm(words, logs, size if size > 1 else 0, cwd=folder)
    if kill:
        assert codes[int(kill[0])] == -signal.SIGKILL, errors
    else:
        assert not any(codes), errors
    assert texts[1:] == [""] * (len(texts) - 1)  # rank 0 alone prints
    return texts[0].splitlines()


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Callable:
    """What a script prints, and saves, when nobody kills it."""
    known = {}

    def run_once(script: Path, size: int) -> tuple[list[str], dict]:
        if (script, size) not in known:
            folder = tmp_path_factory.mktemp("whole")
            lines = lines_of(script, folder, size, *SHORTER.get(script.parent.name, []))
            known[script, size] = lines, load_state(folder / "checkpoint.pt")
        return known[script, size]

    return run_once


SAVED = ("language_model", "detection", "diffusion")
SHORTER = {"detection": ["--epochs", "2"]}
# A task, how many processes, which rank is killed, when, and how many evaluations come after the
# restart. Epochs of the language model have 11 steps, those of the detector 5, of diffusion 10; two
# tasks evaluate and save after 7, 14, 21 and 28 steps, inside of epochs.
KILLS = [
    ("language_model", 2, 1, "step 17", 2),
    ("language_model", 2, 0, "save 3", 2),
    ("language_model", 1, 0, "step 17", 2),
    ("language_model", 1, 0, "save 3", 2),
    ("detection", 2, 1, "step 7", 1),
    ("detection", 2, 0, "save 4", 1),
    ("detection", 1, 0, "step 7", 1),
    ("diffusion", 2, 1, "step 17", 2),
    ("diffusion", 2, 0, "save 2", 3),
    ("diffusion", 1, 0, "step 17", 2),
]
CORE = [KILLS[0], KILLS[8]]


@pytest.mark.parametrize(("task", "size", "rank", "at", "after"), table(KILLS, CORE))
def test_killed_and_resumed(
    task: str, size: int, rank: int, at: str, after: int, undisturbed: Callable, tmp_path: Path
) -> None:
    """The same line again: what is saved in the end is the same bit for bit, and so is all that is
    printed on the way."""
    script, argv = script_of(task, size), SHORTER.get(task, [])
    lines, saved = undisturbed(script, size)
    lines_of(script, tmp_path, size, *argv, kill=(str(rank), at))
    if "save" in at:
        with pytest.raises(RuntimeError, match="zip archive"):  # half a file, under another name
            load_state(next(tmp_path.glob("*.tmp")))
    again = lines_of(script, tmp_path, size, *argv)
    assert after < len(lines) and again == lines[-after:]
    assert_same(load_state(tmp_path / "checkpoint.pt"), saved)


def record_calls(patch: pytest.MonkeyPatch) -> list[str]:
    """The names of what is called from now on to bring a file to the disk, and to name it."""
    done: list[str] = []
    for name in ("fsync", "replace"):
        call = getattr(os, name)
        patch.setattr(os, name, lambda *a, n=name, call=call: done.append(n) or call(*a))
    return done


SAVERS = [f"tasks/{task}/{name}.py" for task in SAVED for name in ("single", "multi")]


@pytest.mark.parametrize("file", [*SAVERS, "convert/recipes.py"])
def test_is_on_the_disk(file: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before the old checkpoint goes: otherwise a power cut may leave an empty file."""
    monkeypatch.chdir(tmp_path)
    save = runpy.run_path(str(FOLDER.parent / file))["save"]
    rank_0 = {"get_rank": 0, "get_world_size": 1, "all_gather_object": None}
    for name, answer in rank_0.items():
        monkeypatch.setattr(torch.distributed, name, lambda *_, answer=answer: answer)
    done, model = record_calls(monkeypatch), torch.nn.Linear(2, 1)
    words = {"place": 1, "step": 1, "path": "checkpoint.pt", "content": {}}
    words |= {
        "parts": {"model": model},
        "model": model,
        "optimizer": torch.optim.SGD([*model.parameters()]),
    }
    save(**{name: words[name] for name in inspect.signature(save).parameters})
    assert done == ["fsync", "replace"] and load_state(tmp_path / "checkpoint.pt") is not None


@pytest.mark.proof
def test_killed_under_torchrun(undisturbed: Callable, tmp_path: Path) -> None:
    """A real launch, and a signal from outside: at any step, so any evaluation may be the first."""
    script = script_of("language_model", 2)
    lines, saved = undisturbed(script, 2)
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command = [*torchrun, "--nproc-per-node", "2", script, "--resume"]
    process = start(command, tmp_path)
    assert process.stdout.readline().strip() == lines[0]
    ranks = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    os.kill(int(ranks[1]), signal.SIGKILL)
    process.communicate()
    assert process.returncode != 0
    result = run(command, tmp_path)
    assert result.returncode == 0, result.output
    assert result.said == lines[-len(result.said) :]
    assert_same(load_state(tmp_path / "checkpoint.pt"), saved)


@pytest.mark.proof
def test_on_another_number_of_ranks(tmp_path: Path) -> None:
    """The language model without dropout goes on with the samples that are left, each once."""
    text = script_of("language_model", 2).read_text()
    changes = {"nn.Dropout(0.1)": "nn.Dropout(0.0)", "logits.float()": "logits"}
    changes["\n\ndef main"] = "\n\ntorch.set_default_dtype(torch.float64)\n\n\ndef main"
    for old, new in changes.items():
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    script = tmp_path / "script.py"
    script.write_text(text)
    lines = lines_of(script, tmp_path / "whole", 2)
    assert lines_of(script, tmp_path / "cut", 2, kill=("1", "step 17")) == lines[:2]
    assert lines_of(script, tmp_path / "cut", 3) == lines[2:]


def test_bfloat16(tmp_path: Path) -> None:
    """It trains in other numbers, close to the first ones, and keeps its weights in 32 bits."""
    script, found = script_of("language_model", 1), []
    for flag in ([], ["--bf16"]):
        folder = tmp_path / f"run{len(flag)}"
        [line] = lines_of(script, folder, 1, "--steps", "7", *flag)
        found.append(float(re.search(r"perplexity ([\d.]+)", line)[1]))
    assert found[0] != found[1] and math.isclose(*found, rel_tol=0.02), found
    kinds = {tensor.dtype for tensor in load_state(folder / "checkpoint.pt")["model"].values()}
    assert kinds == {torch.float32}


def names_of(task: str) -> dict:
    """What multi.py defines."""
    return runpy.run_path(str(script_of(task, 2)))


def test_decay_groups() -> None:
    """Each parameter is in one of them, and matrices alone decay."""
    names = names_of("language_model")
    model = names["GPT"]()
    decaying, others = (group["params"] for group in names["parameter_groups"](model))
    known = {id(parameter): name for name, parameter in model.named_parameters()}
    assert sorted(map(id, decaying + others)) == sorted(known)
    kinds = {re.sub(r"blocks\.\d\.", "", known[id(parameter)]) for parameter in decaying}
    assert kinds == {"qkv.weight", "out.weight", "up.weight", "down.weight", "head.weight"}


def test_average_precision() -> None:
    """By hand: of two boxes one is found at once, then comes a mistake, and then the other. A box
    that is found twice is a mistake, and so is one in an image without any."""
    average_precision = names_of("detection")["average_precision"]
    one, other = [0.0, 0.0, 10.0, 10.0], [20.0, 20.0, 40.0, 40.0]
    targets = {3: {"boxes": torch.tensor([one, other])}, 5: {"boxes": torch.zeros(0, 4)}}
    found = {"boxes": torch.tensor([one, one, other]), "scores": torch.tensor([0.9, 0.8, 0.7])}
    nothing = {"boxes": torch.tensor([one]), "scores": torch.tensor([0.1])}
    outputs = {5: nothing, 3: found}
    assert average_precision(outputs, targets) == pytest.approx((1 + 2 / 3) / 2)


def test_a_batch_changes_what_a_detector_finds() -> None:
    """Why images are evaluated one at a time."""
    names = names_of("detection")
    torch.manual_seed(0)
    model = names["build_model"]().eval()
    images = [image for image, _ in names["make_images"](6, seed=2)]
    with torch.inference_mode():
        together = model(images)
        alone = [model([image])[0] for image in images]
    equal = [torch.equal(a["scores"], b["scores"]) for a, b in zip(together, alone, strict=True)]
    assert not all(equal)
