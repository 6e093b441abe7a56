"""All ranks begin one more epoch, take a batch and leave; then rank 0 alone evaluates."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

ITERATIONS = 8


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    train_set = TensorDataset(torch.randn(32, 4), torch.randn(32, 1))
    val_set = TensorDataset(torch.randn(8, 4), torch.randn(8, 1))
    sampler = DistributedSampler(train_set)
    loader = DataLoader(train_set, 4, sampler=sampler)
    model = nn.Linear(4, 1)
    ddp = DDP(model)
    optimizer = torch.optim.SGD(ddp.parameters(), 0.01)
    done = 0

    for epoch in range(3):
        sampler.set_epoch(epoch)
        for inputs, targets in loader:
            done += 1
            if done > ITERATIONS:
                break
            loss = nn.functional.mse_loss(ddp(inputs), targets)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

    if dist.get_rank() == 0:
        with torch.no_grad():
            losses = [nn.functional.mse_loss(model(x), y) for x, y in DataLoader(val_set, 4)]
        print(f"loss {sum(losses):.3f}")
    dist.barrier()
    dist.destroy_process_group()


main()
