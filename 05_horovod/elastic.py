r"""Train on while machines come and go: Horovod's elastic mode. It needs main.py.

    # Two workers on this machine, by two names of it: a host whose worker fails is shut
    # out by its name. On CPUs, because both would take GPU 0.
    printf '%s\n' localhost:1 127.0.0.1:1 > hosts.txt
    CUDA_VISIBLE_DEVICES= horovodrun -np 2 --min-np 1 --max-np 4 \
        --gloo --network-interfaces lo --blacklist-cooldown-range 10 60 \
        --host-discovery-script '05_horovod/discover_hosts.sh hosts.txt' \
        python 05_horovod/elastic.py --synthetic --arch resnet18 --image-size 64

Then kill -9 a worker, or take its line out of hosts.txt and put it in again. The same
command started again goes on after the last epoch that is in --output-dir.

Guaranteed: every commit holds weights that saw each image of the epoch at most once,
whoever came or went. What a lost worker interrupts is undone on all ranks, weights and
all, and done again. An epoch leaves out fewer images than one step takes.
Not guaranteed:
- the numbers of an undisturbed run: batch, rate and BatchNorm follow the ranks' number;
- a metrics.jsonl without a line twice, if the rank that writes it dies;
- that a host which appears while the workers regroup is noticed before the next change;
- anything, once horovodrun itself has died.
"""

import argparse
import json
import math
import os
import time
from argparse import Namespace
from itertools import islice
from pathlib import Path

import torch
from main import (
    CHAPTER,
    all_reduce_sum,
    broadcast_buffers,
    build_datasets,
    build_model,
    fail,
    hvd,
    pick_device,
    save_checkpoint,
    to_device,
)
from torch import Tensor, nn
from torch.nn import Module
from torch.optim import SGD
from torch.utils.data import DataLoader, Dataset


# ---- command line ----
def parse_args(argv: list[str] | None) -> Namespace:
    """The flags: those of main.py, but --batch-size is of each rank."""
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0],
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
        allow_abbrev=False,
    )
    add = parser.add_mutually_exclusive_group(required=True).add_argument
    add("--data", metavar="DIR", help="ImageNet, in train/ and val/")
    add("--synthetic", type=int, nargs="?", const=1280, help="made-up images")
    add = parser.add_argument
    add("--arch", default="resnet50", help="a model of torchvision")
    add("--image-size", type=int, default=224, help="pixels a side")
    add("--epochs", type=int, default=90, help="passes over the training images")
    # Ranks come and go, and the memory of each stays the same.
    add("--batch-size", type=int, default=32, help="of EACH rank")
    add("--lr", type=float, default=0.1, help="first, for 256 images of all ranks")
    add("--workers", type=int, default=2, help="per rank, load images")
    add("--commit-every", type=int, default=20, help="steps that may be redone")
    add("--output-dir", default=f"runs/{CHAPTER}-elastic", help="for all output")
    return parser.parse_args(argv)


# ---- data ----
def build_loader(args: Namespace, dataset: Dataset, sampler: object) -> DataLoader:
    """Batches of the images that the sampler names, in its order."""
    return DataLoader(
        dataset,
        args.batch_size,
        sampler=sampler,
        num_workers=args.workers,
        pin_memory=torch.cuda.is_available(),
        multiprocessing_context="fork" if args.workers else None,
    )


# ---- log ----
def log(args: Namespace, state: object, event: str, **fields: object) -> None:
    """Rank 0 adds a line to metrics.jsonl, and prints it."""
    if hvd.rank() != 0:  # [dist] asked each time: rank 0 may be another process now
        return
    row = {"event": event, "time": time.time(), "epoch": state.epoch}
    row.update(step=state.step, **fields)
    with Path(args.output_dir, "metrics.jsonl").open("a") as file:
        file.write(json.dumps(row) + "\n")

    words = [event, f"epoch {state.epoch}", f"step {state.step}"]
    for name, value in fields.items():
        short = f"{value:.4g}" if isinstance(value, float) else value
        words.append(f"{name} {short}")
    print("  ".join(words), flush=True)


# ---- state ----
def set_lr(args: Namespace, state: object) -> None:
    """The rate of this epoch, along a cosine, for the batch of all present ranks."""
    peak = args.lr * args.batch_size * hvd.size() / 256  # [dist]
    share = (1 + math.cos(math.pi * state.epoch / args.epochs)) / 2
    state.optimizer.param_groups[0]["lr"] = peak * share


