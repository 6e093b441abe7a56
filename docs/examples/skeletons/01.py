"""The least that trains on all GPUs of a machine from one process (or on the CPU)."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def main() -> None:
    """One process: no ranks, no sampler, and the batch is the whole batch."""
    device = torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu")
    torch.manual_seed(0)
    data = TensorDataset(torch.randn(64, 8), torch.randint(0, 2, (64,)))
    bare = nn.Linear(8, 2).to(device)  # what to evaluate and to save: its names have no "module."
    model = nn.DataParallel(bare) if torch.cuda.device_count() > 1 else bare
    optimizer = torch.optim.SGD(bare.parameters(), lr=0.1)
    for epoch in range(3):
        for inputs, targets in DataLoader(data, batch_size=16, shuffle=True):
            logits = model(inputs.to(device))  # scatter, replicate, forward, gather
            loss = nn.functional.cross_entropy(logits, targets.to(device))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        print(f"epoch {epoch} loss {loss.item():.4f}")
    print(f"weights: {', '.join(bare.state_dict())}")


if __name__ == "__main__":
    main()
