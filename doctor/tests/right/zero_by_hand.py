"""ZeRO-1 by hand: each rank updates its part of the flat weights, then all gather the parts."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


class DividedAdam:
    def __init__(self, model, lr):
        self.model = model
        self.rank, self.world_size = dist.get_rank(), dist.get_world_size()
        flat = self.padded(parameters_to_vector(model.parameters()).detach())
        self.part = nn.Parameter(flat.chunk(self.world_size)[self.rank].clone())
        self.adam = torch.optim.Adam([self.part], lr=lr)

    def padded(self, flat):
        return nn.functional.pad(flat, (0, -len(flat) % self.world_size))

    def step(self):
        flat = self.padded(torch.cat([p.grad.flatten() for p in self.model.parameters()]))
        dist.all_reduce(flat)
        self.part.grad = flat.chunk(self.world_size)[self.rank] / self.world_size
        self.adam.step()
        parts = [torch.empty_like(self.part.data) for _ in range(self.world_size)]
        dist.all_gather(parts, self.part.data)
        vector_to_parameters(torch.cat(parts), self.model.parameters())
        self.model.zero_grad()


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    dataset = TensorDataset(torch.randn(90, 8), torch.randint(4, (90,)))
    sampler = DistributedSampler(dataset, drop_last=True)
    loader = DataLoader(dataset, batch_size=9, sampler=sampler)
    model = nn.Sequential(nn.Linear(8, 12), nn.GELU(), nn.Linear(12, 4))
    optimizer = DividedAdam(model, lr=1e-2)

    for epoch in range(3):
        sampler.set_epoch(epoch)
        for inputs, targets in loader:
            loss = nn.functional.cross_entropy(model(inputs), targets)
            loss.backward()
            optimizer.step()
        if dist.get_rank() == 0:
            print(f"epoch {epoch} loss {loss.item():.4f}")
            torch.save(model.state_dict(), "model.pt")
    dist.destroy_process_group()


main()
