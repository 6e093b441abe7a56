"""karpathy/build-nanogpt pull 30, 2024-06-17: the switch for averaging is set after the forward.

https://github.com/karpathy/build-nanogpt/pull/30
DDP reads require_backward_grad_sync in the forward pass. It was set between forward and
backward, so each forward saw the value of the micro-step before: the first micro-step of a step
was averaged, the last one was not. The author noticed it when 4 micro-steps of 16 in place of one
of 64 changed the loss: after 1000 steps 4.88 in validation, and 4.15 once it was mended.
Mended as the project did: the line stands above the forward.
Doctor: unequal_gradients at loss.backward()
"""

import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

MENDED = "--mended" in sys.argv


class GPT(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.wte = nn.Embedding(64, 16)
        self.lm_head = nn.Linear(16, 64)

    def forward(self, idx: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        logits = self.lm_head(self.wte(idx))
        return nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())


class DataLoaderLite:
    def __init__(self, B: int, T: int, process_rank: int, num_processes: int) -> None:
        self.B, self.T = B, T
        self.tokens = torch.randint(0, 64, (4096,)).sort().values
        self.position = B * T * process_rank
        self.stride = B * T * num_processes

    def next_batch(self) -> tuple[torch.Tensor, torch.Tensor]:
        buf = self.tokens[self.position : self.position + self.B * self.T + 1]
        self.position += self.stride
        return buf[:-1].view(self.B, self.T), buf[1:].view(self.B, self.T)


dist.init_process_group("gloo")
ddp_rank, ddp_world_size = dist.get_rank(), dist.get_world_size()
torch.manual_seed(1337)

grad_accum_steps = 4
train_loader = DataLoaderLite(B=4, T=8, process_rank=ddp_rank, num_processes=ddp_world_size)
model = DDP(GPT())
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)

for step in range(12):
    optimizer.zero_grad()
    loss_accum = torch.zeros(())

    for micro_step in range(grad_accum_steps):
        x, y = train_loader.next_batch()
        if MENDED:
            model.require_backward_grad_sync = micro_step == grad_accum_steps - 1
            loss = model(x, y)
        else:
            loss = model(x, y)
            model.require_backward_grad_sync = micro_step == grad_accum_steps - 1
        loss = loss / grad_accum_steps
        loss_accum += loss.detach()
        loss.backward()

    dist.all_reduce(loss_accum, op=dist.ReduceOp.SUM)
    norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    if ddp_rank == 0:
        print(f"step {step} | loss {loss_accum / ddp_world_size:.4f} | norm {norm:.4f}")

dist.destroy_process_group()
