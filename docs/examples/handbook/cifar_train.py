"""The shortest complete DDP training: on CIFAR-10 with `--data DIR`, else on images of its shape.

torchrun --standalone --nproc-per-node 2 docs/examples/handbook/cifar_train.py"""

import os
from argparse import ArgumentParser

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler
from torchvision.datasets import CIFAR10, VisionDataset
from torchvision.transforms import v2
from tqdm import tqdm


class StandIn(CIFAR10):  # made up: a colour pattern for each class, under each image's own noise
    def __init__(self, root: None, train: bool, transform: v2.Transform) -> None:
        VisionDataset.__init__(self, root, transform=transform)
        self.targets = [n % 10 for n in range(2001 if train else 1001)]
        patterns = torch.randint(96, 160, (10, 4, 4, 3), generator=torch.manual_seed(0))
        images = patterns[self.targets].repeat_interleave(8, 1).repeat_interleave(8, 2)
        noise = torch.randn(images.shape, generator=torch.manual_seed(1 + train))
        self.data = (images + 95 * noise).clamp(0, 255).byte().numpy()


@torch.inference_mode()
def evaluate(model: nn.Module, loader: DataLoader, device: torch.device) -> list[float]:
    """How many images of the whole test set are right, and how many it has: each counts once."""
    for buffer in model.eval().buffers():  # BatchNorm has seen other images on every rank
        dist.broadcast(buffer, src=0)
    totals = torch.zeros(2, dtype=torch.float64, device=device)
    for images, targets in loader:
        hits = model(images.to(device)).argmax(1) == targets.to(device)
        totals += torch.stack([hits.sum(), torch.ones_like(hits).sum()])
    dist.all_reduce(totals)  # outside of the loop: ranks may have different numbers of batches
    return totals.tolist()


def main(data: str | None, save: str, epochs: int) -> None:
    device = torch.device("cpu")
    if torch.cuda.is_available():
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    rank, world_size = dist.get_rank(), dist.get_world_size()
    if data and rank == 0:
        CIFAR10(data, download=True)  # does nothing where the files are already
    dist.barrier()  # outside of the if: all ranks call it
    plain = [v2.ToImage(), v2.ToDtype(torch.float32, scale=True), v2.Normalize([0.5], [0.5])]
    varied = [v2.RandomCrop(32, padding=4), v2.RandomHorizontalFlip(), *plain]
    train_set = (CIFAR10 if data else StandIn)(data, True, v2.Compose(varied))
    test_set = (CIFAR10 if data else StandIn)(data, False, v2.Compose(plain))
    sampler = DistributedSampler(train_set, seed=0, drop_last=True)
    loader = DataLoader(train_set, 64 // world_size, sampler=sampler, drop_last=True)
    test_loader = DataLoader(test_set, 250, sampler=range(rank, len(test_set), world_size))
    torch.manual_seed(0)
    sizes = ((3, 16), (16, 32), (32, 64))
    blocks = [[nn.Conv2d(*s, 3), nn.BatchNorm2d(s[1]), nn.ReLU(), nn.MaxPool2d(2)] for s in sizes]
    model = nn.Sequential(*sum(blocks, []), nn.Flatten(), nn.Linear(256, 10)).to(device)
    if device.type == "cuda":
        model = nn.SyncBatchNorm.convert_sync_batchnorm(model)
    ddp = nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.05, momentum=0.9, weight_decay=5e-4)
    for epoch in range(epochs):
        sampler.set_epoch(epoch)
        torch.manual_seed(epoch * world_size + rank)  # other crops on every rank, in every epoch
        for images, targets in tqdm(loader, f"epoch {epoch}", disable=rank > 0):
            loss = nn.functional.cross_entropy(ddp.train()(images.to(device)), targets.to(device))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        correct, count = evaluate(model, test_loader, device)
        if rank == 0:
            print(f"epoch {epoch}: accuracy {correct / count:.1f} on {count:.0f} test images")
            torch.save(model.state_dict(), save)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    parser = ArgumentParser()
    parser.add_argument("--data", metavar="DIR")
    parser.add_argument("--save", metavar="FILE", default=os.devnull)
    parser.add_argument("--epochs", type=int, default=3)
    main(**vars(parser.parse_args()))
