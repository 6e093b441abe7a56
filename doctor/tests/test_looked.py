"""Checked means looked at: what several ranks write by whatever library, and programs in which a
check once looked at nothing. Each with its right twin."""

import os
import pickle
import runpy
import socket
import time
from argparse import Namespace
from collections import OrderedDict
from pathlib import Path

import faults
import numpy
import pytest
import torch
from crew import Crew
from examined import assert_all_ran, examined_text
from safetensors.torch import save_file
from tiers import but

from ddp_doctor.ranks import left_by
from ddp_doctor.recorder.named import row_of
from ddp_doctor.tensors import read

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
SUMMED = LOSS + "        dist.all_reduce(loss)\n"
COUNTED = (
    SUMMED.replace("targets)", "targets, reduction='sum')")
    + "        count = torch.tensor(float(len(targets)))\n        dist.all_reduce(count)\n"
)
WINDOWS = (  # each epoch shows other samples
    "train_set = TensorDataset(", "class Windows(TensorDataset):\n    epoch = 0\n\n"
    "    def __getitem__(self, index):\n"
    "        return super().__getitem__((index + 9 * int(self.epoch)) % 70)\n\n\n"
    "train_set = Windows(",
    "sampler=sampler)", "sampler=sampler, num_workers=1, persistent_workers=True)",
    "    model.train()\n", "    model.train()\n    train_set.epoch = epoch\n",
)  # fmt: skip
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
# The loss is added up, beside a score.
SCORE = (
    "for epoch in range(3):\n", "def right(scores, targets):\n"
    "    return (scores.argmax(1) == targets).sum()\n\n\nfor epoch in range(3):\n",
    "    totals = torch.zeros(2)\n", "    totals, own = torch.zeros(2), torch.zeros(2)\n",
    "            totals += ",
    "            own += torch.tensor([right(model(images), targets), len(targets)])\n"
    "            totals += ", SAVE,
    "    if rank == 0:\n        rate = optimizer.param_groups[0]['lr']\n"
    "        mean = totals[0] / totals[1]\n"
    "        print(f'Epoch {epoch} train_loss: {loss:.4f} lr: {rate:.3f} {0.1 * epoch:.2f}s')\n"
    "        print(f'out/v1.5/1.pt loss {mean:.4f} BLEU {100 * own[0] / own[1]:.3f}')\n",
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
    "a summed loss, divided": ((LOSS, SUMMED + "        loss = loss / world_size\n"),
                               "lost_gradient", ""),
    "a summed loss, divided by all samples": (
        (LOSS, COUNTED + "        loss /= count\n"), "lost_gradient", ""),
    "a summed loss, divided by their number": (
        (LOSS, COUNTED + "        loss = loss / count.item()\n"), "lost_gradient", ""),
    "a summed loss": ((LOSS, SUMMED), "", ""),
    "a summed loss, times the ranks": (
        (LOSS, COUNTED + "        loss = loss * world_size / count\n"), "", ""),
    "a copy of the loss, summed": (
        (LOSS, LOSS + "        logged = loss.detach().clone()\n        dist.all_reduce(logged)\n"
         "        loss = loss + 0 * logged / world_size\n"), "", ""),
    "an epoch that workers do not hear of": (WINDOWS, "same_order", ""),
    "an epoch that new workers hear of": (
        (*WINDOWS, ", persistent_workers=True", ""), "", ""),
    "an epoch that workers share": (
        (*WINDOWS, "    epoch = 0\n", "    epoch = torch.zeros(1).share_memory_()\n",
         "train_set.epoch = epoch", "train_set.epoch[:] = epoch"), "", ""),
    "a critic": (CRITIC, "", ""),
    "a critic, and one seed": ((*CRITIC, *ONE_SEED), "equal_randomness", ""),
    "a schedule to its end": (LAMBDA, "", ""),
    "a schedule that ends half-way": ((*LAMBDA, "n / 2.1", "n / 4"), "", "schedule"),
    "a score of rank 0's share": (SCORE, "", "wrong_evaluation"),
    "a score of all": (
        (*SCORE, "totals, own = torch.zeros(2)", "totals, own = torch.zeros(3)",
         "[loss, len(targets)]", "[loss, len(targets), right(model(images), targets)]",
         "own[0] / own[1]", "totals[2] / totals[1]"), "", ""),
    "rows of unlike lengths": (UNLIKE, "", ""),
    "rows of unlike lengths, and one seed": ((*UNLIKE, *ONE_SEED), "equal_randomness", ""),
}  # fmt: skip
ASKED = {
    "same_order",
    "wrong_evaluation",
    "shared_file",
    "schedule",
    "equal_randomness",
    "lost_gradient",
}


ALIKE = {
    "a summed loss, divided by all samples", "a summed loss, divided by their number",
    "accumulated, thrown away, and clipped", "an epoch that new workers hear of",
}  # fmt: skip


@pytest.mark.parametrize("what", but(PROGRAMS, ALIKE), ids=lambda what: what.replace(" ", "-"))
def test_is_looked_at(what: str, crew: Crew, tmp_path: Path) -> None:
    words, finding, unchecked = PROGRAMS[what]
    report = examined_text(crew, faults.changed(faults.RIGHT.read_text(), words), tmp_path)["en"]
    assert_all_ran(tmp_path, report)
    assert {found.id for found in report.findings if found.id in ASKED} == {finding} - {""}
    assert report.not_checked.keys() & ASKED == {unchecked} - {""}, report.not_checked


