"""Distributed SGD by hand: average the gradients with all_reduce; equal to the whole batch.

torchrun --standalone --nproc-per-node 2 docs/examples/handbook/hand_sgd.py
"""

import torch
import torch.distributed as dist
from torch import Tensor, nn

STEPS, BATCH, LR = 5, 8, 0.1


def make_model(seed: int) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(3, 16), nn.Tanh(), nn.Linear(16, 1)).double()


def share_parameters(model: nn.Module) -> None:
    """The same beginning: the parameters of rank 0, on every rank."""
    for parameter in model.parameters():
        dist.broadcast(parameter.detach(), src=0)


def average_gradients(model: nn.Module) -> None:
    """The same gradients: each becomes its mean over all ranks."""
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)  # the sum
        parameter.grad /= dist.get_world_size()


def step(model: nn.Module, inputs: Tensor, targets: Tensor, distributed: bool) -> float:
    """One step of SGD on a batch; returns its loss before the step."""
    model.zero_grad()
    loss = nn.functional.mse_loss(model(inputs), targets)
    loss.backward()
    if distributed:
        average_gradients(model)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter -= LR * parameter.grad
    return loss.item()


if __name__ == "__main__":
    dist.init_process_group("gloo")
    rank, world_size = dist.get_rank(), dist.get_world_size()

    model = make_model(seed=rank)  # on purpose another one on each rank
    share_parameters(model)
    alone = make_model(seed=0)  # what one process would train, on the whole batch

    torch.manual_seed(0)  # all ranks make the same data, and each takes its part
    inputs = torch.randn(STEPS, BATCH, 3, dtype=torch.float64)
    targets = inputs.sum(2, keepdim=True).sin()
    for i in range(STEPS):
        mine = slice(rank, None, world_size)
        share = step(model, inputs[i, mine], targets[i, mine], distributed=True)
        whole = step(alone, inputs[i], targets[i], distributed=False)
        print(f"rank {rank} step {i} loss: my share {share:.4f}, whole batch {whole:.4f}")

    for ours, theirs in zip(model.parameters(), alone.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-12)
    print(f"rank {rank} after {STEPS} steps the parameters are those of one process")
    dist.barrier()
    dist.destroy_process_group()
