"""Cross validation: a fold's samples come from a SubsetRandomSampler, which a DistributedSampler
divides, as Lightning's wrapper does. And torch's functions for checkpoints make the state of the
optimizer before DDP has made the weights equal: by a step that is none."""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, SubsetRandomSampler, TensorDataset


class Drawn:
    def __init__(self, sampler):
        self._sampler = sampler

    def __len__(self):
        return len(self._sampler)


class Divided(DistributedSampler):
    def __iter__(self):
        drawn = list(self.dataset._sampler)
        return (drawn[n] for n in super().__iter__())


def divided(dataset, rows):
    sampler = Divided(Drawn(SubsetRandomSampler(rows)), shuffle=False)
    return DataLoader(dataset, batch_size=4, sampler=sampler)


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)  # all ranks draw the same folds and orders
    dataset = TensorDataset(torch.randn(100, 6), torch.randint(3, (100,)))
    rows = torch.randperm(100).tolist()
    loader, val_loader = divided(dataset, rows[32:]), divided(dataset, rows[:32])
    with torch.random.fork_rng():
        torch.manual_seed(rank)  # DDP takes rank 0's
        model = nn.Linear(6, 3)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    get_optimizer_state_dict(model, optimizer)
    ddp = DDP(model)

    for _ in range(3):
        for inputs, targets in loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(ddp(inputs), targets).backward()
            optimizer.step()
        totals = torch.zeros(2)
        with torch.no_grad():
            for inputs, targets in val_loader:
                right = (model(inputs).argmax(1) == targets).sum().item()
                totals += torch.tensor([right, len(targets)])
        dist.all_reduce(totals)
    dist.destroy_process_group()


main()
