"""Train ImageNet with DistributedDataParallel, its processes started by torch.multiprocessing.

Use it where one `python` command must start everything: tests, tools, a demo in one file. For real
training take 02_distributed: torchrun also restarts, names the rank that failed and keeps logs.
Line by line: https://pytorch-multi-gpu-cookbook.github.io/en/chapters/03_multiprocessing/
In Chinese:   https://pytorch-multi-gpu-cookbook.github.io/chapters/03_multiprocessing/

    # two processes on generated images; all GPUs of a machine; two machines, this is the first
    python 03_multiprocessing/main.py --synthetic --nprocs 2 --epochs 3 \\
        --arch resnet18 --image-size 64 --batch-size 64
    python 03_multiprocessing/main.py --data /data/imagenet --bf16
    python 03_multiprocessing/main.py --data /data/imagenet --bf16 --output-dir /shared/run1 \\
        --nnodes 2 --node-rank 0 --master-addr HOST --master-port 29500

Changed against 02_distributed:
- main starts the processes by mp.spawn; each is a fresh interpreter that imports this file again;
- `worker` gives each of them what torchrun would have put into its environment;
- on one machine the parent finds a free port, so two runs do not collide;
- --nprocs, and --nnodes, --node-rank, --master-addr, --master-port for more machines.
"""

import json
import math
import os
import shutil
import socket
import time
from argparse import ArgumentDefaultsHelpFormatter, ArgumentParser, Namespace
from datetime import timedelta
from pathlib import Path
from resource import RUSAGE_SELF, getrusage

import torch
import torch.distributed as dist
import torchvision
from torch import Tensor, nn
from torch import multiprocessing as mp
from torch.optim import SGD
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import DataLoader, Dataset, DistributedSampler, TensorDataset
from torchvision.io import ImageReadMode, decode_image
from torchvision.transforms import v2
from tqdm import tqdm

CHAPTER, MOMENTUM, KEPT = Path(__file__).resolve().parent.name, 0.9, []
# ImageNet's mean and standard deviation of a pixel, 0 to 255: (2, 3, 1, 1).
PIXELS = 255 * torch.tensor([[0.485, 0.456, 0.406], [0.229, 0.224, 0.225]]).view(2, 3, 1, 1)
# What a resumed run takes from its checkpoint where the command line is silent.
RESUMED = "arch image_size epochs batch_size lr warmup_epochs weight_decay label_smoothing seed"
LEAST = dict(synthetic=4, image_size=8, lr=1e-9, workers=0, seed=0)  # else 1, for a float 0
LEAST["node_rank"] = 0


def refuse_if(mistake: object, line: str) -> None:
    """If there is a mistake, end this process with one line, status 1 and no traceback."""
    if mistake:
        raise SystemExit(f"{CHAPTER}: error: {line}")


