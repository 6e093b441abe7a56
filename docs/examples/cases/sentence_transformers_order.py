"""huggingface/sentence-transformers issue 3069, 2024-11-18: every epoch has the same batches.

https://github.com/huggingface/sentence-transformers/issues/3069
NoDuplicatesBatchSampler shuffled the indices and put them into a set, and a set of small integers
comes out in their order. Nor did set_epoch reach the sampler: accelerate passed it on to samplers,
but not to batch samplers. It was noticed by reading. Mended as both projects did (pull 3073,
accelerate pull 3246): a dict, which keeps the order, and set_epoch for batch samplers as well.
Doctor: same_order at DataLoader(pairs,
"""

import sys
from collections.abc import Iterator

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Sampler, TensorDataset

MENDED = "--mended" in sys.argv


class NoDuplicatesBatchSampler(Sampler):
    def __init__(self, answers: list[int], batch_size: int) -> None:
        self.answers = answers  # for each pair the number of its answer
        self.batch_size = batch_size
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def batches(self) -> Iterator[list[int]]:
        generator = torch.Generator().manual_seed(12 + self.epoch)
        shuffled = torch.randperm(len(self.answers), generator=generator).tolist()
        if MENDED:
            remaining = dict.fromkeys(shuffled)
        else:
            remaining = dict.fromkeys(set(shuffled))

        while remaining:
            batch = {}  # the number of an answer -> the first pair that has it
            for index in remaining:
                if len(batch) < self.batch_size:
                    batch.setdefault(self.answers[index], index)
            if len(batch) == self.batch_size:
                yield list(batch.values())
            for index in batch.values():
                remaining.pop(index)

    def __iter__(self) -> Iterator[list[int]]:
        batches = list(self.batches())
        world_size = dist.get_world_size()
        full = len(batches) // world_size * world_size
        return iter(batches[dist.get_rank() : full : world_size])


dist.init_process_group("gloo")
torch.manual_seed(0)
answers = torch.randint(48, (96,))  # several questions have the same answer
answer = torch.randn(48, 12)[answers]
pairs = TensorDataset(answer + 0.3 * torch.randn(96, 12), answer)
batch_sampler = NoDuplicatesBatchSampler(answers.tolist(), batch_size=8)
loader = DataLoader(pairs, batch_sampler=batch_sampler)
model = DistributedDataParallel(nn.Linear(12, 8))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)

for epoch in range(2):
    if MENDED:
        batch_sampler.set_epoch(epoch)
    for question, answer in loader:
        ours, theirs = model(torch.cat([question, answer])).chunk(2)
        loss = nn.functional.cross_entropy(ours @ theirs.T, torch.arange(len(ours)))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

dist.destroy_process_group()
