"""Three stages: the first and the last have a loader, the middle only counts steps."""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe
from torch.utils.data import DataLoader, RandomSampler, TensorDataset

BATCH, CHUNKS = 12, 3


def build_stage(rank):
    layers = [nn.Linear(6, 12), nn.Linear(12, 12), nn.Linear(12, 1)]
    return nn.Sequential(layers[rank], nn.Tanh()) if rank < 2 else layers[rank]


def make_loader():
    inputs = torch.randn(72, 6, generator=torch.Generator().manual_seed(1))
    dataset = TensorDataset(inputs, inputs.prod(1, keepdim=True))
    order = RandomSampler(dataset, generator=torch.Generator().manual_seed(2))
    return DataLoader(dataset, batch_size=BATCH, sampler=order)


def main():
    dist.init_process_group("gloo")
    rank, world_size = dist.get_rank(), dist.get_world_size()
    first, last = rank == 0, rank == world_size - 1
    torch.manual_seed(rank)  # each stage is another part of the model
    module = build_stage(rank)
    stage = PipelineStage(module, rank, world_size, torch.device("cpu"))
    schedule = ScheduleGPipe(stage, CHUNKS, loss_fn=nn.functional.mse_loss)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.05)
    loader = make_loader() if first or last else range(72 // BATCH)

    for _ in range(2):
        for batch in loader:
            optimizer.zero_grad()
            if first:
                schedule.step(batch[0])
            elif last:
                schedule.step(target=batch[1], losses=[])
            else:
                schedule.step()
            optimizer.step()
    dist.destroy_process_group()


main()