def build_parser() -> ArgumentParser:
    """The flags: the same names, defaults and order in every chapter, its own ones last."""
    usage = "%(prog)s --data DIR | --synthetic [N]  [options]  (--help lists them)"
    parser = ArgumentParser(None, usage, __doc__.splitlines()[0], allow_abbrev=False)
    parser.formatter_class = ArgumentDefaultsHelpFormatter
    models = torchvision.models.list_models(module=torchvision.models)
    local_world_size = int(os.environ.get("LOCAL_WORLD_SIZE", 1))  # [dist] they share the CPUs
    workers = max(1, min(16, len(os.sched_getaffinity(0)) // local_world_size))
    add = parser.add_argument
    add("--data", type=Path, metavar="DIR", help="ImageNet folder with train/ and val/ in it")
    add("--synthetic", type=int, nargs="?", const=1280, metavar="N", help="N generated images")
    add("--arch", choices=models, default="resnet50", metavar="NAME", help="a torchvision model")
    add("--image-size", type=int, default=224, help="pixels a side")
    add("--epochs", type=int, default=90, help="passes over the training images")
    add("--batch-size", type=int, default=256, help="global: images a step, all ranks together")
    add("--lr", type=float, default=0.1, help="peak rate per 256 images of the global batch")
    add("--warmup-epochs", type=float, default=5.0, help="unless given, at most --epochs / 10")
    add("--weight-decay", type=float, default=1e-4, help="L2 penalty on all weights")
    add("--label-smoothing", type=float, default=0.0, help="in the training loss")
    add("--workers", type=int, default=workers, help="image loading processes of each rank")
    add("--bf16", action="store_true", help="bfloat16 autocast")
    add("--compile", action="store_true", help="torch.compile the training step")
    add("--sync-bn", action="store_true", help="BatchNorm statistics over all ranks, GPU only")
    add("--pretrained", action="store_true", help="start from torchvision's ImageNet weights")
    add("--output-dir", type=Path, default=Path("runs", CHAPTER), metavar="DIR", help="all output")
    add("--resume", metavar="PATH|auto", help="a checkpoint; auto: --output-dir's, if it has one")
    add("--evaluate", action="store_true", help="only evaluate --resume or --pretrained")
    add("--seed", type=int, default=0, help="of weights, order and augmentation")
    add("--print-freq", type=int, default=20, metavar="STEPS", help="between two log lines")
    add("--dist-timeout", type=int, default=600, metavar="SECONDS", help="to wait for other ranks")
    own = parser.add_argument_group("of this chapter").add_argument
    nprocs = torch.cuda.device_count() or 2
    own("--nprocs", type=int, default=nprocs, help="processes on this machine, one per GPU")
    own("--nnodes", type=int, default=1, help="machines; start this file on each of them")
    own("--node-rank", type=int, default=0, help="which of them this is, from 0")
    own("--master-addr", default="127.0.0.1", metavar="HOST", help="machine of node rank 0")
    own("--master-port", type=int, metavar="PORT", help="a free one there; found on one machine")
    return parser


def parse_args(argv: list[str] | None) -> tuple[Namespace, dict]:
    """The arguments, and the checkpoint to go on from or {}; one line ends what cannot work."""
    parser = build_parser()
    args = parser.parse_args(argv)
    checkpoint = load_checkpoint(args)
    # Parsed twice: what the checkpoint was trained with becomes the default, what is typed wins.
    saved = checkpoint.get("args", {"warmup_epochs": min(5.0, args.epochs / 10)})
    parser.set_defaults(**{name: saved[name] for name in RESUMED.split() if name in saved})
    args = parser.parse_args(argv)
    for name, value in vars(args).items():
        least = LEAST.get(name, 1 if type(value) is int else 0)
        wrong = type(value) in (int, float) and not least <= value < 2**31  # nor is nan
        refuse_if(wrong, f"--{name.replace('_', '-')} {value} is out of range: {least} to 2**31")
    refuse_if((args.data is None) == (args.synthetic is None), "give --data DIR or --synthetic")
    refuse_if(args.label_smoothing > 1, "--label-smoothing is at most 1")
    refuse_if(args.warmup_epochs > args.epochs, "--warmup-epochs is at most --epochs")
    no_weights = args.evaluate and not (checkpoint or args.pretrained)
    refuse_if(no_weights, "--evaluate needs --resume PATH or --pretrained")
    refuse_if(checkpoint and args.pretrained, "--resume brings its weights: drop --pretrained")
    arch, output_dir = saved.get("arch", args.arch), args.output_dir.resolve()
    refuse_if(args.arch != arch, f"--resume {args.resume} is a {arch}: drop --arch {args.arch}")
    existing = next(p for p in (output_dir, *output_dir.parents) if os.path.exists(p))
    refuse_if(not os.access(f"{existing}/.", os.W_OK), f"--output-dir: cannot write to {existing}")
    goes_on = args.resume == "auto" or Path(args.resume or "/").resolve().parent == output_dir
    used = any(os.path.exists(output_dir / n) for n in ("metrics.jsonl", "checkpoint.pt"))
    other_run = used and not (goes_on or args.evaluate)
    refuse_if(other_run, f"{args.output_dir} holds a run: --resume auto or another --output-dir")
    return args, checkpoint


def setup_distributed(args: Namespace) -> tuple[int, int, torch.device]:
    """Join the other ranks; returns rank, world_size and the device, a GPU of its own or a CPU."""
    # [dist] rank counts through all machines and names this process; local_rank picks its GPU.
    rank, local_rank, world_size = map(int, map(os.getenv, ("RANK", "LOCAL_RANK", "WORLD_SIZE")))
    below = args.batch_size // world_size * world_size
    odd = f"--batch-size {args.batch_size} (global) does not divide by {world_size} ranks: use"
    refuse_if(args.batch_size != below, f"{odd} {below or 2 * world_size} or {below + world_size}")
    refuse_if(args.sync_bn and not torch.cuda.is_available(), "--sync-bn needs GPUs: leave it out")
    device, backend, device_id = torch.device("cpu"), "gloo", None
    if torch.cuda.is_available():
        gpus = torch.cuda.device_count()
        refuse_if(local_rank >= gpus, f"more processes than GPUs on this machine: start {gpus}")
        device = torch.device("cuda", local_rank)
        torch.cuda.set_device(device)  # [dist] first of all, or every rank opens GPU 0 as well
        torch.set_float32_matmul_precision("high")  # TF32, as convolutions have it anyway
        backend, device_id = "nccl", device  # [dist] so nccl connects here, not in the first step
    wait = timedelta(seconds=args.dist_timeout)
    # [dist] Waits until all ranks have come, so each has passed its checks when training starts.
    dist.init_process_group(backend, "env://", wait, world_size, rank, device_id=device_id)
    return rank, world_size, device


def wrap_model(args: Namespace, model: nn.Module, device: torch.device) -> nn.Module:
    """What training steps call. The bare model shares its weights, to be evaluated and saved."""
    if args.sync_bn:
        nn.SyncBatchNorm.convert_sync_batchnorm(model)  # [dist] swaps the layers inside of model
    # [dist] Gives all ranks the weights of rank 0, and makes backward average the gradients, which
    # are parts of the buckets that it sends: no second copy of them all.
    model = nn.parallel.DistributedDataParallel(model, gradient_as_bucket_view=True)
    return torch.compile(model) if args.compile else model


def all_reduce_sum(tensor: Tensor) -> Tensor:
    """The sum over all ranks, on every rank; in place."""
    # [dist] Kept, or gloo's thread frees it, takes Python's locks, and may hang a fork or the end.
    KEPT[:] = [dist.group.WORLD, *KEPT[1:][-99:], dist.all_reduce(tensor, async_op=True)]
    KEPT[-1].wait()  # [dist] a rank that comes here once less than the others hangs them
    return tensor


def broadcast_buffers(model: nn.Module) -> None:
    """Give all ranks the buffers of rank 0, the one that saves the model."""
    for buffer in model.buffers():  # [dist] BatchNorm has seen other images on every rank
        KEPT.append(dist.broadcast(buffer, src=0, async_op=True))  # [dist] as in all_reduce_sum
        KEPT[-1].wait()


def cleanup() -> None:
    """Leave the other ranks, at the end of a good run; a failing one just exits."""
    dist.destroy_process_group()  # [dist] or torch warns of resources that nobody released


def load_image(path: str) -> Tensor:
    """The picture as uint8 RGB (3, height, width). Raises OSError, which names the file."""
    try:
        image = decode_image(path, ImageReadMode.RGB)
    except RuntimeError as error:
        raise OSError(f"cannot decode {path}: {str(error).splitlines()[0]}") from None
    if image.dtype != torch.uint8 or image.ndim != 3 or image.shape[0] != 3:
        raise OSError(f"{path} is not one 8-bit picture: {image.dtype} {tuple(image.shape)}")
    return image


def synthetic_images(numbers: range, size: int) -> Dataset:
    """Learnable images held in memory: a colour pattern per class, noise of its own per image."""
    generator = torch.Generator().manual_seed(0)
    patterns = 64 + 128 * torch.rand(10, 3, 4, 4, generator=generator)
    patterns = nn.functional.interpolate(patterns, size=(size, size), mode="bilinear")
    noise = 48 * torch.randn(3, size, size, generator=generator)
    images = ((patterns[n % 10] + noise.roll(n * 7919)).clamp(0, 255).byte() for n in numbers)
    return TensorDataset(torch.stack(list(images)), torch.tensor(numbers) % 10)


def build_datasets(args: Namespace) -> tuple[Dataset, Dataset, int]:
    """Training set, validation set and number of classes. Replace it to train on your own data:
    an item is a uint8 image (3, size, size) and the index of its class."""
    size, count = args.image_size, args.synthetic
    if count:
        train_set = synthetic_images(range(count), size)
        return train_set, synthetic_images(range(count, count + count // 4), size), 10
    train_view = v2.Compose([v2.RandomResizedCrop(size, antialias=True), v2.RandomHorizontalFlip()])
    val_view = v2.Compose([v2.Resize(size * 8 // 7, antialias=True), v2.CenterCrop(size)])
    load = torchvision.datasets.ImageFolder
    try:
        train_set = load(args.data / "train", train_view, loader=load_image)
        val_set = load(args.data / "val", val_view, loader=load_image)
    except FileNotFoundError as error:  # a flat val/, as it is downloaded, or an empty class
        refuse_if(True, f"--data {args.data}: {error} It must hold train/CLASS/ and val/CLASS/")
    odd = sorted(set(train_set.classes) ^ set(val_set.classes))
    refuse_if(odd, f"--data {args.data}: train/ and val/ differ in {len(odd)} classes: {odd[:3]}")
    return train_set, val_set, len(train_set.classes)


def build_loaders(
    args: Namespace, train_set: Dataset, val_set: Dataset, rank: int, world_size: int
) -> tuple[DataLoader, DataLoader]:
    """Batches of this rank's share of both sets, each its part of a global batch."""
    # Workers live one epoch: seeded anew at its start, a resumed run repeats what they draw.
    # Forked, whatever the process itself was started by: else each would import torch again.
    options: dict = {"num_workers": args.workers, "pin_memory": torch.cuda.is_available()}
    options |= {"multiprocessing_context": "fork" if args.workers else None}
    options |= {"batch_size": args.batch_size // world_size}
    # [dist] All ranks shuffle alike and take every world_size-th image: a step's shares together
    # are the next batch_size images of that order, for any number of ranks.
    sampler = DistributedSampler(train_set, world_size, rank, seed=args.seed, drop_last=True)
    train_loader = DataLoader(train_set, sampler=sampler, drop_last=True, **options)
    # [dist] Not DistributedSampler: it repeats images to make shares equal; they would count twice.
    share = range(rank, len(val_set), world_size)
    return train_loader, DataLoader(val_set, sampler=share, **options)


def build_model(arch: str, num_classes: int, pretrained: bool) -> nn.Module:
    """The model, from images (N, 3, H, W) to logits (N, num_classes). Replace it to train yours."""
    # These two would train on extra outputs and want another normalisation than the rest.
    inception = {"aux_logits": False, "transform_input": True, "init_weights": True}
    options = inception if arch in ("googlenet", "inception_v3") else {}
    model = torchvision.models.get_model(arch, num_classes=num_classes, **options)
    if pretrained:
        try:
            weights = torchvision.models.get_model(arch, weights="DEFAULT").state_dict()
        except OSError as error:
            refuse_if(True, f"--pretrained: cannot fetch the weights of {arch}: {error}")
        own = model.state_dict()
        fitting = {k: v for k, v in weights.items() if k in own and v.shape == own[k].shape}
        fresh = model.load_state_dict(fitting, strict=False).missing_keys
        print(f"--pretrained {arch}: new for {num_classes} classes are {fresh or 'no weights'}")
    return model


def build_optimizer(
    args: Namespace, model: nn.Module, steps_per_epoch: int, checkpoint: dict
) -> tuple[SGD, LambdaLR]:
    """SGD and its schedule. The rate grows with the batch, after a linear warm-up (Goyal et al.
    2017, arXiv:1706.02677), and falls along a cosine (Loshchilov & Hutter 2017, 1608.03983)."""
    peak_lr = args.lr * args.batch_size / 256
    warmup, total = args.warmup_epochs * steps_per_epoch, args.epochs * steps_per_epoch

    def share_of_peak(step: int) -> float:
        if step < warmup:
            return min(1.0, (step + 1) / warmup)
        return 0.5 + 0.5 * math.cos(math.pi * (step - warmup) / max(1.0, total - warmup))

    optimizer = SGD(model.parameters(), peak_lr, MOMENTUM, 0, args.weight_decay, fused=True)
    schedule = LambdaLR(optimizer, share_of_peak)
    if checkpoint:
        # The momentum is the checkpoint's, the settings are this run's: --lr may have been typed.
        settings = {"param_groups": optimizer.state_dict()["param_groups"]}
        optimizer.load_state_dict(checkpoint["optimizer"] | settings)
        position = checkpoint["epoch"] * steps_per_epoch + checkpoint["step_in_epoch"]
        for weight, state in optimizer.state.items():  # in its layout, or fused SGD misreads it
            state["momentum_buffer"] = torch.empty_like(weight).copy_(state["momentum_buffer"])
        settings = {"base_lrs": [peak_lr], "last_epoch": position}
        schedule.load_state_dict(checkpoint["schedule"] | settings)
        optimizer.param_groups[0]["lr"] = peak_lr * share_of_peak(position)
    return optimizer, schedule


def load_checkpoint(args: Namespace) -> dict:
    """What --resume names, on the CPU; {} if that is nothing."""
    path = args.output_dir / "checkpoint.pt" if args.resume == "auto" else Path(args.resume or "")
    if args.resume is None or (args.resume == "auto" and not os.path.exists(path)):
        return {}
    try:
        # map_location: or every rank loads onto GPU 0. weights_only: a pickle may run any code.
        checkpoint = torch.load(path, map_location="cpu", weights_only=True)
        inside_epoch = checkpoint["step_in_epoch"] and not args.evaluate
    except Exception as error:  # a missing, torn or foreign file fails in many ways
        refuse_if(True, f"--resume {path} is no usable checkpoint: {error!r:.150}")
    refuse_if(inside_epoch, f"--resume {path} stopped inside an epoch: go on with 06_slurm")
    return checkpoint


def save_checkpoint(folder: Path, state: dict, is_best: bool) -> None:
    """Write checkpoint.pt, and best.pt, so that each is the old file or the new one, whole."""
    # best.pt first: a run killed between the two repeats its epoch and writes both again.
    for name in ("best.pt", "checkpoint.pt") if is_best else ("checkpoint.pt",):
        temporary = folder / "saving.tmp"  # one name: what a killed run leaves of it is used up
        try:
            with temporary.open("wb") as file:
                torch.save(state, file)
                file.flush()
                os.fsync(file.fileno())  # or a power cut may leave the name without the data
            temporary.replace(folder / name)
        except (OSError, RuntimeError) as error:  # a full disk is a RuntimeError of torch.save
            temporary.unlink(missing_ok=True)
            why = str(error.__context__ or error).splitlines()[0]  # torch's speaks of a position
            why += f"; {shutil.disk_usage(folder).free >> 20} MiB free; the file before it is whole"
            refuse_if(True, f"cannot save {folder / name}: {why}")


class RunLog:
    """Where the run stands; rank 0 writes it to a file, and has a bar on a terminal (None)."""

    def __init__(self, args: Namespace, rank: int, checkpoint: dict) -> None:
        self.epoch, self.step = checkpoint.get("epoch", 0), checkpoint.get("global_step", 0)
        self.file, self.folder, self.no_bar = None, args.output_dir, rank != 0 or None
        if rank == 0:  # [dist] not local_rank, which is 0 once on every machine
            args.output_dir.mkdir(parents=True, exist_ok=True)
            name = "evaluate.jsonl" if args.evaluate else "metrics.jsonl"
            self.file = (args.output_dir / name).open("ab", buffering=0)

    def event(self, event: str, **fields: object) -> None:
        """One line with the epoch (from 0) and the steps done; a loss gone wrong ends the run."""
        good = max(self.folder.glob("checkpoint.pt"), default="none")
        bad = f"loss {fields.get('loss')} by step {self.step}, lower --lr; last checkpoint: {good}"
        refuse_if(not math.isfinite(fields.get("loss", 0)), bad)
        if self.file:
            fields = {"epoch": self.epoch, "step": self.step} | fields
            line = json.dumps({"event": event, "time": time.time()} | fields)
            self.file.write(f"{line}\n".encode())
            short = {k: f"{v:.6g}" if isinstance(v, float) else v for k, v in fields.items()}
            tqdm.write("  ".join([event, *(f"{k} {v}" for k, v in short.items() if k != "args")]))


def to_device(images: Tensor, targets: Tensor, device: torch.device) -> tuple[Tensor, Tensor]:
    """uint8 images (N, 3, H, W) as normalised float32, channels_last, and the targets (N,)."""
    # Bytes until here: a quarter of what floats would take between processes and to the GPU.
    mean, std = PIXELS.to(device, non_blocking=True)
    images = images.to(device, non_blocking=True).float(memory_format=torch.channels_last)
    return images.sub_(mean).div_(std), targets.to(device, non_blocking=True)


def train_one_epoch(
    args: Namespace, model: nn.Module, loader: DataLoader, schedule: LambdaLR, log: RunLog
) -> None:
    """Train on this rank's share of the images. No ordinary step waits for the device."""
    optimizer, device = schedule.optimizer, next(model.train().parameters()).device
    criterion = nn.CrossEntropyLoss(label_smoothing=args.label_smoothing)
    # Loss sum, correct, images: added up on the device, because to read one is to wait for it.
    totals = torch.zeros(3, dtype=torch.float64, device=device)
    waited, window = 0.0, (asked := time.perf_counter())
    for step_in_epoch, (images, targets) in enumerate(tqdm(loader, disable=log.no_bar), start=1):
        waited += time.perf_counter() - asked
        images, targets = to_device(images, targets, device)
        with torch.autocast(device.type, torch.bfloat16, enabled=args.bf16):
            logits = model(images)
            loss = criterion(logits, targets)
        optimizer.zero_grad()
        loss.backward()  # [dist] averages the gradients over the ranks while it still computes
        optimizer.step()
        lr = optimizer.param_groups[0]["lr"]
        schedule.step()
        log.step += 1
        totals[0] += loss.detach() * len(targets)
        totals[1] += (logits.detach().argmax(1) == targets).sum()
        totals[2] += len(targets)
        if step_in_epoch % args.print_freq == 0 or step_in_epoch in (1, len(loader)):
            # [dist] One collective and one wait for the device, for all three, in many steps.
            loss_sum, correct, n = all_reduce_sum(totals).tolist()
            took = time.perf_counter() - window
            row = {"loss": loss_sum / n, "acc1": 100 * correct / n, "lr": lr}
            row |= {"seconds": round(took, 3), "data_wait": round(waited / took, 3)}
            peak = torch.cuda.max_memory_allocated() or getrusage(RUSAGE_SELF).ru_maxrss << 10
            log.event("train", **row, images_per_second=round(n / took, 1), max_memory=peak >> 20)
            waited, window = 0.0, time.perf_counter()
            totals.zero_()
        asked = time.perf_counter()


@torch.inference_mode()
def evaluate(args: Namespace, model: nn.Module, loader: DataLoader, log: RunLog) -> dict:
    """Loss and accuracy in percent, exact for any number of images and ranks: sums of all."""
    broadcast_buffers(model)  # [dist] so that all ranks evaluate the model that rank 0 saves
    device = next(model.eval().parameters()).device
    totals = torch.zeros(4, dtype=torch.float64, device=device)  # loss sum, top-1, top-5, images
    for images, targets in tqdm(loader, disable=log.no_bar):
        images, targets = to_device(images, targets, device)
        with torch.autocast(device.type, torch.bfloat16, enabled=args.bf16):
            logits = model(images).double()
        hits = logits.topk(min(5, logits.shape[1])).indices == targets[:, None]
        totals[0] += nn.functional.cross_entropy(logits, targets, reduction="sum")
        totals[1] += hits[:, 0].sum()
        totals[2] += hits.sum()
        totals[3] += len(targets)
    # [dist] The only collective: a rank may have had fewer batches than the others, or none.
    loss, top1, top5, n = all_reduce_sum(totals).tolist()
    return {"loss": loss / n, "acc1": 100 * top1 / n, "acc5": 100 * top5 / n, "images": int(n)}


def run(args: Namespace, checkpoint: dict) -> None:
    """The whole run of one rank."""
    train_set, val_set, num_classes = build_datasets(args)
    known = checkpoint.get("num_classes", num_classes)
    refuse_if(known != num_classes, f"{args.resume} knows {known} classes, the data {num_classes}")
    too_few = len(train_set) < args.batch_size and not args.evaluate
    refuse_if(too_few, f"{len(train_set)} images are fewer than --batch-size {args.batch_size}")
    rank, world_size, device = setup_distributed(args)  # [dist]
    train_loader, val_loader = build_loaders(args, train_set, val_set, rank, world_size)
    torch.manual_seed(args.seed)
    # [dist] Rank 0 alone fetches --pretrained weights; wrap_model hands them to the others.
    raw_model = build_model(args.arch, num_classes, args.pretrained and rank == 0)
    raw_model.load_state_dict(checkpoint.get("model", raw_model.state_dict()))
    raw_model = raw_model.to(device, memory_format=torch.channels_last)
    optimizer, schedule = build_optimizer(args, raw_model, len(train_loader), checkpoint)
    settings = {k: str(v) if isinstance(v, Path) else v for k, v in vars(args).items()}
    facts = {"train_images": len(train_set), "val_images": len(val_set), "classes": num_classes}
    mine = torch.tensor([*facts.values(), checkpoint.get("global_step", 0)], device=device)
    # [dist] Machines may see different disks: without this the ranks hang, or train on garbage.
    same = torch.equal(all_reduce_sum(mine.clone()), mine * world_size)
    refuse_if(not same, f"rank {rank} has {facts}, others differ in data or checkpoint: share both")
    log, best_acc1 = RunLog(args, rank, checkpoint), checkpoint.get("best_acc1", -1.0)
    name = torch.cuda.get_device_name() if device.type == "cuda" else "cpu"
    facts |= {"torch": torch.__version__, "cuda": torch.version.cuda, "host": os.uname().nodename}
    facts |= {"device": name, "world_size": world_size, "global_batch_size": args.batch_size}
    facts |= {"per_rank_batch_size": train_loader.batch_size, "steps_per_epoch": len(train_loader)}
    saved = [(k, checkpoint["args"][k]) for k in RESUMED.split()] if checkpoint else []
    facts |= {f"{k} was": old for k, old in saved if old != settings[k]}  # what the user changed
    log.event("start", chapter=CHAPTER, resumed_from_step=log.step, **facts, args=settings)
    model = wrap_model(args, raw_model, device)  # [dist] once it has its weights and its device
    if args.evaluate:
        log.event("eval", **evaluate(args, raw_model, val_loader, log))
    for epoch in range(log.epoch, 0 if args.evaluate else args.epochs):
        log.epoch = epoch
        train_loader.sampler.set_epoch(epoch)  # [dist] or each epoch repeats the first one's order
        # [dist] Dropout and augmentation differ by rank and epoch, and repeat after a resume.
        torch.manual_seed((args.seed * 1_000_003 + epoch * world_size + rank) % 2**32)
        train_one_epoch(args, model, train_loader, schedule, log)
        result = evaluate(args, raw_model, val_loader, log)
        log.event("eval", **result)
        is_best, best_acc1 = result["acc1"] > best_acc1, max(result["acc1"], best_acc1)
        state = {"model": raw_model.state_dict(), "optimizer": optimizer.state_dict()}
        state |= {"schedule": schedule.state_dict(), "scaler": None, "step_in_epoch": 0}
        state |= {"epoch": epoch + 1, "global_step": log.step, "best_acc1": best_acc1}
        state |= {"num_classes": num_classes, "args": settings}
        if rank == 0:  # [dist] one writer for one file
            save_checkpoint(args.output_dir, state, is_best)
    log.event("end", best_acc1=best_acc1)
    cleanup()  # [dist]


def worker(local_rank: int, argv: list[str] | None, port: int, listener: object = None) -> None:
    """One rank, in a fresh interpreter: nothing of the parent is here but these arguments."""
    args = build_parser().parse_args(argv)
    rank, world_size = args.node_rank * args.nprocs + local_rank, args.nnodes * args.nprocs
    # [dist] What torchrun would have set; run() below is that of 02_distributed, seeds and all.
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(local_rank), "WORLD_SIZE": str(world_size)}
    os.environ |= {"LOCAL_WORLD_SIZE": str(args.nprocs), "MASTER_PORT": str(port)}
    os.environ |= {"MASTER_ADDR": args.master_addr}
    if listener and rank == 0:
        options = {"multi_tenant": True, "master_listen_fd": listener.detach()}
        options |= {"use_libuv": False}  # torch 2.6's libuv takes no open socket
        # [dist] Found by env://, which would open one that listens to all machines.
        KEPT.append(dist.TCPStore(args.master_addr, port, None, True, **options))
    try:
        run(*parse_args(argv))
    except OSError as error:  # an unreadable image: from a worker, the last line of its traceback
        refuse_if(True, str(error).strip().splitlines()[-1].removeprefix("OSError: "))


def main(argv: list[str] | None = None) -> None:
    args, _ = parse_args(argv)
    outside = not 0 <= args.node_rank < args.nnodes
    refuse_if(outside, f"--node-rank {args.node_rank}: give 0 to {args.nnodes - 1}")
    port = args.master_port or 0
    refuse_if(args.nnodes > 1 and not port, "--nnodes needs --master-addr and --master-port too")
    refuse_if(port > 65535, f"--master-port {port}: the highest one is 65535")
    try:  # [dist] where rank 0 will listen: open from here on, or others may take the port
        listener = socket.create_server((args.master_addr, port)) if args.nnodes == 1 else None
    except OSError as error:
        refuse_if(True, f"--master-addr {args.master_addr} --master-port {port}: {error}")
    port = listener.getsockname()[1] if listener else port
    try:  # [dist] when one fails, spawn ends the others
        mp.spawn(worker, (argv, port, listener), args.nprocs)
    except mp.ProcessExitedException as error:  # it has printed why, unless a signal killed it
        why = error.signal_name or f"status {error.exit_code}"
        refuse_if(True, f"the process of local rank {error.error_index} ended with {why}")
    except mp.ProcessRaisedException as error:  # the text is the traceback of the child
        raise SystemExit(str(error)) from None


if __name__ == "__main__":
    main()
