"""Diffusion: noise and times are drawn in the step, and an average of the weights is evaluated and
saved.

torchrun --standalone --nproc-per-node 2 docs/examples/tasks/diffusion/multi.py --resume
"""

import argparse
import os
from itertools import islice

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import mse_loss
from torch.nn.parallel import DistributedDataParallel
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

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


def batches(loader, done, device):
    """The images of each step after so many that are done, epoch after epoch."""
    while True:
        epoch, before = divmod(done, len(loader))
        loader.sampler.set_epoch(epoch)
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
    """On all ranks: the random states are each rank's own, all else is that of rank 0."""
    checkpoint = {name: part.state_dict() for name, part in parts.items()} | {"step": step}
    checkpoint["random"] = [None] * dist.get_world_size()
    dist.all_gather_object(checkpoint["random"], random_state())
    if dist.get_rank() == 0:
        torch.save(checkpoint, f"{CHECKPOINT}.tmp")
        with open(f"{CHECKPOINT}.tmp", "rb") as file:
            os.fsync(file.fileno())  # or a power cut leaves it empty
        os.replace(f"{CHECKPOINT}.tmp", CHECKPOINT)  # killed at any moment, it leaves a whole file


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=28)
    parser.add_argument("--resume", action="store_true", help=f"from {CHECKPOINT}, once it exists")
    args = parser.parse_args()

    device = torch.device("cpu")
    if torch.cuda.is_available():
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    rank, world_size = dist.get_rank(), dist.get_world_size()

    train_set, val_images = make_images(250, seed=1), make_images(101, seed=2)
    # Drawn once, the noise of an image is the same in each evaluation, and on any rank.
    val_set = TensorDataset(val_images, *draw(val_images, torch.Generator().manual_seed(3)))
    # Loaders draw at the beginning of a pass. Were it from the generator of the noise, a run that
    # is resumed inside an epoch, and begins one pass more, would have other noise.
    own = torch.Generator().manual_seed(1 + rank)
    options = {"batch_size": BATCH // world_size, "generator": own}
    sampler = DistributedSampler(train_set, drop_last=True)
    train_loader = DataLoader(train_set, sampler=sampler, drop_last=True, **options)
    share = range(rank, len(val_set), world_size)
    val_loader = DataLoader(val_set, sampler=share, **options)

    torch.manual_seed(0)
    model, alphas = Denoiser().to(device), ALPHAS.to(device)
    ema = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9))
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    torch.manual_seed(1 + rank)  # other noise on each rank
    # The whole ema, not ema.module: without its count of updates it would begin anew.
    parts = {"model": model, "ema": ema, "optimizer": optimizer}
    done = 0
    # Each rank reads the file: on several machines it lies on a disk that they share.
    if args.resume and os.path.exists(CHECKPOINT):
        checkpoint = torch.load(CHECKPOINT, map_location="cpu", weights_only=True)
        for name, part in parts.items():
            part.load_state_dict(checkpoint[name])
        done = checkpoint["step"]
        # Another number of ranks goes on with the same images, and with other noise.
        torch.manual_seed(1 + rank + 1000 * done)
        if len(checkpoint["random"]) == world_size:
            set_random_state(checkpoint["random"][rank])
    ddp_model = DistributedDataParallel(model)

    steps = range(done + 1, args.steps + 1)
    for step, images in zip(steps, batches(train_loader, done, device), strict=False):
        model.train()
        loss = diffusion_loss(ddp_model, images, *draw(images), alphas)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        ema.update_parameters(model)

        if step % EVERY == 0 or step == args.steps:
            totals = evaluate(ema.module, val_loader, alphas)
            dist.all_reduce(totals)
            loss, count = totals.tolist()
            if rank == 0:
                print(f"step {step}: loss {loss / count:.4f} of the average, on {count:.0f} images")
            save(parts, step)

    dist.destroy_process_group()


if __name__ == "__main__":
    main()
