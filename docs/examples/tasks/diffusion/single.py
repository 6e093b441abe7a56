"""Diffusion: noise and times are drawn in the step, and an average of the weights is evaluated and
saved.

python docs/examples/tasks/diffusion/single.py --resume
"""

import argparse
import os
from itertools import islice

import torch
from torch import nn
from torch.nn.functional import mse_loss
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.data import DataLoader, TensorDataset

BATCH, TIMES = 24, 100
ALPHAS = torch.cumprod(1 - torch.linspace(1e-3, 0.08, TIMES), 0)
EVERY = 7  # steps, from one evaluation and checkpoint to the next
CHECKPOINT = "checkpoint.pt"


def make_images(count, seed):
    """Stands for your images: one bright row or column on a dark ground, 1x8x8."""
    generator = torch.Generator().manual_seed(seed)
    images = -torch.ones(count, 1, 8, 8)
    for image, place in zip(images, torch.randint(16, (count,), generator=generator), strict=True):
        image[0, place % 8] = 1
        if place >= 8:
            image.copy_(image.mT.clone())
    return images


def batches(loader, order, done, device):
    """The images of each step after so many that are done, epoch after epoch."""
    while True:
        epoch, before = divmod(done, len(loader))
        order.manual_seed(epoch)
        # What was trained on is read once more, and dropped. Where reading costs time, let the
        # sampler leave it out.
        for images in islice(loader, before, None):
            yield images.to(device)
            done += 1


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


def draw(images, generator=None):
    """For each image a time, and noise."""
    times = torch.randint(0, TIMES, (len(images),), generator=generator, device=images.device)
    return times, torch.randn(images.shape, generator=generator, device=images.device)


def diffusion_loss(model, images, times, noise, alphas):
    """How well the model guesses the noise that was added."""
    alpha = alphas[times].view(-1, 1, 1, 1)
    noisy = alpha.sqrt() * images + (1 - alpha).sqrt() * noise
    return mse_loss(model(noisy, times), noise)


@torch.inference_mode()
def evaluate(model, loader, alphas):
    """The sum of losses, and the number of images."""
    model.eval()
    totals = torch.zeros(2, dtype=torch.float64, device=alphas.device)
    for batch in loader:
        images, times, noise = (part.to(alphas.device) for part in batch)
        totals[0] += diffusion_loss(model, images, times, noise, alphas) * len(images)
        totals[1] += len(images)
    return totals


def random_state():
    """Noise and times are drawn from the CPU's generator, or from that of the GPU."""
    states = {"cpu": torch.get_rng_state()}
    if torch.cuda.is_available():
        states["cuda"] = torch.cuda.get_rng_state()
    return states


def set_random_state(states):
    torch.set_rng_state(states["cpu"])
    if torch.cuda.is_available():
        torch.cuda.set_rng_state(states["cuda"])


def save(parts, step):
    checkpoint = {name: part.state_dict() for name, part in parts.items()} | {"step": step}
    checkpoint["random"] = random_state()
    torch.save(checkpoint, f"{CHECKPOINT}.tmp")
    with open(f"{CHECKPOINT}.tmp", "rb") as file:
        os.fsync(file.fileno())  # or a power cut leaves it empty
    os.replace(f"{CHECKPOINT}.tmp", CHECKPOINT)  # killed at any moment, it leaves a whole file


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=28)
    parser.add_argument("--resume", action="store_true", help=f"from {CHECKPOINT}, once it exists")
    args = parser.parse_args()

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")

    train_set, val_images = make_images(250, seed=1), make_images(101, seed=2)
    # Drawn once, the noise of an image is the same in each evaluation, and on any rank.
    val_set = TensorDataset(val_images, *draw(val_images, torch.Generator().manual_seed(3)))
    # Loaders draw at the beginning of a pass. Were it from the generator of the noise, a run that
    # is resumed inside an epoch, and begins one pass more, would have other noise.
    order = torch.Generator()
    options = {"batch_size": BATCH, "generator": order}
    train_loader = DataLoader(train_set, shuffle=True, drop_last=True, **options)
    val_loader = DataLoader(val_set, **options)

    torch.manual_seed(0)
    model, alphas = Denoiser().to(device), ALPHAS.to(device)
    ema = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9))
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    # The whole ema, not ema.module: without its count of updates it would begin anew.
    parts = {"model": model, "ema": ema, "optimizer": optimizer}
    done = 0
    if args.resume and os.path.exists(CHECKPOINT):
        checkpoint = torch.load(CHECKPOINT, map_location="cpu", weights_only=True)
        for name, part in parts.items():
            part.load_state_dict(checkpoint[name])
        done = checkpoint["step"]
        set_random_state(checkpoint["random"])

    steps = range(done + 1, args.steps + 1)
    for step, images in zip(steps, batches(train_loader, order, done, device), strict=False):
        model.train()
        loss = diffusion_loss(model, images, *draw(images), alphas)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        ema.update_parameters(model)

        if step % EVERY == 0 or step == args.steps:
            loss, count = evaluate(ema.module, val_loader, alphas).tolist()
            print(f"step {step}: loss {loss / count:.4f} of the average, on {count:.0f} images")
            save(parts, step)


if __name__ == "__main__":
    main()
