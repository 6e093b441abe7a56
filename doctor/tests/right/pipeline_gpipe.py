"""Two stages by torch.distributed.pipelining, GPipe with two micro-batches."""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe
from torch.utils.data import DataLoader, TensorDataset

CHUNKS = 2


def layers_of(stage_index):
    layers = [nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 3)]
    return nn.Sequential(*(layers[:2], layers[2:])[stage_index])


def main():
    dist.init_process_group("gloo")
    rank, world_size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    dataset = TensorDataset(torch.randn(64, 8), torch.randint(3, (64,)))
    loader = DataLoader(dataset, batch_size=16, shuffle=True, drop_last=True)

    module = layers_of(rank)
    stage = PipelineStage(module, rank, world_size, torch.device("cpu"))
    schedule = ScheduleGPipe(stage, CHUNKS, loss_fn=nn.functional.cross_entropy)
    optimizer = torch.optim.Adam(module.parameters(), lr=1e-2)

    for epoch in range(3):
        for inputs, targets in loader:
            optimizer.zero_grad()
            losses = []
            if rank == 0:
                schedule.step(inputs)
            else:
                schedule.step(target=targets, losses=losses)
            optimizer.step()
        if losses:
            print(f"epoch {epoch} loss {torch.stack(losses).mean().item():.4f}")
    dist.destroy_process_group()


main()
