"""Few-shot learning: each rank draws episodes of its own, for training and for the test. A sample
may come again in another episode, and most never come."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Sampler, TensorDataset


class Episodes(Sampler):
    """Batches of three samples of each of three classes."""

    def __init__(self, targets, count, seed):
        self.rows = [torch.nonzero(targets == number)[:, 0] for number in targets.unique()]
        self.count, self.generator = count, torch.Generator().manual_seed(seed)

    def __len__(self):
        return self.count

    def draw(self, rows, count):
        return [rows[n] for n in torch.randperm(len(rows), generator=self.generator)[:count]]

    def __iter__(self):
        for _ in range(self.count):
            classes = self.draw(self.rows, 3)
            yield [int(row) for rows in classes for row in self.draw(rows, 3)]


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    targets = torch.arange(200) % 10
    dataset = TensorDataset(torch.randn(200, 8), targets)
    loader = DataLoader(dataset, batch_sampler=Episodes(targets, 6, rank))
    test_loader = DataLoader(dataset, batch_sampler=Episodes(targets, 6, 100 + rank))
    model = nn.Linear(8, 10)
    ddp = DDP(model)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)

    for _ in range(2):
        for inputs, targets in loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(ddp(inputs), targets).backward()
            optimizer.step()
        totals = torch.zeros(2)
        with torch.no_grad():
            for inputs, targets in test_loader:
                right = (model(inputs).argmax(1) == targets).sum().item()
                totals += torch.tensor([right, len(targets)])
        dist.all_reduce(totals)
    dist.destroy_process_group()


main()
