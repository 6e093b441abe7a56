"""open-mmlab/mmpose issue 998, 2021-10-30: each rank evaluates with its own BatchNorm statistics.

https://github.com/open-mmlab/mmpose/issues/998
The running mean and variance are no parameters: DDP does not average them, and with
broadcast_buffers=False they differ on each rank. So the evaluation in training measured other
models than the one that rank 0 saved: AP 73.30 there, and 73.21 with test.py and the file. Mended
as its maintainers advised, and as mmaction2 does: the statistics of rank 0 are sent to all ranks
before an evaluation.
Doctor: unequal_buffers at val_dataloader = DataLoader(
"""

import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

MENDED = "--mended" in sys.argv


class DistEvalHook:
    def __init__(self, dataloader: DataLoader) -> None:
        self.dataloader = dataloader

    def after_train_epoch(self, model: nn.Module) -> None:
        if MENDED:
            for module in model.modules():
                if isinstance(module, _BatchNorm):
                    dist.broadcast(module.running_mean, 0)
                    dist.broadcast(module.running_var, 0)

        error, count = self.multi_gpu_test(model)
        if dist.get_rank() == 0:
            print(f"mean error of a joint {error / count:.4f}")

    @torch.no_grad()
    def multi_gpu_test(self, model: nn.Module) -> tuple[float, float]:
        model.eval()
        total = torch.zeros(2)
        for img, target in self.dataloader:
            error = (model(img) - target).norm(dim=1)
            total += torch.tensor([error.sum(), len(img)])
        model.train()
        dist.all_reduce(total)
        return total[0].item(), total[1].item()


dist.init_process_group("gloo")
torch.manual_seed(0)
img = torch.randn(96, 12)
keypoints = img[:, :2] + img[:, 2:4]
train_dataset = TensorDataset(img[:64], keypoints[:64])
val_dataset = TensorDataset(img[64:], keypoints[64:])
sampler = DistributedSampler(train_dataset)
data_loader = DataLoader(train_dataset, batch_size=8, sampler=sampler)
val_sampler = DistributedSampler(val_dataset, shuffle=False)
val_dataloader = DataLoader(val_dataset, batch_size=4, sampler=val_sampler)

pose = nn.Sequential(nn.Linear(12, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 2))
model = DistributedDataParallel(pose, broadcast_buffers=False)
optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
eval_hook = DistEvalHook(val_dataloader)

for epoch in range(2):
    sampler.set_epoch(epoch)
    for x, target in data_loader:
        loss = nn.functional.mse_loss(model(x), target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    eval_hook.after_train_epoch(model)

dist.destroy_process_group()
