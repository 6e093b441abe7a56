"""Every chapter, copied alone into an empty folder and launched as its docstring says: on generated
images, then on JPEG files. `make test` launches 02 here, 01 and 03 in test_faults.py, 05 under the
doctor, and 06 in test_slurm.py. (04, 07, 08 and 09 start as 02 does.)"""

import os
import shutil
import sys
from pathlib import Path

import pytest
import torch
from crew import Crew, call_main
from harness import (
    AS_OTHERS,
    CHAPTERS,
    CHECKPOINT_KEYS,
    HOROVOD,
    OWN_KEYS,
    ROOT,
    STRICT,
    TOOLS,
    command_for,
    default_processes,
    events,
    load_state,
    rows,
    run,
)
from tiers import table

LAUNCHED = ["02_distributed"]
WORLD_SIZE = default_processes()
# Cheap to train and to save. (resnet18 learns in fewer steps, but a launch of it took half as much
# CPU time again: 22.9 against 15.5 seconds, 2 ranks on 2 cores, torch 2.15.)
SIZE = ["--arch", "shufflenet_v2_x0_5", "--image-size", "32"]
# On a GPU box with many GPUs the batch grows with the ranks and the data with the batch, while the
# peak rate, --lr times batch / 256, stays what these few steps learn with: 0.025.
BATCH = 16 * max(WORLD_SIZE, 2)
SIZE += ["--lr", 0.025 * 256 / BATCH]
IMAGES = 20 * BATCH + 3  # the last 3 of an epoch fill no batch
TRAIN = ["--synthetic", IMAGES, *SIZE, "--batch-size", BATCH, "--print-freq", 8, "--seed", 3]
TRAIN += ["--epochs", 2, "--workers", 1]
# An evaluation at another batch size, or on one GPU in place of many, adds up in another order.
# fp32 has 23 bits after the leading one, TF32 10 and bf16 7: in these two a sum in another
# order moves logits enough for guesses to tie or change. What is compared is computed in fp32
# proper: 04 is told so, and NVIDIA's libraries by their own switch.
EXACT = {"NVIDIA_TF32_OVERRIDE": "0"}


