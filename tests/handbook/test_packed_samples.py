"""The recipe of performance.md: a packed ImageFolder gives the same items, in workers too."""

import os
import sys
from pathlib import Path

import torch
from harness import ROOT
from torch.utils.data import DataLoader
from torchvision.datasets import ImageFolder

sys.path.insert(0, str(ROOT / "docs/examples/performance"))
from packed_samples import PackedSamples, pack


def length(path: str) -> torch.Tensor:
    """In place of decoding: how long the path is, and how large the file."""
    return torch.tensor([len(os.fsencode(path)), Path(path).stat().st_size])


def test_same_items(tmp_path: Path) -> None:
    names = ["a/1.jpg", "a/zwölf.jpg", "b/三.jpg", "b/" + os.fsdecode(b"\xff\xfe.jpg"), "c/a b.jpg"]
    for number, name in enumerate(names):
        file = tmp_path / name
        file.parent.mkdir(exist_ok=True)
        file.write_bytes(bytes(number))
    plain = ImageFolder(tmp_path, loader=length)
    packed = ImageFolder(tmp_path, loader=length)
    pack(packed)
    assert isinstance(packed.samples, PackedSamples) and packed.imgs is packed.samples
    assert list(map(tuple, map(packed.samples.__getitem__, range(5)))) == plain.samples
    assert len(packed) == 5 and packed.targets.tolist() == plain.targets
    for workers in (0, 2):
        context = "fork" if workers else None
        batches = [
            list(DataLoader(each, 2, num_workers=workers, multiprocessing_context=context))
            for each in (plain, packed)
        ]
        for expected, found in zip(*batches, strict=True):
            assert torch.equal(expected[0], found[0]) and torch.equal(expected[1], found[1])
