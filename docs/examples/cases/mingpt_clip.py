"""pytorch/examples issue 1196, 2023-10-27: gradients are clipped while they are still scaled.

https://github.com/pytorch/examples/issues/1196
GradScaler multiplies the loss, at first by 65536. minGPT-ddp clips before unscale_, so nearly
every gradient looks too long, is cut to norm 1, and is then divided by 65536: in our small run
with SGD the weights hardly move. It was found by reading. The example still has it.
The project has no remedy; mended here as the report proposes: unscale_ stands before clipping.
Doctor: clipped at nn.utils.clip_grad_norm_
"""

import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler

MENDED = "--mended" in sys.argv


class CharDataset(Dataset):
    def __init__(self, block_size: int) -> None:
        self.data = torch.randint(0, 20, (64, block_size + 1)).sort().values

    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self, idx: int) -> tuple[torch.Tensor, torch.Tensor]:
        return self.data[idx, :-1], self.data[idx, 1:]


class Trainer:
    def __init__(self, model: nn.Module, train_dataset: Dataset, grad_norm_clip: float) -> None:
        sampler = DistributedSampler(train_dataset)
        self.train_loader = DataLoader(train_dataset, batch_size=8, sampler=sampler)
        self.grad_norm_clip = grad_norm_clip
        self.model = DistributedDataParallel(model)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.5)
        self.scaler = torch.amp.GradScaler("cpu")

    def _run_batch(self, source: torch.Tensor, targets: torch.Tensor) -> float:
        with torch.autocast("cpu", dtype=torch.float16):
            logits = self.model(source)
            loss = nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())

        self.optimizer.zero_grad()
        self.scaler.scale(loss).backward()
        if MENDED:
            self.scaler.unscale_(self.optimizer)
        nn.utils.clip_grad_norm_(self.model.parameters(), self.grad_norm_clip)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        return loss.item()

    def _run_epoch(self, epoch: int) -> None:
        self.train_loader.sampler.set_epoch(epoch)
        for source, targets in self.train_loader:
            train_loss = self._run_batch(source, targets)
        print(f"[RANK{dist.get_rank()}] Epoch {epoch} | Train Loss {train_loss:.5f}")

    def train(self, max_epochs: int) -> None:
        for epoch in range(max_epochs):
            self._run_epoch(epoch)


dist.init_process_group("gloo")
torch.manual_seed(0)
model = nn.Sequential(nn.Embedding(20, 16), nn.Linear(16, 20))
trainer = Trainer(model, CharDataset(block_size=12), grad_norm_clip=1.0)
trainer.train(max_epochs=4)
dist.destroy_process_group()
