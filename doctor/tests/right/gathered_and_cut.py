"""A padded sampler for the evaluation: predictions are gathered, put in order and cut."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def gather_for_metrics(part, size):
    """Of all ranks, in the order of the set; the sampler's repeats are at its end."""
    parts = [torch.empty_like(part) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, part)
    return torch.stack(parts, dim=1).flatten(0, 1)[:size]


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    inputs = torch.randn(117, 8)
    targets = (inputs[:, 0] + inputs[:, 1] > 0).long()
    train_set, val_set = TensorDataset(inputs[:80], targets[:80]), TensorDataset(inputs, targets)
    sampler = DistributedSampler(train_set)
    train_loader = DataLoader(train_set, batch_size=8, sampler=sampler)
    val_sampler = DistributedSampler(val_set, shuffle=False)
    val_loader = DataLoader(val_set, batch_size=16, sampler=val_sampler)
    model = DDP(nn.Linear(8, 2))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)

    for epoch in range(3):
        sampler.set_epoch(epoch)
        model.train()
        for inputs, targets in train_loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(inputs), targets).backward()
            optimizer.step()

        model.eval()
        predicted, labels = [], []
        with torch.no_grad():
            for inputs, targets in val_loader:
                predicted.append(model(inputs).argmax(1))
                labels.append(targets)
        predicted = gather_for_metrics(torch.cat(predicted), len(val_set))
        labels = gather_for_metrics(torch.cat(labels), len(val_set))
        if dist.get_rank() == 0:
            print(f"epoch {epoch}: {(predicted == labels).sum()} of {len(labels)}")
    dist.destroy_process_group()


main()
