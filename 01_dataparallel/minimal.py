"""Minimal training on all GPUs of a machine from one process (or on the CPU).

python 01_dataparallel/minimal.py
"""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def main() -> None:
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")

    torch.manual_seed(0)
    points = torch.randn(512, 8)
    data = TensorDataset(points, (points.sum(1) > 0).long())
    batch_size = 64  # is divided among the GPUs
    loader = DataLoader(data, batch_size, shuffle=True)

    layers = nn.Linear(8, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 2)
    model = nn.Sequential(*layers).to(device)
    dp_model = nn.DataParallel(model) if torch.cuda.device_count() > 1 else model
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    for epoch in range(3):
        for inputs, targets in loader:
            logits = dp_model(inputs.to(device))  # scatter, replicate, forward, gather
            loss = nn.functional.cross_entropy(logits, targets.to(device))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        print(f"epoch {epoch}  loss of the last batch {loss.item():.4f}")

    # Not dp_model: its names begin with "module."
    torch.save(model.state_dict(), "model.pt")


if __name__ == "__main__":
    main()
