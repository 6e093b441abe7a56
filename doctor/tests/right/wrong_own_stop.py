"""Wrong: each rank stops its passes over a rollout by a measure of its own."""

import torch
import torch.distributed as dist
from torch import nn

ITERATIONS = 6
PASSES = 4


def average_gradients(model):
    gradients = [parameter.grad for parameter in model.parameters()]
    flat = torch.cat([gradient.flatten() for gradient in gradients])
    dist.all_reduce(flat)
    start = 0
    for gradient in gradients:
        part = flat[start : start + gradient.numel()]
        gradient.copy_(part.view_as(gradient) / dist.get_world_size())
        start += gradient.numel()


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    policy = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 2))
    optimizer = torch.optim.Adam(policy.parameters(), lr=1e-3)
    torch.randn(rank)  # other numbers on each rank

    for iteration in range(ITERATIONS):
        optimizer.param_groups[0]["lr"] = 1e-3 * (1 - iteration / ITERATIONS)
        observations = torch.randn(16, 4)
        returns = observations[:, :2]
        with torch.no_grad():
            before = policy(observations)
        for _ in range(PASSES):
            outputs = policy(observations)
            optimizer.zero_grad()
            nn.functional.mse_loss(outputs, returns).backward()
            average_gradients(policy)
            optimizer.step()
            change = (outputs - before).abs().mean().item()
            if iteration == 2 and rank == 1 and change > 0:
                break  # too far from the policy that made the rollout, on this rank
    dist.destroy_process_group()


main()
