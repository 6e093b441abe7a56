"""One loop with most of recipes.py, for any number of processes.

torchrun --standalone --nproc-per-node 2 docs/examples/convert/complete.py
"""

import argparse
import os
from contextlib import nullcontext
from pathlib import Path

import torch
import torch.distributed as dist
from multi import make_data
from recipes import (
    Best,
    DistributedWeightedSampler,
    load,
    macro_f1,
    make_ema,
    same_buffers,
    save,
    seed_epoch,
)
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim.lr_scheduler import ReduceLROnPlateau
from torch.utils.data import DataLoader, WeightedRandomSampler


@torch.inference_mode()
def predict(model: nn.Module, loader: DataLoader, device: torch.device) -> tuple[Tensor, Tensor]:
    """Targets and guesses of this rank's share."""
    model.eval()
    none = torch.empty(0, dtype=torch.int64, device=device)  # a rank may have no image
    all_targets, guesses = [none], [none]
    for inputs, targets in loader:
        all_targets.append(targets.to(device))
        guesses.append(model(inputs.to(device)).argmax(1))
    return torch.cat(all_targets), torch.cat(guesses)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--batch-size", type=int, default=48)
    parser.add_argument("--accumulate", type=int, default=3)
    parser.add_argument("--patience", type=int, default=2)
    parser.add_argument("--fixed-statistics", action="store_true", help="of BatchNorm: for checks")
    args = parser.parse_args()

    device = torch.device("cpu")
    if torch.cuda.is_available():
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    rank, world_size = dist.get_rank(), dist.get_world_size()
    batch = args.batch_size // world_size

    train_set, val_set = make_data(1000, seed=1), make_data(301, seed=2)
    targets = train_set.tensors[1]
    weights = 1.0 / targets.bincount()[targets]
    drawn = WeightedRandomSampler(weights, len(train_set))
    sampler = DistributedWeightedSampler(drawn, rank, world_size)
    train_loader = DataLoader(train_set, batch, sampler=sampler, drop_last=True)
    val_loader = DataLoader(val_set, batch, sampler=range(rank, len(val_set), world_size))

    torch.manual_seed(0)
    layers = [nn.Linear(32, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 10)]
    model = nn.Sequential(*layers).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    plateau, best = ReduceLROnPlateau(optimizer, "max", patience=0), Best(args.patience)
    ema = make_ema(model, decay=0.9)
    parts = {"model": model, "optimizer": optimizer, "ema": ema}
    parts |= {"plateau": plateau, "best": best}
    start = load("latest.pt", parts) if Path("latest.pt").exists() else 0
    ddp_model = DistributedDataParallel(model)

    for epoch in range(start, args.epochs):
        if best.waited >= args.patience:
            break
        sampler.set_epoch(epoch)
        seed_epoch(0, epoch, rank)
        model.train()
        if args.fixed_statistics:
            layers[1].eval()
        optimizer.zero_grad()  # the batches that are left over at the end make no step
        for number, (inputs, targets) in enumerate(train_loader, start=1):
            steps = number % args.accumulate == 0
            with nullcontext() if steps else ddp_model.no_sync():
                loss = nn.functional.cross_entropy(ddp_model(inputs.to(device)), targets.to(device))
                (loss / args.accumulate).backward()
            if steps:
                optimizer.step()
                optimizer.zero_grad()
                ema.update_parameters(model)

        same_buffers(ema)
        f1 = macro_f1(*predict(ema.module, val_loader, device), 10)
        plateau.step(f1)
        if best.improved(f1):
            save("best.pt", epoch + 1, {"model": ema.module})
        save("latest.pt", epoch + 1, parts)
        if rank == 0:
            print(f"epoch {epoch}: F1 {f1:.4f}, lr {optimizer.param_groups[0]['lr']:g}")

    dist.destroy_process_group()


if __name__ == "__main__":
    main()
