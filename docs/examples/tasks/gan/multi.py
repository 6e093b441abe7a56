"""A GAN: two networks, two optimizers, and latent codes that are drawn in the step.

torchrun --standalone --nproc-per-node 2 docs/examples/tasks/gan/multi.py
"""

import math

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

EPOCHS, BATCH, LATENT = 3, 24, 8


def make_points(count, seed):
    """Stands for your images: points around eight centres on a circle."""
    generator = torch.Generator().manual_seed(seed)
    angles = torch.randint(8, (count,), generator=generator) * (math.pi / 4)
    centres = torch.stack([angles.cos(), angles.sin()], 1)
    return centres + 0.05 * torch.randn(count, 2, generator=generator)


def network(inputs, outputs, width=64):
    layers = [nn.Linear(inputs, width), nn.LeakyReLU(0.2), nn.Linear(width, width)]
    return nn.Sequential(*layers, nn.LeakyReLU(0.2), nn.Linear(width, outputs))


def main():
    dist.init_process_group("gloo")
    rank, world_size = dist.get_rank(), dist.get_world_size()

    train_set = make_points(250, seed=1)
    sampler = DistributedSampler(train_set, drop_last=True)
    train_loader = DataLoader(train_set, BATCH // world_size, sampler=sampler, drop_last=True)

    torch.manual_seed(0)
    netG, netD = network(LATENT, 2), network(2, 1)
    ddpG, ddpD = DistributedDataParallel(netG), DistributedDataParallel(netD)
    optimizerG = torch.optim.Adam(netG.parameters(), lr=1e-3, betas=(0.5, 0.999))
    optimizerD = torch.optim.Adam(netD.parameters(), lr=1e-3, betas=(0.5, 0.999))
    criterion = nn.BCEWithLogitsLoss()
    fixed_noise = torch.randn(200, LATENT)
    torch.manual_seed(1 + rank)  # other codes on each rank

    for epoch in range(EPOCHS):
        sampler.set_epoch(epoch)
        totals = torch.zeros(3, dtype=torch.float64)
        for real in train_loader:
            # The discriminator: real is 1, fake is 0.
            noise = torch.randn(len(real), LATENT)
            fake = ddpG(noise)
            scores_real, scores_fake = ddpD(real), ddpD(fake.detach())
            lossD = criterion(scores_real, torch.ones_like(scores_real))
            lossD = lossD + criterion(scores_fake, torch.zeros_like(scores_fake))
            optimizerD.zero_grad()
            lossD.backward()
            optimizerD.step()

            # The generator: fake shall pass for real. Gradients of netD are thrown away: no DDP.
            scores = netD(fake)
            lossG = criterion(scores, torch.ones_like(scores))
            optimizerG.zero_grad()
            lossG.backward()
            optimizerG.step()
            totals += torch.tensor([lossD.item() * len(real), lossG.item() * len(real), len(real)])

        dist.all_reduce(totals)
        lossD, lossG = (totals[:2] / totals[2]).tolist()
        with torch.no_grad():
            radius = netG(fixed_noise).norm(dim=1).mean()
        if rank == 0:
            print(f"epoch {epoch}: loss D {lossD:.4f}, G {lossG:.4f}, mean radius {radius:.4f}")
            torch.save({"netG": netG.state_dict(), "netD": netD.state_dict()}, "model.pt")

    dist.destroy_process_group()


if __name__ == "__main__":
    main()
