"""starVLA/starVLA issue 470, 2026-09-18: workers that live on never hear of the new epoch.

https://github.com/starVLA/starVLA/issues/470
An item of the data set is drawn by a hash of the epoch and the index, so each epoch should bring
others. The epoch is set in the main process; workers of a loader with persistent_workers=True are
copies from before, and stay at epoch 0. So each epoch has the very items of the first, and what
it did not draw is never seen. The report counts no loss. Mended here by an epoch in shared memory,
as its pull 471 does (it is open).
Doctor: same_order at dataloader = DataLoader(
"""

import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler

MENDED = "--mended" in sys.argv


class MixtureDataset(Dataset):
    """Draws a step of one of 400 recordings for each index, anew in each epoch."""

    def __init__(self) -> None:
        self.epoch = 0
        if MENDED:
            self.shared = torch.zeros(1, dtype=torch.int64).share_memory_()

    def set_epoch(self, epoch: int) -> None:
        if MENDED:
            self.shared.fill_(epoch)
        else:
            self.epoch = epoch

    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        if MENDED:
            epoch = self.shared.item()
        else:
            epoch = self.epoch
        seed = epoch * 100_003 + index
        step = torch.randint(400, (), generator=torch.Generator().manual_seed(seed)).item()
        image = torch.randn(8, generator=torch.Generator().manual_seed(step))
        return image, image.roll(1)


dist.init_process_group("gloo")
torch.manual_seed(0)
dataset = MixtureDataset()
sampler = DistributedSampler(dataset, shuffle=False)
dataloader = DataLoader(
    dataset, batch_size=8, sampler=sampler, num_workers=2, persistent_workers=True
)
model = DistributedDataParallel(nn.Linear(8, 8))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.02)

seen = set()
for epoch in range(3):
    dataset.set_epoch(epoch)
    for images, actions in dataloader:
        seen.update(map(tuple, images.tolist()))
        loss = nn.functional.mse_loss(model(images), actions)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

print(f"rank {dist.get_rank()}, {len(seen)} different items in three epochs of 32")
dist.destroy_process_group()
