"""Every chapter, launched as its docstring says, on generated images and on JPEG files."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from harness import CHAPTERS, CHECKPOINT_KEYS, default_processes, events, launch, load_state, rows

pytestmark = pytest.mark.smoke
WORLD_SIZE = default_processes()
SIZE = ["--arch", "resnet18", "--image-size", "32", "--lr", "0.4"]
# On a GPU box with many GPUs the batch grows with the ranks and the data with the batch.
BATCH = 8 * max(WORLD_SIZE, 2)


@pytest.mark.parametrize("chapter", CHAPTERS)
def test_synthetic_trains_and_resumes(chapter: str, tmp_path: Path) -> None:
    """Two epochs, then a third by --resume auto: steps, a falling loss, all images evaluated,
    one log, the checkpoint's keys."""
    images = 10 * BATCH + 3  # the last 3 of an epoch fill no batch
    common = ["--synthetic", images, *SIZE, "--batch-size", BATCH, "--print-freq", 4, "--seed", 3]
    first = launch(
        chapter, [*common, "--epochs", 2, "--workers", 0, "--output-dir", "run"], tmp_path
    )
    assert first.returncode == 0, first.output

    run_dir = tmp_path / "run"
    start = rows(run_dir, "start")[0]
    assert start["chapter"] == chapter
    assert start["world_size"] == (1 if chapter == "01_dataparallel" else WORLD_SIZE)
    assert start["global_batch_size"] == BATCH
    assert start["per_rank_batch_size"] * start["world_size"] == BATCH
    train, evals = rows(run_dir, "train"), rows(run_dir, "eval")
    # Every 4 steps, and the rest of the epoch: 10 steps an epoch.
    assert [row["step"] for row in train] == [4, 8, 10, 14, 18, 20]
    assert [row["epoch"] for row in train] == [0, 0, 0, 1, 1, 1]
    assert train[-1]["loss"] < 0.6 * train[0]["loss"], [row["loss"] for row in train]
    assert all(0 <= row["data_wait"] <= 1 and row["images_per_second"] > 0 for row in train)
    assert all(row["max_memory"] > 0 and row["lr"] > 0 for row in train)
    assert [(row["epoch"], row["step"], row["images"]) for row in evals] == [
        (0, 10, images // 4),
        (1, 20, images // 4),
    ]
    assert rows(run_dir, "end")[0]["best_acc1"] == max(row["acc1"] for row in evals)
    # Rank 0 alone speaks: every event is printed once.
    for event in ("start", "train", "eval", "end"):
        printed = [line for line in first.said if line.startswith(event + "  ")]
        assert len(printed) == len(rows(run_dir, event)), first.output
    assert "destroy_process_group" not in first.stderr, first.stderr

    for name in ("checkpoint.pt", "best.pt"):
        state = load_state(run_dir / name)
        assert state.keys() == CHECKPOINT_KEYS
        assert not any(key.startswith(("module.", "_orig_mod.")) for key in state["model"])
        assert all(t.device.type == "cpu" for t in state["model"].values())
    state = load_state(run_dir / "checkpoint.pt")
    assert (state["epoch"], state["global_step"], state["step_in_epoch"]) == (2, 20, 0)
    assert type(state["best_acc1"]) is float and state["num_classes"] == 10
    assert not list(run_dir.glob("*.tmp"))

    # Without its other flags: what the checkpoint was trained with is kept.
    again = ["--synthetic", images, "--epochs", 3, "--workers", 1, "--resume", "auto"]
    second = launch(chapter, [*again, "--output-dir", "run"], tmp_path)
    assert second.returncode == 0, second.output
    assert rows(run_dir, "start")[1]["resumed_from_step"] == 20
    assert [row["epoch"] for row in rows(run_dir, "eval")] == [0, 1, 2]
    assert rows(run_dir, "train")[-1]["step"] == 30
    assert load_state(run_dir / "checkpoint.pt")["args"]["batch_size"] == BATCH


@pytest.mark.parametrize("chapter", CHAPTERS)
def test_image_folder(chapter: str, tmp_path: Path, image_folder: Path) -> None:
    """JPEG files through loader workers: one epoch, exact count, and the saved model gives the
    numbers of the log when it is evaluated again."""
    ranks = max(WORLD_SIZE, 2)
    argv = ["--data", image_folder, *SIZE, "--batch-size", 4 * ranks if ranks < 6 else ranks]
    argv += ["--epochs", 1, "--workers", 1]
    trained = launch(chapter, [*argv, "--output-dir", "run"], tmp_path)
    assert trained.returncode == 0, trained.output
    (result,) = rows(tmp_path / "run", "eval")
    assert result["images"] == 11
    assert rows(tmp_path / "run", "start")[0]["classes"] == 3
    before = events(tmp_path / "run")

    argv += ["--evaluate", "--resume", tmp_path / "run/checkpoint.pt", "--output-dir", "run"]
    evaluated = launch(chapter, argv, tmp_path, processes=1)
    assert evaluated.returncode == 0, evaluated.output
    (again,) = rows(tmp_path / "run", "eval", "evaluate.jsonl")
    assert (again["acc1"], again["acc5"], again["images"]) == (
        result["acc1"],
        result["acc5"],
        result["images"],
    )
    assert again["loss"] == pytest.approx(
        result["loss"], rel=1e-4 if torch.cuda.is_available() else 1e-5
    )
    assert events(tmp_path / "run") == before  # an evaluation leaves the training's log alone
