"""08_fsdp2: what is there of a model on each rank, and what reaches all of them.

That it trains, evaluates and resumes as the other chapters do: test_equivalence.py,
test_exact_eval.py, test_resume.py.
"""

import os
from pathlib import Path
from typing import Any

import pytest
import torch
from crew import Crew, call_main
from harness import FSDP, load_chapter, load_state
from torch import nn
from with_tiny_model import tiny_batchnorm, tiny_float64

HUB = "02_distributed"
TINY = ["--synthetic", "24", "--image-size", "8", "--batch-size", "12", "--workers", "0"]
TINY += ["--epochs", "1", "--seed", "3"]


class Layer(nn.Module):
    """Half of its numbers are a buffer that no state_dict has, as positions of a transformer."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.linear = nn.Linear(width, width)
        self.dropout = nn.Dropout(0.5)
        self.register_buffer("scale", torch.linspace(1, 2, width), persistent=False)

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        return features + self.dropout(torch.tanh(self.linear(features * self.scale)))


class Tied(nn.Module):
    """A row of layers; what maps to them and from them is one and the same weight."""

    def __init__(self, num_classes: int, width: int = 16) -> None:
        super().__init__()
        self.stem = nn.Linear(3 * 64, width)
        self.into = nn.Linear(width, width, bias=False)
        self.layers = nn.ModuleList([Layer(width) for _ in range(2)])
        self.out = nn.Linear(width, width, bias=False)
        self.out.weight = self.into.weight
        self.head = nn.Linear(width, num_classes)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        features = self.into(self.stem(images.flatten(1).to(self.stem.weight.dtype)))
        for layer in self.layers:
            features = layer(features)
        return self.head(self.out(features))


def tied(args: object, num_classes: int) -> nn.Module:
    return Tied(num_classes).double()


def run(
    crew: Crew, chapter: str, size: int, folder: Path, *more: str, build: object = tied
) -> dict:
    """Train, and return the checkpoint."""
    argv = [*TINY, "--output-dir", str(folder), *more]
    for answer in crew.run(call_main, chapter, argv, {"build_model": build}, world_size=size):
        assert answer["exit"] is None, answer
    return load_state(folder / "checkpoint.pt")


def assert_alike(state: dict, other: dict) -> None:
    """Weights and momentum, but for rounding."""
    for name, tensor in state["model"].items():
        torch.testing.assert_close(other["model"][name], tensor, rtol=0, atol=1e-12)
    kept, others = (s["optimizer"]["state"] for s in (state, other))
    assert kept.keys() == others.keys()
    for number, slot in kept.items():
        momentum = others[number]["momentum_buffer"]
        torch.testing.assert_close(momentum, slot["momentum_buffer"], rtol=0, atol=1e-12)


@pytest.mark.parametrize("more", [[], ["--recompute"]], ids=["plain", "recompute"])
def test_tied_weights_and_hidden_buffers(crew: Crew, more: list, tmp_path: Path) -> None:
    """They are those of rank 0, where the model was made, on all ranks: it trains as under DDP,
    dropout included. So it does where blocks are computed once more."""
    ours = run(crew, FSDP, 2, tmp_path / "ours", *more)
    assert_alike(run(crew, HUB, 2, tmp_path / "hub"), ours)


@pytest.mark.parametrize("replicas", ["2", pytest.param("1", marks=pytest.mark.proof)])
def test_replicas(replicas: str, tmp_path: Path) -> None:
    """Two whole models on four ranks, each divided between two of them, train as one."""
    with Crew(4) as crew:
        more = ["--replicas", replicas]
        ours = run(crew, FSDP, 4, tmp_path / "ours", *more, build=tiny_float64)
        assert_alike(run(crew, HUB, 1, tmp_path / "hub", build=tiny_float64), ours)
        more += ["--resume", "--epochs", "2"]
        run(crew, FSDP, 4, tmp_path / "ours", *more, build=tiny_float64)


def kept_by_rank(folder: str) -> dict:
    """In a crew member: elements of the weights, their gradients and momentum that it keeps after
    a step, and what the line at the start says."""
    seen = {}

    def note(
        args: object, log: object, model: nn.Module, loader: Any, optimizer: Any, *_: object
    ) -> tuple[int, bool]:
        """In place of train_one_epoch: a step, then look."""
        for images, targets in loader:
            nn.functional.cross_entropy(model(images), targets).backward()
            optimizer.step()
        parts = [weight.to_local() for weight in model.parameters()]
        grads = [weight.grad.to_local() for weight in model.parameters()]
        slots = [slot["momentum_buffer"].to_local() for slot in optimizer.state.values()]
        seen.update(
            {name: sum(t.numel() for t in those) for name, those in
             (("weights", parts), ("gradients", grads), ("momentum", slots))}
        )  # fmt: skip
        return len(loader), False

    words = [*TINY, "--output-dir", folder]
    patches = {"build_model": tied, "train_one_epoch": note}
    answer = call_main(FSDP, words, patches)
    assert answer["exit"] is None, answer
    return seen | {"said": answer["stdout"]}


def test_each_rank_keeps_a_part(crew: Crew, tmp_path: Path) -> None:
    """Of weights, gradients and momentum alike; together all of it, and no more than padding."""
    whole = sum(weight.numel() for weight in Tied(10).parameters())
    answers = crew.run(kept_by_rank, str(tmp_path), world_size=2)
    for what in ("weights", "gradients", "momentum"):
        parts = [answer[what] for answer in answers]
        assert sum(parts) == whole and max(parts) - min(parts) <= 32, (what, parts)
    kept = f"each rank keeps {answers[0]['weights'] * 8 / 1e6:.1f} of {whole * 8 / 1e6:.1f} MB"
    assert kept in answers[0]["said"] and "keeps" not in answers[1]["said"]


def made_where(folder: str) -> str:
    """In a crew member: the device on which the model was made."""
    devices = []

    def build(args: object, num_classes: int) -> nn.Module:
        devices.append(tied(args, num_classes))
        return devices[0]

    made = lambda args, model: devices.append(next(model.parameters()).device.type)  # noqa: E731
    words = [*TINY, "--output-dir", folder]
    call_main(FSDP, words, {"build_model": build, "check_model": made})
    return devices[1]


def test_weights_are_made_once(crew: Crew, tmp_path: Path) -> None:
    assert crew.run(made_where, str(tmp_path), world_size=2) == ["cpu", "meta"]


MISTAKES = {
    "--replicas 3": "--replicas 3 does not divide the 2 ranks",
    "--replicas 0": "--replicas 0 does not divide",
    "--bf16": "--bf16 would gather BatchNorm's weights in bfloat16",
    "--recompute": "--recompute would count each image twice in BatchNorm",
}


@pytest.mark.parametrize("flags", MISTAKES)
def test_mistakes(crew: Crew, flags: str, tmp_path: Path) -> None:
    """One line, on all ranks."""
    argv = [*TINY, "--output-dir", str(tmp_path / "run"), *flags.split()]
    patches = {"build_model": tiny_batchnorm}
    for answer in crew.run(call_main, FSDP, argv, patches, world_size=2):
        assert answer["exit"].startswith(f"error: {MISTAKES[flags]}"), answer


@pytest.mark.parametrize("more", [["--bf16"], ["--bf16", "--recompute"]], ids=" ".join)
def test_16_bits(crew: Crew, more: list, tmp_path: Path) -> None:
    """Weights and momentum stay in 32 bits, and a rank sends gradients in 32 bits: what is saved is
    near that of 02, which computes in 16 bits as well."""
    ours = run(crew, FSDP, 2, tmp_path / "ours", *more, build=tied_float32)
    hub = run(crew, HUB, 2, tmp_path / "hub", "--bf16", build=tied_float32)
    for name, tensor in hub["model"].items():
        assert ours["model"][name].dtype == torch.float32
        torch.testing.assert_close(ours["model"][name], tensor, rtol=0, atol=0.02)


def tied_float32(args: object, num_classes: int) -> nn.Module:
    return Tied(num_classes)


def test_blocks() -> None:
    """The layers of a transformer, and of a ResNet those of its stages."""
    from torchvision import models

    blocks = load_chapter(FSDP).blocks
    with torch.device("meta"):
        found = [len(blocks(models.get_model(name))) for name in ("vit_b_16", "resnet50")]
        vit = blocks(models.vit_b_16())
    assert found == [13, 16] and type(vit[0]).__name__ == "EncoderBlock"
    assert os.environ.get("RANK") is None  # it needs no ranks
