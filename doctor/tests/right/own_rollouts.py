"""PPO under DDP: each rank plays for itself, and learns from a data set of what it has played."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset

STEPS, CLIP = 32, 0.2


class Agent(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(3, 16), nn.Tanh())
        self.policy, self.value = nn.Linear(16, 2), nn.Linear(16, 1)

    def forward(self, states):
        hidden = self.body(states)
        return self.policy(hidden), self.value(hidden).squeeze(-1)


@torch.no_grad()
def rollout(agent):
    states = torch.randn(STEPS, 3)
    logits, values = agent(states)
    policy = torch.distributions.Categorical(logits=logits)
    actions = policy.sample()
    returns = torch.where(actions == (states.sum(1) > 0), 1.0, -1.0) + 0.1 * torch.randn(STEPS)
    return TensorDataset(states, actions, policy.log_prob(actions), returns, returns - values)


def loss_of(agent, states, actions, logs, returns, advantages):
    logits, values = agent(states)
    policy = torch.distributions.Categorical(logits=logits)
    ratio = (policy.log_prob(actions) - logs).exp()
    gain = torch.minimum(ratio * advantages, ratio.clamp(1 - CLIP, 1 + CLIP) * advantages)
    return nn.functional.mse_loss(values, returns) - gain.mean() - 0.01 * policy.entropy().mean()


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    agent = DDP(Agent())
    optimizer = torch.optim.Adam(agent.parameters(), lr=3e-3, eps=1e-5)
    torch.manual_seed(1 + dist.get_rank())
    for _ in range(4):
        played = rollout(agent.module)
        for _ in range(2):
            for batch in DataLoader(played, batch_size=8, shuffle=True):
                optimizer.zero_grad()
                loss_of(agent, *batch).backward()
                nn.utils.clip_grad_norm_(agent.parameters(), 0.5)
                optimizer.step()
    dist.destroy_process_group()


main()
