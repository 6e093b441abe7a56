"""What convert.md promises: the converted script ends as the one for one GPU does, and each of its
steps is missed when it is left out."""

import contextlib
import io
import os
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from crew import Crew
from harness import ROOT, free_port
from torch import Tensor
from torch.nn.functional import cross_entropy
from torch.utils.data import RandomSampler
from warm import run_warm

EXAMPLES = ROOT / "docs/examples/convert"
SINGLE = (EXAMPLES / "single.py").read_text()
MULTI = (EXAMPLES / "multi.py").read_text()


def without(text: str, *lines: tuple[str, str]) -> str:
    """A script with something else in the place of some of its parts."""
    for old, new in lines:
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    return text


# -------------------------------------------------------------------------------- the whole script


def same_order(self: RandomSampler) -> Iterator[int]:
    """In place of shuffle=True: the order that DistributedSampler has in this epoch."""
    self.epoch = getattr(self, "epoch", -1) + 1
    generator = torch.Generator().manual_seed(self.epoch)
    return iter(torch.randperm(len(self.data_source), generator=generator).tolist())


def play(
    source: str, folder: Path, alike: bool = False, argv: Sequence[str] = ("--epochs", "2")
) -> dict[str, Any]:
    """Run a script as its launcher would, in float64: what it printed, the targets of each batch
    that it trained on, and whether it has left a process group open."""
    trained, printed = [], io.StringIO()

    def loss(logits: Tensor, targets: Tensor) -> Tensor:
        trained.append(targets.tolist())
        return cross_entropy(logits, targets)

    torch.set_default_dtype(torch.float64)
    with contextlib.ExitStack() as stack:
        stack.callback(os.chdir, os.getcwd())
        os.chdir(folder)
        stack.callback(torch.set_default_dtype, torch.float32)
        stack.enter_context(mock.patch.object(sys, "argv", ["script", *argv]))
        stack.enter_context(mock.patch("torch.nn.functional.cross_entropy", loss))
        if alike:
            stack.enter_context(mock.patch.object(RandomSampler, "__iter__", same_order))
        stack.enter_context(contextlib.redirect_stdout(printed))
        exec(compile(source, "script", "exec"), {"__name__": "__main__"})
    return {
        "printed": printed.getvalue(),
        "trained": trained,
        "open": dist.is_initialized(),
    }


@pytest.fixture(scope="module")
def alone(crew: Crew, tmp_path_factory: pytest.TempPathFactory) -> dict:
    """single.py, with the order of images that multi.py has."""
    folder = tmp_path_factory.mktemp("alone")
    (answer,) = crew.run(play, SINGLE, folder, True)
    return answer | {"saved": torch.load(folder / "model.pt")}


