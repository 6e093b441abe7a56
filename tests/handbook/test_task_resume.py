"""docs/examples/tasks: those that resume end as if nobody had killed them, and what parts of them
do. The language model in shards also goes on on other numbers of ranks, and stops when asked."""

import argparse
import inspect
import math
import os
import re
import runpy
import shutil
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from harness import ROOT, assert_same, load_state, run, start
from refusals import snapshot
from tiers import table
from warm import run_warm

FOLDER = ROOT / "docs/examples/tasks"
KILLED = ROOT / "tests/support/killed.py"
FSDP = FOLDER / "language_model/fsdp.py"


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


# ---- language_model/fsdp.py ----


def launch(folder: Path, size: int, *argv: str, kill: tuple = (), script: Path = FSDP) -> list[str]:
    """Start it on so many ranks: what rank 0 prints from its first step on.

    kill: a rank, and when it is killed. The others miss it, and end by themselves.
    """
    logs = folder / f"start{len(list(folder.glob('start*')))}"
    logs.mkdir(parents=True)
    words = [KILLED, *kill] if kill else []
    codes, texts, errors = run_warm([*words, script, *argv], logs, size, cwd=folder)
    if kill and len(kill[1].split()) == 2:
        assert codes[int(kill[0])] == -signal.SIGKILL, errors
    else:
        assert not any(codes), errors
    assert texts[1:] == [""] * (size - 1)  # rank 0 alone prints
    found = texts[0].splitlines()
    return [line for line in found if line.startswith(("step", "stopped"))]


@pytest.fixture(scope="module")
def shards_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("whole")


@pytest.fixture(scope="module")
def in_shards(shards_folder: Path) -> tuple[list[str], dict]:
    """What two ranks print, and export, when nobody kills them."""
    folder = shards_folder
    lines = launch(folder, 2, "--export", "model.pt")
    assert len(lines) == 4
    return lines, load_state(folder / "model.pt")


def test_in_shards_as_with_ddp(in_shards: tuple, undisturbed: Callable) -> None:
    """Dropout included: the same lines, and the same weights but for the order of sums."""
    lines, weights = in_shards
    expected, saved = undisturbed(script_of("language_model", 2), 2)
    assert lines == expected
    torch.testing.assert_close(weights, dict(saved["model"]), rtol=0, atol=1e-5)


def test_offloaded(in_shards: tuple, tmp_path: Path) -> None:
    """The same training where weights, gradients and Adam's state wait on the CPU."""
    lines, weights = in_shards
    assert launch(tmp_path, 2, "--offload", "--export", "model.pt", "--keep", "0") == lines
    assert names_in(tmp_path) == {"step7", "step14", "step21", "step28", "latest"}
    # A bias of keys changes no softmax: its gradient is rounding, and Adam makes whole steps of it.
    found, expected = (
        {name: tensor for name, tensor in model.items() if not name.endswith("qkv.bias")}
        for model in (load_state(tmp_path / "model.pt"), weights)
    )
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)


def test_difference_for_transformers(tmp_path: Path) -> None:
    """It fits. What becomes of it: test_libraries.py."""
    shutil.copy(FSDP, tmp_path)
    words = ["git", "apply", "-p0", FSDP.with_name("transformers.diff")]
    done = run(words, tmp_path, env={"GIT_CEILING_DIRECTORIES": str(tmp_path.parent)})
    assert done.returncode == 0, done.output
    text = (tmp_path / FSDP.name).read_text()
    assert "AutoConfig" in text and "GPT()" not in text
    compile(text, FSDP.name, "exec")


def names_in(folder: Path) -> set[str]:
    return {path.name for path in (folder / "checkpoints").iterdir()}


def test_killed_in_the_middle_of_a_save(in_shards: tuple, tmp_path: Path) -> None:
    """The same line again goes on from the checkpoint before, and ends with the same weights bit
    for bit: dropout of both ranks, place in the epoch and Adam's state are in it. What was left is
    removed, and what its own record does not name is not."""
    lines, weights = in_shards
    command, folder = ("--resume", "--export", "model.pt", "--keep"), tmp_path / "checkpoints"
    launch(tmp_path, 2, *command, "3", kill=("1", "part 150"))
    assert names_in(tmp_path) == {"step7", "step14", "latest"}
    half = folder / "step14"
    assert not (half / ".metadata").exists() and list(half.glob("__1_*"))
    assert (folder / "latest").read_text() == "step7\nstep14\n"

    (half / "left").touch()
    for name in ("step3", "step14-backup"):
        shutil.copytree(folder / "step7", folder / name)
    own = snapshot(folder / "step3")
    assert launch(tmp_path, 2, *command, "3") == lines[1:]
    assert_same(load_state(tmp_path / "model.pt"), weights)
    kept = {"step14", "step21", "step28", "latest", "step3", "step14-backup"}
    assert names_in(tmp_path) == kept and not (half / "left").exists()
    assert snapshot(folder / "step3") == snapshot(folder / "step14-backup") == own


