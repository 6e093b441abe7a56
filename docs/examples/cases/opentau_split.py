"""TensorAuto/OpenTau pull 498, 2026-08-04: each rank splits off another validation set.

https://github.com/TensorAuto/OpenTau/pull/498
Each rank is seeded differently, so that augmentation differs, and random_split drew from the same
generator: the frames that one rank validates on were training frames of others. It was shown by
a simulation of 8 ranks with 353,222 frames, 2% of them for validation; run again here, not one
frame is for validation on all 8. Mended as the project did: a generator of its own for the split,
seeded alike on all ranks.
Doctor: overlapping_samples at train_set, batch_size=8
"""

import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler, Subset, random_split

MENDED = "--mended" in sys.argv
SEED = 1234


class Frames(Dataset):
    """What a robot's camera sees, (12,), with some noise, and what the robot does, (4,)."""

    def __init__(self) -> None:
        generator = torch.Generator().manual_seed(SEED)
        self.states = torch.randn(160, 12, generator=generator)
        self.actions = self.states[:, :4].tanh()

    def __len__(self) -> int:
        return len(self.states)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        state = self.states[index]
        return state + 0.01 * torch.randn_like(state), self.actions[index]


def make_dataset(val_split_ratio: float) -> list[Subset]:
    parts = [1 - val_split_ratio, val_split_ratio]
    if MENDED:
        generator = torch.Generator().manual_seed(SEED)
        split = random_split(Frames(), parts, generator)
    else:
        split = random_split(Frames(), parts)
    return split


dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(SEED + 12345 * rank)
train_set, val_set = make_dataset(val_split_ratio=0.1)
train_loader = DataLoader(train_set, batch_size=8, sampler=DistributedSampler(train_set))
val_loader = DataLoader(val_set, batch_size=8, sampler=DistributedSampler(val_set, shuffle=False))

policy = nn.Sequential(nn.Linear(12, 16), nn.ReLU(), nn.Linear(16, 4))
model = DistributedDataParallel(policy)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)

for epoch in range(2):
    train_loader.sampler.set_epoch(epoch)
    for states, actions in train_loader:
        loss = nn.functional.mse_loss(model(states), actions)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    total = torch.zeros(2)
    with torch.no_grad():
        for states, actions in val_loader:
            errors = (policy(states) - actions).square().mean(1)
            total += torch.tensor([errors.sum(), len(errors)])
    dist.all_reduce(total)
    if rank == 0:
        print(f"epoch {epoch}: validation error {total[0] / total[1]:.4f}")
dist.destroy_process_group()
