"""PrimeIntellect-ai/prime-rl issue 2515, 2026-05-16: ranks validate on unequal numbers of batches.

https://github.com/PrimeIntellect-ai/prime-rl/issues/2515
Texts of all lengths are packed into windows, and the last, partial one is dropped, so ranks have
unequal numbers of validation batches (327 on rank 0, 338 on rank 1). Under FSDP each forward pass
is a collective: the first rank that had none left went on to the all-reduce of the loss, and the
other one waited until the time-out. Mended as the project did (pull 2636): all ranks agree on each
batch, and stop with the first; what the others have left is not evaluated.
Doctor: collective_order at dist.all_reduce(total)
"""

import sys
from collections.abc import Iterator
from datetime import timedelta
from itertools import islice

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.utils.data import DataLoader, IterableDataset

MENDED = "--mended" in sys.argv


class CatDataset(IterableDataset):
    """This rank's texts, one behind the other, in windows of seq_len + 1 tokens."""

    def __init__(self, seed: int, num_texts: int, seq_len: int = 16) -> None:
        generator = torch.Generator().manual_seed(seed)
        lengths = torch.randint(5, 40, (num_texts,), generator=generator).tolist()
        texts = [torch.randint(50, (length,), generator=generator) for length in lengths]
        self.texts = texts[dist.get_rank() :: dist.get_world_size()]
        self.window = seq_len + 1

    def __iter__(self) -> Iterator[torch.Tensor]:
        tokens = torch.cat(self.texts)
        for start in range(0, len(tokens) - self.window, self.window):
            yield tokens[start : start + self.window]


def compute_loss(model: nn.Module, micro_batch: torch.Tensor) -> torch.Tensor:
    logits = model(micro_batch[:, :-1])
    return nn.functional.cross_entropy(logits.flatten(0, 1), micro_batch[:, 1:].flatten())


@torch.no_grad()
def run_eval_loop(model: nn.Module, dataloader: DataLoader) -> float:
    total = torch.zeros(2)
    data_iterator = iter(dataloader)
    while True:
        micro_batch = next(data_iterator, None)
        has_data = torch.tensor(micro_batch is not None, dtype=torch.int32)
        if MENDED:
            dist.all_reduce(has_data, dist.ReduceOp.MIN)
        if not has_data:
            break
        total += torch.tensor([compute_loss(model, micro_batch).item(), 1.0])

    dist.all_reduce(total)
    return (total[0] / total[1]).item()


dist.init_process_group("gloo", timeout=timedelta(seconds=8))
torch.manual_seed(0)
model = nn.Sequential(nn.Embedding(50, 16), nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 50))
for layer in (model[1], model[3], model):
    fully_shard(layer)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
train_loader = DataLoader(CatDataset(seed=0, num_texts=64), batch_size=4)
val_loader = DataLoader(CatDataset(seed=1, num_texts=20), batch_size=1)

for micro_batch in islice(train_loader, 6):
    compute_loss(model, micro_batch).backward()
    optimizer.step()
    optimizer.zero_grad()
val_loss = run_eval_loop(model, val_loader)
if dist.get_rank() == 0:
    print(f"validation loss {val_loss:.3f}")
dist.destroy_process_group()
