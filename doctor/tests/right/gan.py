"""Two models under DDP, two optimizers, two steps for each batch."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

NOISE = 4


def judged(critic, samples, real):
    logits = critic(samples).squeeze(1)
    return nn.functional.binary_cross_entropy_with_logits(logits, real)


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    angles = 6.28 * torch.rand(80)
    dataset = TensorDataset(torch.stack([angles.cos(), angles.sin()], dim=1))
    sampler = DistributedSampler(dataset, seed=1)
    loader = DataLoader(dataset, batch_size=8, sampler=sampler, drop_last=True)
    generator = DDP(nn.Sequential(nn.Linear(NOISE, 16), nn.ReLU(), nn.Linear(16, 2)))
    critic = DDP(nn.Sequential(nn.Linear(2, 16), nn.LeakyReLU(0.2), nn.Linear(16, 1)))
    makes = torch.optim.Adam(generator.parameters(), lr=1e-3, betas=(0.5, 0.999))
    judges = torch.optim.Adam(critic.parameters(), lr=2e-3, betas=(0.5, 0.999))
    torch.manual_seed(77 + rank)  # other noise on each rank

    for epoch in range(3):
        sampler.set_epoch(epoch)
        for (real,) in loader:
            fake = generator(torch.randn(len(real), NOISE))
            labels = torch.cat([torch.ones(len(real)), torch.zeros(len(fake))])
            judges.zero_grad()
            judged(critic, torch.cat([real, fake.detach()]), labels).backward()
            judges.step()

            makes.zero_grad()
            loss = judged(critic, fake, torch.ones(len(fake)))
            loss.backward()
            makes.step()
        if rank == 0:
            state = {"generator": generator.module.state_dict(), "epoch": epoch}
            torch.save(state, f"gan-{epoch}.pt")
    dist.destroy_process_group()


main()
