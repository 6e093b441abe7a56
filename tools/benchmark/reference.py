"""The baseline of tools/benchmark/benchmark.py: a plain DDP script. Not a chapter; nothing to copy.

    torchrun --standalone --nproc-per-node 2 tools/benchmark/reference.py --data DIR \\
        --arch resnet18 --batch-size 32 --output-dir runs/reference

It trains the way of the ImageNet scripts that people copy, with what those leave at its default:
pictures decoded and augmented by PIL, float samples from the workers, weights and images in NCHW,
fp32 and no TF32 for matrix products, plain SGD, loss and top-1/top-5 read on the host in every
step, the wrapped model evaluated on shares that DistributedSampler has padded. Its flags and its
metrics.jsonl are those of the chapters, written at the same points, so one reader serves both.
"""

import argparse
import json
import os
import time
from pathlib import Path
from resource import RUSAGE_SELF, getrusage

import torch
import torch.distributed as dist
import torchvision
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler
from torchvision import transforms
from torchvision.datasets import ImageFolder


class Repeated(Dataset):
    """Stands for count pictures: a few normalised ones, made once, again and again."""

    def __init__(self, count: int, size: int) -> None:
        self.images, self.count = torch.randn(32, 3, size, size), count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return self.images[index % len(self.images)], index % 10


def train_view(size: int) -> transforms.Compose:
    """From a PIL picture to a normalised float tensor (3, size, size), augmented."""
    steps = [transforms.RandomResizedCrop(size), transforms.RandomHorizontalFlip()]
    return transforms.Compose([*steps, transforms.ToTensor(), normalize()])


def normalize() -> transforms.Normalize:
    """ImageNet's mean and standard deviation of a pixel, 0 to 1."""
    return transforms.Normalize([0.485, 0.456, 0.406], [0.229, 0.224, 0.225])


