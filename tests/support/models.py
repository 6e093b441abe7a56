"""A small model with state; those without it are in with_tiny_model.py."""

from __future__ import annotations

from torch import Tensor, nn


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


def stateful(arch: str, num_classes: int, pretrained: bool) -> nn.Module:
    """In place of build_model: BatchNorm and dropout."""
    return Stateful(num_classes)
