"""What only chapter 05 has: compression, and what it says when it is not set up for it.

What it shares with the others (equal training, exact evaluation, resume, errors, a rank that is
killed) is in their tables.
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest
from crew import Crew
from harness import HOROVOD, ROOT, load_chapter, load_state
from plain_training import (
    LOW_RATE,
    arguments,
    difference,
    train,
    train_plainly,
)
from with_tiny_model import tiny_float32

pytest.importorskip("horovod", reason="needs Horovod: PYTHON=python bash 05_horovod/install.sh")


def test_compression_rounds_and_no_more(crew: Crew, tmp_path: Path) -> None:
    """Gradients sent in 16 bits: close to those in 32, and not the same, on ranks that agree."""
    argv = [*arguments(tmp_path, LOW_RATE), "--fp16-allreduce"]
    answers = crew.run(train, HOROVOD, argv, tiny_float32, world_size=2)
    assert answers[0] == answers[1]
    state = load_state(tmp_path / "checkpoint.pt")
    far = difference(train_plainly(tiny_float32, LOW_RATE)[0], state)
    moved = difference(train_plainly(tiny_float32, LOW_RATE, epochs=0)[0], state)
    print(f"\nlargest difference with --fp16-allreduce: {far:.1e}, of weights moved by {moved:.1e}")
    assert 1e-6 < far < 1e-3 < 100 * far < moved


def refusal(chapter: ModuleType, tmp_path: Path) -> str:
    """The line with which a process that nobody has launched ends."""
    with pytest.raises(SystemExit) as ended:
        chapter.main(["--synthetic", "--output-dir", str(tmp_path / "run")])
    assert not (tmp_path / "run").exists()
    assert len(ended.value.code.splitlines()) == 1
    return ended.value.code


def test_not_started_by_horovodrun(tmp_path: Path) -> None:
    """One process where many were meant is no fallback: the line to type is given."""
    line = refusal(load_chapter(HOROVOD), tmp_path)
    assert "start it with horovodrun -np 2 -H localhost:2 --gloo python" in line


def test_horovod_missing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Not installed, or built for another torch, as far as the import can tell."""
    monkeypatch.setitem(sys.modules, "horovod.torch", None)  # an import of it fails
    spec = importlib.util.spec_from_file_location("without_horovod", ROOT / HOROVOD / "main.py")
    chapter = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(chapter)
    line = refusal(chapter, tmp_path)
    assert "cannot import Horovod" in line and "bash 05_horovod/install.sh" in line
