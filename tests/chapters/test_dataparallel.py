"""What 01 does for nn.DataParallel's threads, as far as it can be shown without several GPUs."""

from __future__ import annotations

import threading
from argparse import Namespace

import pytest
import torch
from harness import load_chapter
from torch import nn

CHAPTER = load_chapter("01_dataparallel")


def in_a_thread(model: nn.Module) -> torch.dtype:
    """The type of the model's output in a thread that runs it as DataParallel's do: autocast is on,
    its type is the thread's own, which is set here to what it is for CUDA."""
    found = []

    def worker() -> None:
        torch.set_autocast_dtype("cpu", torch.float16)
        with torch.amp.autocast("cpu", enabled=True):
            found.append(model(torch.zeros(2, 4)).dtype)

    with torch.autocast("cpu", torch.bfloat16):  # of the training step, in the main thread
        thread = threading.Thread(target=worker)
        thread.start()
        thread.join()
    return found[0]


def test_threads_compute_in_bfloat16() -> None:
    """A bare model would be in float16 there, whatever the step's autocast says."""
    model = nn.Linear(4, 3)
    assert in_a_thread(model) is torch.float16
    assert in_a_thread(CHAPTER.InBfloat16(model)) is torch.bfloat16


@pytest.mark.parametrize(
    ("gpus", "bf16", "wrapped", "inner"),
    [
        (2, True, True, True),
        (2, False, True, False),
        (1, True, False, False),
        (0, True, False, False),
    ],
)
def test_wrapped_where_there_are_threads(
    gpus: int, bf16: bool, wrapped: bool, inner: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The bare model stays as it is, for the checkpoint; torch's DataParallel itself needs GPUs."""

    class Recorded(nn.Module):
        def __init__(self, module: nn.Module, device_ids: list[int]) -> None:
            super().__init__()
            self.module, self.device_ids = module, device_ids

    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpus > 0)
    monkeypatch.setattr(CHAPTER, "DataParallel", Recorded)
    bare = nn.Linear(4, 3)
    args = Namespace(gpus=None, bf16=bf16, compile=False)
    model = CHAPTER.wrap_model(args, bare)
    assert isinstance(model, Recorded) == wrapped
    if wrapped:
        assert model.device_ids == list(range(gpus))
        assert isinstance(model.module, CHAPTER.InBfloat16) == inner
        assert (model.module.model if inner else model.module) is bare
    else:
        assert model is bare
    assert bare.state_dict().keys() == {"weight", "bias"}
