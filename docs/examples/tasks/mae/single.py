"""A masked autoencoder: which patches are hidden is drawn anew for each image in each step.

python docs/examples/tasks/mae/single.py
"""

import math

import torch
from torch import nn
from torch.utils.data import DataLoader

EPOCHS, BATCH, BASE_RATE = 4, 24, 0.1  # the rate is that of a batch of 256
PATCH, PATCHES, HIDDEN = 4, 16, 12  # of 16 patches of 4x4 pixels 12 are hidden


def make_images(count, seed):
    """Stands for your images: waves in all directions, 16x16."""
    generator = torch.Generator().manual_seed(seed)
    angle, phase = torch.rand(2, count, 1, 1, generator=generator) * 2 * math.pi
    y, x = torch.meshgrid(torch.linspace(0, 4, 16), torch.linspace(0, 4, 16), indexing="ij")
    return torch.sin(x * angle.cos() + y * angle.sin() + phase)


def patchify(images):
    """(N, 16, 16) to (N, PATCHES, PATCH * PATCH)."""
    return images.unfold(1, PATCH, PATCH).unfold(2, PATCH, PATCH).flatten(3).flatten(1, 2)


def blocks(width, depth):
    layer = nn.TransformerEncoderLayer(width, 4, 2 * width, 0.0, batch_first=True, norm_first=True)
    return nn.TransformerEncoder(layer, depth, enable_nested_tensor=False)


class MaskedAutoencoder(nn.Module):
    def __init__(self, width=32):
        super().__init__()
        self.embed = nn.Linear(PATCH * PATCH, width)
        self.positions = nn.Parameter(0.2 * torch.randn(1, PATCHES, width))
        self.mask_token = nn.Parameter(torch.zeros(1, 1, width))
        self.encoder, self.decoder = blocks(width, 2), blocks(width, 1)
        self.head = nn.Linear(width, PATCH * PATCH)

    def random_masking(self, x):
        N, L, D = x.shape
        noise = torch.rand(N, L, device=x.device)
        ids_shuffle = noise.argsort(1)
        ids_restore = ids_shuffle.argsort(1)
        ids_keep = ids_shuffle[:, : L - HIDDEN, None].expand(-1, -1, D)
        return x.gather(1, ids_keep), ids_restore

    def forward(self, images):
        patches = patchify(images)
        seen, ids_restore = self.random_masking(self.embed(patches) + self.positions)
        seen = self.encoder(seen)
        x = torch.cat([seen, self.mask_token.expand(len(seen), HIDDEN, -1)], 1)
        x = x.gather(1, ids_restore[:, :, None].expand(-1, -1, x.shape[2]))
        guesses = self.head(self.decoder(x + self.positions))
        hidden = ids_restore >= PATCHES - HIDDEN
        return ((guesses - patches) ** 2).mean(2)[hidden].mean()


@torch.inference_mode()
def evaluate(model, loader):
    """The sum of losses, and the number of images."""
    model.eval()
    totals = torch.zeros(2, dtype=torch.float64)
    for images in loader:
        totals += torch.tensor([model(images) * len(images), len(images)])
    return totals


def main():
    train_set, val_set = make_images(250, seed=1), make_images(101, seed=2)
    train_loader = DataLoader(train_set, BATCH, shuffle=True, drop_last=True)
    val_loader = DataLoader(val_set, BATCH)

    torch.manual_seed(0)
    model = MaskedAutoencoder()
    optimizer = torch.optim.AdamW(model.parameters(), lr=BASE_RATE * BATCH / 256)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, EPOCHS * len(train_loader))

    for epoch in range(EPOCHS):
        model.train()
        for images in train_loader:
            loss = model(images)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            scheduler.step()

        loss, count = evaluate(model, val_loader).tolist()
        print(f"epoch {epoch}: loss {loss / count:.4f} on {count:.0f} images")
        torch.save(model.state_dict(), "model.pt")


if __name__ == "__main__":
    main()
