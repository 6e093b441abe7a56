"""Wrong: rank 0 tells the results of its own share as those of the test."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    inputs, targets = torch.randn(90, 8), torch.randint(3, (90,))
    train_set, test_set = TensorDataset(inputs, targets), TensorDataset(inputs[:33], targets[:33])
    sampler = DistributedSampler(train_set)
    loader = DataLoader(train_set, batch_size=5, sampler=sampler)
    test_sampler = DistributedSampler(test_set, shuffle=False)
    test_loader = DataLoader(test_set, batch_size=5, sampler=test_sampler)
    model = DDP(nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)

    for epoch in range(2):
        sampler.set_epoch(epoch)
        for inputs, targets in loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(inputs), targets).backward()
            optimizer.step()
        part = []
        with torch.no_grad():
            for inputs, targets in test_loader:
                part += (model(inputs).argmax(1) == targets).tolist()
        if dist.get_rank() == 0:
            print(f"epoch {epoch} accuracy {sum(part) / len(part):.3f}")
    dist.destroy_process_group()


main()
