"""Mistakes planted on purpose: the pretended GPUs refuse what CUDA and nccl refuse, and note what
makes the host wait."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from crew import Crew
from pretended_gpus.members import on_gpus
from torch import nn

GPU, OTHER = "cuda:0", "cuda:1"


def attempt(name: str) -> str:
    """In a crew member: what one of the functions below ends with."""
    try:
        return repr(globals()[name]())
    except Exception as error:
        return f"{type(error).__name__}: {error}"


def refused(words: str) -> Callable:
    """Marks a function that must end with an error of these words."""

    def mark(function: Callable) -> Callable:
        function.words = words
        return function

    return mark


@refused("found at least two devices")
def a_layer_that_has_not_moved():
    return nn.Linear(2, 2)(torch.ones(1, 2, device=GPU))


@refused("TypeError: can't convert cuda:0 device type tensor to numpy. Use Tensor.cpu()")
def numpy():
    return torch.ones(2, device=GPU).numpy()


@refused("CUDA error: invalid device ordinal")
def no_such_current_gpu():
    torch.cuda.set_device(2)


@refused("Cannot re-initialize CUDA in forked subprocess")
def a_gpu_in_a_loader_worker():
    torch.ones(2, device=GPU)
    reader, writer = os.pipe()
    if os.fork() == 0:
        os.write(writer, attempt("ones").encode())
        os._exit(0)
    os.wait()
    return os.read(reader, 1000).decode()


def ones():
    return torch.ones(2, device=GPU)


@refused("No backend type associated with device type cpu")
def nccl_of_the_cpu():
    dist.init_process_group("nccl")
    dist.all_reduce(torch.ones(2))


@refused("Tensors must be contiguous")
def nccl_of_a_transposed_tensor():
    dist.init_process_group("nccl")
    dist.all_reduce(torch.ones(2, 3, device=GPU).T)


REFUSED = [name for name, function in list(globals().items()) if hasattr(function, "words")]


@pytest.mark.parametrize("name", REFUSED)
def test_is_refused(name: str, gpu_crew: Crew) -> None:
    (seen,) = gpu_crew.run(on_gpus, 2, {}, attempt, name)
    assert globals()[name].words in seen.answer


def slow_and_fast() -> None:
    """In a crew member: lines that wait, those marked with #, and others that do not."""
    here, there = torch.ones(4, device=GPU), torch.ones(4)
    pinned = there.pin_memory()
    pinned.to(GPU, non_blocking=True)
    pinned.to(GPU)  #
    there.to(GPU, non_blocking=True)  #
    torch.tensor([1, 2], device=GPU)  #
    torch.zeros(2, device=GPU)
    here.sum().item()  #
    here.tolist()  #
    here.cpu()  #
    here.add_(1).mul_(here)
    bool(here.sum() > 1)  #
    here[here > 1]  #
    here[[0, 1]]  #
    here[1:]
    here.copy_(there)  #
    here += torch.tensor(1.0)
    f"{here.sum()}"  #


def test_waiting_is_noted(gpu_crew: Crew) -> None:
    (seen,) = gpu_crew.run(on_gpus, 1, {}, slow_and_fast)
    lines = Path(__file__).read_text().splitlines()
    marked = [number for number, line in enumerate(lines, 1) if line.endswith("  #")]
    noted = [int(row["line"].partition(":")[2]) for row in seen.of("wait")]
    assert len(marked) > 5 and sorted(set(noted)) == marked


def load_to_where_it_was(file: Path) -> str:
    """In a crew member."""
    torch.save(torch.ones(2, device=OTHER), file)
    return str(torch.load(file).device)


def test_loading_to_a_gpu_is_noted(gpu_crew: Crew, tmp_path: Path) -> None:
    (seen,) = gpu_crew.run(on_gpus, 2, {}, load_to_where_it_was, tmp_path / "saved.pt")
    assert seen.answer == OTHER and seen.of("load")
