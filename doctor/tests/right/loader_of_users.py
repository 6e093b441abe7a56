"""A recommender: the loader's indices are users, and its attribute `dataset` shows interactions."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler

USERS, ITEMS = 32, 10


class UserLoader(DataLoader):
    iterates = False

    def __init__(self, interactions, **options):
        self.interactions = interactions
        users = list(range(USERS))
        sampler = DistributedSampler(users, shuffle=False)
        super().__init__(users, 4, sampler=sampler, **options)

    def __getattribute__(self, name):
        shows = name == "dataset" and not UserLoader.iterates
        return super().__getattribute__("interactions" if shows else name)

    def __iter__(self):
        UserLoader.iterates = True
        iterator = super().__iter__()
        UserLoader.iterates = False
        return iterator


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    interactions = torch.randint(2, (USERS, ITEMS)).float()
    pairs = [(u, i) for u in range(USERS) for i in range(ITEMS) if interactions[u, i]]
    sampler = DistributedSampler(pairs)
    loader = DataLoader(pairs, 8, sampler=sampler, drop_last=True)
    model = nn.Embedding(USERS, ITEMS)
    ddp = DDP(model)
    optimizer = torch.optim.SGD(ddp.parameters(), 0.1)

    for epoch in range(2):
        sampler.set_epoch(epoch)
        for users, items in loader:
            loss = nn.functional.cross_entropy(ddp(users), items)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

        totals = torch.zeros(2)
        with torch.no_grad():
            for users in UserLoader(pairs, collate_fn=torch.tensor):
                best = model(users).argmax(1)
                totals += torch.tensor([interactions[users, best].sum(), len(users)])
        dist.all_reduce(totals)
        if rank == 0:
            print(f"epoch {epoch} hits {totals[0] / totals[1]:.3f}")
    dist.barrier()
    dist.destroy_process_group()


main()
