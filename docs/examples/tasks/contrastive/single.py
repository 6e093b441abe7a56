"""Contrastive learning: two views of each image, made in the data set, and all pairs of a batch.

python docs/examples/tasks/contrastive/single.py
"""

import torch
from torch import nn
from torch.nn.functional import cross_entropy, normalize
from torch.utils.data import DataLoader, Dataset

EPOCHS, BATCH, TEMPERATURE = 3, 24, 0.2


class TwoViews(Dataset):
    """Stands for your images: 10x10 of smooth noise, in two crops of 8x8 of unlike contrast."""

    def __init__(self, count, seed):
        coarse = torch.randn(count, 1, 5, 5, generator=torch.Generator().manual_seed(seed))
        self.images = nn.functional.interpolate(coarse, (10, 10), mode="bilinear")
        self.epoch = 0

    def __len__(self):
        return len(self.images)

    def view(self, index, number):
        """Depends on epoch, image and number alone."""
        seed = (self.epoch * len(self) + index) * 2 + number
        generator = torch.Generator().manual_seed(seed)
        y, x = torch.randint(3, (2,), generator=generator).tolist()
        contrast = 0.5 + torch.rand(1, generator=generator)
        return contrast * self.images[index, :, y : y + 8, x : x + 8]

    def __getitem__(self, index):
        return self.view(index, 0), self.view(index, 1)


class Encoder(nn.Module):
    def __init__(self, width=32):
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, width, 3, 2, 1), nn.ReLU(), nn.Conv2d(width, width, 3, 2, 1), nn.ReLU()
        )
        self.projector = nn.Linear(4 * width, 16)

    def forward(self, x):
        return normalize(self.projector(self.features(x).flatten(1)))


def info_nce(z1, z2):
    """Row n of the one belongs to row n of the other, and to no other row."""
    z = torch.cat([z1, z2])
    logits = z @ z.T / TEMPERATURE
    logits = logits.masked_fill(torch.eye(len(z), dtype=torch.bool), float("-inf"))
    return cross_entropy(logits, torch.arange(len(z)).roll(len(z1)))


@torch.inference_mode()
def embed(model, loader):
    """The embeddings of both views, each (images, 16)."""
    model.eval()
    rows = [(model(view1), model(view2)) for view1, view2 in loader]
    return [torch.cat(views) for views in zip(*rows, strict=True)]


def main():
    train_set, val_set = TwoViews(250, seed=1), TwoViews(101, seed=2)
    train_loader = DataLoader(train_set, BATCH, shuffle=True, drop_last=True)
    val_loader = DataLoader(val_set, BATCH)

    torch.manual_seed(0)
    model = Encoder()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)

    for epoch in range(EPOCHS):
        train_set.epoch = epoch
        model.train()
        for view1, view2 in train_loader:
            z1, z2 = model(torch.cat([view1, view2])).chunk(2)
            loss = info_nce(z1, z2)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

        z1, z2 = embed(model, val_loader)
        found = (z1 @ z2.T).argmax(1) == torch.arange(len(z1))
        print(f"epoch {epoch}: {found.sum()} of {len(found)} nearest to their other view")
        torch.save(model.state_dict(), "model.pt")


if __name__ == "__main__":
    main()