@pytest.mark.proof
@pytest.mark.parametrize("name", ["SIGUSR1", "SIGTERM"])
def test_asked_to_stop(name: str, in_shards: tuple, tmp_path: Path) -> None:
    """One rank is asked, all stop after the same step, and nothing is lost."""
    lines, weights = in_shards
    command = ("--resume", "--export", "model.pt")
    stopped = launch(tmp_path, 2, *command, kill=("1", f"step 9 {name}"))
    assert stopped == [lines[0], "stopped after step 10: go on with --resume"]
    assert not (tmp_path / "model.pt").exists()
    assert launch(tmp_path, 2, *command) == lines[1:]
    assert_same(load_state(tmp_path / "model.pt"), weights)


def exact(name: str, folder: Path) -> Path:
    """The script without dropout, in float64."""
    text = (FSDP.parent / name).read_text()
    changes = {"nn.Dropout(0.1)": "nn.Dropout(0.0)", "logits.float()": "logits"}
    changes["\n\ndef main"] = "\n\ntorch.set_default_dtype(torch.float64)\n\n\ndef main"
    for old, new in changes.items():
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    (folder / name).write_text(text)
    return folder / name


@pytest.mark.proof
@pytest.mark.parametrize("recompute", [[], ["--recompute"]])
def test_on_other_numbers_of_ranks(recompute: list, tmp_path: Path) -> None:
    """Begun on two, killed, on three, killed, and on one: the weights are those of DDP."""
    ddp, script = exact("multi.py", tmp_path), exact("fsdp.py", tmp_path)
    lines = launch(tmp_path / "ddp", 2, script=ddp)
    command = ("--resume", "--export", "model.pt", *recompute)
    found = []
    for size, kill in ((2, ("1", "step 10")), (3, ("0", "step 9")), (1, ())):
        found += launch(tmp_path / "fsdp", size, *command, kill=kill, script=script)
    assert found == lines  # saved after step 7 on two ranks, 14 on three, 21 and 28 on one
    weights = load_state(tmp_path / "fsdp/model.pt")
    expected = load_state(tmp_path / "ddp/checkpoint.pt")["model"]
    torch.testing.assert_close(weights, dict(expected), rtol=0, atol=1e-10)


def perplexity_of(names: dict, model: torch.nn.Module) -> float:
    """In one process, of the sentences that scripts evaluate with."""
    model.eval()
    inputs, targets = names["collate"](names["make_sentences"](61, seed=2))
    with torch.inference_mode():
        total = names["sum_of_losses"](model, inputs, targets)
    return math.exp(total / (targets != names["PAD"]).sum())


def assert_printed(line: str, expected: float) -> None:
    found = float(re.search(r"perplexity ([\d.]+)", line)[1])
    assert math.isclose(found, expected, rel_tol=1e-4)


@pytest.mark.proof
def test_exported_weights(in_shards: tuple, tmp_path: Path) -> None:
    """Plain tensors, and no more: one process loads them, and comes to the number printed. LoRA
    begins with such a file, goes on on other ranks, and beside no other weights, and is saved
    merged, and alone."""
    names = runpy.run_path(str(FSDP))
    lines, weights = in_shards
    model = names["GPT"]()
    model.load_state_dict(weights)
    assert_printed(lines[-1], perplexity_of(names, model))
    assert {tensor.dtype for tensor in weights.values()} == {torch.float32}

    torch.save(weights, tmp_path / "base.pt")
    command = ("--resume", "--weights", "base.pt", "--lora", "4")
    first = launch(tmp_path, 3, *command, "--steps", "7")
    (tmp_path / "no").mkdir()
    codes, _, errors = run_warm([FSDP, "--resume", "--lora", "4"], tmp_path / "no", 1, cwd=tmp_path)
    assert codes == [1] and "step7 needs --weights with the file 'base.pt'" in errors[0]
    exports = ("--export", "merged.pt", "--export-lora", "lora.pt")
    [last] = launch(tmp_path, 2, *command, "--steps", "14", *exports)
    assert last.startswith("step 14") and len(first) == 1
    lora, merged = load_state(tmp_path / "lora.pt"), load_state(tmp_path / "merged.pt")
    assert len(lora) == 16 and all(".lora_" in name for name in lora)

    beside = names["build_model"](4, weights)
    missing, unexpected = beside.load_state_dict(lora, strict=False)
    assert sorted(missing) == sorted(weights) and not unexpected
    assert_printed(last, perplexity_of(names, beside))
    together = names["GPT"]()
    together.load_state_dict(merged)
    assert_printed(last, perplexity_of(names, together))
    moved = {name for name in weights if not torch.equal(weights[name], merged[name])}
    assert moved == {name.replace("lora_a.", "") for name in lora if "lora_a" in name}


