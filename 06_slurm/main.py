"""Train ImageNet under Slurm: ranks from srun, and a job that survives preemption.

Use it on a cluster that Slurm runs. It asks Slurm who it is, so nothing is typed twice, and when
it is told that its time is up it saves in the middle of the epoch and goes on after the requeue.
Line by line: https://pytorch-multi-gpu-cookbook.github.io/en/chapters/06_slurm/
In Chinese:   https://pytorch-multi-gpu-cookbook.github.io/chapters/06_slurm/

    # one task per GPU; one task per node, which starts a process per GPU; CPUs, on generated images
    # (-K: when one task dies, Slurm ends the others, instead of letting them wait)
    srun -K --nodes 2 --ntasks-per-node 4 --gres gpu:4 --cpus-per-task 8 python 06_slurm/main.py \\
        --data /data/imagenet --bf16
    srun -K --nodes 2 --ntasks-per-node 1 --gres gpu:4 --cpus-per-task 32 python 06_slurm/main.py \\
        --data /data/imagenet --bf16
    srun -K --ntasks 2 python 06_slurm/main.py --synthetic --epochs 3 \\
        --arch resnet18 --image-size 64 --batch-size 64
    # as a job that is requeued until it is done; the same with torchrun
    sbatch 06_slurm/srun_per_gpu.sbatch --data /data/imagenet --bf16
    sbatch 06_slurm/torchrun_per_node.sbatch --data /data/imagenet --bf16

Changed against 02_distributed:
- `places_of_task` works out ranks and rendezvous from what srun has set; so does --dist-file;
- SIGUSR1 or SIGTERM to any rank: all agree, rank 0 saves, all exit with status 75;
- the sampler can begin inside an epoch, where the checkpoint's epoch was left.
"""

import json
import math
import os
import re
import shutil
import signal
import socket
import sys
import time
from argparse import ArgumentDefaultsHelpFormatter, ArgumentParser, Namespace
from collections.abc import Iterator, Mapping
from datetime import timedelta
from itertools import islice
from pathlib import Path
from resource import RUSAGE_SELF, getrusage

import torch
import torch.distributed as dist
import torchvision
from torch import Tensor, nn
from torch import multiprocessing as mp
from torch.distributed.elastic.multiprocessing.errors import record
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
STOP_SIGNALS, ASKED_TO_STOP = (signal.SIGUSR1, signal.SIGTERM), []
STOPPED = 75  # the exit status of a run that was asked to stop: EX_TEMPFAIL, "try again later"
# The least value of a flag where it is not 1, for a float 0.
LEAST = dict(synthetic=4, image_size=8, lr=1e-9, workers=0, seed=0, procs_per_task=0)


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
    cpus = os.environ.get("CPUS_PER_RANK") or len(os.sched_getaffinity(0)) // local_world_size
    workers = max(1, min(16, int(cpus)))
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
    own("--procs-per-task", type=int, default=0, metavar="N", help="0: what Slurm's request means")
    own("--dist-file", type=Path, metavar="DIR", help="shared folder to meet in, not by address")
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