def build_optimizer(model: Module) -> SGD:
    """An optimizer that averages the gradients, with momentum 0 for each weight."""
    # set_lr sets its rate. A rank that joins later gets it with the state of rank 0.
    optimizer = SGD(model.parameters(), momentum=0.9, weight_decay=1e-4)
    # Wrapped before it has state, which wrapping drops. And before TorchState, which
    # must hold the wrapped one: restoring it forgets the gradients that were half sent
    # when a worker was lost.
    optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters())  # [dist]
    # Momentum as of no step yet. Otherwise TorchState.sync, to have some to send, lets
    # every optimizer without it take a step of weight decay. A worker that joins would
    # take it alone, after it was given the weights, and train on with its own.
    for weight in model.parameters():
        optimizer.state[weight]["momentum_buffer"] = torch.zeros_like(weight)
    return optimizer


def load(path: Path, model: Module, optimizer: SGD) -> tuple[int, int]:
    """Restore both from the checkpoint, if there is one. Returns its epoch and step."""
    if not path.exists():
        return 0, 0
    try:
        saved = torch.load(path, map_location="cpu", weights_only=True)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        return saved["epoch"], saved["step"]
    except Exception as error:  # another program's file or another model, in many ways
        fail(f"{path} does not fit, take another --output-dir: {error!r:.150}")


def build_state(
    args: Namespace, train_set: Dataset, classes: int, device: torch.device
) -> object:
    """What a new rank is given, and what is restored when a worker was lost: only what
    is in here."""
    model = build_model(args.arch, classes, False)
    model.to(device)  # [dist] not channels_last, which Horovod does not send
    optimizer = build_optimizer(model)
    path = Path(args.output_dir, "checkpoint.pt")
    epoch, step = load(path, model, optimizer)
    sampler = hvd.elastic.ElasticSampler(train_set)  # [dist]
    sampler.set_epoch(epoch)

    # The numbers go into the constructor: sync sends those that were saved last, not
    # those that were set since.
    state = hvd.elastic.TorchState(  # [dist]
        model, optimizer, sampler=sampler, epoch=epoch, step=step
    )
    set_lr(args, state)
    # Called after each change on the ranks that stay, and before sync: the rate of rank
    # 0 then goes to all.
    state.register_reset_callbacks([lambda: set_lr(args, state)])  # [dist]
    return state


# ---- training ----
def train_one_epoch(args: Namespace, state: object, loader: DataLoader) -> None:
    """Train on this rank's share of what is left of the epoch, and commit it."""
    # Whole steps only: the sampler would fill up the last one with images it has had.
    left = len(state.sampler.remaining_indices)
    steps = left // (args.batch_size * hvd.size())  # [dist]
    device = next(state.model.parameters()).device
    totals = torch.zeros(3, dtype=torch.float64, device=device)  # loss, hits, images

    state.model.train()
    # Before loader workers are forked: main.py's all_reduce_sum says why.
    hvd.barrier()  # [dist]
    batches = islice(loader, steps) if steps else ()
    for done, (images, targets) in enumerate(batches, start=1):
        images, targets = to_device(images, targets, device)
        logits = state.model(images)
        loss = nn.functional.cross_entropy(logits, targets)

        state.optimizer.zero_grad()
        loss.backward()
        state.optimizer.step()  # [dist] raises HorovodInternalError if a rank was lost
        state.step += 1
        # Counts this batch once for each rank, because their shares are equal.
        state.sampler.record_batch(done, len(targets))  # [dist]

        totals[0] += loss.detach() * len(targets)
        totals[1] += (logits.detach().argmax(1) == targets).sum()
        totals[2] += len(targets)

        if done % args.commit_every == 0 or done == steps:
            commit(args, state, totals)


