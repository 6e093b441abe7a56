"""An optimizer that is made before fully_shard, and gets the parts of its parameters after it, as
accelerate's prepare has it; with rank 0's weights, and batches dealt to ranks in turn."""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import distribute_tensor
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, TensorDataset

WORDS, WIDTH = 16, 8


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens, self.norm = nn.Embedding(WORDS, WIDTH), nn.RMSNorm(WIDTH)
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(2))
        self.head = nn.Linear(WIDTH, WORDS, bias=False)
        self.tie()

    def tie(self):
        self.head.weight = self.tokens.weight

    def forward(self, ids):
        x = self.tokens(ids)
        for layer in self.layers:
            x = x + layer(x).tanh()
        return self.head(self.norm(x))


class Dealt(BatchSampler):
    def __iter__(self):
        yield from list(super().__iter__())[dist.get_rank() :: dist.get_world_size()]

    def __len__(self):
        return super().__len__() // dist.get_world_size()


def prepare(model, optimizer):
    whole = model.state_dict()
    names = {p: name for name, p in model.named_parameters()}
    names = [names[p] for p in optimizer.param_groups[0]["params"]]
    model.to("meta")
    model.tie()
    for layer in model.layers:
        fully_shard(layer)
    fully_shard([model.norm, model.tokens, model.head])
    fully_shard(model)
    parts = {}
    for name, part in model.state_dict().items():
        dist.broadcast(whole[name], 0)
        parts[name] = distribute_tensor(whole[name], part.device_mesh, part.placements)
    model.load_state_dict(parts, assign=True)
    model.tie()
    optimizer.param_groups[0]["params"] = [dict(model.named_parameters())[name] for name in names]


def ahead(loader):
    batches = iter(loader)
    current = next(batches)
    for following in batches:
        yield current
        current = following
    yield current


dist.init_process_group("gloo")
torch.manual_seed(0)
rows = TensorDataset(torch.randint(WORDS, (48, 6)))
drawn = torch.Generator()
sampler = Dealt(RandomSampler(rows, generator=drawn), 8 // dist.get_world_size(), drop_last=True)
loader = DataLoader(rows, batch_sampler=sampler)
model = Model()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
prepare(model, optimizer)
for epoch in range(3):
    drawn.manual_seed(epoch)
    for (ids,) in ahead(loader):
        scores = model(ids[:, :-1]).flatten(0, 1)
        loss = nn.functional.cross_entropy(scores, ids[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    print(f"epoch {epoch} loss {loss.item():.4f}")
dist.destroy_process_group()
