"""Train on while machines come and go: Horovod's elastic mode, its traps defused. Needs main.py.

    # two workers on this machine, which must look like two hosts: a host that fails is shut out
    printf '%s\\n' localhost:1 127.0.0.1:1 > hosts.txt
    horovodrun -np 2 --min-np 1 --max-np 4 --gloo --network-interfaces lo \\
        --blacklist-cooldown-range 10 60 \\
        --host-discovery-script '05_horovod/discover_hosts.sh hosts.txt' \\
        python 05_horovod/elastic.py --synthetic --arch resnet18 --image-size 64

Then kill -9 a worker, or take its line out of hosts.txt and put it in again. The same command
started again goes on from the last epoch that --output-dir has a checkpoint of.

What is guaranteed: every commit holds weights that saw each image of the epoch at most once,
whoever came or went, for what a lost worker interrupts is undone on all ranks, weights and all, and
done again. An epoch leaves out fewer images than one step takes, as 02_distributed does.
What is not: the numbers of an undisturbed run, because batch, rate and BatchNorm follow the number
of ranks; a line of metrics.jsonl may come twice if its writer dies; horovodrun itself must not die;
and a host that appears while the workers regroup may be noticed only with the next change.
"""

import json
import math
import os
import time
from argparse import ArgumentDefaultsHelpFormatter, ArgumentParser, Namespace
from itertools import islice
from pathlib import Path

import torch
import torchvision
from main import CHAPTER, build_datasets, build_model, hvd, refuse_if, save_checkpoint, to_device
from torch import nn
from torch.optim import SGD
from torch.utils.data import DataLoader, Dataset

LEAST = dict(synthetic=4, image_size=8, lr=1e-9, workers=0)  # else 1


def parse_args(argv: list[str] | None) -> Namespace:
    """The arguments; one line ends what cannot work."""
    usage = "%(prog)s --data DIR | --synthetic [N]  [options]  (--help lists them)"
    parser = ArgumentParser(None, usage, __doc__.splitlines()[0], allow_abbrev=False)
    parser.formatter_class = ArgumentDefaultsHelpFormatter
    models = torchvision.models.list_models(module=torchvision.models)
    add = parser.add_argument
    add("--data", type=Path, metavar="DIR", help="ImageNet folder with train/ and val/ in it")
    add("--synthetic", type=int, nargs="?", const=1280, metavar="N", help="N generated images")
    add("--arch", choices=models, default="resnet50", metavar="NAME", help="a torchvision model")
    add("--image-size", type=int, default=224, help="pixels a side")
    add("--epochs", type=int, default=90, help="passes over the training images")
    # Not global as in main.py: a rank's memory stays the same when the number of ranks does not.
    add("--batch-size", type=int, default=32, help="PER RANK: images a step of each rank")
    add("--lr", type=float, default=0.1, help="first rate per 256 images of the global batch")
    add("--workers", type=int, default=2, help="image loading processes of each rank")
    add("--commit-every", type=int, default=20, metavar="STEPS", help="steps at risk at any time")
    add("--output-dir", type=Path, default=Path("runs", f"{CHAPTER}-elastic"), metavar="DIR")
    args = parser.parse_args(argv)
    for name, value in vars(args).items():
        least = LEAST.get(name, 1)
        wrong = type(value) in (int, float) and not least <= value < 2**31  # nor is nan
        refuse_if(wrong, f"--{name.replace('_', '-')} {value} is out of range: {least} to 2**31")
    refuse_if((args.data is None) == (args.synthetic is None), "give --data DIR or --synthetic")
    return args


def build_loader(args: Namespace, dataset: Dataset, sampler: object) -> DataLoader:
    """Batches of the images that the sampler names, in its order."""
    fork = "fork" if args.workers else None
    return DataLoader(
        dataset, args.batch_size, False, sampler, num_workers=args.workers,
        pin_memory=torch.cuda.is_available(), multiprocessing_context=fork,
    )  # fmt: skip


