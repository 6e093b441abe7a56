"""Each rank runs other benchmarks of a table, all of their samples; rank 0 gathers the scores."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def make_set(size, seed):
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.randn(size, 8, generator=generator)
    return TensorDataset(inputs, (inputs[:, :3].sum(1) > 0).long())


BENCHMARKS = {"plain": (30, 1), "night": (26, 2), "rain": (18, 3), "snow": (33, 4)}


@torch.no_grad()
def score(model, name):
    right = count = 0
    for inputs, targets in DataLoader(make_set(*BENCHMARKS[name]), batch_size=8):
        right += (model(inputs).argmax(1) == targets).sum().item()
        count += len(targets)
    return right / count


def evaluate(model):
    rank, world_size = dist.get_rank(), dist.get_world_size()
    mine = {name: score(model, name) for name in list(BENCHMARKS)[rank::world_size]}
    tables = [None] * world_size if rank == 0 else None
    dist.gather_object(mine, tables, dst=0)
    return {name: value for table in tables or () for name, value in table.items()}


def main():
    dist.init_process_group("gloo")
    train_set = make_set(80, seed=0)
    sampler = DistributedSampler(train_set)
    loader = DataLoader(train_set, batch_size=8, sampler=sampler)
    torch.manual_seed(0)
    model = DDP(nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2)))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for epoch in range(3):
        sampler.set_epoch(epoch)
        for inputs, targets in loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(inputs), targets).backward()
            optimizer.step()
        scores = evaluate(model.module)
        if dist.get_rank() == 0:
            print(f"epoch {epoch}:", " ".join(f"{k} {v:.2f}" for k, v in sorted(scores.items())))
    dist.destroy_process_group()


main()
