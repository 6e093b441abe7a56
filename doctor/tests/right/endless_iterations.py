"""Training counted in iterations: an endless sampler that all ranks draw alike and divide."""

import itertools

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Sampler, TensorDataset

MAX_ITERATIONS, EVAL_EVERY = 24, 8


class TrainingSampler(Sampler):
    def __init__(self, size, seed):
        self.size, self.seed = size, seed

    def __iter__(self):
        rank, world_size = dist.get_rank(), dist.get_world_size()
        yield from itertools.islice(self.indices(), rank, None, world_size)

    def indices(self):
        generator = torch.Generator().manual_seed(self.seed)
        while True:
            yield from torch.randperm(self.size, generator=generator).tolist()


@torch.no_grad()
def evaluate(model, dataset):
    """On rank 0 alone; the others wait."""
    result = torch.zeros(1)
    if dist.get_rank() == 0:
        model.eval()
        for images, targets in DataLoader(dataset, batch_size=10):
            result += (model(images).argmax(1) == targets).sum()
        model.train()
    dist.broadcast(result, 0)
    return result.item() / len(dataset)


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    images, targets = torch.randn(75, 8), torch.randint(4, (75,))
    train_set = TensorDataset(images[:50], targets[:50])
    val_set = TensorDataset(images[50:], targets[50:])
    loader = DataLoader(train_set, batch_size=4, sampler=TrainingSampler(50, seed=5))
    model = DDP(nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02 * dist.get_world_size())
    for iteration, (images, targets) in enumerate(loader, 1):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(images), targets).backward()
        optimizer.step()
        if iteration % EVAL_EVERY == 0:
            accuracy = evaluate(model.module, val_set)
            if dist.get_rank() == 0:
                print(f"iteration {iteration} accuracy {accuracy:.3f}")
        if iteration == MAX_ITERATIONS:
            break
    dist.destroy_process_group()


main()
