"""Wrong: on two machines of one GPU each, the data are divided within a machine only."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

GPUS = 1  # torch.cuda.device_count() on each machine


def main():
    dist.init_process_group("gloo")
    local_rank = dist.get_rank() % GPUS
    torch.manual_seed(0)
    dataset = TensorDataset(torch.randn(64, 8), torch.randint(3, (64,)))
    sampler = DistributedSampler(dataset, num_replicas=GPUS, rank=local_rank)
    loader = DataLoader(dataset, batch_size=8, sampler=sampler)
    model = DDP(nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for epoch in range(3):
        sampler.set_epoch(epoch)
        for inputs, targets in loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(inputs), targets).backward()
            optimizer.step()
    if dist.get_rank() == 0:
        torch.save(model.module.state_dict(), "model.pt")
    dist.destroy_process_group()


main()
