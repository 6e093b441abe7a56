"""Lightning-AI/pytorch-lightning issue 20340, 2024-10-13: unfrozen after wrapping.

https://github.com/Lightning-AI/pytorch-lightning/issues/20340
A callback thaws the backbone after some epochs. DDP averages only what required a gradient when
it was built, so from then on each rank trained a backbone of its own. It was noticed since the
validation loss of rank 0 fell, and that of the others rose; a hash of the weights, printed by each
rank, showed the epoch. Lightning has no remedy; mended as lightning-pose did (its pull 205): the
backbone is never frozen, its learning rate is 0 until then.
Doctor: unequal_gradients at DistributedDataParallel(lit)
"""

import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

MENDED = "--mended" in sys.argv


class LitClassifier(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.backbone = nn.Sequential(nn.Linear(12, 16), nn.ReLU())
        self.head = nn.Linear(16, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.backbone(x))


class BackboneFinetuning:
    def __init__(self, unfreeze_backbone_at_epoch: int) -> None:
        self.unfreeze_backbone_at_epoch = unfreeze_backbone_at_epoch

    def freeze_before_training(self, pl_module: LitClassifier) -> None:
        if MENDED:
            self.backbone_lr = 0.0
        else:
            pl_module.backbone.requires_grad_(False)
            self.backbone_lr = 0.01

    def on_train_epoch_start(
        self, pl_module: LitClassifier, optimizer: torch.optim.Optimizer, epoch: int
    ) -> None:
        if epoch == self.unfreeze_backbone_at_epoch:
            if MENDED:
                optimizer.param_groups[1]["lr"] = 0.01
            else:
                pl_module.backbone.requires_grad_(True)


dist.init_process_group("gloo")
torch.manual_seed(0)
x = torch.randn(64, 12)
dataset = TensorDataset(x, x[:, :4].argmax(1))
sampler = DistributedSampler(dataset)
loader = DataLoader(dataset, batch_size=8, sampler=sampler)

lit = LitClassifier()
finetuning = BackboneFinetuning(unfreeze_backbone_at_epoch=1)
finetuning.freeze_before_training(lit)
model = DistributedDataParallel(lit)
groups = [
    {"params": lit.head.parameters()},
    {"params": lit.backbone.parameters(), "lr": finetuning.backbone_lr},
]
optimizer = torch.optim.Adam(groups, lr=0.02)

for epoch in range(3):
    sampler.set_epoch(epoch)
    finetuning.on_train_epoch_start(lit, optimizer, epoch)
    for images, labels in loader:
        loss = nn.functional.cross_entropy(model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

dist.destroy_process_group()
