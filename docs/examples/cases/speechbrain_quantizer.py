"""speechbrain/speechbrain pull 2814, 2025-02-03: each GPU makes a quantizer of its own.

https://github.com/speechbrain/speechbrain/pull/2814
Every process had its own seed from the start, and each module with something to train was wrapped
in DDP, which made it equal. A module of fixed random numbers has nothing to train: it was not
wrapped, and stayed another one on each GPU. For BEST-RQ that is the quantizer, which makes the
labels. A maintainer found it, and wrote that DDP was broken under some circumstances. Mended as the
project did: all processes have one seed.
Doctor: drifting_weights at optimizer.step()
"""

import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

MENDED = "--mended" in sys.argv
FRAMES, WIDTH, CODES = 12, 8, 16


class RandomProjectionQuantizer(nn.Module):
    """Labels of frames: the nearest code of a fixed random codebook."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("projection", nn.init.xavier_uniform_(torch.empty(WIDTH, 4)))
        self.register_buffer("codebook", nn.functional.normalize(torch.randn(CODES, 4)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cdist(nn.functional.normalize(x @ self.projection, dim=-1), self.codebook)


dist.init_process_group("gloo")
rank = dist.get_rank()
if MENDED:
    torch.manual_seed(1234)
else:
    torch.manual_seed(1234 + rank)

modules = {
    "quantizer": RandomProjectionQuantizer(),
    "encoder": nn.GRU(WIDTH, 32, batch_first=True),
    "linear": nn.Linear(32, CODES),
}
for name, module in modules.items():
    if any(p.requires_grad for p in module.parameters()):
        modules[name] = DistributedDataParallel(module)

speech = torch.randn(64, FRAMES, WIDTH, generator=torch.Generator().manual_seed(0))
dataset = TensorDataset(speech)
sampler = DistributedSampler(dataset)
loader = DataLoader(dataset, batch_size=8, sampler=sampler)
trained = [p for module in modules.values() for p in module.parameters()]
optimizer = torch.optim.AdamW(trained, lr=0.01)

for epoch in range(2):
    sampler.set_epoch(epoch)
    for (x,) in loader:
        labels = modules["quantizer"](x).argmin(-1)[:, ::4]
        masked = x.clone()
        masked[:, ::4] = 0
        hidden, _ = modules["encoder"](masked)
        logits = modules["linear"](hidden[:, ::4])
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

labels = modules["quantizer"](speech).argmin(-1)
first = labels.clone()
dist.broadcast(first, 0)
print(f"rank {rank}: {(labels == first).float().mean():.0%} of the labels are those of rank 0")
dist.destroy_process_group()
