"""Each rank has its part of every text, and gathers keys and values: sequences cut under DDP."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset

WORDS, LENGTH, WIDTH = 11, 8, 8


class Gather(torch.autograd.Function):
    """The parts of all ranks, in a row. torch.distributed.nn's all_gather, over gloo, misplaces
    gradients that are not contiguous (torch 2.15)."""

    @staticmethod
    def forward(ctx, x):
        parts = [torch.empty_like(x) for _ in range(dist.get_world_size())]
        dist.all_gather(parts, x)
        return torch.cat(parts, dim=1)

    @staticmethod
    def backward(ctx, gradient):
        gradient = gradient.contiguous()
        dist.all_reduce(gradient)
        return gradient.chunk(dist.get_world_size(), dim=1)[dist.get_rank()]


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)

    def forward(self, x):
        q, k, v = self.qkv(x).chunk(3, dim=-1)
        k, v = Gather.apply(torch.cat([k, v], dim=2)).chunk(2, dim=2)
        first = dist.get_rank() * q.shape[1]
        place = torch.arange(first, first + q.shape[1])
        mask = place[:, None] >= torch.arange(k.shape[1])
        return x + nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)


def main():
    dist.init_process_group("gloo")
    rank, world_size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    tokens = torch.randint(WORDS, (48, LENGTH + 1))
    loader = DataLoader(TensorDataset(tokens), batch_size=8, shuffle=True)
    model = nn.Sequential(nn.Embedding(WORDS, WIDTH), Attention(), nn.Linear(WIDTH, WORDS))
    ddp = DDP(model)
    optimizer = torch.optim.Adam(ddp.parameters(), lr=0.01)

    for epoch in range(3):
        for (tokens,) in loader:  # every rank draws the same texts: the seed is the same
            inputs = tokens[:, :-1].chunk(world_size, dim=1)[rank]
            targets = tokens[:, 1:].chunk(world_size, dim=1)[rank]
            loss = nn.functional.cross_entropy(ddp(inputs).flatten(0, 1), targets.flatten())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        if rank == 0:
            print(epoch, round(loss.item(), 4))
    dist.destroy_process_group()


main()