def places_of_task(env: Mapping[str, str], procs_per_task: int) -> list[dict[str, str]]:
    """For each process of this Slurm task the variables that torchrun would have set for it.
    procs_per_task 0 is one, or where srun started one task on each node, one for each GPU there.
    Raises ValueError, which says what is wrong, where neither fits."""
    if "TORCHELASTIC_RUN_ID" in env:  # torchrun, itself a task, has set them already
        return [{}]
    if "SLURM_STEP_ID" not in env:  # also in the batch script itself, where SLURM_PROCID is 0
        raise ValueError("not started by srun")
    # The step's variables: a job may run several steps, on parts of its nodes. 2(x3),1 is 2,2,2,1.
    runs = re.findall(r"(\d+)(?:\(x(\d+)\))?", env["SLURM_STEP_TASKS_PER_NODE"])
    tasks = [int(count) for count, times in runs for _ in range(int(times or 1))]
    gpus, here = int(env.get("SLURM_GPUS_ON_NODE", 0)), tasks[int(env["SLURM_NODEID"])]
    procs = procs_per_task or (gpus or 1 if set(tasks) == {1} else 1)
    if gpus and here * procs != gpus and not (procs_per_task and here * procs < gpus):
        raise ValueError(f"{here} task(s) of {procs} process(es) on a node for {gpus} GPU(s)")
    # [dist] Ranks through all tasks, not through all nodes: a task's own processes come in a row.
    first, world_size = int(env["SLURM_PROCID"]) * procs, sum(tasks) * procs
    # [dist] Rank 0 is on the first node: gpu03 of gpu[03-05,9],login1.
    first_name = re.match(r"([^[,]|\[[^]]*\])+", env["SLURM_STEP_NODELIST"])[0]
    host = re.sub(r"\[(\w+)[^]]*\]", r"\1", first_name)
    # [dist] A port that all ranks can work out, and that the next job on this node does not take.
    port = 10_000 + (int(env["SLURM_JOB_ID"]) + int(env["SLURM_STEP_ID"])) % 20_000
    place = {"WORLD_SIZE": str(world_size), "LOCAL_WORLD_SIZE": str(here * procs)}
    place |= {"MASTER_ADDR": env.get("MASTER_ADDR", host if len(tasks) > 1 else "127.0.0.1")}
    place |= {"MASTER_PORT": env.get("MASTER_PORT", str(port))}
    if "SLURM_CPUS_PER_TASK" in env:
        place |= {"CPUS_PER_RANK": str(int(env["SLURM_CPUS_PER_TASK"]) // procs)}
    local = int(env["SLURM_LOCALID"]) * procs
    return [place | {"RANK": str(first + i), "LOCAL_RANK": str(local + i)} for i in range(procs)]


def meeting_point(args: Namespace) -> str:
    """Where torch.distributed meets the other ranks: an address, or a file of this very run."""
    if args.dist_file is None:
        try:
            socket.getaddrinfo(host := os.environ["MASTER_ADDR"], None)
        except OSError:  # the store would try again until --dist-timeout
            refuse_if(True, f"no address for {host}: export MASTER_ADDR=... or use --dist-file DIR")
        return "env://"
    refuse_if(not args.dist_file.is_dir(), f"--dist-file {args.dist_file} is not a folder: make it")
    # [dist] A new name after each requeue: what a killed run leaves in its file hangs the next one.
    words = ("SLURM_JOB_ID", "SLURM_STEP_ID", "SLURM_RESTART_COUNT")
    name = "-".join(["rendezvous", *(os.environ.get(word, "0") for word in words)])
    return f"file://{args.dist_file.resolve()}/{name}"


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
        allowed = max(gpus, int(os.getenv("SLURM_GPUS_ON_NODE", 0)))
        too_many = max(local_rank + 1, int(os.getenv("LOCAL_WORLD_SIZE", 1))) > allowed
        refuse_if(too_many, f"more processes than GPUs on this machine: start {allowed}")
        device = torch.device("cuda", local_rank % gpus)  # --gpus-per-task 1 shows each its own
        torch.cuda.set_device(device)  # [dist] first of all, or every rank opens GPU 0 as well
        torch.set_float32_matmul_precision("high")  # TF32, as convolutions have it anyway
        backend, device_id = "nccl", device  # [dist] so nccl connects here, not in the first step
    wait = timedelta(seconds=args.dist_timeout)
    place, torchrun = meeting_point(args), "TORCHELASTIC_RUN_ID" in os.environ
    if (rank, place, os.environ["MASTER_ADDR"], torchrun) == (0, "env://", "127.0.0.1", False):
        here = ("127.0.0.1", int(os.environ["MASTER_PORT"]))
        options = {"multi_tenant": True, "master_listen_fd": socket.create_server(here).detach()}
        options |= {"use_libuv": False}  # torch 2.6's libuv takes no open socket
        # [dist] Found by env://, which would open one that listens to all machines.
        KEPT.append(dist.TCPStore(*here, None, True, **options))
    # [dist] Waits until all ranks have come, so each has passed its checks when training starts.
    dist.init_process_group(backend, place, wait, world_size, rank, device_id=device_id)
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


class ResumableSampler(DistributedSampler):
    """Leaves out the first `done` images of this rank's share: a run that was stopped had them."""

    done = 0

    def __iter__(self) -> Iterator[int]:
        return islice(super().__iter__(), self.done, None)

    def __len__(self) -> int:
        return super().__len__() - self.done


def ignore_signals(worker_id: int) -> None:
    """In a loader worker: Slurm signals every process of a step, and torch's workers would die."""
    for stop_signal in STOP_SIGNALS:
        signal.signal(stop_signal, signal.SIG_IGN)


def build_loaders(
    args: Namespace, train_set: Dataset, val_set: Dataset, rank: int, world_size: int
) -> tuple[DataLoader, DataLoader]:
    """Batches of this rank's share of both sets, each its part of a global batch."""
    # Workers live one epoch: seeded anew at its start, a resumed run repeats what they draw.
    # Forked, whatever the process itself was started by: else each would import torch again.
    options: dict = {"num_workers": args.workers, "pin_memory": torch.cuda.is_available()}
    options |= {"multiprocessing_context": "fork" if args.workers else None}
    options |= {"batch_size": args.batch_size // world_size, "worker_init_fn": ignore_signals}
    # [dist] All ranks shuffle alike and take every world_size-th image: a step's shares together
    # are the next batch_size images of that order, for any number of ranks.
    sampler = ResumableSampler(train_set, world_size, rank, seed=args.seed, drop_last=True)
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
        checkpoint["step_in_epoch"], checkpoint["args"]  # a foreign file has neither
    except Exception as error:  # a missing, torn or foreign file fails in many ways
        refuse_if(True, f"--resume {path} is no usable checkpoint: {error!r:.150}")
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


def request_stop(number: int, frame: object) -> None:
    """Signal handler: takes note. The ranks can only stop together, at a step where all look."""
    ASKED_TO_STOP.append(number)


def all_shall_stop(device: torch.device) -> bool:
    """Whether any rank was asked to stop, the same answer on all of them."""
    asked = torch.tensor([len(ASKED_TO_STOP)], device=device)
    return bool(all_reduce_sum(asked))  # [dist] without it some ranks stop, the others hang


def train_one_epoch(
    args: Namespace, model: nn.Module, loader: DataLoader, schedule: LambdaLR, log: RunLog
) -> int:
    """Train on this rank's share of the images. No ordinary step waits for the device. Returns how
    many steps of the epoch are done, fewer than it has if a rank was asked to stop."""
    optimizer, device = schedule.optimizer, next(model.train().parameters()).device
    criterion = nn.CrossEntropyLoss(label_smoothing=args.label_smoothing)
    # Loss sum, correct, images, stop: added up on the device, because to read is to wait for it.
    totals = torch.zeros(4, dtype=torch.float64, device=device)
    waited, window = 0.0, (asked := time.perf_counter())
    step_in_epoch = loader.sampler.done // loader.batch_size
    steps = step_in_epoch + len(loader)
    for images, targets in tqdm(loader, disable=log.no_bar):
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
        log.step, step_in_epoch = log.step + 1, step_in_epoch + 1
        totals[0] += loss.detach() * len(targets)
        totals[1] += (logits.detach().argmax(1) == targets).sum()
        totals[2] += len(targets)
        if step_in_epoch % args.print_freq == 0 or step_in_epoch in (1, steps):
            # [dist] One collective and one wait for the device, for all four, in many steps.
            totals[3] = len(ASKED_TO_STOP)
            loss_sum, correct, n, stop = all_reduce_sum(totals).tolist()
            took = time.perf_counter() - window
            row = {"loss": loss_sum / n, "acc1": 100 * correct / n, "lr": lr}
            row |= {"seconds": round(took, 3), "data_wait": round(waited / took, 3)}
            peak = torch.cuda.max_memory_allocated() or getrusage(RUSAGE_SELF).ru_maxrss << 10
            log.event("train", **row, images_per_second=round(n / took, 1), max_memory=peak >> 20)
            waited, window = 0.0, time.perf_counter()
            totals.zero_()
            if stop:
                break
        asked = time.perf_counter()
    return step_in_epoch


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


def run(args: Namespace, checkpoint: dict) -> bool:
    """The whole run of one rank; returns whether it was asked to stop before its end."""
    train_set, val_set, num_classes = build_datasets(args)
    known = checkpoint.get("num_classes", num_classes)
    refuse_if(known != num_classes, f"{args.resume} knows {known} classes, the data {num_classes}")
    done, stop = checkpoint.get("step_in_epoch", 0), False  # done: steps of the coming epoch
    too_few = len(train_set) < args.batch_size * max(1, done) and not args.evaluate
    less = f"{len(train_set)} images are fewer than --batch-size {args.batch_size}"
    refuse_if(too_few, f"{less} times the {done} steps done" if done else less)
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
        log.epoch, train_loader.sampler.done = epoch, done * train_loader.batch_size
        train_loader.sampler.set_epoch(epoch)  # [dist] or each epoch repeats the first one's order
        # [dist] Dropout and augmentation differ by rank and epoch, and repeat after a resume.
        part = epoch * world_size + rank + done * 15_485_863
        torch.manual_seed((args.seed * 1_000_003 + part) % 2**32)
        done = train_one_epoch(args, model, train_loader, schedule, log)
        is_best, stop = False, all_shall_stop(device)  # [dist] or else each goes its own way here
        if not stop:
            result = evaluate(args, raw_model, val_loader, log)
            log.event("eval", **result)
            is_best, best_acc1 = result["acc1"] > best_acc1, max(result["acc1"], best_acc1)
            epoch, done = epoch + 1, 0
        state = {"model": raw_model.state_dict(), "optimizer": optimizer.state_dict()}
        state |= {"schedule": schedule.state_dict(), "scaler": None, "step_in_epoch": done}
        state |= {"epoch": epoch, "global_step": log.step, "best_acc1": best_acc1}
        state |= {"num_classes": num_classes, "args": settings}
        if rank == 0:  # [dist] one writer for one file
            save_checkpoint(args.output_dir, state, is_best)
        # [dist] Asked while it evaluated? And nobody ends, and so the job, before rank 0 has saved.
        if stop := all_shall_stop(device) and (stop or epoch < args.epochs):
            break
    log.event("stopped" if stop else "end", best_acc1=best_acc1)  # "stopped" asks for a requeue
    cleanup()  # [dist]
    return stop


def worker(number: int, argv: list[str] | None, places: list[dict[str, str]]) -> None:
    """One rank, the only process of its task or one of those that the task has started."""
    os.environ |= places[number]
    args, checkpoint = parse_args(argv)
    for name in ("batch_size", "seed") if checkpoint.get("step_in_epoch") else ():
        flag, old = "--" + name.replace("_", "-"), checkpoint["args"][name]
        moved = getattr(args, name) != old and not args.evaluate
        refuse_if(moved, f"--resume {args.resume} stopped inside an epoch: keep {flag} {old}")
    for stop_signal in () if args.evaluate else STOP_SIGNALS:
        signal.signal(stop_signal, request_stop)
    try:
        stopped = run(args, checkpoint)
    except OSError as error:  # an unreadable image: from a worker, the last line of its traceback
        refuse_if(True, str(error).strip().splitlines()[-1].removeprefix("OSError: "))
    if args.dist_file and os.environ["RANK"] == "0":
        Path(meeting_point(args).removeprefix("file://")).unlink(missing_ok=True)
    if stopped:
        raise SystemExit(STOPPED)


@record  # [dist] a rank that fails leaves its traceback where torchrun finds it and shows it
def main(argv: list[str] | None = None) -> None:
    args, _ = parse_args(argv)  # what cannot work is said once, not by each process
    try:
        places = places_of_task(os.environ, args.procs_per_task)
    except ValueError as error:
        line = f"srun -K --ntasks-per-node 2 --gres gpu:2 python {' '.join(sys.argv)}"
        refuse_if(True, f"{error}: type {line} (as many tasks as GPUs, or one)")
    if len(places) == 1:
        return worker(0, argv, places)
    for stop_signal in STOP_SIGNALS:
        signal.signal(stop_signal, signal.SIG_IGN)  # the children begin with it: no signal is early
    children = mp.spawn(worker, (argv, places), len(places), join=False)
    living = lambda: (p.pid for p in children.processes if p.is_alive())  # noqa: E731
    for stop_signal in STOP_SIGNALS:
        signal.signal(stop_signal, lambda number, _: [os.kill(pid, number) for pid in living()])
    try:
        while not children.join():  # [dist] when one fails it ends the others
            pass
    except mp.ProcessExitedException as error:  # it has printed why, unless a signal killed it
        if error.exit_code == STOPPED:
            raise SystemExit(STOPPED) from None
        why = error.signal_name or f"status {error.exit_code}"
        refuse_if(True, f"process {error.error_index} of this task ended with {why}")
    except mp.ProcessRaisedException as error:  # the text is the traceback of the child
        raise SystemExit(str(error)) from None


if __name__ == "__main__":
    main()
