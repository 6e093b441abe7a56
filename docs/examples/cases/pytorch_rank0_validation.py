"""pytorch/pytorch issue 54059, 2021-03-16: rank 0 validates alone, through the wrapper.

https://github.com/pytorch/pytorch/issues/54059
The wrapper's forward pass may call collectives; rank 1 was in dist.barrier() meanwhile. It was
noticed by the hang, and the barrier was blamed, since without it everything ran. In torch of 2021
the collective was DDP's rebuilding of buckets, mended since; with BatchNorm, as here, it is the
broadcast of buffers, and it hangs still. Mended as a maintainer advised: rank 0 calls
model.module, which has no collectives.
Doctor: collective_order at output = net(images)
"""

import sys
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

MENDED = "--mended" in sys.argv


class ConvNet(nn.Module):
    def __init__(self, num_classes: int = 4) -> None:
        super().__init__()
        self.layer = nn.Sequential(nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8), nn.ReLU())
        self.fc = nn.Linear(8, num_classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc(self.layer(x).mean((2, 3)))


def validate(model: nn.Module, val_loader: DataLoader) -> float:
    if MENDED:
        net = model.module
    else:
        net = model

    correct = 0
    net.eval()
    with torch.no_grad():
        for images, labels in val_loader:
            output = net(images)
            correct += (output.argmax(1) == labels).sum().item()
    net.train()
    return correct / len(val_loader.dataset)


dist.init_process_group("gloo", timeout=timedelta(seconds=8))
gpu = dist.get_rank()
torch.manual_seed(0)
images, labels = torch.randn(80, 1, 8, 8), torch.randint(4, (80,))
train_dataset = TensorDataset(images[:64], labels[:64])
sampler = DistributedSampler(train_dataset)
train_loader = DataLoader(train_dataset, batch_size=4, sampler=sampler)
val_loader = DataLoader(TensorDataset(images[64:], labels[64:]), batch_size=4)

model = DistributedDataParallel(ConvNet())
criterion = nn.CrossEntropyLoss()
optimizer = torch.optim.SGD(model.parameters(), lr=0.02)

for epoch in range(2):
    sampler.set_epoch(epoch)
    for x, y in train_loader:
        loss = criterion(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    if gpu == 0:
        print(f"epoch {epoch}, accuracy {validate(model, val_loader):.3f}")
    dist.barrier()

dist.destroy_process_group()
