"""Rank 0 learns; the others play with the weights that it sends, and it gathers what they saw."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters
from torch.utils.data import DataLoader, TensorDataset

STEPS = 24  # of each actor in an iteration


def play(policy):
    """A walk on a line: state, action, return."""
    states, actions, rewards = [], [], []
    state = torch.zeros(2)
    for _ in range(STEPS):
        with torch.no_grad():
            action = torch.distributions.Categorical(logits=policy(state)).sample()
        states.append(state)
        actions.append(action)
        state = state + torch.tensor([2.0 * action - 1, 0.1]) + 0.05 * torch.randn(2)
        rewards.append(-state[0].abs())
    returns = torch.stack(rewards).flip(0).cumsum(0).flip(0) / STEPS
    return torch.cat([torch.stack(states), torch.stack(actions)[:, None], returns[:, None]], dim=1)


def learn(policy, optimizer, experience):
    dataset = TensorDataset(experience[:, :2], experience[:, 2].long(), experience[:, 3])
    for states, actions, returns in DataLoader(dataset, batch_size=8, shuffle=True):
        logs = policy(states).log_softmax(-1).gather(1, actions[:, None]).squeeze(1)
        loss = -(logs * (returns - returns.mean())).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def main():
    dist.init_process_group("gloo")
    rank, world_size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(rank)
    policy = nn.Sequential(nn.Linear(2, 16), nn.Tanh(), nn.Linear(16, 2))
    optimizer = torch.optim.Adam(policy.parameters(), lr=3e-3) if rank == 0 else None

    for _ in range(4):
        weights = parameters_to_vector(policy.parameters()).detach()
        dist.broadcast(weights, src=0)
        vector_to_parameters(weights, policy.parameters())
        experience = play(policy) if rank else torch.zeros(STEPS, 4)
        parts = [torch.empty(STEPS, 4) for _ in range(world_size)] if rank == 0 else None
        dist.gather(experience, parts, dst=0)
        if rank == 0:
            learn(policy, optimizer, torch.cat(parts[1:]))
    dist.destroy_process_group()


main()
