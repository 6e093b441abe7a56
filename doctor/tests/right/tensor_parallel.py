"""Tensor parallelism over both ranks: a mesh of dp=1, tp=2, and data divided over dp alone."""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

TP = 2


class Block(nn.Module):
    def __init__(self, width, hidden):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, hidden)
        self.down = nn.Linear(hidden, width)

    def forward(self, x):
        return x + self.down(torch.relu(self.up(self.norm(x))))


def main():
    dist.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (dist.get_world_size() // TP, TP), mesh_dim_names=("dp", "tp"))
    dp, tp = mesh["dp"], mesh["tp"]

    torch.manual_seed(0)  # what is not divided must be equal on the ranks of a tp group
    images, targets = torch.randn(80, 8), torch.randint(3, (80,))
    train_set, val_set = TensorDataset(images, targets), TensorDataset(images[:21], targets[:21])
    sampler = DistributedSampler(train_set, dp.size(), dp.get_local_rank())
    loader = DataLoader(train_set, batch_size=16, sampler=sampler)
    val_loader = DataLoader(val_set, batch_size=16)

    model = nn.Sequential(Block(8, 16), Block(8, 16), nn.Linear(8, 3))
    for block in model[:2]:
        parallelize_module(block, tp, {"up": ColwiseParallel(), "down": RowwiseParallel()})
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)

    for epoch in range(3):
        sampler.set_epoch(epoch)
        model.train()
        for images, targets in loader:
            loss = nn.functional.cross_entropy(model(images), targets)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

        model.eval()
        with torch.no_grad():
            right = sum((model(x).argmax(1) == y).sum().item() for x, y in val_loader)
        if dist.get_rank() == 0:
            print(f"epoch {epoch} accuracy {right / len(val_set):.3f}")
    dist.destroy_process_group()


main()
