"""lucidrains/DALLE-pytorch issue 268, 2021-05-30: each rank lowers its rate by its own loss.

https://github.com/lucidrains/DALLE-pytorch/issues/268
ReduceLROnPlateau was given the loss of each rank's own batches. These differ, so the ranks lowered
their rates in different epochs; the gradients were equal, and the weights drifted apart. With
three GPUs it was noticed in the printed logs. Mended as the project did, one day later (pull 277):
the scheduler is given the average of all ranks. Theirs used Horovod; here it is DDP.
Doctor: drifting_weights at scheduler = ReduceLROnPlateau(
"""

import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim.lr_scheduler import ReduceLROnPlateau
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

MENDED = "--mended" in sys.argv


def average_all(value: torch.Tensor) -> torch.Tensor:
    averaged = value.clone()
    dist.all_reduce(averaged)
    return averaged / dist.get_world_size()


dist.init_process_group("gloo")
torch.manual_seed(0)
text = torch.randn(96, 12)
image = text[:, :4] + torch.randn(96, 4)
ds = TensorDataset(text, image)
data_sampler = DistributedSampler(ds)
dl = DataLoader(ds, batch_size=8, sampler=data_sampler)

dalle = DistributedDataParallel(nn.Linear(12, 4))
optimizer = torch.optim.SGD(dalle.parameters(), lr=0.3)
scheduler = ReduceLROnPlateau(optimizer, factor=0.5, patience=0)

for epoch in range(8):
    data_sampler.set_epoch(epoch)
    losses = []
    for caption, pixels in dl:
        loss = nn.functional.mse_loss(dalle(caption), pixels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())

    epoch_loss = torch.stack(losses).mean()
    if MENDED:
        scheduler.step(average_all(epoch_loss))
    else:
        scheduler.step(epoch_loss)

dist.destroy_process_group()
