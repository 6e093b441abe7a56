"""The long proofs: what is too slow for every test run, and is run before a release."""

import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from crew import Crew, call_main
from harness import CHAPTERS, TINY, launch, load_chapter, rows
from torch import Tensor
from torchvision import models
from torchvision.models import list_models

pytestmark = pytest.mark.proof


@pytest.mark.parametrize("chapter", [c for c in CHAPTERS if c != "01_dataparallel"])
def test_many_exits(chapter: str, tmp_path: Path) -> None:
    """A job that has done its work also ends: no hang and no abort on the way out. That is a race
    between gloo's threads and Python's end, so once proves nothing; chapters end by the same code.
    (Forks of a process that has imported torch are faster, and do not show the race.)"""
    for number in range(20 if chapter == "02_distributed" else 10):
        argv = ["--synthetic", 16, *TINY, "--epochs", 1, "--output-dir", f"run{number}"]
        result = launch(chapter, argv, tmp_path)
        assert result.returncode == 0, f"run {number}\n{result.output}"
        assert rows(tmp_path / f"run{number}", "end")
        shutil.rmtree(tmp_path / f"run{number}")  # 180 MB of checkpoints


def one_step(arch: str) -> tuple[int, ...]:
    """In a crew member: build the model as 02 does, and train it on two images of 224 pixels."""
    torch.manual_seed(0)
    args = SimpleNamespace(arch=arch, pretrained=False)
    model = load_chapter("02_distributed").build_model(args, 7)
    logits = model.train()(torch.rand(2, 3, 224, 224))
    assert isinstance(logits, Tensor), type(logits)
    logits.sum().backward()
    assert all(p.grad is not None for p in model.parameters()), "a parameter without a gradient"
    return tuple(logits.shape)


# The giants of torchvision need tens of GB; their smaller siblings are of the same code.
GIANTS = ("regnet_y_128gf", "vit_h_14", "vit_l_16", "vit_l_32", "convnext_large", "regnet_y_32gf")
# In training these two give more than logits, which the chapters do not take.
MORE_THAN_LOGITS = ("googlenet", "inception_v3")
LEFT_OUT = (*GIANTS, *MORE_THAN_LOGITS)
ARCHS = [arch for arch in list_models(module=models) if arch not in LEFT_OUT]


@pytest.mark.parametrize("arch", ARCHS)
def test_every_architecture_trains(arch: str, crew: Crew) -> None:
    """Any torchvision model that --arch takes returns logits, and every parameter of it takes part
    in the loss, which DistributedDataParallel insists on."""
    assert crew.run(one_step, arch, timeout=600) == [(2, 7)]


def test_toy_learns(crew: Crew, tmp_path: Path) -> None:
    """From chance, 10 %, to most of the generated images, with BatchNorm."""
    argv = ["--synthetic", "480", "--arch", "resnet18", "--image-size", "32", "--epochs", "4"]
    argv += ["--batch-size", "24", "--workers", "0", "--output-dir", str(tmp_path)]
    crew.run(call_main, "02_distributed", argv, world_size=2, timeout=600)
    assert rows(tmp_path, "eval")[-1]["acc1"] > 80
