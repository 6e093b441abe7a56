"""Tiny models, and what else takes the place of a chapter's functions.

torchvision has no model that is small, free of BatchNorm and dropout, and runs in float64, where
two computations of the same thing agree to so many digits that any other thing shows.
"""

import os
from pathlib import Path

import torch
from torch import Tensor, nn


class TinyModel(nn.Module):
    """300 weights. Smooth, so that a rounding error stays one, with no kink that it could cross."""

    def __init__(self, num_classes: int, norm: nn.Module | None = None) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3, stride=2, padding=1)
        self.norm = norm or nn.Identity()
        self.head = nn.Linear(8 * 2 * 2, num_classes)

    def forward(self, images: Tensor) -> Tensor:
        features = torch.tanh(self.norm(self.conv(images.to(self.head.weight.dtype))))
        return self.head(nn.functional.adaptive_avg_pool2d(features, 2).flatten(1))


class Stateful(nn.Module):
    """BatchNorm and dropout: everything that a resumed run could get wrong."""

    def __init__(self, num_classes: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(3, 8, 5, stride=4), nn.BatchNorm2d(8), nn.ReLU(), nn.AdaptiveAvgPool2d(3),
            nn.Flatten(), nn.Dropout(0.5), nn.Linear(72, num_classes),
        )  # fmt: skip

    def forward(self, images: Tensor) -> Tensor:
        return self.layers(images)


def tiny_float32(args: object, num_classes: int) -> nn.Module:
    """Takes the place of build_model; so do those below."""
    return TinyModel(num_classes)


def tiny_float64(args: object, num_classes: int) -> nn.Module:
    return TinyModel(num_classes).double()


def stateful(args: object, num_classes: int) -> nn.Module:
    return Stateful(num_classes)


def tiny_batchnorm(args: object, num_classes: int) -> nn.Module:
    return TinyModel(num_classes, nn.BatchNorm2d(8)).double()


def tiny_other_on_each_rank(args: object, num_classes: int) -> nn.Module:
    """As when a rank has drawn other random numbers before: rank 0's weights must count."""
    model = tiny_float64(args, num_classes)
    for parameter in model.parameters():
        parameter.data += int(os.environ.get("CREW_RANK", 0))
    return model


def save_every_epoch(state: dict, path: Path) -> None:
    """In place of save_checkpoint, which only rank 0 may call: every file is kept, as a killed run
    would leave it: after2.pt after two epochs, inside2.1.pt after a step more."""
    assert os.environ["CREW_RANK"] == "0"
    torch.save(state, path)
    if path.name == "checkpoint.pt":
        place = (
            f"inside{state['epoch']}.{state['step']}" if state["step"] else f"after{state['epoch']}"
        )
        torch.save(state, path.with_name(f"{place}.pt"))
