"""What 01 does for nn.DataParallel's threads, as far as it can be shown without several GPUs."""

import threading
from pathlib import Path
from unittest import mock

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
    ("words", "gpus", "used", "in_bf16"),
    [
        ("--bf16", 2, [0, 1], True),
        ("", 2, [0, 1], False),
        ("--gpus 2,0", 4, [2, 0], False),
        ("--bf16", 1, [0], False),
        ("--bf16", 0, [], False),
    ],
)
def test_gpus(
    words: str,
    gpus: int,
    used: list[int],
    in_bf16: bool,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    """Which hold the weights, and which get images. Where there are threads the bare model is
    wrapped; torch's DataParallel itself needs GPUs."""
    wrapped, devices = mock.Mock(side_effect=StopIteration), []
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpus > 0)
    monkeypatch.setattr(torch.cuda, "set_device", lambda index: None)
    bare = nn.Linear(4, 3)
    monkeypatch.setattr(bare, "to", lambda device, **_: devices.append(device))
    monkeypatch.setattr(CHAPTER, "build_model", lambda *_: bare)
    monkeypatch.setattr(CHAPTER, "DataParallel", wrapped)
    monkeypatch.setattr(CHAPTER, "log", mock.Mock(side_effect=StopIteration))
    argv = ["--synthetic", "8", "--image-size", "8", "--batch-size", "4", "--workers", "0"]
    with pytest.raises(StopIteration):
        CHAPTER.main([*argv, "--output-dir", str(tmp_path), *words.split()])
    assert devices == [torch.device("cuda", used[0]) if used else torch.device("cpu")]
    if len(used) < 2:
        assert not wrapped.called
        return
    inner, chosen = wrapped.call_args.args
    assert chosen == used and isinstance(inner, CHAPTER.InBfloat16) == in_bf16
    assert (inner.model if in_bf16 else inner) is bare