def build_datasets(args: argparse.Namespace) -> tuple[Dataset, Dataset, int]:
    """Training set, validation set and number of classes."""
    size = args.image_size
    if args.synthetic:
        return Repeated(args.synthetic, size), Repeated(args.synthetic // 4, size), 10
    resize = [transforms.Resize(size * 8 // 7), transforms.CenterCrop(size)]
    val_view = transforms.Compose([*resize, transforms.ToTensor(), normalize()])
    train_set = ImageFolder(args.data / "train", train_view(size))
    return train_set, ImageFolder(args.data / "val", val_view), len(train_set.classes)


def accuracy(output: Tensor, target: Tensor) -> list[float]:
    """Top-1 and top-5 of a batch in percent, on the host."""
    with torch.no_grad():
        top = output.topk(min(5, output.shape[1]), 1).indices.t()
        correct = top.eq(target.view(1, -1).expand_as(top))
        return [correct[:k].float().sum().item() * 100 / len(target) for k in (1, 5)]


def train(
    args: argparse.Namespace,
    model: nn.Module,
    loader: DataLoader,
    optimizer: torch.optim.SGD,
    device: torch.device,
    epoch: int,
    write,
) -> None:
    """One epoch."""
    criterion = nn.CrossEntropyLoss().to(device)
    model.train()
    loss_sum = top1_sum = top5_sum = waited = seen = 0.0
    window = asked = time.perf_counter()
    for step, (images, target) in enumerate(loader, start=1):
        waited += time.perf_counter() - asked
        images, target = (x.to(device, non_blocking=True) for x in (images, target))
        output = model(images)
        loss = criterion(output, target)
        top1, top5 = accuracy(output, target)
        loss_sum += loss.item() * len(target)
        top1_sum, top5_sum = top1_sum + top1 * len(target), top5_sum + top5 * len(target)
        seen += len(target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % args.print_freq == 0 or step in (1, len(loader)):
            if device.type == "cuda":
                torch.cuda.synchronize()  # the step's end is measured, as the chapters measure it
            took = time.perf_counter() - window
            row = {"epoch": epoch, "step": epoch * len(loader) + step, "loss": loss_sum / seen}
            row |= {"acc1": top1_sum / seen, "lr": optimizer.param_groups[0]["lr"]}
            row |= {"seconds": round(took, 3), "data_wait": round(waited / took, 3)}
            row["images_per_second"] = round(seen * dist.get_world_size() / took, 1)
            peak = torch.cuda.max_memory_allocated() or getrusage(RUSAGE_SELF).ru_maxrss << 10
            write("train", **row, max_memory=peak >> 20)
            loss_sum = top1_sum = top5_sum = waited = seen = 0.0
            window = time.perf_counter()
        asked = time.perf_counter()


def validate(model: nn.Module, loader: DataLoader, device: torch.device) -> dict:
    """Loss and accuracy in percent over all ranks, the padding counted as if it were data."""
    criterion = nn.CrossEntropyLoss().to(device)
    model.eval()
    totals = torch.zeros(4, device=device)
    with torch.no_grad():
        for images, target in loader:
            images, target = (x.to(device, non_blocking=True) for x in (images, target))
            output = model(images)
            loss, (top1, top5) = criterion(output, target).item(), accuracy(output, target)
            totals += len(target) * torch.tensor([loss, top1, top5, 1.0], device=device)
    dist.all_reduce(totals)
    loss, top1, top5, seen = totals.tolist()
    return {"loss": loss / seen, "acc1": top1 / seen, "acc5": top5 / seen}


def parse_args(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("--data", type=Path)
    add("--synthetic", type=int)
    add("--arch", default="resnet50")
    add("--output-dir", type=Path, default=Path("runs", "reference"))
    add("--lr", type=float, default=0.1)
    whole = {"image-size": 224, "epochs": 90, "batch-size": 256, "workers": 4, "print-freq": 10}
    for name, default in whole.items():
        add(f"--{name}", type=int, default=default)
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> nn.Module:
    """The whole run of one rank; returns the trained, unwrapped model."""
    args = parse_args(argv)
    local_rank, gpu = int(os.environ["LOCAL_RANK"]), torch.cuda.is_available()
    device = torch.device("cuda", local_rank) if gpu else torch.device("cpu")
    if gpu:
        torch.cuda.set_device(device)
        torch.backends.cudnn.benchmark = True
    dist.init_process_group("nccl" if gpu else "gloo")
    rank, world_size = dist.get_rank(), dist.get_world_size()
    train_set, val_set, classes = build_datasets(args)
    model = torchvision.models.get_model(args.arch, num_classes=classes).to(device)
    model = DistributedDataParallel(model, device_ids=[local_rank] if gpu else None)
    lr = args.lr * args.batch_size / 256
    optimizer = torch.optim.SGD(model.parameters(), lr, momentum=0.9, weight_decay=1e-4)
    sampler = DistributedSampler(train_set, drop_last=True)
    options = {"batch_size": args.batch_size // world_size, "num_workers": args.workers}
    options["pin_memory"] = gpu
    train_loader = DataLoader(train_set, sampler=sampler, drop_last=True, **options)
    val_sampler = DistributedSampler(val_set, shuffle=False)
    val_loader = DataLoader(val_set, sampler=val_sampler, **options)
    args.output_dir.mkdir(parents=True, exist_ok=True)

    def write(event: str, **fields: object) -> None:
        if rank == 0:
            line = json.dumps({"event": event, "time": time.time()} | fields)
            with (args.output_dir / "metrics.jsonl").open("a") as file:
                file.write(line + "\n")

    facts = {"world_size": world_size, "global_batch_size": args.batch_size}
    write("start", chapter="reference", resumed_from_step=0, **facts)
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        train(args, model, train_loader, optimizer, device, epoch, write)
        result = validate(model, val_loader, device) | {"images": len(val_set)}
        write("eval", epoch=epoch, step=(epoch + 1) * len(train_loader), **result)
        if rank == 0:
            state = {"model": model.module.state_dict(), "optimizer": optimizer.state_dict()}
            torch.save(state | {"epoch": epoch + 1}, args.output_dir / "checkpoint.pt")
    write("end", epoch=args.epochs - 1, step=args.epochs * len(train_loader))
    dist.destroy_process_group()
    return model.module


if __name__ == "__main__":
    main()
