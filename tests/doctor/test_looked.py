"""Checked means looked at: what several ranks write by whatever library, and programs in which a
check once looked at nothing. Each with its right twin."""

import struct
from pathlib import Path

import faults
import numpy
import pytest
import torch
from crew import Crew
from examined import assert_all_ran, examined_text

from doctor import left

LOSS = "        loss = nn.functional.cross_entropy(ddp(images), targets)\n"
STEP = "        optimizer.zero_grad()\n        loss.backward()\n        optimizer.step()\n"
SAVE = '    if rank == 0:\n        torch.save(model.state_dict(), "checkpoint.pt")\n'
SEEDS = "torch.manual_seed(rank)  # for dropout\n"
ACCUMULATED = (
    "for images, targets in loader:", "for n, (images, targets) in enumerate(loader):", LOSS + STEP,
    "        with contextlib.nullcontext() if n % 2 else ddp.no_sync():\n"
    "            nn.functional.cross_entropy(ddp(images), targets).backward()\n"
    "        if n % 2:\n            optimizer.step()\n            optimizer.zero_grad()\n",
    "from datetime", "import contextlib\nfrom datetime",
)  # fmt: skip
THROWN = ("enumerate(loader):\n", "enumerate(loader):\n        optimizer.zero_grad()\n")
CLIPPED = ("            optimizer.step()\n",
           "            nn.utils.clip_grad_norm_(model.parameters(), 1.0)\n"
           "            optimizer.step()\n")  # fmt: skip
# Ranks draw unlike many numbers for dropout.
UNLIKE = (
    "(8, 16), ", "(8, 16), nn.Dropout(0.1), ", "(ddp(images), targets)",
    "(ddp(images[: 7 - rank]), targets[: 7 - rank])",
)  # fmt: skip
ONE_SEED = (SEEDS, "torch.manual_seed(1)\n")
CRITIC = (
    "nn.Dropout(), ", "", LOSS + STEP,
    "        fake = ddp(images + 0.1 * torch.randn_like(images))\n"
    "        learns.zero_grad()\n        critic(fake.detach()).mean().backward()\n"
    "        learns.step()\n        loss = -critic.module(fake).mean()\n" + STEP,
    "ddp = DDP(model)\n", "ddp = DDP(model)\ncritic = DDP(nn.Linear(3, 1))\n"
    "learns = torch.optim.SGD(critic.parameters(), 0.1)\n",
)  # fmt: skip
LAMBDA = (
    "ReduceLROnPlateau(optimizer, patience=0)", "LambdaLR(optimizer, lambda n: 1 - n / 2.1)",
    "    scheduler.step(totals[0] / totals[1])\n", "", "        optimizer.step()\n",
    "        optimizer.step()\n    scheduler.step()\n",
)  # fmt: skip
LIBRARY = ("import torch\n", "import matplotlib\nmatplotlib.use('Agg')\n"
           "import matplotlib.pyplot as plt\nimport torch\n")  # fmt: skip
# The changes of right.py; what must be found, and what must not count as checked.
PROGRAMS = {
    "a picture by every rank": (
        (*LIBRARY, SAVE, "    plt.savefig('curve.png', dpi=20)\n"), "shared_file", ""),
    "a picture by rank 0": (
        (*LIBRARY, SAVE, "    rank or plt.savefig('curve.png', dpi=20)\n"), "", ""),
    "a file that nobody was seen to write": (
        (SAVE, "    parts = torch._C.PyTorchFileWriter(f'parts{rank}.bin')\n"
         "    parts.write_record('data', bytes(8), 8)\n    parts.write_end_of_file()\n"),
        "", "shared_file"),
    "accumulated": (ACCUMULATED, "", ""),
    "accumulated, and thrown away": ((*ACCUMULATED, *THROWN), "lost_gradient", ""),
    "accumulated, thrown away, and clipped": (
        (*ACCUMULATED, *THROWN, *CLIPPED), "lost_gradient", ""),
    "accumulated in a place of one's own": (
        (*ACCUMULATED, *THROWN, "        if n % 2:\n",
         "        own = [p.grad + (a if n % 2 else 0) for p, a in zip(\n"
         "            model.parameters(), own if n else [0] * 9)]\n"
         "        if n % 2:\n"
         "            for p, a in zip(model.parameters(), own):\n                p.grad = a\n"),
        "", ""),
    "a critic": (CRITIC, "", ""),
    "a critic, and one seed": ((*CRITIC, *ONE_SEED), "equal_randomness", ""),
    "a schedule to its end": (LAMBDA, "", ""),
    "a schedule that ends half-way": ((*LAMBDA, "n / 2.1", "n / 4"), "", "schedule"),
    "rows of unlike lengths": (UNLIKE, "", ""),
    "rows of unlike lengths, and one seed": ((*UNLIKE, *ONE_SEED), "equal_randomness", ""),
}  # fmt: skip
ASKED = {"shared_file", "schedule", "equal_randomness", "lost_gradient"}


