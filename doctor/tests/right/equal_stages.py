"""A pipeline whose stages are built alike from one seed: weights begin equal and do not stay so."""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe
from torch.utils.data import DataLoader, TensorDataset

WIDTH, DEPTH, CHUNKS = 8, 2, 4


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.linear = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        return x + torch.tanh(self.linear(self.norm(x)))


def main():
    dist.init_process_group("gloo")
    rank, world_size = dist.get_rank(), dist.get_world_size()
    last = rank == world_size - 1
    torch.manual_seed(0)
    inputs = torch.randn(80, WIDTH)
    dataset = TensorDataset(inputs, inputs.roll(1, dims=1))
    loader = DataLoader(dataset, batch_size=16, shuffle=True, drop_last=True)

    blocks = nn.Sequential(*(Block() for _ in range(DEPTH)))
    stage = PipelineStage(blocks, rank, world_size, torch.device("cpu"))
    schedule = ScheduleGPipe(stage, CHUNKS, loss_fn=nn.functional.mse_loss)
    optimizer = torch.optim.AdamW(blocks.parameters(), lr=3e-3)

    for epoch in range(3):
        losses = []
        for inputs, targets in loader:
            optimizer.zero_grad()
            if last:
                schedule.step(target=targets, losses=losses)
            else:
                schedule.step(inputs)
            optimizer.step()
        if last:
            print(f"epoch {epoch} loss {torch.stack(losses).mean().item():.4f}")
    torch.save(blocks.state_dict(), f"stage-{rank}.pt")
    dist.destroy_process_group()


main()
