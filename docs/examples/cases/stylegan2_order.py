"""rosinality/stylegan2-pytorch issue 199, 2021-03-11: set_epoch is never called.

https://github.com/rosinality/stylegan2-pytorch/issues/199
The training never ends an epoch: a generator goes round the loader for ever, and nothing tells
DistributedSampler that a new round has begun. Every round has the same order. A user noticed that
the data was not shuffled as it should be; the author answered that he had missed it. In 2022
issue 319 asked again, and no version has the call; mended here by set_epoch in the generator.
Doctor: same_order at dataset, batch_size=8
"""

import sys
from collections.abc import Iterator

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import softplus
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

MENDED = "--mended" in sys.argv
ITERATIONS = 12


def sample_data(loader: DataLoader) -> Iterator[torch.Tensor]:
    epoch = 0
    while True:
        if MENDED:
            loader.sampler.set_epoch(epoch)
        for (real_img,) in loader:
            yield real_img
        epoch += 1


def make_noise(batch: int) -> torch.Tensor:
    return torch.randn(batch, 4)


dist.init_process_group("gloo")
torch.manual_seed(0)
dataset = TensorDataset(torch.randn(64, 12) + 1)
loader = DataLoader(dataset, batch_size=8, sampler=DistributedSampler(dataset))

generator = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 12))
discriminator = nn.Sequential(nn.Linear(12, 16), nn.ReLU(), nn.Linear(16, 1))
generator = DistributedDataParallel(generator)
discriminator = DistributedDataParallel(discriminator)
g_optim = torch.optim.Adam(generator.parameters(), lr=0.002)
d_optim = torch.optim.Adam(discriminator.parameters(), lr=0.002)
torch.manual_seed(dist.get_rank())  # for the noise

images = sample_data(loader)
for _ in range(ITERATIONS):
    real_img = next(images)
    with torch.no_grad():
        fake_img = generator(make_noise(8))
    real_pred, fake_pred = discriminator(torch.cat([real_img, fake_img])).chunk(2)
    d_loss = softplus(-real_pred).mean() + softplus(fake_pred).mean()
    d_optim.zero_grad()
    d_loss.backward()
    d_optim.step()

    g_loss = softplus(-discriminator(generator(make_noise(8)))).mean()
    g_optim.zero_grad()
    g_loss.backward()
    g_optim.step()

dist.destroy_process_group()
