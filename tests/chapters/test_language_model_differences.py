"""docs/examples/language_model: what each difference makes of 09 trains as a plain loop would, on
any number of ranks. (That for transformers: test_libraries.py.)"""

import importlib.util
import itertools
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch
from crew import Crew, call_main
from harness import ROOT, load_state, rows, run
from plain_language_model import LM, TRAIN, furthest, plain_training, weights_of
from refusals import one_line

FOLDER = ROOT / "docs/examples/language_model"
NAMES = sorted(path.stem for path in FOLDER.glob("*.diff"))


def changed(names: list[str], folder: Path) -> Path:
    """The chapter with these differences, one after the other."""
    folder.mkdir()
    script = folder / "main.py"
    script.write_text((ROOT / LM / "main.py").read_text())
    for name in names:
        words = ["git", "apply", "-p0", FOLDER / f"{name}.diff"]
        done = run(words, folder, env={"GIT_CEILING_DIRECTORIES": str(folder.parent)})
        assert done.returncode == 0, done.output
    return script


def load(script: Path) -> ModuleType:
    """Under a name by which the harness finds it; once a process."""
    name = f"chapter_{script.parent}"
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, script)
        sys.modules[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[name])
    return sys.modules[name]


def main_of(script: Path, argv: list[str]) -> dict:
    """In a crew member."""
    load(script)
    torch.set_default_dtype(torch.float64)
    try:
        return call_main(str(script.parent), argv)
    finally:
        torch.set_default_dtype(torch.float32)


def train(crew: Crew, script: Path, ranks: int, argv: list) -> list[dict]:
    answers = crew.run(main_of, script, [str(word) for word in argv], world_size=ranks)
    assert all(answer["exit"] is None for answer in answers), answers
    return answers


def test_all_fit_together(tmp_path: Path) -> None:
    """In any order, they are Python; and none is empty."""
    assert NAMES == ["average", "lora", "offload", "transformers"]
    texts = set()
    for number, names in enumerate(itertools.permutations(NAMES)):
        if names[0] < names[-1]:  # half of them will do
            texts.add(changed([*names], tmp_path / str(number)).read_text())
    [text] = texts
    compile(text, "main.py", "exec")
    assert all(word in text for word in ("Averaging(", "LoRALinear(", "CPUOffload", "AutoModel"))


@pytest.mark.proof
def test_average_of_weights(crew: Crew, tmp_path: Path) -> None:
    """On two ranks, and on one that goes on from a checkpoint of theirs: what is evaluated and
    exported is the average of the weights after each step; and training does not see it."""
    script = changed(["average"], tmp_path / "average")
    argv = [*TRAIN, "--eval-steps", "3", "--average", "0.6"]
    averages: dict[str, torch.Tensor] = {}

    def before(args: object, model: torch.nn.Module) -> None:
        averages.update({name: one.detach().clone() for name, one in model.named_parameters()})

    def after(model: torch.nn.Module) -> None:
        for name, weight in model.named_parameters():
            averages[name] = 0.6 * averages[name] + 0.4 * weight.detach()

    weights, losses, last = plain_training(argv, load(script), before, after)
    assert furthest(averages, weights) > 1e-3
    whole, goes_on = tmp_path / "whole", tmp_path / "goes_on"
    train(crew, script, 2, [*argv, "--output-dir", whole])
    train(crew, script, 1, [*argv, "--output-dir", goes_on, "--resume", whole / "step3"])
    for folder, begun in ((whole, 0), (goes_on, 3)):
        assert furthest(weights_of(folder), averages) < 1e-10
        told = [row["loss"] for row in rows(folder, "train")]
        assert told == pytest.approx(losses[begun:], rel=1e-10)
        assert abs(rows(folder, "eval")[-1]["loss"] - last) > 1e-3
    averaged = ["--evaluate", "--resume", goes_on, "--output-dir", tmp_path / "evaluated"]
    train(crew, script, 2, [*argv, *averaged, "--sequence", "2"])
    [row] = rows(tmp_path / "evaluated", "eval", "evaluate.jsonl")
    assert row["loss"] == pytest.approx(rows(whole, "eval")[-1]["loss"], rel=1e-10)


