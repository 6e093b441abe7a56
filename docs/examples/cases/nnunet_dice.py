"""MIC-DKFZ/nnUNet issue 1354, 2023-03-28: one of two Dice losses forgets the sum over ranks.

https://github.com/MIC-DKFZ/nnUNet/issues/1354
For a Dice over the batch each rank gathers the sums of all ranks, which come stacked in a new first
dimension. The loss that saves memory, the default for three months, did not sum that dimension: its
sum over images then added up ranks, and each place in the batch had a Dice of its own. The older
loss in the same file was right, and a reader of the code saw the difference.
Doctor: nothing
"""

import sys
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

MENDED = "--mended" in sys.argv


class AllGatherGrad(torch.autograd.Function):
    """Stacks the tensors of all ranks; the gradient goes back to the rank that it is of."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor) -> Tensor:
        gathered = [torch.zeros_like(tensor) for _ in range(dist.get_world_size())]
        dist.all_gather(gathered, tensor)
        return torch.stack(gathered)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        gradient = gradient.contiguous()
        dist.all_reduce(gradient)
        return gradient[dist.get_rank()]


def dice_loss(logits: Tensor, masks: Tensor) -> Tensor:
    """Of images (N, classes, height, width), over the batch."""
    guesses = logits.softmax(1)
    overlap = (guesses * masks).sum((2, 3))  # (N, classes)
    sizes = (guesses + masks).sum((2, 3))
    if dist.get_world_size() > 1:
        overlap, sizes = AllGatherGrad.apply(overlap), AllGatherGrad.apply(sizes)
        if MENDED:
            overlap, sizes = overlap.sum(0), sizes.sum(0)
    overlap, sizes = overlap.sum(0), sizes.sum(0)
    return -((2 * overlap + 1) / (sizes + 1)).mean()


dist.init_process_group("gloo")
torch.manual_seed(0)
images = torch.rand(64, 1, 8, 8) * torch.rand(64, 1, 1, 1)  # dark and bright ones
targets = (images > 0.3).long() + (images > 0.7)
masks = nn.functional.one_hot(targets[:, 0], 3).movedim(-1, 1).float()
dataset = TensorDataset(images, masks)
sampler = DistributedSampler(dataset)
dataloader = DataLoader(dataset, batch_size=8 // dist.get_world_size(), sampler=sampler)
network = nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 3, 1))
network = DistributedDataParallel(network)
optimizer = torch.optim.SGD(network.parameters(), lr=0.1)

for epoch in range(2):
    sampler.set_epoch(epoch)
    for data, target in dataloader:
        loss = dice_loss(network(data), target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

dist.destroy_process_group()
