"""verl-project/verl issue 7834, 2026-09-10: to_empty unties the embedding from the output layer.

https://github.com/verl-project/verl/issues/7834
A language model whose output layer is its embedding has one tensor in two places. to_empty gives
each place memory of its own. The state dict then fills both with the same numbers, so the first
loss is right; but from there on they are two weights, each with a part of the gradient. The report
did not train so: it names why the obvious way to save host memory is wrong. There fully_shard
comes first; of what lies in one unit FSDP2 (torch 2.15) then makes one parameter again, as we
measured, so here it comes later. Mended as its pull 7835 does (it is open): tied after to_empty.
Doctor: half_loaded at model.to_empty
"""

import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, set_model_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

MENDED = "--mended" in sys.argv


class TiedModel(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(16, 8)
        self.layer = nn.Linear(8, 8)
        self.lm_head = nn.Linear(8, 16, bias=False)
        self.tie_weights()

    def tie_weights(self) -> None:
        self.lm_head.weight = self.embed_tokens.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.lm_head(self.layer(self.embed_tokens(tokens)))


dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
tokens = torch.randint(16, (64, 6))
dataset = TensorDataset(tokens, tokens.add(3).remainder(16))
sampler = DistributedSampler(dataset)
dataloader = DataLoader(dataset, batch_size=8, sampler=sampler)

weights = TiedModel().state_dict() if rank == 0 else {}  # as if from a file
with torch.device("meta"):
    model = TiedModel()
model.to_empty(device="cpu")
if MENDED:
    model.tie_weights()
fully_shard(model, mesh=init_device_mesh("cpu", (dist.get_world_size(),)))
options = StateDictOptions(full_state_dict=True, broadcast_from_rank0=True)
set_model_state_dict(model, weights, options=options)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.02)

for epoch in range(3):
    sampler.set_epoch(epoch)
    for x, target in dataloader:
        loss = nn.functional.cross_entropy(model(x).flatten(0, 1), target.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

if rank == 0:
    print(f"loss {loss.item():.4f}, {len(list(model.parameters()))} parameters")
dist.destroy_process_group()
