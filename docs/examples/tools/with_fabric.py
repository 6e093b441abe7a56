"""The same script with Lightning's Fabric.

fabric run --accelerator cpu --devices 2 docs/examples/tools/with_fabric.py
"""

import argparse

import lightning as L
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset


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
        totals[0] += (model(inputs).argmax(1) == targets).sum()
        totals[1] += len(targets)
    return totals


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch-size", type=int, default=48)
    parser.add_argument("--save", default="model.pt")
    args = parser.parse_args()

    fabric = L.Fabric()
    rank, world_size = fabric.global_rank, fabric.world_size
    batch = args.batch_size // world_size  # Fabric leaves it as it is

    train_set, val_set = make_data(1000, seed=1), make_data(301, seed=2)
    train_loader = DataLoader(train_set, batch, shuffle=True, drop_last=True)
    # The sampler that Fabric would put in repeats images, to fill the ranks' shares up.
    share = range(rank, len(val_set), world_size)
    val_loader = DataLoader(val_set, batch, sampler=share)
    train_loader = fabric.setup_dataloaders(train_loader)
    val_loader = fabric.setup_dataloaders(val_loader, use_distributed_sampler=False)

    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    model, optimizer = fabric.setup(model, optimizer)
    best = 0.0

    for epoch in range(args.epochs):
        model.train()
        for inputs, targets in train_loader:
            loss = nn.functional.cross_entropy(model(inputs), targets)
            optimizer.zero_grad()
            fabric.backward(loss)
            optimizer.step()

        totals = evaluate(model, val_loader, fabric.device)
        totals = fabric.all_reduce(totals, reduce_op="sum")
        right, count = totals.tolist()
        fabric.print(f"epoch {epoch}: {right:.0f} of {count:.0f} right")
        if right / count > best:
            best = right / count
            fabric.save(args.save, model.state_dict())


if __name__ == "__main__":
    main()
