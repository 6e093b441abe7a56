"""A GAN: two networks, two optimizers, and latent codes that are drawn in the step.

python docs/examples/tasks/gan/single.py
"""

import math

import torch
from torch import nn
from torch.utils.data import DataLoader

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
    train_set = make_points(250, seed=1)
    train_loader = DataLoader(train_set, BATCH, shuffle=True, drop_last=True)

    torch.manual_seed(0)
    netG, netD = network(LATENT, 2), network(2, 1)
    optimizerG = torch.optim.Adam(netG.parameters(), lr=1e-3, betas=(0.5, 0.999))
    optimizerD = torch.optim.Adam(netD.parameters(), lr=1e-3, betas=(0.5, 0.999))
    criterion = nn.BCEWithLogitsLoss()
    fixed_noise = torch.randn(200, LATENT)

    for epoch in range(EPOCHS):
        totals = torch.zeros(3, dtype=torch.float64)
        for real in train_loader:
            # The discriminator: real is 1, fake is 0.
            noise = torch.randn(len(real), LATENT)
            fake = netG(noise)
            scores_real, scores_fake = netD(real), netD(fake.detach())
            lossD = criterion(scores_real, torch.ones_like(scores_real))
            lossD = lossD + criterion(scores_fake, torch.zeros_like(scores_fake))
            optimizerD.zero_grad()
            lossD.backward()
            optimizerD.step()

            # The generator: fake shall pass for real.
            scores = netD(fake)
            lossG = criterion(scores, torch.ones_like(scores))
            optimizerG.zero_grad()
            lossG.backward()
            optimizerG.step()
            totals += torch.tensor([lossD.item() * len(real), lossG.item() * len(real), len(real)])

        lossD, lossG = (totals[:2] / totals[2]).tolist()
        with torch.no_grad():
            radius = netG(fixed_noise).norm(dim=1).mean()
        print(f"epoch {epoch}: loss D {lossD:.4f}, G {lossG:.4f}, mean radius {radius:.4f}")
        torch.save({"netG": netG.state_dict(), "netD": netD.state_dict()}, "model.pt")


if __name__ == "__main__":
    main()
