"""The baseline of benchmark.py: a plain DDP script. Not a chapter; nothing to copy.

    torchrun --standalone --nproc-per-node 2 tools/benchmark/reference.py --data DIR \\
        --arch resnet18 --batch-size 32 --output-dir runs/reference

It trains one epoch, the way of the ImageNet scripts that people copy, with what those leave at its
default: pictures decoded and augmented by PIL, float samples from the workers, weights and images
in NCHW, fp32 (or --bf16), plain SGD, loss and top-1/top-5 read on the host in every step, the
wrapped model evaluated on shares that DistributedSampler has padded. On GPUs it lets cuDNN choose
its algorithms and matrix products use TF32, as the chapters do, so that neither is what a ratio
shows. What it writes to metrics.jsonl after half of the steps, the last one and the evaluation is
what they write.
"""

import argparse
import json
import os
import time
from functools import partial
from pathlib import Path

import torch
import torch.distributed as dist
import torchvision
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler, Subset, TensorDataset
from torchvision import transforms
from torchvision.datasets import ImageFolder
from torchvision.io import ImageReadMode, decode_image
from torchvision.transforms import v2

MEAN, STD = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]


def as_floats(*steps: nn.Module) -> transforms.Compose:
    """From a PIL picture to a float tensor with ImageNet's mean and standard deviation."""
    return transforms.Compose([*steps, transforms.ToTensor(), transforms.Normalize(MEAN, STD)])


def train_view(size: int) -> transforms.Compose:
    return as_floats(transforms.RandomResizedCrop(size), transforms.RandomHorizontalFlip())


def decoded_by_torchvision(folder: Path, size: int) -> ImageFolder:
    """The same samples with torchvision's decoder and its views for tensors in place of PIL's: what
    that alone brings a script like this one."""
    view = [v2.RandomResizedCrop(size), v2.RandomHorizontalFlip()]
    view += [v2.ToDtype(torch.float32, scale=True), v2.Normalize(MEAN, STD)]
    load = partial(decode_image, mode=ImageReadMode.RGB)
    return ImageFolder(folder, v2.Compose(view), loader=load)


def datasets(args: argparse.Namespace) -> tuple[Dataset, Dataset, int]:
    """For training, for validation, and the number of classes."""
    size = args.image_size
    if args.synthetic:  # finished images in memory, few of them different
        few = TensorDataset(torch.randn(64, 3, size, size), torch.arange(64) % 10)
        images = Subset(few, [number % 64 for number in range(args.synthetic)])
        return images, images, 10
    train_set = ImageFolder(args.data / "train", train_view(size))
    val_view = as_floats(transforms.Resize(size * 8 // 7), transforms.CenterCrop(size))
    return train_set, ImageFolder(args.data / "val", val_view), len(train_set.classes)


def on_host(loss: Tensor, output: Tensor, target: Tensor) -> Tensor:
    """Loss, hits and hits in the first five, summed over a batch; and its images: (4,), float64.
    Each is read from the device by itself, as the scripts do."""
    with torch.no_grad():
        top = output.topk(min(5, output.shape[1]), 1).indices.t()
        correct = top.eq(target.view(1, -1).expand_as(top))
        hits = [correct[:k].float().sum().item() for k in (1, 5)]
    return torch.tensor([loss.item() * len(target), *hits, len(target)], dtype=torch.float64)


def as_means(totals: Tensor) -> dict[str, float]:
    """Of what on_host has summed: the loss, and the accuracy in percent."""
    loss, top1, top5 = (totals[:3] / totals[3]).tolist()
    return {"loss": loss, "acc1": 100 * top1, "acc5": 100 * top5}


def train(
    model: nn.Module, loader: DataLoader, optimizer: torch.optim.SGD, device: torch.device, write
) -> None:
    """The epoch."""
    criterion = nn.CrossEntropyLoss().to(device)
    model.train()
    totals, window, logged = torch.zeros(4), time.perf_counter(), 0
    for step, (images, target) in enumerate(loader, start=1):
        images, target = (x.to(device, non_blocking=True) for x in (images, target))
        output = model(images).float()
        loss = criterion(output, target)
        totals = totals + on_host(loss, output, target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step in (len(loader) // 2, len(loader)):
            if device.type == "cuda":
                torch.cuda.synchronize()  # the step's end is measured, as the chapters measure it
            seen = (step - logged) * loader.batch_size * dist.get_world_size()
            rate = seen / (time.perf_counter() - window)
            write("train", epoch=0, step=step, **as_means(totals), images_per_second=rate)
            totals, window, logged = torch.zeros(4), time.perf_counter(), step


@torch.no_grad()
def validate(model: nn.Module, loader: DataLoader, device: torch.device) -> dict[str, float]:
    """Loss and accuracy over all ranks, the padding counted as if it were data."""
    criterion = nn.CrossEntropyLoss().to(device)
    model.eval()
    totals = torch.zeros(4)
    for images, target in loader:
        images, target = (x.to(device, non_blocking=True) for x in (images, target))
        output = model(images).float()
        totals = totals + on_host(criterion(output, target), output, target)
    totals = totals.to(device)
    dist.all_reduce(totals)
    return as_means(totals)


def parse_args(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    images = parser.add_mutually_exclusive_group(required=True)
    images.add_argument("--data", type=Path, help="an ImageNet tree")
    images.add_argument("--synthetic", type=int, help="so many images without files")
    parser.add_argument("--arch", default="resnet50")
    parser.add_argument("--output-dir", type=Path, default=Path("runs", "reference"))
    parser.add_argument("--image-size", type=int, default=224)
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--bf16", action="store_true", help="under autocast")
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> nn.Module:
    """The whole run of one rank; returns the trained, unwrapped model."""
    args = parse_args(argv)
    local_rank, gpu = int(os.environ["LOCAL_RANK"]), torch.cuda.is_available()
    device = torch.device("cuda", local_rank) if gpu else torch.device("cpu")
    if gpu:
        torch.cuda.set_device(device)
        torch.set_float32_matmul_precision("high")
        torch.backends.cudnn.benchmark = True
    dist.init_process_group("nccl" if gpu else "gloo")
    rank, world_size = dist.get_rank(), dist.get_world_size()
    train_set, val_set, classes = datasets(args)
    model = torchvision.models.get_model(args.arch, num_classes=classes).to(device)
    # The loss stays in fp32: its input is made so.
    model.forward = torch.autocast(device.type, torch.bfloat16, enabled=args.bf16)(model.forward)
    model = DistributedDataParallel(model, device_ids=[local_rank] if gpu else None)
    lr = 0.1 * args.batch_size / 256
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

    flags = {"batch_size": args.batch_size}
    write("start", epoch=0, world_size=world_size, steps_per_epoch=len(train_loader), args=flags)
    train(model, train_loader, optimizer, device, write)
    means = validate(model, val_loader, device)
    write("eval", epoch=0, **means, images=len(val_set))
    dist.destroy_process_group()
    return model.module


if __name__ == "__main__":
    main()
