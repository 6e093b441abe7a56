"""Ranks have unequal numbers of batches: who has none left follows what DDP calls on the others,
which finds unused parameters."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset


class TwoHeads(nn.Module):
    """Each batch is for one of them."""

    def __init__(self):
        super().__init__()
        self.heads = nn.ModuleList([nn.Linear(4, 1), nn.Linear(4, 1)])

    def forward(self, inputs):
        return self.heads[int(inputs.sum() > 0)](inputs)


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    recordings = TensorDataset(torch.randn(32, 4), torch.randn(32, 1))
    own = range(20) if rank == 0 else range(20, 32)
    loader = DataLoader(recordings, 4, sampler=own)
    ddp = DDP(TwoHeads(), find_unused_parameters=True)
    optimizer = torch.optim.SGD(ddp.parameters(), 0.01)

    for _ in range(2):
        with ddp.join():
            for inputs, targets in loader:
                loss = nn.functional.mse_loss(ddp(inputs), targets)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
    dist.destroy_process_group()


main()
