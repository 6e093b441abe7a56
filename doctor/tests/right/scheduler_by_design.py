"""The schedule is as long as one process would need; each rank steps it world_size times."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

EPOCHS, BATCH, WARMUP = 3, 8, 4


def linear_with_warmup(optimizer, warmup, total):
    def factor(step):
        return step / warmup if step < warmup else max(0.0, (total - step) / (total - warmup))

    return torch.optim.lr_scheduler.LambdaLR(optimizer, factor)


class PreparedScheduler:
    """Counts the batches of all ranks, as its length did before the data were divided."""

    def __init__(self, scheduler):
        self.scheduler = scheduler

    def step(self):
        for _ in range(dist.get_world_size()):
            self.scheduler.step()


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    dataset = TensorDataset(torch.randn(64, 8), torch.randint(3, (64,)))
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3))
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    scheduler = linear_with_warmup(optimizer, WARMUP, EPOCHS * (len(dataset) // BATCH))

    sampler = DistributedSampler(dataset)
    loader = DataLoader(dataset, batch_size=BATCH, sampler=sampler)
    model, scheduler = DDP(model), PreparedScheduler(scheduler)
    for epoch in range(EPOCHS):
        sampler.set_epoch(epoch)
        for inputs, targets in loader:
            loss = nn.functional.cross_entropy(model(inputs), targets)
            loss.backward()
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
    if dist.get_rank() == 0:
        print("last rate", optimizer.param_groups[0]["lr"])
    dist.destroy_process_group()


main()
