"""huggingface/nanoVLM issue 200, 2026-03-13: a stream is divided by rank, but not by worker.

https://github.com/huggingface/nanoVLM/issues/200
Each worker of a DataLoader has a copy of an IterableDataset. The program divides the data by rank,
and no further, so each worker of a rank makes all of its samples. The report names no run; a test
with 4 workers then counted 40000 samples, and 10000 different ones. Mended as the proposed pull 203
does (it is open): each worker takes its share.
Doctor: overlapping_samples at train_loader = DataLoader(
"""

import sys
from collections.abc import Iterator

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

MENDED = "--mended" in sys.argv


class VQADataset:
    """Makes a sample of a question about an image."""

    def __init__(self, dataset: range) -> None:
        self.dataset = dataset

    def iter_for_worker(self) -> Iterator[tuple[torch.Tensor, int]]:
        if MENDED:
            worker = get_worker_info()
            dataset = self.dataset[worker.id :: worker.num_workers]
        else:
            dataset = self.dataset

        for item in dataset:
            image = torch.randn(3, 4, 4, generator=torch.Generator().manual_seed(item))
            yield image, image.sum((1, 2)).argmax().item()


class ConstantLengthDataset(IterableDataset):
    def __init__(self, dataset: VQADataset) -> None:
        self.dataset = dataset

    def __iter__(self) -> Iterator[tuple[torch.Tensor, int]]:
        return self.dataset.iter_for_worker()


def get_dataloader() -> DataLoader:
    train_ds = range(128)[dist.get_rank() :: dist.get_world_size()]
    train_dataset = ConstantLengthDataset(VQADataset(train_ds))
    train_loader = DataLoader(train_dataset, batch_size=8, num_workers=2)
    return train_loader


dist.init_process_group("gloo")
torch.manual_seed(0)
train_loader = get_dataloader()
model = DistributedDataParallel(nn.Sequential(nn.Flatten(), nn.Linear(48, 3)))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.02)

for epoch in range(2):
    samples = 0
    for images, labels in train_loader:
        loss = nn.functional.cross_entropy(model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        samples += len(images)
    if dist.get_rank() == 0:
        print(f"epoch {epoch}, {samples} samples on this rank")

dist.destroy_process_group()
