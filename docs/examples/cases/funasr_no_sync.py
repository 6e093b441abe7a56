"""modelscope/FunASR pull 3472, 2026-08-05: the wrong micro-batch is synchronised.

https://github.com/modelscope/FunASR/pull/3472
With gradient accumulation the first micro-batch of each group was averaged, and the last ones
were inside no_sync: at the step each rank held gradients of its own. With accum_grad=1, as in
most tests, both conditions agree. It was found by reading, and shown on two CPU ranks: 4.0 and
7.0, where both must be 5.5. Mended as the project did, in one of its two trainers: the same
condition decides about no_sync and about the step.
Doctor: unequal_gradients at self.forward_step(*batch).backward()
"""

import sys
from contextlib import nullcontext

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler

MENDED = "--mended" in sys.argv


class Speech(Dataset):
    """Features of utterances, (frames, 10), and a label for each frame, (frames,)."""

    def __len__(self) -> int:
        return 96

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        generator = torch.Generator().manual_seed(index)
        speech = torch.randn(20, 10, generator=generator)
        return speech, speech[:, :4].argmax(1)


class Trainer:
    def __init__(self, accum_grad: int) -> None:
        self.accum_grad = accum_grad
        self.model = DistributedDataParallel(nn.Linear(10, 4))
        self.optim = torch.optim.Adam(self.model.parameters(), lr=0.01)

    def train_epoch(self, dataloader: DataLoader, epoch: int) -> None:
        dataloader.sampler.set_epoch(epoch)
        for batch_idx, batch in enumerate(dataloader):
            last = (batch_idx + 1) % self.accum_grad == 0
            if MENDED:
                my_context = nullcontext if last else self.model.no_sync
            else:
                my_context = self.model.no_sync if batch_idx % self.accum_grad else nullcontext
            with my_context():
                self.forward_step(*batch).backward()
            if last:
                self.optim.step()
                self.optim.zero_grad()

    def forward_step(self, speech: torch.Tensor, text: torch.Tensor) -> torch.Tensor:
        loss = nn.functional.cross_entropy(self.model(speech).flatten(0, 1), text.flatten())
        return loss / self.accum_grad


dist.init_process_group("gloo")
torch.manual_seed(0)
dataset = Speech()
trainer = Trainer(accum_grad=4)
loader = DataLoader(dataset, batch_size=4, sampler=DistributedSampler(dataset))
for epoch in range(2):
    trainer.train_epoch(loader, epoch)
dist.destroy_process_group()