def test_lora_merged() -> None:
    """One matrix in place of three computes the same."""
    names = runpy.run_path(str(FSDP))
    beside, together = names["build_model"](4), names["GPT"]()
    before = perplexity_of(names, beside)
    for name, parameter in beside.named_parameters():
        assert parameter.requires_grad == (".lora_" in name)
        if name.endswith("lora_b.weight"):
            torch.nn.init.normal_(parameter, std=0.1)
    together.load_state_dict(names["merged"](dict(beside.state_dict())))
    after = perplexity_of(names, beside)
    assert not math.isclose(before, after, rel_tol=0.01)
    assert math.isclose(perplexity_of(names, together), after, rel_tol=1e-5)


def test_the_last_checkpoints_are_kept(in_shards: tuple, shards_folder: Path) -> None:
    """Two of four, if nothing else is said."""
    assert names_in(shards_folder) == {"step21", "step28", "latest"}


TWO = ("step7/.metadata", "step14/.metadata")
NO_RECORD = "c/latest names no whole checkpoint: "
LOST = f"{NO_RECORD}`echo step14 > c/latest`, or name another --folder"
# What lies in the folder: with a text, that of its record. The words, and the line for them.
REFUSED = {
    "no rank": ((), "--export-lora lora.pt", "--export-lora needs --lora RANK"),
    "a run": ((*TWO, "step7"), "", "c holds a run: add --resume, or name another --folder"),
    "empty": ((*TWO, ""), "--resume", LOST),
    "empty, begun anew": ((*TWO, ""), "", LOST),
    "missing": (TWO, "--resume", LOST),
    "missing, begun anew": (TWO, "", LOST),
    "garbage": ((*TWO, "step7 \0"), "--resume", LOST),
    "gone": ((*TWO, "step21"), "--resume", LOST),
    "half": (("step7/x", "step7"), "--resume", f"{NO_RECORD}name another --folder"),
    "somebody's": (("step1/notes.txt",), "", f"{NO_RECORD}name another --folder"),
    "no record": (("latest/x",), "--resume", "c/latest is a folder"),
    "keep": ((), "--keep -1", "--keep and --lora at least 0"),
    "steps": ((), "--steps 0", "--steps must be at least 1, --keep and --lora at least 0"),
    "a file": ((), "--folder f", "cannot write f/latest: File exists"),
    "no disk": ((), "--folder /proc/x", "cannot write /proc/x/latest: No such file or directory"),
    "export": ((), "--export no/x.pt", "cannot write no/x.pt: No such file or directory"),
    "LoRA": ((), "--lora 4 --export-lora d", "d is a folder"),
    "over its base": ((), "--weights f --export ./f", "must be files of their own"),
    "over its record": ((), "--export c/latest", "must be files of their own"),
}


@pytest.fixture
def begin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable:
    """In this process, what the program does before its ranks meet: returns its arguments."""
    read_arguments = runpy.run_path(str(FSDP))["read_arguments"]
    (tmp_path / "f").touch()
    (tmp_path / "d").mkdir()
    monkeypatch.chdir(tmp_path)
    for name, number in (("RANK", "0"), ("WORLD_SIZE", "1")):
        monkeypatch.setenv(name, number)

    def begin_with(words: str) -> argparse.Namespace:
        monkeypatch.setattr(sys, "argv", [str(FSDP), "--folder", "c", *words.split()])
        return read_arguments()

    return begin_with


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_refused(case: str, begin: Callable, capsys: pytest.CaptureFixture) -> None:
    """In one line, before anything is trained or removed."""
    content, words, said = REFUSED[case]
    for name in content:
        path = Path("c", name if "/" in name else "latest")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)
    before = snapshot(Path())
    with pytest.raises(SystemExit, match="2"):
        begin(words)
    assert capsys.readouterr().err.strip().endswith(said)
    assert snapshot(Path()) == before


def test_what_is_begun(begin: Callable, monkeypatch: pytest.MonkeyPatch) -> None:
    """Once more what was killed before its first save; and from what somebody has typed into the
    record. It is on the disk before it has its name."""
    done, record = record_calls(monkeypatch), Path("c/latest")
    begin("")
    assert record.read_text() == "step0\n" and done == ["fsync", "replace"]
    for text, words in (("step0\n", ""), ("step0\nstep7\n", "--resume"), ("step7\n", "--resume")):
        for name in TWO if "step0" not in text else ("step7/x",):
            Path("c", name).parent.mkdir(exist_ok=True)
            Path("c", name).touch()
        record.write_text(text)
        assert begin(words).steps == 28 and record.read_text() == text


def test_without_a_launcher(tmp_path: Path) -> None:
    codes, _, errors = run_warm([FSDP, "--resume"], tmp_path, 0, cwd=tmp_path)
    assert codes == [2] and "start it by torchrun" in errors[0]
    assert not (tmp_path / "checkpoints").exists()
