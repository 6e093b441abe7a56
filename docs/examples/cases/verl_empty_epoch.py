"""verl-project/verl issue 7401, 2026-08-14: a resumed job leaves out an epoch, with status 0.

https://github.com/verl-project/verl/issues/7401
A checkpoint that is made at the end of an epoch holds the state of a loader that is used up. The
resumed job computes the next epoch from its step, and gives the loader that state: the epoch has no
batches. The reporter showed it on four GPUs. Mended as verl's PPO trainer was in March (pull 5725),
and as two open pulls propose: at the end of an epoch the state is not restored. The doctor notes it
only, as the rest of the old epoch would rightly be empty.
Doctor: empty_epoch at dataloader = StatefulDataLoader(
"""

import sys
from collections.abc import Iterator
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

MENDED = "--mended" in sys.argv
CHECKPOINT = Path("checkpoint.pt")


class ResumableSampler(DistributedSampler):
    skip = 0

    def __iter__(self) -> Iterator[int]:
        skip, self.skip = self.skip, 0
        return iter(list(super().__iter__())[skip:])


class StatefulDataLoader(DataLoader):
    yielded = 0  # batches of the epoch

    def __iter__(self) -> Iterator[list]:
        self.yielded = self.sampler.skip // self.batch_size
        for batch in super().__iter__():
            self.yielded += 1
            yield batch

    def load_state(self, yielded: int) -> None:
        self.sampler.skip = yielded * self.batch_size


def fit(dataset: TensorDataset, epochs: int) -> None:
    model = DistributedDataParallel(nn.Linear(12, 4))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    sampler = ResumableSampler(dataset)
    dataloader = StatefulDataLoader(dataset, batch_size=4, sampler=sampler)
    step = 0
    if CHECKPOINT.exists():
        weights, step, yielded = torch.load(CHECKPOINT)
        model.module.load_state_dict(weights)
        if MENDED:
            if step % len(dataloader) > 0:
                dataloader.load_state(yielded)
        else:
            dataloader.load_state(yielded)

    for epoch in range(step // len(dataloader), epochs):
        sampler.set_epoch(epoch)
        for x, target in dataloader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), target).backward()
            optimizer.step()
            step += 1
    if dist.get_rank() == 0:
        print(f"{step} of {epochs * len(dataloader)} steps")
        torch.save([model.module.state_dict(), step, dataloader.yielded], CHECKPOINT)
    dist.barrier()


dist.init_process_group("gloo")
x = torch.randn(64, 12, generator=torch.Generator().manual_seed(1))
dataset = TensorDataset(x, x[:, :4].argmax(1))
fit(dataset, epochs=1)  # the first job ends here
fit(dataset, epochs=3)
dist.destroy_process_group()
