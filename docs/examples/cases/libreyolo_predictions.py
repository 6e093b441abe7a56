"""LibreYOLO/libreyolo pull 605, 2026-07-14: every rank writes predictions.json.

https://github.com/LibreYOLO/libreyolo/pull/605
Every rank ran the pose validation, wrote its predictions into the same file and read them back
for the score. Ranks write over each other, and a reader may find any part of it. It was noticed
when reading failed: "Expecting ',' delimiter: line 1 column 47009224"; the trainer only logs
such an error and goes on without the score. Mended as the project did: only rank 0 validates.
Doctor: shared_file at open("predictions.json", "w")
"""

import json
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import mse_loss
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

MENDED = "--mended" in sys.argv


class PoseValidator:
    def __init__(self, model: nn.Module, dataset: TensorDataset) -> None:
        self.model = model
        self.loader = DataLoader(dataset, batch_size=8)
        self.targets = dataset.tensors[1]

    def run(self) -> float:
        keypoints = torch.cat([self.model(images) for images, _ in self.loader])
        with open("predictions.json", "w") as file:
            json.dump(keypoints.tolist(), file)
        with open("predictions.json") as file:
            predictions = torch.tensor(json.load(file))
        return (predictions - self.targets).norm(dim=1).mean().item()


class PoseTrainer:
    def __init__(self, train_set: TensorDataset, val_set: TensorDataset) -> None:
        sampler = DistributedSampler(train_set)
        self.train_loader = DataLoader(train_set, batch_size=8, sampler=sampler)
        self.model = DistributedDataParallel(nn.Linear(12, 2))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.05)
        self.validator = PoseValidator(self.model.module, val_set)

    def train_epoch(self, epoch: int) -> None:
        self.train_loader.sampler.set_epoch(epoch)
        for images, targets in self.train_loader:
            loss = mse_loss(self.model(images), targets)
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()

    @torch.no_grad()
    def validate_epoch(self, epoch: int) -> None:
        try:
            print(f"epoch {epoch}: keypoints off by {self.validator.run():.3f}")
        except json.JSONDecodeError as error:
            print(f"epoch {epoch}: pose validation failed: {error}")


dist.init_process_group("gloo")
torch.manual_seed(0)
images = torch.randn(96, 12)
poses = images @ torch.randn(12, 2)
train_set = TensorDataset(images[:64], poses[:64])
val_set = TensorDataset(images[64:], poses[64:])
trainer = PoseTrainer(train_set, val_set)

for epoch in range(2):
    trainer.train_epoch(epoch)
    if MENDED:
        if dist.get_rank() == 0:
            trainer.validate_epoch(epoch)
    else:
        trainer.validate_epoch(epoch)

dist.destroy_process_group()
