"""RL as in GRPO: all ranks answer the same questions, each draws answers of its own."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset

ANSWERS = 4  # of each rank to each question


def advantages_of(rewards, world_size):
    """Compared with all answers to the question, also those of other ranks."""
    everyone = [torch.empty_like(rewards) for _ in range(world_size)]
    dist.all_gather(everyone, rewards)
    group = torch.cat(everyone, dim=1)
    return (rewards - group.mean(1, keepdim=True)) / (group.std(1, keepdim=True) + 1e-4)


def main():
    dist.init_process_group("gloo")
    rank, world_size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    questions, solutions = torch.randn(32, 8), torch.randint(5, (32,))
    order = torch.Generator().manual_seed(0)
    loader = DataLoader(
        TensorDataset(questions, solutions), batch_size=8, shuffle=True, generator=order
    )
    policy = DDP(nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 5)))
    optimizer = torch.optim.AdamW(policy.parameters(), lr=1e-2)
    torch.manual_seed(1000 + rank)  # other answers on each rank

    for _ in range(3):
        for questions, solutions in loader:
            with torch.no_grad():
                drawn = torch.distributions.Categorical(logits=policy.module(questions))
                answers = drawn.sample((ANSWERS,)).T
            rewards = (answers == solutions[:, None]).float()
            advantages = advantages_of(rewards, world_size)
            logs = policy(questions).log_softmax(-1).gather(1, answers)
            loss = -(advantages * logs).mean()
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(policy.parameters(), 1.0)
            optimizer.step()
    dist.destroy_process_group()


main()
