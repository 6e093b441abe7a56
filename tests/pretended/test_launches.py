"""Real launches with pretended GPUs in every Python process: what warm processes cannot show.

Chapter 02 with loader workers, minimal.py of every chapter, and 06 on a real Slurm.
"""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from harness import (
    CHAPTERS,
    FSDP,
    HOROVOD,
    ROOT,
    SLURM,
    TINY,
    command_for,
    load_state,
    rows,
    run,
    run_short,
)
from pretended_gpus import environment, notes
from slurm import MiniSlurm, mini_slurm

# Five steps an epoch: those before the last have no row in the log.
TRAINING = ["--synthetic", 160, *TINY, "--batch-size", 32, "--epochs", 2, "--print-freq", 1000]
TRAINING += ["--output-dir", "run"]


def of(what: str, found: list[dict], rank: int) -> list[dict]:
    return [row for row in found if row["what"] == what and row["rank"] == rank]


def assert_ranks(found: list[dict], gpus: list[int]) -> None:
    """Each rank has joined by nccl, and has pinned and computed for its GPU alone."""
    for rank, gpu in enumerate(gpus):
        (init,) = of("init", found, rank)
        place = f"cuda:{gpu}"
        assert (init["backend"], init["device_id"], init["current"]) == ("nccl", place, str(gpu))
        assert {row["device"] for row in of("pin_memory", found, rank)} == {str(gpu)}
        assert {row["place"] for row in of("layer", found, rank)} == {place}
        # Where the ranks meet they wait; in an ordinary step they do not.
        sums = [row for row in of("collective", found, rank) if row["name"] == "all_reduce"]
        meetings = {row["backwards"] for row in sums}
        waits = [row for row in of("wait", found, rank) if row["backwards"] not in meetings | {0}]
        assert meetings and not waits


@pytest.mark.proof
def test_torchrun(tmp_path: Path) -> None:
    """With loader workers, whose batches a thread pins: for the GPU that was set before."""
    argv = [*TRAINING, "--workers", 1]
    command = command_for("02_distributed", argv, 2)
    done = run(command, tmp_path, env=environment(2, tmp_path))
    assert done.returncode == 0, done.output
    assert_ranks(notes.read(tmp_path), [0, 1])
    assert rows(tmp_path / "run", "start")[0]["device"] == "cuda:0"
    assert [row["step"] for row in rows(tmp_path / "run", "train")] == [5, 5]
    assert load_state(tmp_path / "run/checkpoint.pt")["epoch"] == 2


@pytest.mark.proof
def test_horovod_for_cpus(tmp_path: Path) -> None:
    """It would take minutes for what nccl does in one."""
    done = run(command_for(HOROVOD, TRAINING, 2), tmp_path, env=environment(2))
    assert done.returncode != 0
    assert done.lines("error: this Horovod has no nccl: build it by install.sh --nccl")
    assert not (tmp_path / "run/metrics.jsonl").read_text()  # so the folder holds no run


# What readers copy, and the chapter whose launcher it has. (08's gives fully_shard no mesh, which
# then asks the process group for its device: gloo, here.)
COPIED = {f"{chapter}/minimal.py": chapter for chapter in CHAPTERS if chapter != FSDP}
COPIED |= dict.fromkeys(
    ["09_language_model/minimal.py", "docs/examples/convert/multi.py"], "02_distributed"
)


@pytest.mark.proof
@pytest.mark.parametrize("script", COPIED)
def test_copied_scripts(script: str, tmp_path: Path) -> None:
    """Each process has its own GPU there as well, and joins by nccl."""
    chapter = COPIED[script]
    command = command_for(chapter, [], 2, ROOT / script)
    done = run_short(command, tmp_path, env=environment(2, tmp_path))
    assert done.returncode == 0 and done.said, done.output
    found = notes.read(tmp_path)
    places = {(row["rank"], row["place"]) for row in found if row["what"] == "layer"}
    assert places == {(0 if chapter == "01_dataparallel" else n, f"cuda:{n}") for n in (0, 1)}
    current = {(row["rank"], row["index"]) for row in found if row["what"] == "set_device"}
    backends = {row["backend"] for row in found if row["what"] == "init"}
    if chapter != "01_dataparallel":
        assert current == {(0, "0"), (1, "1")}
        assert backends == (set() if chapter == HOROVOD else {"nccl"})


# ---- Slurm ----
@pytest.fixture(scope="module")
def slurm() -> Iterator[MiniSlurm]:
    """Two nodes, each with a network and a host name of its own, and with two GPUs for Slurm."""
    with mini_slurm(netns=True) as cluster:
        yield cluster


# How it is asked for, and the GPU of each of the four ranks as its process counts them.
REQUESTS = {
    "a task per GPU": ("--ntasks-per-node 2 --gres gpu:2", [0, 1, 0, 1]),
    "a task per node": ("--ntasks-per-node 1 --gres gpu:2", [0, 1, 0, 1]),
    "GPUs of each task": ("--ntasks-per-node 2 --gpus-per-task 1", [0, 0, 0, 0]),
}


@pytest.mark.proof
@pytest.mark.xdist_group("slurm")
@pytest.mark.parametrize("request_", REQUESTS)
def test_slurm(request_: str, slurm: MiniSlurm, tmp_path: Path) -> None:
    ask, gpus = REQUESTS[request_]
    variables = [f"{name}={value}" for name, value in environment(2, tmp_path).items()]
    srun = ["env", *variables, "srun", "-K", "--nodes", 2, *ask.split(), "--cpus-per-task", 1]
    done = slurm.run(*srun, sys.executable, ROOT / SLURM / "main.py", *TRAINING, cwd=tmp_path)
    assert done.returncode == 0, done.output
    assert rows(tmp_path / "run", "start")[0]["world_size"] == 4
    assert_ranks(notes.read(tmp_path), gpus)
