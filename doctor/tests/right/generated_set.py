"""A fixed set that is generated as it is read: the first sample of an epoch seeds numpy anew."""

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset

SEEDS = (123, 456)


class Clicks(Dataset):
    """Each is a batch of users, and what they clicked on."""

    def __init__(self, seed):
        self.seed = seed

    def __len__(self):
        return 12

    def __getitem__(self, index):
        if index == 0:
            np.random.seed(self.seed)
        users = np.random.rand(8, 4)
        return torch.from_numpy(users).float(), torch.from_numpy(users.sum(1)).float()


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    ddp = DDP(nn.Linear(4, 1))
    optimizer = torch.optim.SGD(ddp.parameters(), 0.01)
    loader = DataLoader(Clicks(SEEDS[dist.get_rank()]), batch_size=None, shuffle=False)

    for _ in range(3):
        for users, clicks in loader:
            loss = nn.functional.mse_loss(ddp(users).squeeze(1), clicks)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    dist.destroy_process_group()


main()
