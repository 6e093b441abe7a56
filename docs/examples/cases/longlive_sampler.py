"""NVlabs/LongLive issue 71, 2026-07-14: each rank's sampler has a seed of its own.

https://github.com/NVlabs/LongLive/issues/71
The seed was the time multiplied by the rank: 0 on rank 0, something else on all others. So each
rank took its share of another permutation: some samples came to several ranks, others to none.
It was noticed by reading; the reporter proposed a test on the CPU that asks whether the shares
are disjoint and complete. Mended as the project did (pull 74): the seed that all ranks share.
Doctor: overlapping_samples at dataset, batch_size=4
"""

import sys
from collections.abc import Iterator

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

MENDED = "--mended" in sys.argv
START = 1_784_000_000  # theirs was time.time(), so each run overlapped in another way


def cycle(dataloader: DataLoader) -> Iterator[torch.Tensor]:
    epoch = 0
    while True:
        dataloader.sampler.set_epoch(epoch)
        yield from dataloader
        epoch += 1


class Trainer:
    def __init__(self, seed: int) -> None:
        torch.manual_seed(seed)
        dataset = TensorDataset(torch.randn(64, 6, 4))  # videos of six frames
        net = nn.Sequential(nn.Linear(5, 32), nn.SiLU(), nn.Linear(32, 4))
        self.model = DistributedDataParallel(net)
        self.optimizer = torch.optim.AdamW(net.parameters(), lr=0.01)
        torch.manual_seed(seed + dist.get_rank())  # for the noise

        if MENDED:
            sampler_seed = seed
        else:
            sampler_seed = START * dist.get_rank()
        sampler = DistributedSampler(dataset, seed=sampler_seed, drop_last=True)
        self.dataloader = cycle(DataLoader(dataset, batch_size=4, sampler=sampler))

    def train_one_step(self) -> None:
        (video,) = next(self.dataloader)
        noise = torch.randn_like(video)
        timestep = torch.rand(len(video), 1, 1).expand(-1, 6, 1)
        noisy = timestep * noise + (1 - timestep) * video
        flow = self.model(torch.cat([noisy, timestep], 2))
        self.optimizer.zero_grad()
        nn.functional.mse_loss(flow, noise - video).backward()
        self.optimizer.step()

    def train(self, steps: int) -> None:
        for _ in range(steps):
            self.train_one_step()


dist.init_process_group("gloo")
Trainer(seed=7).train(steps=16)
dist.destroy_process_group()
