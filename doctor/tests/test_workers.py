"""Loader workers draw random numbers, too: however they were started, and however early."""

from pathlib import Path

import pytest
from harness import run_short
from test_doctor import TOOL, TORCHRUN

SCRIPT = """
import os
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


class Noisy(TensorDataset):
    def __getitem__(self, index):
        image, target = super().__getitem__(index)
        return image + torch.randn(8), target


def main(method):
    torch.manual_seed(0)
    train_set = Noisy(torch.randn(64, 8), torch.randint(3, (64,)))
    rank = int(os.environ["RANK"])
    sampler = DistributedSampler(train_set, 2, rank)
    options = {"num_workers": 1, "persistent_workers": True, "multiprocessing_context": method}
    loader = DataLoader(train_set, batch_size=8, sampler=sampler, **options)
    iter(loader)  # its workers start before the process group
    dist.init_process_group("gloo")
    ddp = nn.parallel.DistributedDataParallel(nn.Linear(8, 3))
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
    torch.manual_seed(rank)
    for epoch in range(2):
        sampler.set_epoch(epoch)
        for images, targets in loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(ddp(images), targets).backward()
            optimizer.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1])
"""


@pytest.mark.proof
@pytest.mark.parametrize("method", ["forkserver", "spawn"])
def test_workers(method: str, tmp_path: Path) -> None:
    """Equal seeds on all ranks are found. (Workers that are forked: test_fault_is_found.)"""
    (tmp_path / "script.py").write_text(SCRIPT)
    result = run_short([*TOOL, "--lang", "en", *TORCHRUN, "script.py", method], tmp_path)
    assert result.returncode == 0, result.output
    found = "Loader workers of all ranks draw the same random numbers (torch)"
    assert found in result.stdout, result.output
