"""Self-distillation as in DINO: a teacher in no optimizer, and a centre of all ranks' outputs."""

import copy

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

MOMENTUM = 0.95


class DinoLoss(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.register_buffer("center", torch.zeros(1, width))

    def forward(self, student, teacher):
        wanted = ((teacher - self.center) / 0.07).softmax(-1).detach()
        loss = -(wanted * (student / 0.1).log_softmax(-1)).sum(-1).mean()
        self.update_center(teacher)
        return loss

    @torch.no_grad()
    def update_center(self, teacher):
        total = teacher.sum(0, keepdim=True)
        dist.all_reduce(total)
        total /= len(teacher) * dist.get_world_size()
        self.center = 0.9 * self.center + 0.1 * total


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    dataset = TensorDataset(torch.randn(72, 8))
    sampler = DistributedSampler(dataset)
    loader = DataLoader(dataset, batch_size=6, sampler=sampler, drop_last=True)
    student = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 6))
    teacher = copy.deepcopy(student).requires_grad_(False)
    student, criterion = DDP(student), DinoLoss(6)
    optimizer = torch.optim.AdamW(student.parameters(), lr=5e-3)
    torch.manual_seed(dist.get_rank())

    for epoch in range(3):
        sampler.set_epoch(epoch)
        for (images,) in loader:
            noisy = images + 0.2 * torch.randn_like(images)
            loss = criterion(student(noisy), teacher(images))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            with torch.no_grad():
                weights = zip(teacher.parameters(), student.module.parameters(), strict=True)
                for slow, fast in weights:
                    slow.mul_(MOMENTUM).add_(fast, alpha=1 - MOMENTUM)
        if dist.get_rank() == 0:
            torch.save({"student": student.module.state_dict()}, "checkpoint.pt")
    dist.destroy_process_group()


main()
