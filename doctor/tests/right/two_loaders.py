"""Half-supervised: a small loader of labels begins anew when it ends, in the midst of an epoch."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def repeated(loader, sampler):
    """Endless; each time round in another order."""
    turn = 0
    while True:
        sampler.set_epoch(turn)
        yield from loader
        turn += 1


def noisy(images):
    return images + 0.1 * torch.randn_like(images)


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    images, targets = torch.randn(136, 8), torch.randint(3, (136,))
    labelled = TensorDataset(images[:24], targets[:24])
    unlabelled = TensorDataset(images[24:])
    labelled_sampler = DistributedSampler(labelled, drop_last=True)
    sampler = DistributedSampler(unlabelled, drop_last=True)
    few = repeated(DataLoader(labelled, batch_size=4, sampler=labelled_sampler), labelled_sampler)
    loader = DataLoader(unlabelled, batch_size=8, sampler=sampler, drop_last=True)
    model = DDP(nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.03, momentum=0.9, nesterov=True)
    torch.manual_seed(100 + rank)

    for epoch in range(3):
        sampler.set_epoch(epoch)
        for (unknown,) in loader:
            known, targets = next(few)
            scores = model(torch.cat([noisy(known), noisy(unknown), noisy(unknown)]))
            known, weak, strong = scores.split([len(known), len(unknown), len(unknown)])
            sure, guess = weak.detach().softmax(1).max(1)
            consistent = nn.functional.cross_entropy(strong, guess, reduction="none")
            loss = nn.functional.cross_entropy(known, targets) + (consistent * (sure > 0.4)).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    dist.destroy_process_group()


main()
