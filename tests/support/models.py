"""Small models that stand in for build_model, where torchvision has none small enough."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Plain(nn.Module):
    """No BatchNorm and no dropout: what it learns depends on the images of a step, not on how
    they are spread over ranks. Casts its input, so that it can also be float64."""

    def __init__(self, num_classes: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.dtype = dtype
        self.features = nn.Sequential(
            nn.Conv2d(3, 6, 5, stride=4), nn.GELU(), nn.AdaptiveAvgPool2d(3), nn.Flatten()
        )
        self.classifier = nn.Linear(54, num_classes)
        self.to(dtype)

    def forward(self, images: Tensor) -> Tensor:
        return self.classifier(self.features(images.to(self.dtype)))


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


def plain_float64(arch: str, num_classes: int, pretrained: bool) -> nn.Module:
    """In place of build_model: exact enough to compare across world sizes."""
    return Plain(num_classes, torch.float64)


def plain_float32(arch: str, num_classes: int, pretrained: bool) -> nn.Module:
    """In place of build_model: what users train in."""
    return Plain(num_classes, torch.float32)


def stateful(arch: str, num_classes: int, pretrained: bool) -> nn.Module:
    """In place of build_model: BatchNorm and dropout."""
    return Stateful(num_classes)
