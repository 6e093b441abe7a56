"""A variational autoencoder: codes are drawn in forward, and the loss is a sum over the batch.

python docs/examples/tasks/vae/single.py
"""

import torch
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits
from torch.utils.data import DataLoader

EPOCHS, BATCH = 3, 24


def make_images(count, seed):
    """Stands for your images: a bright square on a dark ground, 64 pixels from 0 to 1."""
    generator = torch.Generator().manual_seed(seed)
    images = torch.zeros(count, 8, 8)
    for image, (y, x) in zip(
        images, torch.randint(6, (count, 2), generator=generator), strict=True
    ):
        image[y : y + 3, x : x + 3] = 1
    return images.flatten(1)


class VAE(nn.Module):
    def __init__(self, width=64, code=4):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(64, width), nn.ReLU())
        self.mu, self.logvar = nn.Linear(width, code), nn.Linear(width, code)
        self.decoder = nn.Sequential(nn.Linear(code, width), nn.ReLU(), nn.Linear(width, 64))

    def reparameterize(self, mu, logvar):
        std = torch.exp(0.5 * logvar)
        eps = torch.randn_like(std)
        return mu + eps * std

    def forward(self, x):
        h = self.encoder(x)
        mu, logvar = self.mu(h), self.logvar(h)
        z = self.reparameterize(mu, logvar)
        return self.decoder(z), mu, logvar


def loss_function(recon_x, x, mu, logvar):
    """Reconstruction and KL divergence, summed over the batch."""
    BCE = binary_cross_entropy_with_logits(recon_x, x, reduction="sum")
    KLD = -0.5 * torch.sum(1 + logvar - mu.pow(2) - logvar.exp())
    return BCE + KLD


@torch.inference_mode()
def evaluate(model, loader):
    """The sum of losses, and the number of images."""
    model.eval()
    totals = torch.zeros(2, dtype=torch.float64)
    for images in loader:
        recon_images, mu, logvar = model(images)
        totals[0] += loss_function(recon_images, images, mu, logvar)
        totals[1] += len(images)
    return totals


def main():
    train_set, val_set = make_images(250, seed=1), make_images(101, seed=2)
    train_loader = DataLoader(train_set, BATCH, shuffle=True, drop_last=True)
    val_loader = DataLoader(val_set, BATCH)

    torch.manual_seed(0)
    model = VAE()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)

    for epoch in range(EPOCHS):
        model.train()
        for images in train_loader:
            recon_images, mu, logvar = model(images)
            loss = loss_function(recon_images, images, mu, logvar)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

        loss, count = evaluate(model, val_loader).tolist()
        print(f"epoch {epoch}: loss {loss / count:.4f} on {count:.0f} images")
        torch.save(model.state_dict(), "model.pt")


if __name__ == "__main__":
    main()
