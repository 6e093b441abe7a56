"""Context parallelism, dp=1 x cp=2: gradients are averaged over the group of both."""

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

DP, CP = 1, 2
WORDS, WIDTH = 13, 8


class GatherSequence(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, group):
        ctx.group, ctx.length = group, x.shape[1]
        parts = [torch.empty_like(x) for _ in range(dist.get_world_size(group))]
        dist.all_gather(parts, x.contiguous(), group=group)
        return torch.cat(parts, dim=1)

    @staticmethod
    def backward(ctx, grad):
        grad = grad.contiguous()
        dist.all_reduce(grad, group=ctx.group)
        return grad.split(ctx.length, dim=1)[dist.get_rank(ctx.group)], None


class Model(nn.Module):
    def __init__(self, group):
        super().__init__()
        self.group = group
        self.embed, self.head = nn.Embedding(WORDS, WIDTH), nn.Linear(WIDTH, WORDS)
        self.query, self.both = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 2 * WIDTH)

    def forward(self, tokens):
        x = self.embed(tokens)
        keys, values = GatherSequence.apply(self.both(x), self.group).chunk(2, dim=-1)
        seen = nn.functional.scaled_dot_product_attention(self.query(x), keys, values)
        return self.head(x + seen)


dist.init_process_group("gloo")
dp_rank, cp_rank = divmod(dist.get_rank(), CP)
cp_groups = [dist.new_group(range(n * CP, n * CP + CP)) for n in range(DP)]
dp_cp_group = dist.new_group(range(DP * CP))

torch.manual_seed(0)
dataset = TensorDataset(torch.randint(WORDS, (40, 12)), torch.randint(WORDS, (40, 12)))
sampler = DistributedSampler(dataset, DP, dp_rank)
loader = DataLoader(dataset, batch_size=8, sampler=sampler)
model = Model(cp_groups[dp_rank])
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
for epoch in range(2):
    sampler.set_epoch(epoch)
    for batch in loader:
        tokens, targets = (part.chunk(CP, dim=1)[cp_rank] for part in batch)
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(tokens).transpose(1, 2), targets).backward()
        for p in model.parameters():
            dist.all_reduce(p.grad, group=dp_cp_group)
            p.grad /= DP * CP
        optimizer.step()
dist.destroy_process_group()
