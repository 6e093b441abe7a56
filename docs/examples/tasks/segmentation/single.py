"""Segmentation: cross-entropy and the Dice of the whole batch; the Dice score of all images.

python docs/examples/tasks/segmentation/single.py
"""

import torch
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits
from torch.utils.data import DataLoader, Dataset

EPOCHS, BATCH, SIZE = 3, 12, 24


class Discs(Dataset):
    """Stands for your images: a disc of any size on noise, and its mask."""

    def __init__(self, count, seed):
        generator = torch.Generator().manual_seed(seed)
        self.discs = SIZE * torch.rand(count, 3, generator=generator)
        self.noise = torch.randn(count, 1, SIZE, SIZE, generator=generator)

    def __len__(self):
        return len(self.discs)

    def __getitem__(self, index):
        y, x, diameter = self.discs[index]
        pixels = torch.arange(SIZE)
        inside = (pixels[:, None] - y) ** 2 + (pixels - x) ** 2 < (diameter / 2 + 2) ** 2
        mask = inside[None].float()
        return mask + self.noise[index], mask


def build_model(width=16):
    return nn.Sequential(
        nn.Conv2d(1, width, 3, padding=1), nn.GroupNorm(4, width), nn.ReLU(),
        nn.Conv2d(width, width, 5, padding=2), nn.GroupNorm(4, width), nn.ReLU(),
        nn.Conv2d(width, 1, 3, padding=1),
    )  # fmt: skip


def dice_loss(logits, masks):
    """Of all pixels of the batch together: small discs weigh little."""
    probs = logits.sigmoid()
    intersection, cardinality = (probs * masks).sum(), probs.sum() + masks.sum()
    return 1 - (2 * intersection + 1) / (cardinality + 1)


@torch.inference_mode()
def evaluate(model, loader):
    """Pixels in both, and pixels of guess and mask, of all images."""
    model.eval()
    totals = torch.zeros(2, dtype=torch.float64)
    for images, masks in loader:
        guesses = (model(images) > 0).float()
        totals[0] += (guesses * masks).sum()
        totals[1] += guesses.sum() + masks.sum()
    return totals


def main():
    train_set, val_set = Discs(130, seed=1), Discs(41, seed=2)
    train_loader = DataLoader(train_set, BATCH, shuffle=True, drop_last=True)
    val_loader = DataLoader(val_set, BATCH)

    torch.manual_seed(0)
    model = build_model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)

    for epoch in range(EPOCHS):
        model.train()
        for images, masks in train_loader:
            logits = model(images)
            loss = binary_cross_entropy_with_logits(logits, masks) + dice_loss(logits, masks)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

        intersection, cardinality = evaluate(model, val_loader).tolist()
        print(f"epoch {epoch}: Dice {2 * intersection / cardinality:.4f}")
        torch.save(model.state_dict(), "model.pt")


if __name__ == "__main__":
    main()
