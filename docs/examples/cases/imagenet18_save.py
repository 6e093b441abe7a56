"""cybertronai/imagenet18_old issue 16, 2018-10-05: one process of each machine saves.

https://github.com/cybertronai/imagenet18_old/issues/16
Local rank 0 saved the checkpoint, and each machine has a local rank 0: on a shared file system
they write one file at the same time and damage it. Saving tells nothing; such a file fails when
it is loaded. The report, by the maintainer himself, has no numbers and was never followed by a
repair, though the script has a variable for the one global master, and uses it for its log.
Mended here by saving with that one. Each of our two processes stands for a machine.
Doctor: shared_file at torch.save(state, filename)
"""

import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler

MENDED = "--mended" in sys.argv
PHASES = [{"ep": 2, "sz": 8, "bs": 8}, {"ep": 2, "sz": 12, "bs": 4}]


class Images(Dataset):
    def __init__(self, sz: int) -> None:
        self.sz = sz

    def __len__(self) -> int:
        return 48

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        image = torch.randn(3, self.sz, self.sz, generator=torch.Generator().manual_seed(index))
        image[index % 3] += 1
        return image, index % 3


def train(loader: DataLoader, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    for images, target in loader:
        loss = cross_entropy(model(images), target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def save_checkpoint(model: nn.Module, epoch: int, filename: str) -> None:
    state = {"epoch": epoch, "state_dict": model.module.state_dict()}
    torch.save(state, filename)


dist.init_process_group("gloo")
local_rank = 0  # on each machine the only process
is_master = dist.get_rank() == 0
torch.manual_seed(0)

layers = [nn.Conv2d(3, 8, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 3)]
model = DistributedDataParallel(nn.Sequential(*layers))
optimizer = torch.optim.SGD(model.parameters(), lr=0.2)

for phase in PHASES:
    dataset = Images(phase["sz"])
    sampler = DistributedSampler(dataset)
    loader = DataLoader(dataset, batch_size=phase["bs"], sampler=sampler)

    for epoch in range(phase["ep"]):
        sampler.set_epoch(epoch)
        train(loader, model, optimizer)
        if is_master:
            print(f"size {phase['sz']}, epoch {epoch} done")

    if MENDED:
        saves = is_master
    else:
        saves = local_rank == 0
    if saves:
        save_checkpoint(model, epoch, f"sz{phase['sz']}_checkpoint.pth.tar")

dist.destroy_process_group()
