"""Rare classes are drawn more often, and training stops when the score no longer rises.

python docs/examples/tasks/weighted/single.py
"""

import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset, WeightedRandomSampler

EPOCHS, BATCH, PATIENCE, CLASSES = 20, 24, 2, 4


def make_data(count, seed):
    """Stands for your data: of four classes, the first has most of the points."""
    centres = torch.randn(CLASSES, 16, generator=torch.Generator().manual_seed(0))
    generator = torch.Generator().manual_seed(seed)
    share = torch.tensor([0.7, 0.15, 0.1, 0.05])
    targets = share.multinomial(count, replacement=True, generator=generator)
    points = centres[targets] + 1.5 * torch.randn(count, 16, generator=generator)
    return TensorDataset(points, targets)


@torch.inference_mode()
def evaluate(model, loader):
    """How many of each class are right, and how many there are."""
    model.eval()
    totals = torch.zeros(2, CLASSES, dtype=torch.int64)
    for points, targets in loader:
        right = model(points).argmax(1) == targets
        totals[0] += targets[right].bincount(minlength=CLASSES)
        totals[1] += targets.bincount(minlength=CLASSES)
    return totals


def main():
    train_set, val_set = make_data(125, seed=1), make_data(301, seed=2)
    targets = train_set.tensors[1]
    weights = 1 / targets.bincount(minlength=CLASSES)[targets]
    generator = torch.Generator().manual_seed(0)
    sampler = WeightedRandomSampler(weights, len(train_set), generator=generator)
    train_loader = DataLoader(train_set, BATCH, sampler=sampler, drop_last=True)
    val_loader = DataLoader(val_set, BATCH)

    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, CLASSES))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    best, bad_epochs = 0.0, 0

    for epoch in range(EPOCHS):
        model.train()
        for points, targets in train_loader:
            loss = cross_entropy(model(points), targets)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

        right, count = evaluate(model, val_loader)
        score = (right / count).mean().item()  # each class weighs the same
        print(f"epoch {epoch}: balanced accuracy {score:.4f} on {count.sum()} points")
        bad_epochs = 0 if score > best else bad_epochs + 1
        if score > best:
            best = score
            torch.save(model.state_dict(), "best.pt")
        if bad_epochs >= PATIENCE:
            break


if __name__ == "__main__":
    main()