@pytest.fixture(scope="module")
def ten_classes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """JPEG files of as many classes as generated images have: two and a half batches to train on,
    19 to evaluate."""
    folder = tmp_path_factory.mktemp("data") / "toy"
    toy = [sys.executable, TOOLS / "toy_imagenet.py", folder, "--classes", "10", "--size", "64"]
    made = run([*toy, "--per-class", str(BATCH // 4), "--val-per-class", "2"], folder.parent)
    assert made.returncode == 0, made.output
    for split in ("train", "val"):  # the names of the generated classes, or no run goes on
        for label, name in enumerate(sorted((folder / split).iterdir())):
            name.rename(folder / split / str(label))
    next((folder / "val").glob("*/*.jpg")).unlink()
    return folder


def go_on(chapter: str, argv: list, processes: int, crew: Crew, script: Path) -> None:
    """Another start with that run: by its launcher on GPUs; on CPUs in warm processes, as the
    launcher has shown there what only a launch can."""
    words = [str(word) for word in argv]
    if torch.cuda.is_available():
        visible = os.environ.get("CUDA_VISIBLE_DEVICES", "0")
        one_gpu = {"CUDA_VISIBLE_DEVICES": visible.split(",")[0]} if processes == 1 else {}
        command = command_for(chapter, words, processes, script)
        done = run(command, script.parent, env=EXACT | one_gpu)
        assert done.returncode == 0, done.output
        return
    for answer in crew.run(call_main, chapter, words, world_size=processes):
        assert answer["exit"] is None, answer


@pytest.mark.smoke
@pytest.mark.parametrize("chapter", table(CHAPTERS, LAUNCHED))
def test_trains_resumes_and_evaluates(
    chapter: str, tmp_path: Path, ten_classes: Path, crew: Crew
) -> None:
    """Two epochs on generated images through loader workers, launched; a third by --resume on JPEG
    files: steps, a falling loss, all images evaluated, one log, the checkpoint's keys. Then the
    saved model gives the numbers of the log when one process evaluates it again."""
    if chapter == HOROVOD and torch.cuda.is_available():
        hvd = pytest.importorskip("horovod.torch")
        if not hvd.nccl_built():
            pytest.skip("needs a Horovod with NCCL: bash 05_horovod/install.sh --nccl")
    script = tmp_path / chapter / "main.py"
    script.parent.mkdir()
    shutil.copy(ROOT / chapter / "main.py", script)
    first = run(command_for(chapter, TRAIN, WORLD_SIZE, script), script.parent, env=STRICT)
    assert first.returncode == 0, first.output
    assert not [line for line in first.lines("DeprecationWarning") if "/torch" in line]
    assert "destroy_process_group" not in first.stderr, first.stderr
    run_dir = script.parent / "runs" / chapter  # the default
    (start,) = rows(run_dir, "start")
    assert start.get("world_size", 1) == (1 if chapter == "01_dataparallel" else WORLD_SIZE)
    assert (start["epoch"], start["steps_per_epoch"]) == (0, 20)
    assert start["args"]["batch_size"] == BATCH
    train, evals = rows(run_dir, "train"), rows(run_dir, "eval")
    # Every 8 steps of an epoch, and the rest: 20 steps an epoch.
    places = [(row["epoch"], row["step"]) for row in train]
    assert places == [(0, 8), (0, 16), (0, 20), (1, 8), (1, 16), (1, 20)]
    assert train[-1]["loss"] < 0.6 * train[0]["loss"], [row["loss"] for row in train]
    assert all(row["images_per_second"] > 0 and row["lr"] > 0 for row in train)
    assert [(row["epoch"], row["images"]) for row in evals] == [(0, IMAGES // 4), (1, IMAGES // 4)]
    assert rows(run_dir, "end")[0]["best_acc1"] == max(row["acc1"] for row in evals)
    # Rank 0 alone speaks: every event is printed once.
    for event in ("start", "train", "eval", "end"):
        lines = [line for line in first.said if line.startswith(f"{event}  ")]
        assert len(lines) == len(rows(run_dir, event)), first.output

    for name in ("checkpoint.pt", "best.pt"):
        state = load_state(run_dir / name)
        assert state.keys() == CHECKPOINT_KEYS | OWN_KEYS.get(chapter, set())
        assert not any(key.startswith(("module.", "_orig_mod.")) for key in state["model"])
        assert all(t.device.type == "cpu" for t in state["model"].values())
    state = load_state(run_dir / "checkpoint.pt")
    assert state["epoch"] == 2 and type(state["best"]) is float
    assert state["model_name"] == f"{SIZE[1]} with 10 classes"
    assert not list(run_dir.glob("*.tmp"))

    again = ["--data", ten_classes, *TRAIN[2:], "--epochs", 3, "--resume"]
    again += ["--output-dir", run_dir, *AS_OTHERS.get(chapter, [])]
    ranks = 1 if chapter == "01_dataparallel" and not torch.cuda.is_available() else WORLD_SIZE
    go_on(chapter, again, ranks, crew, script)
    assert rows(run_dir, "start")[1]["epoch"] == 2
    assert [row["images"] for row in rows(run_dir, "eval")] == [IMAGES // 4, IMAGES // 4, 19]
    assert [row["step"] for row in rows(run_dir, "train")[6:]] == [2]

    before = events(run_dir)
    path = run_dir / "checkpoint.pt"
    alone = ["--data", ten_classes, *SIZE, "--evaluate", "--resume", path, "--batch-size", 4]
    alone += ["--workers", 0, "--output-dir", run_dir, *AS_OTHERS.get(chapter, [])]
    go_on(chapter, alone, 1, crew, script)
    (result,) = rows(run_dir, "eval", "evaluate.jsonl")
    logged = rows(run_dir, "eval")[-1]
    exact = ("acc1", "acc5", "images")
    assert [result[key] for key in exact] == [logged[key] for key in exact]
    close = 1e-4 if torch.cuda.is_available() else 1e-5
    assert result["loss"] == pytest.approx(logged["loss"], rel=close)
    assert events(run_dir) == before  # an evaluation leaves the training's log alone
