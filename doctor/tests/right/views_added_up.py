"""Test-time augmentation: each rank sees the whole test from another side, scores are added up."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

VIEWS = [lambda images: images, lambda images: images.flip(-1), lambda images: images.flip(-2)]


@torch.no_grad()
def evaluate(model, loader, view):
    """Accuracy of the mean over all views."""
    model.eval()
    scores, targets = [], []
    for images, labels in loader:
        scores.append(model(view(images)).softmax(1))
        targets.append(labels)
    scores, targets = torch.cat(scores), torch.cat(targets)
    dist.all_reduce(scores)
    return (scores.argmax(1) == targets).float().mean().item()


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    images, targets = torch.randn(99, 1, 4, 4), torch.randint(3, (99,))
    train_set = TensorDataset(images[:72], targets[:72])
    test_set = TensorDataset(images[72:], targets[72:])
    sampler = DistributedSampler(train_set)
    loader = DataLoader(train_set, batch_size=6, sampler=sampler)
    test_loader = DataLoader(test_set, batch_size=9)
    model = DDP(nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(16, 3)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    for epoch in range(3):
        sampler.set_epoch(epoch)
        model.train()
        for images, targets in loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(images), targets).backward()
            optimizer.step()
        accuracy = evaluate(model.module, test_loader, VIEWS[rank])
        if rank == 0:
            print(f"epoch {epoch} accuracy {accuracy:.3f}")
    dist.destroy_process_group()


main()
