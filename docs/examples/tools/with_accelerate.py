"""The same script with accelerate.

torchrun --standalone --nproc-per-node 2 docs/examples/tools/with_accelerate.py
"""

import argparse

import torch
from accelerate import Accelerator
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
def evaluate(model: nn.Module, loader: DataLoader, accelerator: Accelerator) -> Tensor:
    """How many are right, and how many there are."""
    model.eval()
    totals = torch.zeros(2, device=accelerator.device)
    for inputs, targets in loader:
        # The last batch is filled up with images that came before: this leaves them out.
        answers = model(inputs).argmax(1)
        answers, targets = accelerator.gather_for_metrics((answers, targets))
        totals[0] += (answers == targets).sum()
        totals[1] += len(targets)
    return totals


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch-size", type=int, default=48)
    parser.add_argument("--save", default="model.pt")
    args = parser.parse_args()

    # On CPUs processes join for cpu=True alone; without it each would train by itself.
    accelerator = Accelerator(cpu=not torch.cuda.is_available())
    batch = args.batch_size // accelerator.num_processes  # accelerate leaves it as it is

    train_set, val_set = make_data(1000, seed=1), make_data(301, seed=2)
    train_loader = DataLoader(train_set, batch, shuffle=True, drop_last=True)
    val_loader = DataLoader(val_set, batch)

    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    model, optimizer, train_loader, val_loader = accelerator.prepare(
        model, optimizer, train_loader, val_loader
    )
    best = 0.0

    for epoch in range(args.epochs):
        model.train()
        for inputs, targets in train_loader:
            loss = nn.functional.cross_entropy(model(inputs), targets)
            optimizer.zero_grad()
            accelerator.backward(loss)
            optimizer.step()

        totals = evaluate(model, val_loader, accelerator)
        right, count = totals.tolist()
        accelerator.print(f"epoch {epoch}: {right:.0f} of {count:.0f} right")
        if right / count > best:
            best = right / count
            accelerator.save(accelerator.unwrap_model(model).state_dict(), args.save)


if __name__ == "__main__":
    main()
