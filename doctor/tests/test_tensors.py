"""What a run leaves in files: tensors and numbers, whoever has written them."""

import os
import pickle
import runpy
import socket
import time
from argparse import Namespace
from collections import OrderedDict
from pathlib import Path

import numpy
import pytest
import torch
from crew import Crew
from safetensors.torch import save_file

from ddp_doctor.ranks import left_by
from ddp_doctor.recorder.named import row_of
from ddp_doctor.tensors import read


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
