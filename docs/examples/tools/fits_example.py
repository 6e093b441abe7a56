"""A model, the batch of one rank and its loss: what tools/fits.py asks for.

python tools/fits.py docs/examples/tools/fits_example.py:example --memory 24
"""

import torch
from torch import Tensor, nn
from torchvision.models import resnet18


def example() -> tuple:
    images, targets = torch.rand(256, 3, 224, 224), torch.zeros(256, dtype=torch.long)
    return resnet18(), (images, targets), loss


def loss(model: nn.Module, batch: tuple) -> Tensor:
    images, targets = batch
    return nn.functional.cross_entropy(model(images), targets)
