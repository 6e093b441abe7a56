"""Wrong: a plain script under DDP, whose data nobody has divided."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    dataset = TensorDataset(torch.randn(72, 8), torch.randint(3, (72,)))
    loader = DataLoader(dataset, batch_size=8, shuffle=True)
    model = DDP(nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for epoch in range(3):
        for inputs, targets in loader:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(inputs), targets)
            loss.backward()
            optimizer.step()
        seen = loss.detach().clone()
        dist.all_reduce(seen)
        if dist.get_rank() == 0:
            print(f"epoch {epoch} loss {seen.item() / dist.get_world_size():.4f}")
    dist.destroy_process_group()


main()
