"""kakaobrain/scrl issue 5, 2021-05-04: every rank writes the best checkpoint.

https://github.com/kakaobrain/scrl/issues/5
The regular checkpoint was saved by the main process only, the best one, after the evaluation of
an epoch, by all of them at once into one file. Saving raised no error. A user noticed when he
loaded it after the whole pre-training: "file not found: archive/data/3259494704".
Mended as the project did: the same guard for both.
Doctor: shared_file at torch.save(self.online_network
"""

import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cosine_similarity, cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

MENDED = "--mended" in sys.argv


class OnlineNetwork(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(12, 16), nn.ReLU(), nn.Linear(16, 8))
        self.evaluator = nn.Linear(8, 3)

    def forward(self, view: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        h = self.encoder(view)
        return h, self.evaluator(h.detach())


class SCRLTrainer:
    def __init__(self, loader: DataLoader) -> None:
        self.loader = loader
        self.online_network = DistributedDataParallel(OnlineNetwork())
        self.optimizer = torch.optim.SGD(self.online_network.parameters(), lr=0.1)
        self.max_eval_score = 0.0

    def run(self, max_epochs: int) -> None:
        for epoch in range(max_epochs):
            self.train_epoch(epoch)
            if dist.get_rank() == 0:
                self.save_checkpoint("checkpoint_last.pth")
            score = self.linear_eval_online()
            if score > self.max_eval_score:
                self.max_eval_score = score
                if MENDED:
                    if dist.get_rank() == 0:
                        self.save_checkpoint("checkpoint_best.pth")
                else:
                    self.save_checkpoint("checkpoint_best.pth")

    def train_epoch(self, epoch: int) -> None:
        self.loader.sampler.set_epoch(epoch)
        for view, labels in self.loader:
            h, logits = self.online_network(view)
            loss = cross_entropy(logits, labels) - cosine_similarity(h, view[:, :8]).mean()
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()

    @torch.no_grad()
    def linear_eval_online(self) -> float:
        images, labels = self.loader.dataset.tensors
        _, logits = self.online_network.module(images)
        return (logits.argmax(1) == labels).float().mean().item()

    def save_checkpoint(self, path: str) -> None:
        torch.save(self.online_network.module.state_dict(), path)


dist.init_process_group("gloo")
torch.manual_seed(0)
images = torch.randn(64, 12)
dataset = TensorDataset(images, images[:, :3].argmax(1))
loader = DataLoader(dataset, batch_size=8, sampler=DistributedSampler(dataset))
SCRLTrainer(loader).run(max_epochs=2)
dist.destroy_process_group()
