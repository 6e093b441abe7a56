"""A radiance field: all ranks read one picture a step, and each takes its share of its rays."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset

SIZE, RAYS = 10, 48  # of a picture; in a step


def main():
    dist.init_process_group("gloo")
    rank, world_size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    pictures, cameras = torch.rand(12, 3, SIZE * SIZE), torch.randn(12, 3)
    field = DDP(nn.Sequential(nn.Linear(4, 24), nn.ReLU(), nn.Linear(24, 3), nn.Sigmoid()))
    optimizer = torch.optim.Adam(field.parameters(), lr=1e-2)
    loader = DataLoader(TensorDataset(pictures, cameras), shuffle=True)
    chosen = torch.Generator().manual_seed(1)

    for epoch in range(2):
        total = torch.zeros(1)
        for picture, camera in loader:  # of all ranks the same: so is their seed
            rays = torch.randperm(SIZE * SIZE, generator=chosen)[:RAYS]
            rays = rays[rank::world_size]
            places = rays[:, None] / SIZE**2
            seen = field(torch.cat([places, camera.expand(len(rays), 3)], dim=1))
            loss = nn.functional.mse_loss(seen, picture[0, :, rays].T)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.detach()
        dist.all_reduce(total)
        if rank == 0:
            print(f"epoch {epoch} loss {total.item() / len(loader) / world_size:.4f}")
    dist.destroy_process_group()


main()