def lora_training(script: Path, argv: list[str]) -> dict[str, torch.Tensor]:
    chapter = load(script)

    def change(args: object, model: torch.nn.Module) -> None:
        model.requires_grad_(False)
        for number, block in enumerate(model.blocks):
            chapter.add_lora(args, number, block)

    return plain_training(argv, chapter, change)[0]


def test_lora(crew: Crew, tmp_path: Path) -> None:
    """Two ranks that divide sequences, and one that goes on from their checkpoint, in which nothing
    is frozen: the two thin layers are those of one process, alone in a file and merged in another;
    nothing else has moved. A run beside other weights is refused."""
    script = changed(["lora"], tmp_path / "lora")
    train(crew, script, 1, [*TRAIN, "--output-dir", tmp_path / "base"])
    base = tmp_path / "base/model.safetensors"
    argv = [*TRAIN, "--eval-steps", "3", "--weights", str(base), "--lora", "4"]
    expected = lora_training(script, argv)
    whole, goes_on = tmp_path / "whole", tmp_path / "goes_on"
    train(crew, script, 2, [*argv, "--output-dir", whole, "--sequence", "2", "--recompute"])
    train(crew, script, 1, [*argv, "--output-dir", goes_on, "--resume", whole / "step3"])
    saved = (whole / "step5/.metadata").read_bytes()
    assert b"gate.lora_a.weight" in saved and b"gate.weight" not in saved

    thin = {name: one for name, one in expected.items() if ".lora_" in name}
    assert len(thin) == 2 * 2 * 7
    merged = load(script).merged(dict(expected))
    before = weights_of(tmp_path / "base")
    for folder in (whole, goes_on):
        assert furthest(load_state(folder / "lora.pt"), thin) < 1e-10
        assert furthest(weights_of(folder), merged) < 1e-10
    moved = {name for name in before if not torch.equal(before[name], weights_of(whole)[name])}
    assert moved == {name.replace("lora_a.", "") for name in thin if "lora_a" in name}
    last = rows(whole, "eval")[-1]["loss"]
    plain = ["--evaluate", "--weights", whole / "model.safetensors", "--output-dir", whole / "it"]
    train(crew, script, 1, [*TRAIN, *plain])
    [row] = rows(whole / "it", "eval", "evaluate.jsonl")
    assert row["loss"] == pytest.approx(last, rel=1e-10)

    torch.save(base.read_bytes(), tmp_path / "other.pt")
    for flags, words in (
        (["--weights", tmp_path / "other.pt", "--resume"], "--resume: LoRA: was 'rank 4, beside "),
        (["--lora", "3", "--resume"], "--resume: LoRA: was 'rank 4, beside "),
        (["--tensor", "2"], "goes without --tensor"),
        (["--lora", "-1"], "--lora is a rank"),
    ):
        words_of = [str(word) for word in [*argv, "--output-dir", whole, *flags]]
        for answer in crew.run(main_of, script, words_of, world_size=2):
            assert words in one_line(answer)


MORE = ["--accumulate", "2", "--recompute", "--replicas", "2"]


@pytest.mark.parametrize("flags", [[], pytest.param(MORE, marks=pytest.mark.proof)])
def test_offload(flags: list[str], crew: Crew, tmp_path: Path) -> None:
    """The same training where weights, gradients and Adam's state wait on the CPU."""
    script = changed(["offload"], tmp_path / "offload")
    train(crew, script, 2, [*TRAIN, *flags, "--offload", "--output-dir", tmp_path / "run"])
    assert furthest(weights_of(tmp_path / "run"), plain_training(TRAIN)[0]) < 1e-10


@pytest.mark.proof
def test_all_of_them(crew: Crew, tmp_path: Path) -> None:
    """LoRA in the machine's memory, averaged: two ranks train as one does."""
    script = changed(["offload", "lora", "average"], tmp_path / "all")
    train(crew, script, 1, [*TRAIN, "--output-dir", tmp_path / "base"])
    argv = [*TRAIN, "--weights", tmp_path / "base/model.safetensors", "--lora", "2", "--offload"]
    for ranks in (1, 2):
        train(crew, script, ranks, [*argv, "--output-dir", tmp_path / str(ranks)])
    one, two = (load_state(tmp_path / f"{ranks}/lora.pt") for ranks in (1, 2))
    assert furthest(one, two) < 1e-10
