"""lucidrains/vector-quantize-pytorch issue 158, 2024-09-02: a mean over ranks, without autograd.

https://github.com/lucidrains/vector-quantize-pytorch/issues/158
The average use of each code was all-reduced inside the loss, where autograd does not follow; the
reporter saw that the codebook collapsed, and read a warning of PyTorch. The project's remedy, hours
later, is wrong: torch.distributed.nn.all_reduce returns the sum, and the result was dropped. So
nothing is summed any more, and the warning is gone; the code was still so in July 2026.
Mended here by assigning the result of a collective that autograd follows.
Doctor: lost_gradient at dist.all_reduce(t)
"""

import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed._functional_collectives import all_reduce
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

MENDED = "--mended" in sys.argv


def distributed_mean(t: torch.Tensor) -> torch.Tensor:
    if MENDED:
        t = all_reduce(t, "sum", dist.group.WORLD)
    else:
        dist.all_reduce(t)
    return t / dist.get_world_size()


def entropy(prob: torch.Tensor) -> torch.Tensor:
    return -(prob * prob.clamp(min=1e-5).log()).sum(-1)


class LFQ(nn.Module):
    """Codes of -1 and 1; the loss wants each sample sure of its code, and all codes in use."""

    def __init__(self, codebook_dim: int, diversity_gamma: float) -> None:
        super().__init__()
        self.diversity_gamma = diversity_gamma
        signs = torch.tensor([-1.0, 1.0])
        self.register_buffer("codebook", torch.cartesian_prod(*[signs] * codebook_dim))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        quantized = x + (x.sign() - x).detach()
        prob = (2 * x @ self.codebook.T).softmax(-1)
        codebook_entropy = entropy(distributed_mean(prob.mean(0)))
        return quantized, entropy(prob).mean() - self.diversity_gamma * codebook_entropy


class Tokenizer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.decoder = nn.Linear(12, 4), nn.Linear(4, 12)
        self.quantizer = LFQ(codebook_dim=4, diversity_gamma=2.0)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        quantized, entropy_loss = self.quantizer(self.encoder(x))
        return nn.functional.mse_loss(self.decoder(quantized), x) + 0.1 * entropy_loss


dist.init_process_group("gloo")
torch.manual_seed(0)
dataset = TensorDataset(torch.randn(64, 12))
sampler = DistributedSampler(dataset)
dataloader = DataLoader(dataset, batch_size=8, sampler=sampler)
model = DistributedDataParallel(Tokenizer())
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)

for epoch in range(2):
    sampler.set_epoch(epoch)
    for (x,) in dataloader:
        loss = model(x)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

dist.destroy_process_group()
