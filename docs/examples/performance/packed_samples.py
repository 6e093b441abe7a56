"""The list of a large ImageFolder, of which loader workers make no copies.

In a chapter's build_datasets, before it returns: pack(train_set), pack(val_set).
"""

import os

import torch
from torchvision.datasets import ImageFolder


class PackedSamples:
    """ImageFolder's list of (path, class) in three tensors, which all workers share."""

    def __init__(self, samples: list[tuple[str, int]]) -> None:
        paths = [os.fsencode(path) for path, _ in samples]
        self.paths = torch.frombuffer(bytearray(b"".join(paths)), dtype=torch.uint8)
        self.ends = torch.tensor([0, *map(len, paths)]).cumsum(0)
        self.targets = torch.tensor([target for _, target in samples])

    def __len__(self) -> int:
        return len(self.targets)

    def __getitem__(self, index: int) -> tuple[str, int]:
        path = self.paths[self.ends[index] : self.ends[index + 1]]
        return os.fsdecode(path.numpy().tobytes()), self.targets[index].item()


def pack(dataset: ImageFolder) -> None:
    """Replace its lists, so that it works as before."""
    dataset.samples = dataset.imgs = PackedSamples(dataset.samples)
    dataset.targets = dataset.samples.targets
