"""Four ranks, dp=2 x tp=2: tensor parallelism inside a pair, FSDP2 between the pairs."""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

PLAN = {"0": ColwiseParallel(), "2": RowwiseParallel()}


def build_model(mesh):
    model = nn.Sequential(nn.Linear(8, 16, bias=False), nn.ReLU(), nn.Linear(16, 4, bias=False))
    parallelize_module(model, mesh["tp"], PLAN)
    return fully_shard(model, mesh=mesh["dp"])


def main():
    dist.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    dp_rank, dp_size = mesh["dp"].get_local_rank(), mesh["dp"].size()

    torch.manual_seed(0)
    dataset = TensorDataset(torch.randn(96, 8), torch.randint(4, (96,)))
    sampler = DistributedSampler(dataset, num_replicas=dp_size, rank=dp_rank, seed=7)
    loader = DataLoader(dataset, batch_size=8, sampler=sampler, drop_last=True)
    model = build_model(mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    for epoch in range(2):
        sampler.set_epoch(epoch)
        total = torch.zeros(1)
        for inputs, targets in loader:
            loss = nn.functional.cross_entropy(model(inputs), targets)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            total += loss.detach()
        dist.all_reduce(total, group=mesh["dp"].get_group())
        if dist.get_rank() == 0:
            print(f"epoch {epoch} loss {total.item() / (len(loader) * dp_size):.4f}")
    dist.destroy_process_group()


main()