class Odd:
    """Of a program that the doctor cannot import."""

    def __init__(self) -> None:
        self.weights = torch.ones(3)


def test_tensors_in_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever has written them, and whatever lies beside them."""
    numbers = torch.tensor([[1.0, -2.0, 3.5], [0.5, 0.25, 8.0]])
    kinds = torch.float64, torch.float32, torch.float16, torch.bfloat16
    tensors = {str(kind): numbers.to(kind) for kind in kinds}
    views = {"t": numbers.t(), "part": numbers[:, 1:], "none": torch.zeros(0, 3)}
    last = torch.arange(120.0).reshape(2, 3, 4, 5).contiguous(memory_format=torch.channels_last)
    content = {
        "model": OrderedDict(tensors | views, last=last, p=torch.nn.Parameter(numbers)),
        "optimizer": [{"state": [{0: {"moment": numbers}}]}], "best": numpy.float64(0.5),
        "step": 3, "odd": Odd(), "random": torch.get_rng_state(), "set": {1}, "all": [*range(999)],
        "array": numbers.numpy(), "kind": torch.float32, "module.n": Namespace(n=1),
    }  # fmt: skip
    wanted = {f"model.{name}": tensor for name, tensor in content["model"].items()}
    wanted |= {"optimizer.0.state.0.0.moment": numbers, "array": numbers}
    wanted = {name: row_of(tensor) for name, tensor in wanted.items()}
    file = tmp_path / "file"
    torch.save(content, file)
    writers = {
        "torch": lambda: torch.save(content, file),
        "old torch": lambda: torch.save(content, file, _use_new_zipfile_serialization=False),
        **{
            f"pickle {n}": lambda n=n: file.write_bytes(pickle.dumps(content, n)) for n in (2, 4, 5)
        },
    }
    for name, write in writers.items():
        write()
        with monkeypatch.context() as patch:
            patch.delattr(f"{__name__}.Odd")
            assert read(str(file)) == (wanted, {"best": 0.5, "step": 3}), name
    save_file(tensors, file)
    assert read(str(file))[0] == {name: row_of(tensor) for name, tensor in tensors.items()}
    whole = file.read_bytes()
    for damaged in (whole[:-1], b"123456789 is no length", b"", b"\x80 no pickle", b"PK no zip"):
        file.write_bytes(damaged)
        assert read(str(file)) == ({}, {})
    numpy.save(tmp_path / "b.npy", numbers.numpy())
    numpy.savez(tmp_path / "c.npz", b=numbers.numpy(), names=numpy.array(["a"]))
    assert read(str(tmp_path / "b.npy"))[0] == {"": row_of(numbers)}
    assert read(str(tmp_path / "c.npz"))[0] == {"b": row_of(numbers)}


def test_a_pickle_runs_nothing(tmp_path: Path) -> None:
    """As one that somebody else has made."""

    class Evil:
        def __reduce__(self) -> tuple:
            return Path.touch, (tmp_path / "ran",)

    torch.save({"evil": Evil(), "weight": torch.ones(2)}, tmp_path / "model.pt")
    assert read(str(tmp_path / "model.pt"))[0].keys() == {"weight"}
    assert not (tmp_path / "ran").exists()


PIECES = """
import sys, torch, torch.distributed as dist, torch.distributed.checkpoint as dcp
from torch.distributed.tensor import DTensor, Shard, distribute_tensor

dist.init_process_group("gloo")
mesh = dist.init_device_mesh("cpu", (dist.get_world_size(),))
whole = torch.arange(35.0).reshape(5, 7)
parts = {str(n): distribute_tensor(whole, mesh, [Shard(n)]) for n in (0, 1)}
dcp.save({"model": parts | {"whole": whole}, "rate": 0.1}, checkpoint_id="folder")
dist.get_rank() or torch.save(parts, "part.pt")
dist.destroy_process_group()
"""


def run_there(folder: str, script: str) -> None:
    """In a crew member."""
    os.chdir(folder)
    runpy.run_path(script, run_name="__main__")


def test_files_beside_the_script(tmp_path: Path) -> None:
    """torchrun's own arguments name it: another job may write there. A folder that they name is
    the job's."""
    for name in ("here", "scripts", "out"):
        (tmp_path / name).mkdir()
    torchrun = {"e": "process", "host": socket.gethostname(), "cwd": str(tmp_path / "here"),
                "t": time.time() - 1, "compared": False,
                "argv": ["torchrun", "../scripts/train.py", "--output=../out"]}  # fmt: skip
    for folder in ("scripts", "out"):
        (tmp_path / folder / "model.bin").write_bytes(b"weights")
    [found] = left_by([[torchrun]], str(tmp_path / "traces"))
    assert found["path"] == str(tmp_path / "out/model.bin")


def test_pieces_of_ranks(crew: Crew, tmp_path: Path) -> None:
    """What torch.distributed.checkpoint has written is put together, however ranks divide it; a
    rank's own file has its part."""
    (tmp_path / "pieces.py").write_text(PIECES)
    crew.run(run_there, str(tmp_path), "pieces.py", world_size=2)
    row = row_of(torch.arange(35.0).reshape(5, 7))
    found, numbers = read(str(tmp_path / "folder/.metadata"))
    assert found == {f"model.{name}": row for name in ("0", "1", "whole")}
    assert numbers == {"rate": 0.1}
    shapes = [shape for *_, shape in read(str(tmp_path / "part.pt"))[0].values()]
    assert shapes == [[3, 7], [5, 4]]
