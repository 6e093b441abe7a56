"""open-mmlab/mmsegmentation issue 767, 2021-08-09: each machine lists the images in its own order.

https://github.com/open-mmlab/mmsegmentation/issues/767
A folder has no order. Without shared storage an index meant another image on each machine: ranks
shared samples, and predictions of one were compared with labels of another. Training looked good;
it was noticed because two sizes did not fit at the evaluation, 256x256 and 360x530. Images of one
size would have given a bad score only. Mended as the project did (pull 780): they are sorted.
Doctor: overlapping_samples at train_loader = DataLoader(
"""

import os
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler

MENDED = "--mended" in sys.argv


def scandir(folder: str) -> set[str]:
    """A set has an order of its own on each rank here, as a folder has on each machine."""
    return set(os.listdir(folder))


class CustomDataset(Dataset):
    def __init__(self, img_dir: str, count: int) -> None:
        if dist.get_rank() == 0:
            os.makedirs(img_dir, exist_ok=True)
            for number in range(count):
                img = torch.randn(6, 4, 4, generator=torch.Generator().manual_seed(number))
                torch.save((img, img[:3].argmax(0)), f"{img_dir}/{number:04}.pt")
        dist.barrier()

        self.img_dir = img_dir
        self.img_infos = [{"filename": name} for name in scandir(img_dir)]
        if MENDED:
            self.img_infos.sort(key=lambda img_info: img_info["filename"])

    def __len__(self) -> int:
        return len(self.img_infos)

    def __getitem__(self, idx: int) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.load(f"{self.img_dir}/{self.img_infos[idx]['filename']}")


def multi_gpu_test(model: nn.Module, dataset: Dataset) -> None:
    loader = DataLoader(dataset, sampler=DistributedSampler(dataset, shuffle=False))
    with torch.no_grad():
        part = [model(img).argmax(1)[0] for img, _ in loader]
    parts = [None] * dist.get_world_size()
    dist.all_gather_object(parts, part)
    if dist.get_rank() == 0:
        results = [pred for preds in zip(*parts, strict=True) for pred in preds]
        hits = [pred == dataset[idx][1] for idx, pred in enumerate(results)]
        print(f"aAcc {torch.stack(hits).float().mean():.4f}")


dist.init_process_group("gloo")
torch.manual_seed(0)
train_dataset, val_dataset = CustomDataset("train", 64), CustomDataset("val", 32)
sampler = DistributedSampler(train_dataset)
train_loader = DataLoader(train_dataset, batch_size=4, sampler=sampler)
model = DistributedDataParallel(nn.Conv2d(6, 3, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.5)

for epoch in range(2):
    sampler.set_epoch(epoch)
    for img, gt_semantic_seg in train_loader:
        loss = nn.functional.cross_entropy(model(img), gt_semantic_seg)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    multi_gpu_test(model, val_dataset)

dist.destroy_process_group()
