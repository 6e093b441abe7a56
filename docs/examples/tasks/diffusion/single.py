"""Diffusion: noise and times are drawn in the step, and an average of the weights is evaluated.

python docs/examples/tasks/diffusion/single.py
"""

import torch
from torch import nn
from torch.nn.functional import mse_loss
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.data import DataLoader

EPOCHS, BATCH, TIMES = 3, 24, 100
ALPHAS = torch.cumprod(1 - torch.linspace(1e-3, 0.08, TIMES), 0)


def make_images(count, seed):
    """Stands for your images: one bright row or column on a dark ground, 1x8x8."""
    generator = torch.Generator().manual_seed(seed)
    images = -torch.ones(count, 1, 8, 8)
    for image, place in zip(images, torch.randint(16, (count,), generator=generator), strict=True):
        image[0, place % 8] = 1
        if place >= 8:
            image.copy_(image.mT.clone())
    return images


class Denoiser(nn.Module):
    def __init__(self, width=32):
        super().__init__()
        self.times = nn.Sequential(nn.Embedding(TIMES, width), nn.SiLU(), nn.Linear(width, width))
        self.first = nn.Conv2d(1, width, 3, padding=1)
        self.middle = nn.Sequential(
            nn.GroupNorm(8, width), nn.SiLU(), nn.Conv2d(width, width, 5, padding=2)
        )
        self.last = nn.Sequential(
            nn.GroupNorm(8, width), nn.SiLU(), nn.Conv2d(width, 1, 3, padding=1)
        )

    def forward(self, x, t):
        x = self.first(x) + self.times(t)[:, :, None, None]
        return self.last(x + self.middle(x))


def diffusion_loss(model, images):
    """How well the model guesses the noise that was added."""
    t = torch.randint(0, TIMES, (len(images),))
    noise = torch.randn_like(images)
    alpha = ALPHAS[t].view(-1, 1, 1, 1)
    noisy = alpha.sqrt() * images + (1 - alpha).sqrt() * noise
    return mse_loss(model(noisy, t), noise)


@torch.inference_mode()
def evaluate(model, loader):
    """The sum of losses, and the number of images."""
    model.eval()
    totals = torch.zeros(2, dtype=torch.float64)
    for images in loader:
        totals[0] += diffusion_loss(model, images) * len(images)
        totals[1] += len(images)
    return totals


def main():
    train_set, val_set = make_images(250, seed=1), make_images(101, seed=2)
    train_loader = DataLoader(train_set, BATCH, shuffle=True, drop_last=True)
    val_loader = DataLoader(val_set, BATCH)

    torch.manual_seed(0)
    model = Denoiser()
    ema = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9))
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)

    for epoch in range(EPOCHS):
        model.train()
        for images in train_loader:
            loss = diffusion_loss(model, images)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            ema.update_parameters(model)

        loss, count = evaluate(ema.module, val_loader).tolist()
        print(f"epoch {epoch}: loss {loss / count:.4f} of the average, on {count:.0f} images")
        torch.save({"model": model.state_dict(), "ema": ema.module.state_dict()}, "model.pt")


if __name__ == "__main__":
    main()