def log(args: Namespace, state: object, event: str, **fields: object) -> None:
    """Rank 0 adds a line to metrics.jsonl. Opened each time: rank 0 may be another process now."""
    if hvd.rank() == 0:
        fields = {"epoch": state.epoch, "step": state.step} | fields
        with (args.output_dir / "metrics.jsonl").open("a") as file:
            file.write(json.dumps({"event": event, "time": time.time()} | fields) + "\n")
        print("  ".join([event, *(f"{key} {value}" for key, value in fields.items())]), flush=True)


def set_lr(args: Namespace, state: object) -> None:
    """The rate of this epoch, along a cosine, for the global batch of the present ranks."""
    peak_lr = args.lr * args.batch_size * hvd.size() / 256
    share_of_peak = 0.5 + 0.5 * math.cos(math.pi * state.epoch / args.epochs)
    state.optimizer.param_groups[0]["lr"] = peak_lr * share_of_peak


def build_state(args: Namespace, train_set: Dataset, classes: int, device: torch.device) -> object:
    """All that a new rank is given and a lost step is undone in: what is not in here is not."""
    path, saved = args.output_dir / "checkpoint.pt", {"epoch": 0, "step": 0}
    # [dist] Not channels_last: Horovod sends only contiguous tensors.
    model = build_model(args.arch, classes, False).to(device)
    # Its rate is set by set_lr, or, on a rank that joins later, comes with the state of rank 0.
    optimizer = SGD(model.parameters(), 0.1, momentum=0.9, weight_decay=1e-4)
    # [dist] Before it has state, which wrapping drops, and before TorchState, which must save this
    # one: the gradients that a lost worker left half sent are forgotten when it is restored.
    optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters())
    # [dist] Momentum from the start, as of no step yet. Otherwise TorchState.sync, to have some to
    # send, lets every optimizer without it take a step of weight decay: a worker that joins takes
    # it alone, after it was given the weights, and trains on with others than all the rest.
    for parameter in model.parameters():
        optimizer.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter)
    if path.exists():
        try:
            saved = torch.load(path, map_location="cpu", weights_only=True)
            model.load_state_dict(saved["model"])
            optimizer.load_state_dict(saved["optimizer"])
        except Exception as error:  # a torn or foreign file, or another model, fail in many ways
            refuse_if(True, f"{path} does not fit, take another --output-dir: {error!r:.150}")
    sampler = hvd.elastic.ElasticSampler(train_set)
    sampler.set_epoch(saved["epoch"])
    # [dist] Numbers go into the constructor: sync sends those last saved, not those set since.
    state = hvd.elastic.TorchState(
        model, optimizer, sampler=sampler, epoch=saved["epoch"], step=saved["step"]
    )
    set_lr(args, state)
    # [dist] After each change, on the ranks that stay. Before sync, so rank 0's holds for all.
    state.register_reset_callbacks([lambda: set_lr(args, state)])
    return state


def train_one_epoch(
    args: Namespace, state: object, loader: DataLoader, device: torch.device
) -> None:
    """Train on this rank's share of what is left of the epoch, and commit it."""
    # [dist] Whole steps only: the sampler would fill up its last one with images it has had.
    steps = len(state.sampler.remaining_indices) // (args.batch_size * hvd.size())
    totals = torch.zeros(3, dtype=torch.float64, device=device)  # loss sum, correct, images
    state.model.train()
    for done, batch in enumerate(islice(loader if steps else (), steps), start=1):
        images, targets = to_device(*batch, device)
        state.optimizer.zero_grad()
        logits = state.model(images)
        loss = nn.functional.cross_entropy(logits, targets)
        loss.backward()
        state.optimizer.step()  # [dist] raises HorovodInternalError if a rank was lost
        state.step += 1
        state.sampler.record_batch(done, len(targets))  # [dist] for all ranks: shares are equal
        totals[0] += loss.detach() * len(targets)
        totals[1] += (logits.detach().argmax(1) == targets).sum()
        totals[2] += len(targets)
        if done % args.commit_every == 0 or done == steps:
            loss_sum, correct, n = hvd.allreduce(totals, op=hvd.Sum).tolist()
            # On every rank: one that ended alone would be shut out, and the rest go on without it.
            refuse_if(not math.isfinite(loss_sum), f"loss {loss_sum} by step {state.step}: less lr")
            row = {"loss": loss_sum / n, "acc1": 100 * correct / n, "images": int(n)}
            rate = state.optimizer.param_groups[0]["lr"]
            log(args, state, "train", **row, lr=rate, world_size=hvd.size())
            totals.zero_()
            # [dist] Copies weights and momentum, on a GPU within its memory, and asks rank 0 for
            # news of hosts: rarely costs steps to redo and slow growth, often costs time.
            state.commit()


