"""hiyouga/LlamaFactory pull 10820, 2026-09-08: a buffer that no state dict holds is left empty.

https://github.com/hiyouga/LlamaFactory/pull/10820
Rank 0 alone reads the weights; the others build the model on the meta device, to_empty gives them
memory, and the state dict of rank 0 fills it. A buffer with persistent=False, such as the
frequencies of a rotary embedding, is in no state dict, so the others keep what to_empty found.
Nothing raises an error; other projects report NaN. Mended there, and here, by a broadcast of such
buffers.
Doctor: drifting_weights at optimizer = torch
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


class RotaryModel(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.proj = nn.Linear(8, 8)
        self.register_buffer("inv_freq", 1 / 10.0 ** (torch.arange(8) / 8), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.proj(x * self.inv_freq.cos())


dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
inputs = torch.randn(64, 8)
dataset = TensorDataset(inputs, inputs.flip(1))
sampler = DistributedSampler(dataset)
dataloader = DataLoader(dataset, batch_size=8, sampler=sampler)

with torch.device("cpu" if rank == 0 else "meta"):
    model = RotaryModel()
weights = model.state_dict() if rank == 0 else {}
rotary = model.inv_freq.clone()
fully_shard(model, mesh=init_device_mesh("cpu", (dist.get_world_size(),)))
model.to_empty(device="cpu")
model.inv_freq.zero_()  # what to_empty finds differs from run to run
options = StateDictOptions(full_state_dict=True, broadcast_from_rank0=True)
set_model_state_dict(model, weights, options=options)
if rank == 0:
    model.inv_freq.copy_(rotary)
if MENDED:
    dist.broadcast(model.inv_freq, src=0)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.02)

for epoch in range(3):
    sampler.set_epoch(epoch)
    for x, target in dataloader:
        loss = nn.functional.mse_loss(model(x), target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

print(f"rank {rank}, loss {loss.item():.4f}, inv_freq adds up to {model.inv_freq.sum().item():.2f}")
dist.destroy_process_group()
