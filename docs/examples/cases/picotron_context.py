"""huggingface/picotron commit 59714b1, 2025-08-26: context parallel alone averages no gradients.

https://github.com/huggingface/picotron/blob/59714b1bf25541dbeb6f5a721ed15f6d0768e786/train.py#L192
Found by the doctor in November 2026; there is no report that we know of. The wrapper that averages
gradients does so over the ranks of data and context parallel together, and the training step and
the checkpoints count with both. But the model is wrapped only if there is data parallelism. With
context parallelism alone each rank trains on its part of every sequence, and keeps the gradient of
that part for itself. Mended by us: the condition asks for both. The doctor notes it only: tensor
parallelism of parts with one seed looks the same.
Doctor: no_averaging at optimizer.step()
"""

import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.nn.functional import all_gather
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

MENDED = "--mended" in sys.argv
VOCABULARY, WIDTH = 24, 16


class Attention(nn.Module):
    """Queries of a rank's part of the sequence, keys and values of all of it."""

    def __init__(self) -> None:
        super().__init__()
        self.q_proj, self.kv_proj = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 2 * WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        k, v = torch.cat(all_gather(self.kv_proj(x)), 1).chunk(2, -1)
        return x + nn.functional.scaled_dot_product_attention(self.q_proj(x), k, v)


class DataParallelBucket(nn.Module):
    """The wrapper: gradients are averaged over all ranks of data and context parallel."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.module(x)

    def average(self) -> None:
        for p in self.parameters():
            dist.all_reduce(p.grad)
            p.grad /= dist.get_world_size()


dist.init_process_group("gloo")
cp_rank, cp_world_size = dist.get_rank(), dist.get_world_size()
dp_rank, dp_world_size = 0, 1
torch.manual_seed(42)
model = nn.Sequential(nn.Embedding(VOCABULARY, WIDTH), Attention(), nn.Linear(WIDTH, VOCABULARY))
if MENDED:
    wraps = dp_world_size * cp_world_size > 1
else:
    wraps = dp_world_size > 1
if wraps:
    model = DataParallelBucket(model)

text = torch.arange(96 * 17).view(96, 17).square() % VOCABULARY
dataset = TensorDataset(text)
sampler = DistributedSampler(dataset, dp_world_size, dp_rank, shuffle=False)
loader = DataLoader(dataset, batch_size=8, sampler=sampler)
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
for (tokens,) in loader:
    part = tokens[:, cp_rank * 8 : cp_rank * 8 + 9]
    optimizer.zero_grad()
    logits = model(part[:, :-1])
    nn.functional.cross_entropy(logits.flatten(0, 1), part[:, 1:].flatten()).backward()
    if wraps:
        model.average()
    optimizer.step()

print(f"rank {cp_rank}: a weight of the last layer {list(model.parameters())[-2][0, 0].item():.4f}")
dist.destroy_process_group()
