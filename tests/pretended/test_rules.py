"""The pretended GPUs themselves: they refuse what CUDA and nccl refuse, and note what is slow."""

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pretended_gpus
import pytest
import torch
import torch.distributed as dist
from crew import Crew
from pretended_gpus.members import on_gpus
from torch import nn
from torch.nn.functional import cross_entropy

GPU, OTHER, CPU = "cuda:0", "cuda:1", "cpu"


def attempt(name: str) -> str:
    """In a crew member: what one of the functions below ends with."""
    try:
        return repr(globals()[name]())
    except Exception as error:
        return f"{type(error).__name__}: {error}"


def forbidden(words: str) -> Callable:
    """Marks a function that must end with an error of these words."""

    def mark(function: Callable) -> Callable:
        function.words = words
        return function

    return mark


@forbidden("found at least two devices")
def a_layer_that_has_not_moved():
    return nn.Linear(2, 2)(torch.ones(1, 2, device=GPU))


@forbidden("found at least two devices")
def targets_on_the_cpu():
    return cross_entropy(torch.ones(1, 2, device=GPU), torch.tensor([1]))


@forbidden("TypeError: can't convert cuda:0 device type tensor to numpy. Use Tensor.cpu()")
def numpy():
    return torch.ones(2, device=GPU).numpy()


@forbidden("CUDA error: invalid device ordinal")
def no_such_current_gpu():
    torch.cuda.set_device(2)


@forbidden("Cannot re-initialize CUDA in forked subprocess")
def a_gpu_after_a_fork():
    torch.ones(2, device=GPU)
    reader, writer = os.pipe()
    if os.fork() == 0:
        os.write(writer, attempt("no_fork").encode())
        os._exit(0)
    os.wait()
    raise RuntimeError(os.read(reader, 1000).decode())


def no_fork():
    return torch.ones(2, device=GPU)


@forbidden("No backend type associated with device type cpu")
def nccl_of_the_cpu():
    with_nccl()
    dist.all_reduce(torch.ones(2))


@forbidden("backend constrained to cuda:0")
def nccl_of_another_gpu():
    with_nccl(device_id=torch.device(GPU))
    dist.all_reduce(torch.ones(2, device=OTHER))


def with_nccl(**more: object) -> None:
    dist.init_process_group("nccl", **more)


FORBIDDEN = [name for name, function in list(globals().items()) if hasattr(function, "words")]


@pytest.mark.parametrize("name", FORBIDDEN)
def test_forbidden(name: str, gpu_crew: Crew) -> None:
    (seen,) = gpu_crew.run(on_gpus, 2, {}, attempt, name)
    assert globals()[name].words in seen.answer


def allowed() -> dict:
    """In a crew member: what looks like that, and is right."""
    here, there = torch.arange(4.0, device=GPU), torch.arange(4.0)
    double = here * torch.tensor(2.0)  # a single number of the CPU
    copied = torch.zeros(4)
    copied.copy_(here)
    model = nn.Sequential(nn.Linear(4, 2), nn.BatchNorm1d(2)).to(GPU)
    model(here.repeat(3, 1)).sum().backward()
    return {
        "places": [str(t.device) for t in (double, double[1:], here.to("cpu"), here.clone().T)],
        "values": [double.tolist(), copied.tolist(), here[torch.tensor([1])].tolist()],
        "gradients": {str(weight.grad.device) for weight in model.parameters()},
        "buffers": {str(buffer.device) for buffer in model.buffers()},
        "cuda": [here.is_cuda, there.is_cuda, here.get_device(), there.cuda(1).get_device()],
        "backend": dist.get_default_backend_for_device(here.device),
    }


def test_allowed(gpu_crew: Crew) -> None:
    (seen,) = gpu_crew.run(on_gpus, 2, {}, allowed)
    assert seen.answer == {
        "places": [GPU, GPU, CPU, GPU],
        "values": [[0, 2, 4, 6], [0, 1, 2, 3], [1]],
        "gradients": {GPU},
        "buffers": {GPU},
        "cuda": [True, False, 0, 1],
        "backend": "nccl",
    }


def pinned_beside_backward() -> list[bool]:
    """In a crew member: DataLoader's thread pins a batch while the main thread is in backward()."""
    weight, pinned = torch.ones(2, device=GPU, requires_grad=True), []
    with ThreadPoolExecutor(1) as loader:

        def pin_a_batch(gradient):
            pinned.append(loader.submit(lambda: torch.ones(2).pin_memory()).result())

        weight.register_hook(pin_a_batch)
        weight.sum().backward()
    return [tensor.is_pinned() for tensor in pinned]


def test_backward_is_of_one_thread(gpu_crew: Crew) -> None:
    (seen,) = gpu_crew.run(on_gpus, 1, {}, pinned_beside_backward)
    assert seen.answer == [True]


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


def test_what_is_slow(gpu_crew: Crew) -> None:
    (seen,) = gpu_crew.run(on_gpus, 1, {}, slow_and_fast)
    lines = Path(__file__).read_text().splitlines()
    marked = [number for number, line in enumerate(lines, 1) if line.endswith("  #")]
    noted = [int(row["line"].partition(":")[2]) for row in seen.of("wait")]
    assert len(marked) > 5 and sorted(set(noted)) == marked


def test_two_ranks_on_one_gpu(gpu_crew: Crew) -> None:
    """As when set_device is forgotten: nccl refuses it."""
    (seen,) = gpu_crew.run(on_gpus, 2, {}, claims_of_a_pair)
    assert "Multiple Ranks are using the same GPU" in seen.answer


def claims_of_a_pair() -> str:
    """In one crew member, as the second of two ranks: the first has claimed GPU 0 already."""
    from pretended_gpus import ranks

    dist.init_process_group("nccl")
    store = dist.distributed_c10d._get_default_store()
    ranks.claim(torch.device(GPU))
    (mine,) = [key for key in store.list_keys() if "pretended GPU of 0" in key]
    store.set(mine.split("/")[-1].replace("of 0", "of 1"), "")
    dist.get_world_size = lambda: 2
    try:
        ranks.claim(torch.device(GPU))
    except dist.DistBackendError as error:
        return str(error)
    finally:
        dist.get_world_size = dist.distributed_c10d.get_world_size
    return ""


def saved_and_loaded(folder: Path) -> list[str]:
    """In a crew member: where tensors come to lie that a GPU has saved."""
    torch.save(torch.ones(2, device=OTHER), folder / "saved.pt")
    loads = [torch.load(folder / "saved.pt", map_location=place) for place in (None, CPU, GPU)]
    return [str(tensor.device) for tensor in loads]


def test_a_checkpoint_says_where_it_was(gpu_crew: Crew, tmp_path: Path) -> None:
    (seen,) = gpu_crew.run(on_gpus, 2, {}, saved_and_loaded, tmp_path)
    assert seen.answer == [OTHER, CPU, GPU]


def test_other_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything here is skipped, with the reason."""
    monkeypatch.setattr(torch, "__version__", "2.6.0+cu124")
    assert f"for torch {pretended_gpus.pinned_torch()}, this is 2.6.0" in pretended_gpus.why_not()
