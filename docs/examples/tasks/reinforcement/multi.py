"""PPO from recorded rollouts: batches without a DataLoader, advantages normalised by the batch.

torchrun --standalone --nproc-per-node 2 docs/examples/tasks/reinforcement/multi.py
"""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributions import Categorical
from torch.nn.parallel import DistributedDataParallel

ITERATIONS, UPDATE_EPOCHS, BATCH = 3, 2, 60
STEPS, ENVS, GAMMA, LAMBDA = 32, 10, 0.95, 0.9


def record(seed):
    """Stands for your rollouts: a point that random pushes move, rewarded for being near 0."""
    generator = torch.Generator().manual_seed(seed)
    actions = torch.randint(3, (STEPS, ENVS), generator=generator)
    start = 2 * torch.randn(ENVS, generator=generator)
    places = torch.cat([start[None], start + 0.3 * (actions - 1).cumsum(0)])
    velocities = 0.3 * (actions - 1)
    obs = torch.stack([places[:-1], velocities.roll(1, 0)], -1)
    logprobs = torch.full((STEPS, ENVS), 1 / 3).log()
    return obs, actions, logprobs, -0.1 * places[1:].abs()


class Agent(nn.Module):
    def __init__(self, width=64):
        super().__init__()
        self.critic = nn.Sequential(nn.Linear(2, width), nn.Tanh(), nn.Linear(width, 1))
        self.actor = nn.Sequential(nn.Linear(2, width), nn.Tanh(), nn.Linear(width, 3))

    def forward(self, obs, action):
        probs = Categorical(logits=self.actor(obs))
        return probs.log_prob(action), probs.entropy(), self.critic(obs).squeeze(-1)


@torch.no_grad()
def compute_gae(agent, obs, rewards):
    """Advantages and returns, both (STEPS, ENVS)."""
    values = agent.critic(obs).squeeze(-1)
    advantages, last = torch.zeros_like(rewards), 0
    for t in reversed(range(STEPS)):
        following = values[t + 1] if t + 1 < STEPS else torch.zeros(ENVS)
        delta = rewards[t] + GAMMA * following - values[t]
        advantages[t] = last = delta + GAMMA * LAMBDA * last
    return advantages, advantages + values


def normalize(advantages):
    """To mean 0 and variance 1 in the batch of all ranks."""
    sums = torch.stack([torch.ones_like(advantages), advantages, advantages**2]).sum(1)
    dist.all_reduce(sums)
    count, total, squares = sums
    mean = total / count
    std = ((squares - count * mean**2) / (count - 1)).sqrt()
    return (advantages - mean) / (std + 1e-8)


def main():
    dist.init_process_group("gloo")
    rank, world_size = dist.get_rank(), dist.get_world_size()

    torch.manual_seed(0)
    agent = Agent()
    ddp_agent = DistributedDataParallel(agent)
    optimizer = torch.optim.Adam(agent.parameters(), lr=2.5e-3, eps=1e-5)
    generator = torch.Generator().manual_seed(1)

    for iteration in range(ITERATIONS):
        obs, actions, logprobs, rewards = record(seed=iteration)
        advantages, returns = compute_gae(agent, obs, rewards)
        parts = [obs, actions, logprobs, advantages, returns]
        b_obs, b_actions, b_logprobs, b_advantages, b_returns = (p.flatten(0, 1) for p in parts)

        totals = torch.zeros(3, dtype=torch.float64)
        for _ in range(UPDATE_EPOCHS):
            b_inds = torch.randperm(STEPS * ENVS, generator=generator)
            for mb_inds in b_inds.split(BATCH)[:-1]:  # the last one is smaller
                mb_inds = mb_inds[rank::world_size]
                newlogprob, entropy, newvalue = ddp_agent(b_obs[mb_inds], b_actions[mb_inds])
                ratio = (newlogprob - b_logprobs[mb_inds]).exp()
                mb_advantages = normalize(b_advantages[mb_inds])
                pg_loss = -torch.min(
                    mb_advantages * ratio, mb_advantages * ratio.clamp(0.8, 1.2)
                ).mean()
                v_loss = 0.5 * ((newvalue - b_returns[mb_inds]) ** 2).mean()
                loss = pg_loss - 0.01 * entropy.mean() + 0.5 * v_loss
                optimizer.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(agent.parameters(), 0.5)
                optimizer.step()
                totals += torch.stack([pg_loss, v_loss, torch.tensor(1.0)]).detach() * len(mb_inds)

        dist.all_reduce(totals)
        pg_loss, v_loss = (totals[:2] / totals[2]).tolist()
        if rank == 0:
            print(f"iteration {iteration}: policy loss {pg_loss:.4f}, value loss {v_loss:.4f}")
            torch.save(agent.state_dict(), "agent.pt")

    dist.destroy_process_group()


if __name__ == "__main__":
    main()
