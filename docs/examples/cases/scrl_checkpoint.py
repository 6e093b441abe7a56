"""kakaobrain/scrl issue 5, 2021-05-04: every rank writes the best checkpoint.

https://github.com/kakaobrain/scrl/issues/5
The regular checkpoint was saved by the main process only, the best one, after the evaluation of
an epoch, by all of them at once into one file. Nothing fails while it is saved. A user noticed
when he loaded it after the whole pre-training: "file not found: archive/data/3259494704". The
authors had always used the last checkpoint. Mended as the project did: the same guard for both.
Doctor: shared_file at torch.save(checkpoint, path)
"""

import copy
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cosine_similarity, cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

MENDED = "--mended" in sys.argv


def is_main_process() -> bool:
    return dist.get_rank() == 0


class OnlineNetwork(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(12, 16), nn.ReLU(), nn.Linear(16, 8))
        self.predictor = nn.Linear(8, 8)
        self.evaluator = nn.Linear(8, 3)

    def forward(self, view: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        h = self.encoder(view)
        return self.predictor(h), self.evaluator(h.detach())


class SCRLTrainer:
    def __init__(self, dataset: TensorDataset) -> None:
        sampler = DistributedSampler(dataset)
        self.loader = DataLoader(dataset, batch_size=8, sampler=sampler)
        self.online_network = DistributedDataParallel(OnlineNetwork())
        self.target_network = copy.deepcopy(self.online_network.module.encoder)
        self.optimizer = torch.optim.SGD(self.online_network.parameters(), lr=0.1)
        self.max_eval_score = 0.0

    def run(self, max_epochs: int) -> None:
        for epoch in range(max_epochs):
            self.loader.sampler.set_epoch(epoch)
            for images, labels in self.loader:
                self.train_step(images, labels)
            if is_main_process():
                self.save_checkpoint("checkpoint_last.pth")

            score = self.linear_eval_online()
            if score > self.max_eval_score:
                self.max_eval_score = score
                if MENDED:
                    if is_main_process():
                        self.save_checkpoint("checkpoint_best.pth")
                else:
                    self.save_checkpoint("checkpoint_best.pth")

    def train_step(self, images: torch.Tensor, labels: torch.Tensor) -> None:
        prediction, logits = self.online_network(images + 0.1 * torch.randn_like(images))
        with torch.no_grad():
            target = self.target_network(images + 0.1 * torch.randn_like(images))
        loss = -cosine_similarity(prediction, target).mean() + cross_entropy(logits, labels)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()

        encoder = self.online_network.module.encoder
        with torch.no_grad():
            for slow, fast in zip(self.target_network.parameters(), encoder.parameters()):
                slow.lerp_(fast, 0.01)

    @torch.no_grad()
    def linear_eval_online(self) -> float:
        counts = torch.zeros(2)
        for images, labels in self.loader:
            _, logits = self.online_network.module(images)
            counts += torch.tensor([(logits.argmax(1) == labels).sum(), len(labels)])
        dist.all_reduce(counts)
        return (counts[0] / counts[1]).item()

    def save_checkpoint(self, path: str) -> None:
        checkpoint = {"online_network": self.online_network.module.state_dict()}
        torch.save(checkpoint, path)


dist.init_process_group("gloo")
torch.manual_seed(0)
images = torch.randn(64, 12)
trainer = SCRLTrainer(TensorDataset(images, images[:, :3].argmax(1)))
torch.manual_seed(dist.get_rank())  # for the views
trainer.run(max_epochs=2)
dist.destroy_process_group()