@torch.inference_mode()
def evaluate(args: Namespace, state: object, val_set: Dataset, device: torch.device) -> dict:
    """Loss and accuracy in percent, exact for any number of images and ranks: sums of all."""
    # [dist] so that all ranks evaluate the model that rank 0 saves
    hvd.broadcast_parameters(dict(state.model.named_buffers()), root_rank=0)
    state.model.eval()
    totals = torch.zeros(3, dtype=torch.float64, device=device)  # loss sum, correct, images
    # [dist] No sampler of Horovod's, which repeats images to make the shares equal.
    for batch in build_loader(args, val_set, range(hvd.rank(), len(val_set), hvd.size())):
        images, targets = to_device(*batch, device)
        logits = state.model(images).double()
        totals[0] += nn.functional.cross_entropy(logits, targets, reduction="sum")
        totals[1] += (logits.argmax(1) == targets).sum()
        totals[2] += len(targets)
    loss, correct, n = hvd.allreduce(totals, op=hvd.Sum).tolist()
    return {"loss": loss / n, "acc1": 100 * correct / n, "images": int(n)}


def train(
    state: object, args: Namespace, train_set: Dataset, val_set: Dataset, device: torch.device
) -> None:
    """From the state to the end. Called again on all ranks whenever a worker came or went."""
    # [dist] Sync has made the weights equal but not saved them: should rank 0 die before the first
    # commit, a new worker in its place would go back to its random ones and hand those to all.
    state.save()
    # [dist] If hosts only left there was no sync, and the shares are still those of before.
    state.sampler.reset()
    step, images = args.batch_size * hvd.size(), len(train_set)
    refuse_if(images < step, f"{images} images are fewer than a step of {hvd.size()} ranks: {step}")
    log(args, state, "start", world_size=hvd.size(), host=os.uname().nodename)
    loader = build_loader(args, train_set, state.sampler)
    while state.epoch < args.epochs:
        train_one_epoch(args, state, loader, device)
        log(args, state, "eval", **evaluate(args, state, val_set, device))
        state.epoch += 1
        # [dist] At the epoch's end, not its beginning: it forgets which images were done, and an
        # epoch may begin more than once.
        state.sampler.set_epoch(state.epoch)
        set_lr(args, state)
        if hvd.rank() == 0:
            saved = {"model": state.model.state_dict(), "optimizer": state.optimizer.state_dict()}
            saved |= {"epoch": state.epoch, "step": state.step}
            save_checkpoint(args.output_dir, saved, is_best=False)
        state.commit()
    log(args, state, "end")


def main(argv: list[str] | None = None) -> None:
    args = parse_args(argv)
    refuse_if(hvd is None, f"no Horovod: bash {CHAPTER}/install.sh builds it")
    how = f"horovodrun --host-discovery-script ..., as the top of {Path(__file__).name} shows"
    refuse_if(os.environ.get("HOROVOD_ELASTIC") != "1", f"start it by: {how}")
    # [dist] Before all that is slow: the others wait for a new worker here, and only 30 seconds
    # (horovodrun --gloo-timeout-seconds). For its first sync they wait as long as it takes.
    hvd.init()
    device = torch.device("cpu")
    if torch.cuda.is_available():
        device = torch.device("cuda", hvd.local_rank())
        torch.cuda.set_device(device)  # [dist] before any tensor, or every rank opens GPU 0 too
    args.output_dir.mkdir(parents=True, exist_ok=True)
    train_set, val_set, classes = build_datasets(args)
    state = build_state(args, train_set, classes, device)
    # [dist] No collective before this line, not even a broadcast of the weights: a worker that
    # joins would wait in it for ranks that are here already.
    hvd.elastic.run(train)(state, args, train_set, val_set, device)


if __name__ == "__main__":
    main()