@pytest.mark.parametrize("what", PROGRAMS, ids=lambda what: what.replace(" ", "-"))
def test_is_looked_at(what: str, crew: Crew, tmp_path: Path) -> None:
    words, finding, unchecked = PROGRAMS[what]
    report = examined_text(crew, faults.changed(faults.RIGHT.read_text(), words), tmp_path)["en"]
    assert_all_ran(tmp_path, report)
    assert {found.id for found in report.findings if found.id in ASKED} == {finding} - {""}
    assert report.not_checked.keys() & ASKED == {unchecked} - {""}, report.not_checked


FSDP = """
import sys, torch, torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

dist.init_process_group("gloo")
torch.manual_seed(0)
data = TensorDataset(torch.randn(64, 8), torch.randn(64, 1))
loader = DataLoader(data, batch_size=4, sampler=DistributedSampler(data, shuffle=False))
model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1))
fully_shard(model[0])
fully_shard(model)
optimizer = torch.optim.SGD(model.parameters(), 0.01)
for n, (x, y) in enumerate(loader):
    model.set_requires_gradient_sync(n % 2 == 1)
    nn.functional.mse_loss(model(x), y).backward()
    if n % 2:
        optimizer.step()
        optimizer.zero_grad()
dist.destroy_process_group()
"""


@pytest.mark.parametrize("each", [True, False])
def test_reduced_after_each_part(each: bool, crew: Crew, tmp_path: Path) -> None:
    """FSDP's gradients, as DDP's."""
    words = ("    model.set_requires_gradient_sync(n % 2 == 1)\n", "") if each else ()
    report = examined_text(crew, faults.changed(FSDP, words), tmp_path)["en"]
    assert [found.name for found in report.findings] == ["no_sync:sharded"] * each
    assert "no_sync" in report.checked


def test_tensors_in_files(tmp_path: Path) -> None:
    """Of safetensors and of numpy, read without them: their norm and a weighted sample."""
    numbers = [1.0, -2.0, 3.5]
    for name, dtype in (("F64", "d"), ("F32", "f"), ("F16", "e")):
        data = struct.pack(f"<3{dtype}", *numbers)
        header = f'{{"a": {{"dtype": "{name}", "shape": [3], "data_offsets": [0, {len(data)}]}}}}'
        file = tmp_path / "a.safetensors"
        file.write_bytes(struct.pack("<Q", len(header)) + header.encode() + data)
        assert left.tensors_in(str(file)) == {"a": [pytest.approx(17.25**0.5), 1 - 4 + 10.5]}
    bits = torch.tensor(numbers, dtype=torch.bfloat16).view(torch.int16).tolist()
    data = struct.pack("<3h", *bits)
    header = '{"a": {"dtype": "BF16", "shape": [3], "data_offsets": [0, 6]}}'
    file.write_bytes(struct.pack("<Q", len(header)) + header.encode() + data)
    assert left.tensors_in(str(file)) == {"a": [pytest.approx(17.25**0.5), 1 - 4 + 10.5]}
    file.write_bytes(struct.pack("<Q", len(header)) + header.encode() + data[:3])  # cut off
    assert left.tensors_in(str(file)) is None
    numpy.save(tmp_path / "b.npy", numpy.array([numbers]))
    numpy.savez(tmp_path / "c.npz", b=numpy.array(numbers))
    assert left.tensors_in(str(tmp_path / "b.npy")) == {"": [pytest.approx(17.25**0.5), 7.5]}
    assert left.tensors_in(str(tmp_path / "c.npz")).keys() == {"b.npy"}
    (tmp_path / "d.txt").write_text("123456789 is no length")
    assert left.tensors_in(str(tmp_path / "d.txt")) is None
