"""Boxes in images: a batch has a dict for each image, some of them without any object."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset, DistributedSampler, Subset


class Boxes(Dataset):
    def __len__(self):
        return 44

    def __getitem__(self, n):
        count = n % 4
        image = torch.full((3, 4, 4), n / 44)
        boxes = torch.arange(4.0 * count).reshape(count, 4) / 8 + n / 44
        return image, {"boxes": boxes, "labels": torch.arange(count) % 3}


def collate(items):
    images, targets = zip(*items, strict=True)
    return torch.stack(images), list(targets)


def error(model, images, targets):
    """Of the mean box of each image: shape (images,)."""
    guess = model(images.flatten(1))
    wanted = [target["boxes"].mean(0) if len(target["boxes"]) else guess.new_zeros(4)
              for target in targets]  # fmt: skip
    return (guess - torch.stack(wanted)).square().mean(1)


def main():
    dist.init_process_group("gloo")
    rank, world_size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(rank)
    dataset = Boxes()
    training, test = Subset(dataset, range(32)), Subset(dataset, range(32, 44))
    sampler = DistributedSampler(training)
    loader = DataLoader(training, batch_size=4, collate_fn=collate, sampler=sampler)
    share = Subset(test, range(rank, len(test), world_size))
    test_loader = DataLoader(share, batch_size=4, collate_fn=collate)
    model = DDP(nn.Linear(48, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)

    for epoch in range(2):
        sampler.set_epoch(epoch)
        for images, targets in loader:
            optimizer.zero_grad()
            error(model, images, targets).mean().backward()
            optimizer.step()
        totals = torch.zeros(2)
        with torch.no_grad():
            for images, targets in test_loader:
                totals += torch.tensor([error(model, images, targets).sum(), len(images)])
        dist.all_reduce(totals)
        assert totals[1] == len(test)
    dist.destroy_process_group()


main()