def commit(args: Namespace, state: object, totals: Tensor) -> None:
    """Log the steps since the last commit, and make the state one to go back to."""
    loss_sum, hits, count = all_reduce_sum(totals).tolist()  # [dist]
    # Fails on every rank. One that failed alone would be shut out, and the others would
    # train on without it.
    if not math.isfinite(loss_sum):
        fail(f"the loss is {loss_sum} at step {state.step}: lower --lr")

    row = {"loss": loss_sum / count, "acc1": 100 * hits / count, "images": int(count)}
    row["lr"] = state.optimizer.param_groups[0]["lr"]
    row["world_size"] = hvd.size()  # [dist] for as long as nobody comes or goes
    log(args, state, "train", **row)
    totals.zero_()
    # Copies weights and momentum, those of a GPU within its memory, and asks rank 0 for
    # news of hosts. Often costs time. Rarely costs steps to redo, and makes a new host
    # wait longer.
    state.commit()  # [dist]


@torch.inference_mode()
def evaluate(args: Namespace, state: object, val_set: Dataset) -> dict:
    """Loss and accuracy in percent, exact for any number of images and ranks."""
    broadcast_buffers(state.model)  # [dist] all evaluate the model that rank 0 saves
    device = next(state.model.parameters()).device
    totals = torch.zeros(3, dtype=torch.float64, device=device)
    # A sampler of Horovod would repeat images to make the shares equal.
    share = range(hvd.rank(), len(val_set), hvd.size())  # [dist]

    state.model.eval()
    for images, targets in build_loader(args, val_set, share):
        images, targets = to_device(images, targets, device)
        logits = state.model(images).double()
        totals[0] += nn.functional.cross_entropy(logits, targets, reduction="sum")
        totals[1] += (logits.argmax(1) == targets).sum()
        totals[2] += len(targets)

    loss_sum, hits, count = all_reduce_sum(totals).tolist()  # [dist]
    return {"loss": loss_sum / count, "acc1": 100 * hits / count, "images": int(count)}


def train(state: object, args: Namespace, train_set: Dataset, val_set: Dataset) -> None:
    """From the state to the end. Horovod calls it again, on all ranks, whenever a
    worker came or went."""
    # Sync has made the weights equal but not saved them. If rank 0 died before the
    # first commit, a new worker in its place would go back to its own random weights,
    # and send them to all.
    state.save()  # [dist]
    # If hosts only left there was no sync, and the shares are still those of before.
    state.sampler.reset()  # [dist]

    world_size = hvd.size()  # [dist] until the next call
    images = args.batch_size * world_size
    if len(train_set) < images:
        fail(f"{world_size} ranks take {images} images a step, of {len(train_set)}")
    log(args, state, "start", world_size=world_size, host=os.uname().nodename)
    loader = build_loader(args, train_set, state.sampler)
    while state.epoch < args.epochs:
        train_one_epoch(args, state, loader)
        log(args, state, "eval", **evaluate(args, state, val_set))
        state.epoch += 1
        # This forgets which images were done. So it stands at the end of an epoch,
        # which comes once, and not at its beginning, which may come more often.
        state.sampler.set_epoch(state.epoch)  # [dist]
        set_lr(args, state)

        saved = {
            "model": state.model.state_dict(),
            "optimizer": state.optimizer.state_dict(),
            "epoch": state.epoch,
            "step": state.step,
        }
        if hvd.rank() == 0:  # [dist] one writer for one file
            save_checkpoint(Path(args.output_dir), saved, is_best=False)
        state.commit()  # [dist] the end of the epoch
    log(args, state, "end")


def main(argv: list[str] | None = None) -> None:
    args = parse_args(argv)
    if hvd is None:
        fail(f"cannot import Horovod: bash {CHAPTER}/install.sh builds it")
    if os.environ.get("HOROVOD_ELASTIC") != "1":
        fail(f"start it by horovodrun, as the first lines of {__file__} show")

    # Before all that is slow: here the others wait for a new worker, and for only 30
    # seconds (horovodrun --gloo-timeout-seconds). For its first sync they wait as long
    # as it takes.
    hvd.init()  # [dist]
    device = pick_device(hvd.local_rank())  # [dist]
    if device.type == "cuda" and not hvd.nccl_built():
        fail(f"this Horovod has no nccl: bash {CHAPTER}/install.sh --nccl")

    Path(args.output_dir).mkdir(parents=True, exist_ok=True)
    train_set, val_set, classes = build_datasets(args)
    state = build_state(args, train_set, classes, device)
    # No collective before this line, not even a broadcast of the weights: a worker that
    # joins would wait in it for ranks that are already past it.
    hvd.elastic.run(train)(state, args, train_set, val_set)  # [dist]


if __name__ == "__main__":
    main()
