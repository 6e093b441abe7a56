"""A model divided by FSDP2, whose checkpoint all ranks write together, and read again."""

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def save(model, optimizer, epoch, path):
    weights, moments = get_state_dict(model, optimizer)
    dcp.save({"model": weights, "optimizer": moments, "epoch": epoch}, checkpoint_id=path)


def load(model, optimizer, path):
    weights, moments = get_state_dict(model, optimizer)
    state = {"model": weights, "optimizer": moments, "epoch": 0}
    dcp.load(state, checkpoint_id=path)
    set_state_dict(
        model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"]
    )
    return state["epoch"]


def main():
    dist.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    torch.manual_seed(0)
    dataset = TensorDataset(torch.randn(64, 8), torch.randint(4, (64,)))
    sampler = DistributedSampler(dataset)
    loader = DataLoader(dataset, batch_size=8, sampler=sampler)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
    for layer in model:
        if isinstance(layer, nn.Linear):
            fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)

    for epoch in range(3):
        sampler.set_epoch(epoch)
        for inputs, targets in loader:
            nn.functional.cross_entropy(model(inputs), targets).backward()
            optimizer.step()
            optimizer.zero_grad()
        save(model, optimizer, epoch, f"checkpoint-{epoch}")
    assert load(model, optimizer, "checkpoint-2") == 2
    dist.destroy_process_group()


main()
