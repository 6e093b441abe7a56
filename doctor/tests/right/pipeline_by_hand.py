"""A pipeline of two stages by hand: activations go forward, their gradients come back."""

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

HIDDEN = 16


def train_step(stage, batch, rank):
    inputs, targets = batch
    if rank == 0:
        hidden = stage(inputs)
        dist.send(hidden.detach(), dst=1)
        grad = torch.empty_like(hidden)
        dist.recv(grad, src=1)
        hidden.backward(grad)
        return 0.0
    hidden = torch.empty(len(targets), HIDDEN)
    dist.recv(hidden, src=0)
    hidden.requires_grad_()
    loss = nn.functional.cross_entropy(stage(hidden), targets)
    loss.backward()
    dist.send(hidden.grad, dst=0)
    return loss.item()


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    inputs, targets = torch.randn(60, 8), torch.randint(3, (60,))
    # Both stages draw the same batches: one uses the inputs, the other the targets.
    order = torch.Generator().manual_seed(11)
    loader = DataLoader(
        TensorDataset(inputs, targets), batch_size=10, shuffle=True, generator=order
    )
    stages = (
        nn.Sequential(nn.Linear(8, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, HIDDEN)),
        nn.Sequential(nn.ReLU(), nn.Linear(HIDDEN, 3)),
    )
    stage = stages[rank]
    optimizer = torch.optim.SGD(stage.parameters(), lr=0.1)

    for epoch in range(3):
        losses = []
        for batch in loader:
            optimizer.zero_grad()
            losses.append(train_step(stage, batch, rank))
            optimizer.step()
        if rank == 1:
            print(f"epoch {epoch} loss {sum(losses) / len(losses):.4f}")
    torch.save(stage.state_dict(), f"stage-{rank}.pt")
    dist.destroy_process_group()


main()
