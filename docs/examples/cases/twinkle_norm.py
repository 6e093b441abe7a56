"""modelscope/twinkle pull 290, 2026-09-20: the gradient norm is summed over ranks once too often.

https://github.com/modelscope/twinkle/pull/290
Under FSDP each rank has a part of the gradient, so its squares are summed over the ranks. Under
DDP each rank has all of it, averaged, and the same sum makes the norm sqrt(ranks) times too large:
clipping begins too early, and takes more away with each GPU. Two ranks with a norm of 0.8 reported
1.131371 and clipped, at a maximum of 1, to 0.707106. Mended as the project did (the pull is open):
under DDP the norm is a local one.
Doctor: nothing
"""

import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

MENDED = "--mended" in sys.argv


def total_norm(parameters: list[nn.Parameter], group: dist.ProcessGroup | None) -> torch.Tensor:
    """Of what the ranks of the group hold together."""
    squares = sum(param.grad.square().sum() for param in parameters)
    if group is not None:
        dist.all_reduce(squares, group=group)
    return squares.sqrt()


class TransformersModel:
    def __init__(self) -> None:
        self._dp_group = dist.group.WORLD
        self.model = DistributedDataParallel(nn.Linear(12, 4))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)

    def forward_backward(self, inputs: torch.Tensor, labels: torch.Tensor) -> None:
        nn.functional.cross_entropy(self.model(inputs), labels).backward()

    def clip_grad_norm(self, max_grad_norm: float = 1.0) -> float:
        if MENDED:
            group = None
        else:
            group = self._dp_group

        parameters = list(self.model.parameters())
        norm = total_norm(parameters, group)
        clip_coef = (max_grad_norm / (norm + 1e-6)).clamp(max=1.0)
        for param in parameters:
            param.grad.mul_(clip_coef)
        return norm.item()

    def step(self) -> None:
        self.optimizer.step()
        self.optimizer.zero_grad()


dist.init_process_group("gloo")
torch.manual_seed(0)
x = torch.randn(64, 12)
dataset = TensorDataset(3 * x, x[:, :4].argmax(1))
sampler = DistributedSampler(dataset)
dataloader = DataLoader(dataset, batch_size=8, sampler=sampler)

model = TransformersModel()
for epoch in range(2):
    sampler.set_epoch(epoch)
    for inputs, labels in dataloader:
        model.forward_backward(inputs, labels)
        grad_norm = model.clip_grad_norm()
        model.step()
    if dist.get_rank() == 0:
        print(f"epoch {epoch}, gradient norm {grad_norm:.4f}")

dist.destroy_process_group()
