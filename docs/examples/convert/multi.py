"""The same script for any number of GPUs: what single.py lacks has the number of its step.

torchrun --standalone --nproc-per-node 2 docs/examples/convert/multi.py
"""

import argparse
import os  # step 1

import torch
import torch.distributed as dist  # step 1
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel  # step 4
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset  # step 3


def make_data(count: int, seed: int) -> TensorDataset:
    """Stands for your data: points near ten centres, and the number of their centre."""
    centres = torch.randn(10, 32, generator=torch.Generator().manual_seed(0))
    generator = torch.Generator().manual_seed(seed)
    targets = torch.randint(10, (count,), generator=generator)
    noise = torch.randn(count, 32, generator=generator)
    return TensorDataset(centres[targets] + 2 * noise, targets)


@torch.inference_mode()
def evaluate(model: nn.Module, loader: DataLoader, device: torch.device) -> Tensor:
    """How many are right, and how many there are."""
    model.eval()
    totals = torch.zeros(2, device=device)
    for inputs, targets in loader:
        inputs, targets = inputs.to(device), targets.to(device)
        totals[0] += (model(inputs).argmax(1) == targets).sum()
        totals[1] += len(targets)
    return totals


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch-size", type=int, default=48)
    parser.add_argument("--save", default="model.pt")
    args = parser.parse_args()

    device = torch.device("cpu")
    if torch.cuda.is_available():  # step 1: a GPU of its own for each process
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    rank, world_size = dist.get_rank(), dist.get_world_size()
    batch = args.batch_size // world_size  # step 2: each process takes a part of the batch

    train_set, val_set = make_data(1000, seed=1), make_data(301, seed=2)
    sampler = DistributedSampler(train_set, drop_last=True)  # step 3: it shuffles
    train_loader = DataLoader(train_set, batch, sampler=sampler, drop_last=True)
    share = range(rank, len(val_set), world_size)  # step 6: every image once
    val_loader = DataLoader(val_set, batch, sampler=share)

    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 10)).to(device)
    ddp_model = DistributedDataParallel(model)  # step 4: what training calls
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    best = 0.0

    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)  # step 5: another order in each epoch
        model.train()
        for inputs, targets in train_loader:
            inputs, targets = inputs.to(device), targets.to(device)
            loss = nn.functional.cross_entropy(ddp_model(inputs), targets)  # step 4
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

        totals = evaluate(model, val_loader, device)
        dist.all_reduce(totals)  # step 6: the sums of all processes, on each of them
        right, count = totals.tolist()
        if rank == 0:  # step 7: one line, not one from each process
            print(f"epoch {epoch}: {right:.0f} of {count:.0f} right")
        if right / count > best:
            best = right / count
            if rank == 0:  # step 7: one writer for one file
                torch.save(model.state_dict(), args.save)

    dist.destroy_process_group()  # step 8


if __name__ == "__main__":
    main()
