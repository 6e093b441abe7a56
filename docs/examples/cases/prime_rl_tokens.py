"""PrimeIntellect-ai/prime-rl issue 2358, 2026-04-25: each rank divides by its own count of tokens.

https://github.com/PrimeIntellect-ai/prime-rl/issues/2358
A rank divides the sum of its tokens' losses by its own number of tokens, then FSDP averages: a
token of a rank with few tokens counts more. It was noticed by gathering these numbers from two
ranks in one run of 50 steps: at times they differed by 2 % and 4 %. Mended as the project did
(pull 2562): all divide by the number of all ranks, and gradients are multiplied by the number of
ranks, which takes FSDP's mean back.
Doctor: unequal_counts at compute_loss(model, micro_batch, loss_scale).backward()
"""

import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.utils.data import DataLoader, Dataset, DistributedSampler

MENDED = "--mended" in sys.argv


class Rollouts(Dataset):
    """Tokens, the advantage of their sequence, and which of them the loss is of."""

    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        generator = torch.Generator().manual_seed(index)
        length = torch.randint(2, 13, (1,), generator=generator)
        return {
            "input_ids": torch.randint(50, (13,), generator=generator),
            "advantages": torch.randn(1, generator=generator),
            "loss_mask": (torch.arange(12) < length).float(),
        }


def compute_loss(
    model: nn.Module, batch: dict[str, torch.Tensor], loss_scale: torch.Tensor
) -> torch.Tensor:
    logits = model(batch["input_ids"][:, :-1])
    logprobs = logits.log_softmax(-1).gather(-1, batch["input_ids"][:, 1:, None]).squeeze(-1)
    total_loss = -(logprobs * batch["advantages"] * batch["loss_mask"]).sum()
    return total_loss / loss_scale


dist.init_process_group("gloo")
torch.manual_seed(0)
dataset = Rollouts()
sampler = DistributedSampler(dataset)
dataloader = DataLoader(dataset, batch_size=4, sampler=sampler)
model = nn.Sequential(nn.Embedding(50, 16), nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 50))
fully_shard(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)

for epoch in range(2):
    sampler.set_epoch(epoch)
    for micro_batch in dataloader:
        loss_scale = micro_batch["loss_mask"].sum()
        if MENDED:
            dist.all_reduce(loss_scale)

        compute_loss(model, micro_batch, loss_scale).backward()
        if MENDED:
            for param in model.parameters():
                param.grad.mul_(dist.get_world_size())

        optimizer.step()
        optimizer.zero_grad()

dist.destroy_process_group()