@pytest.mark.parametrize("world_size", [1, 2, 3])
def test_converted(crew: Crew, world_size: int, alone: dict, tmp_path: Path) -> None:
    """The same numbers, and the same weights but for rounding."""
    first, *others = crew.run(play, MULTI, tmp_path, world_size=world_size)
    assert first["printed"] == alone["printed"] and first["printed"].count("of 301 right") == 2
    assert len(first["trained"]) == len(alone["trained"])
    assert all(len(batch) == 48 // world_size for batch in first["trained"])
    saved = torch.load(tmp_path / "model.pt")
    for name, value in alone["saved"].items():
        torch.testing.assert_close(saved[name], value, atol=1e-10, rtol=0)
    assert [answer["printed"] for answer in others] == [""] * (world_size - 1)
    assert not first["open"]


@pytest.mark.parametrize("language", ["en", "zh"])
def test_first_block_is_pasted(crew: Crew, alone: dict, tmp_path: Path, language: str) -> None:
    """What one copies from the top of the page is whole: with the reader's own data and flags it
    trains, evaluates and saves as multi.py does."""
    page = (ROOT / f"docs/{language}/convert.md").read_text("utf-8")
    block = re.search("```diff\n(.*?)```", page, re.S)[1]
    copied = "\n".join(line[1:] for line in block.splitlines() if not line.startswith("-"))
    imports, body = copied.split("\n\n", 1)
    own = MULTI[MULTI.index("def make_data") : MULTI.index("def main")]
    flags = 'import argparse\nargs = argparse.Namespace(epochs=2, batch_size=48, save="model.pt")'
    script = "\n\n".join([imports, flags, own, body])
    first, second = crew.run(play, script, tmp_path, world_size=2)
    assert first["printed"] == alone["printed"] and second["printed"] == ""
    assert not first["open"] and not second["open"]
    saved = torch.load(tmp_path / "model.pt")
    for name, value in alone["saved"].items():
        torch.testing.assert_close(saved[name], value, atol=1e-10, rtol=0)
    assert 'device("cuda", int(os.environ["LOCAL_RANK"]))' in body and "set_device(device)" in body


BACKEND = '"nccl" if device.type == "cuda" else "gloo"'
# Parts of multi.py, and what single.py has there.
FORGOTTEN = {
    "1": [
        (f"dist.init_process_group({BACKEND})", "pass"),
        ("dist.get_rank(), dist.get_world_size()", "0, 2"),
    ],
    "2": [("args.batch_size // world_size", "args.batch_size")],
    "3": [("batch, sampler=sampler,", "batch, shuffle=True,")],
    "4": [("ddp_model = DistributedDataParallel(model)", "ddp_model = model")],
    "5": [("sampler.set_epoch(epoch)", "pass")],
    "6a": [(", sampler=share", "")],
    "6b": [("dist.all_reduce(totals)", "pass")],
    "7": [("if rank == 0:  # step 7: one line", "if True:  #")],
    "8": [("dist.destroy_process_group()", "pass")],
}


@pytest.mark.parametrize("step", FORGOTTEN)
def test_forgotten_step(crew: Crew, step: str, alone: dict, tmp_path: Path) -> None:
    """What the page says that one would see."""
    script = without(MULTI, *FORGOTTEN[step])
    if step == "1":
        with pytest.raises(AssertionError, match="Default process group has not been initialized"):
            crew.run(play, script, tmp_path, world_size=2)
        return
    first, second = crew.run(play, script, tmp_path, world_size=2)
    batches = first["trained"]
    if step == "2":  # half as many steps
        assert len(batches) == 20 and len(batches[0]) == 48
    elif step == "3":  # both train on all images, and on the same
        assert len(batches) == 2 * 41 and batches == second["trained"]
    elif step == "4":  # rank 0 has trained alone
        saved = torch.load(tmp_path / "model.pt")["0.weight"]
        assert not torch.allclose(saved, alone["saved"]["0.weight"], atol=1e-6)
    elif step == "5":
        assert batches[:20] == batches[20:]
    elif step in ("6a", "6b"):
        assert f"of {602 if step == '6a' else 151} right" in first["printed"]
    elif step == "7":
        assert first["printed"] == second["printed"] != ""
    elif step == "8":
        assert first["open"] and second["open"]


def test_without_a_launcher(tmp_path: Path) -> None:
    """What a plain python says of multi.py, and that with the page's lines it trains alone."""
    script = tmp_path / "multi.py"
    script.write_text(MULTI)
    _, _, (error,) = run_warm([script, "--epochs", "1"], tmp_path, cwd=tmp_path)
    page = (ROOT / "docs/en/convert.md").read_text()
    said = "environment variable RANK expected, but not set"
    assert said in error and said in page
    lines = re.search(r"^alone = .*?(?=```)", page, re.M | re.S)[0]
    lines = without(lines, ("29500", str(free_port())))
    script.write_text(without(MULTI, ("def main() -> None:\n", f"{lines}\ndef main() -> None:\n")))
    assert run_warm([script, "--epochs", "1"], tmp_path, cwd=tmp_path)[0] == [0]
