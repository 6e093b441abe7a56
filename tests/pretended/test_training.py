"""Every chapter on pretended GPUs trains as the plain loop does, with the GPUs asked for rightly.

What is compared are weights; what was asked is read from the notes of the processes.
"""

from pathlib import Path
from unittest import mock

import apex_stand_in as stand_in
import pytest
import torch
from crew import Crew, call_main
from harness import CHAPTERS, FSDP, HOROVOD, events, load_chapter, load_state, rows
from plain_language_model import LM, TRAIN, furthest, main_as, plain_training, weights_of
from plain_training import (
    EPOCHS,
    HIGH_RATE,
    LOW_RATE,
    STEPS,
    arguments,
    assert_is_plain_training,
    difference,
    train,
    train_plainly,
)
from pretended_gpus.members import Seen, on_gpus
from tiers import table
from with_tiny_model import (
    save_every_epoch,
    tiny_batchnorm,
    tiny_float32,
    tiny_float64,
    tiny_other_on_each_rank,
)

ONE_PROCESS = "01_dataparallel"
HAVE_GROUPS = [chapter for chapter in CHAPTERS if chapter not in (ONE_PROCESS, HOROVOD)]
CASES = [(chapter, gpus) for chapter in CHAPTERS for gpus in (1, 2)]
# Of fully_shard 09, below, shows as much as 08.
CORE = [(chapter, 2) for chapter in CHAPTERS if chapter != FSDP] + [("02_distributed", 1)]
# Steps without a row in the log: rows come at the last step of an epoch.
# The ranks meet at the first two steps of an epoch, and at its last.
ORDINARY = {epoch * STEPS + step for epoch in range(EPOCHS) for step in range(3, STEPS)}


def ranks_of(chapter: str, gpus: int) -> int:
    return 1 if chapter == ONE_PROCESS else gpus


def trained(crew: Crew, chapter: str, gpus: int, argv: list, build: object, **more: str) -> list:
    """What each rank of a run has seen."""
    words = [str(word) for word in argv]
    size = ranks_of(chapter, gpus)
    return crew.run(on_gpus, gpus, more, train, chapter, words, build, world_size=size)


def assert_asked_for(seen: Seen, chapter: str, gpu: int) -> None:
    """The process has used its own GPU and no other, in the ways that are fast."""
    place = f"cuda:{gpu}"
    assert seen.values("set_device", "index") == {str(gpu)}
    assert seen.values("pin_memory", "device") == {str(gpu)}
    if chapter != ONE_PROCESS:
        assert seen.values("layer", "place") == {place}
    if chapter in HAVE_GROUPS:
        (init,) = seen.of("init")
        # The device comes first: without it all processes open GPU 0 as well.
        assert (init["backend"], init["device_id"], init["current"]) == ("nccl", place, str(gpu))
        names = {"all_reduce", "broadcast" if chapter == FSDP else "_broadcast_coalesced"}
        assert names <= seen.values("collective", "name", backend="nccl", place=place)
        assert seen.values("collective", "place") == {place}


def assert_never_waits(seen: Seen) -> None:
    """In an ordinary step: no number is read, and what is copied is pinned and goes by itself."""
    waited = {row["backwards"] for row in seen.of("wait")}
    assert STEPS in waited  # where there are rows
    assert not waited & ORDINARY, seen.of("wait")


@pytest.mark.parametrize(("chapter", "gpus"), table(CASES, CORE))
def test_trains_as_one_process_would(
    chapter: str, gpus: int, gpu_crew: Crew, tmp_path: Path
) -> None:
    argv = arguments(tmp_path, HIGH_RATE, chapter)
    ranks = trained(gpu_crew, chapter, gpus, argv, tiny_other_on_each_rank)
    state = load_state(tmp_path / "checkpoint.pt")
    assert_is_plain_training(state, tiny_other_on_each_rank, HIGH_RATE, 1e-10, tmp_path)
    start = rows(tmp_path, "start")[0]
    assert (start["device"], start.get("world_size", 1)) == ("cuda:0", len(ranks))
    for rank, seen in enumerate(ranks):
        assert_asked_for(seen, chapter, rank)
        assert_never_waits(seen)
    if chapter == ONE_PROCESS:
        assert ranks[0].values("layer", "place") == {f"cuda:{gpu}" for gpu in range(gpus)}


def test_two_machines(gpu_crew: Crew, tmp_path: Path) -> None:
    """With two GPUs each: ranks 2 and 3 have the GPUs 0 and 1 of theirs."""
    chapter, argv = "02_distributed", arguments(tmp_path, HIGH_RATE)
    more, build = {"LOCAL_RANK": "{local_rank}"}, tiny_float64
    ranks = gpu_crew.run(on_gpus, 2, more, train, chapter, argv, build, world_size=4)
    state = load_state(tmp_path / "checkpoint.pt")
    assert_is_plain_training(state, build, HIGH_RATE, 1e-10, tmp_path)
    for rank, seen in enumerate(ranks):
        assert_asked_for(seen, chapter, rank % 2)


def test_own_gpus_of_a_task(gpu_crew: Crew, tmp_path: Path) -> None:
    """With --gpus-per-task every task has its own GPU only, which is number 0 to it."""
    chapter, argv = "06_slurm", arguments(tmp_path, HIGH_RATE)
    more = {"CUDA_VISIBLE_DEVICES": "{rank}", "SLURM_GPUS_ON_NODE": "2"}
    ranks = trained(gpu_crew, chapter, 2, argv, tiny_float64, **more)
    assert_is_plain_training(
        load_state(tmp_path / "checkpoint.pt"), tiny_float64, HIGH_RATE, 1e-10, tmp_path
    )
    for seen in ranks:
        assert_asked_for(seen, chapter, 0)


def test_chosen_gpus(gpu_crew: Crew, tmp_path: Path) -> None:
    """01's --gpus: the first of them has the weights."""
    argv = [*arguments(tmp_path, HIGH_RATE), "--gpus", "1,0"]
    (seen,) = trained(gpu_crew, ONE_PROCESS, 3, argv, tiny_float64)
    assert_is_plain_training(
        load_state(tmp_path / "checkpoint.pt"), tiny_float64, HIGH_RATE, 1e-10, tmp_path
    )
    assert seen.values("set_device", "index") == seen.values("pin_memory", "device") == {"1"}
    assert seen.values("layer", "place") == {"cuda:0", "cuda:1"}


@pytest.mark.parametrize("chapter", table(CHAPTERS, ["02_distributed", "04_apex"]))
def test_resumes(chapter: str, gpu_crew: Crew, tmp_path: Path) -> None:
    """From a checkpoint that a GPU has written: to the same end, and through no GPU's memory."""
    size = ranks_of(chapter, 2)
    patches = {"build_model": tiny_float64, "save_checkpoint": save_every_epoch}
    for folder, more in (("whole", []), ("rest", ["--resume", str(tmp_path / "whole/after2.pt")])):
        argv = [*arguments(tmp_path / folder, HIGH_RATE, chapter), *more]
        task = on_gpus, 2, {}, call_main, chapter, argv, patches
        ranks = gpu_crew.run(*task, world_size=size)
        for seen in ranks:
            assert seen.answer["exit"] is None, seen.answer
            assert not seen.of("load")
    assert rows(tmp_path / "rest", "start")[0]["epoch"] == 2
    plain, _ = train_plainly(tiny_float64, HIGH_RATE)
    assert difference(plain, load_state(tmp_path / "rest/checkpoint.pt")) < 1e-10


@pytest.mark.parametrize("chapter", table(CHAPTERS, ["02_distributed"]))
def test_compile(chapter: str, gpu_crew: Crew, tmp_path: Path) -> None:
    """Nothing is compiled here, but the weights are saved by their own names."""
    argv = [*arguments(tmp_path, HIGH_RATE, chapter), "--compile"]
    trained(gpu_crew, chapter, 1 if chapter == ONE_PROCESS else 2, argv, tiny_float64)
    state = load_state(tmp_path / "checkpoint.pt")
    assert_is_plain_training(state, tiny_float64, HIGH_RATE, 1e-10, tmp_path)


# ---- types ----
BFLOAT16 = [(chapter, "--bf16") for chapter in CHAPTERS if chapter != "04_apex"]
TYPES = BFLOAT16 + [("04_apex", f"--amp-dtype {kind}") for kind in ("bf16", "fp16", "fp32")]
DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
CORE_TYPES = [("01_dataparallel", "--bf16"), ("02_distributed", "--bf16")]
CORE_TYPES += [("04_apex", "--amp-dtype fp16")]


def largest_difference(one: Path, other: Path) -> float:
    """Between the weights of two runs."""
    states = [load_state(folder / "checkpoint.pt")["model"] for folder in (one, other)]
    return max((states[0][name] - states[1][name]).abs().max().item() for name in states[0])


@pytest.mark.parametrize(("chapter", "flags"), table(TYPES, CORE_TYPES))
def test_types(chapter: str, flags: str, crew: Crew, gpu_crew: Crew, tmp_path: Path) -> None:
    """Every layer is computed in the type that was asked for, and the run is near to the CPU's."""
    size = ranks_of(chapter, 2)
    words = [*arguments(tmp_path / "gpu", LOW_RATE), *flags.split()]
    for seen in trained(gpu_crew, chapter, 2, words, tiny_float32):
        assert seen.values("layer", "dtype") == {str(DTYPES[flags[-4:]])}
        assert_never_waits(seen)
    words = [*arguments(tmp_path / "cpu", LOW_RATE), *flags.split()]
    crew.run(train, chapter, words, tiny_float32, world_size=size)
    assert largest_difference(tmp_path / "gpu", tmp_path / "cpu") < 2e-3


@pytest.mark.parametrize(
    "chapter", table([*HAVE_GROUPS, HOROVOD], ["02_distributed", "04_apex", HOROVOD])
)
def test_sync_bn(chapter: str, gpu_crew: Crew, tmp_path: Path) -> None:
    """Two ranks normalise as one process does that has the whole batch."""
    argv = [*arguments(tmp_path, HIGH_RATE, chapter), "--sync-bn"]
    trained(gpu_crew, chapter, 2, argv, tiny_batchnorm)
    state = load_state(tmp_path / "checkpoint.pt")
    assert_is_plain_training(state, tiny_batchnorm, HIGH_RATE, 1e-9, tmp_path)


# ---- what one chapter alone has ----
def train_with_apex(chapter: str, argv: list[str]) -> None:
    """In a crew member."""
    with stand_in.in_use(load_chapter(chapter)):
        train(chapter, argv, tiny_float32)


def test_apex(crew: Crew, gpu_crew: Crew, tmp_path: Path) -> None:
    """On the stand-in, as on the CPU."""
    gpu, cpu = ([*arguments(tmp_path / name, LOW_RATE), "--apex", "O2"] for name in ("gpu", "cpu"))
    task = train_with_apex, "04_apex"
    for rank, seen in enumerate(gpu_crew.run(on_gpus, 2, {}, *task, gpu, world_size=2)):
        assert seen.values("layer", "dtype") == {"torch.float16"}
        assert seen.values("layer", "place") == {f"cuda:{rank}"}
        assert seen.values("init", "backend") == {"nccl"}
    crew.run(*task, cpu, world_size=2)
    assert largest_difference(tmp_path / "gpu", tmp_path / "cpu") < 2e-3


def files_of(folder: Path) -> dict[str, str]:
    return {path.name: path.read_text() for path in folder.glob("*.csv")}


def test_evaluation(crew: Crew, gpu_crew: Crew, tmp_path: Path) -> None:
    """07 finds the same on GPUs: each count and prediction, and how far most scripts are off."""
    chapter, found = "07_dist_eval", {}
    patches = {"build_model": tiny_float64}
    for name in ("gpu", "cpu"):
        folder = tmp_path / name
        folder.mkdir()
        argv = [*arguments(folder / "run", HIGH_RATE), "--compare-naive"]
        argv += ["--save-predictions", str(folder / "run.csv")]
        task = call_main, chapter, argv, patches
        if name == "gpu":
            answers = [s.answer for s in gpu_crew.run(on_gpus, 2, {}, *task, world_size=2)]
        else:
            answers = crew.run(*task, world_size=2)
        assert [answer["exit"] for answer in answers] == [None, None], answers
        log = [{k: v for k, v in row.items() if k != "time"} for row in events(folder / "run")]
        told = [row for row in log if row["event"] in ("eval", "naive")]
        peaks = [row.pop("peak_mb", None) for row in told if row["event"] == "eval"]
        assert [peak is not None for peak in peaks] == [name == "gpu"] * EPOCHS
        found[name] = files_of(folder) | files_of(folder / "run"), told
    assert found["gpu"][0].keys() == {"run.csv", "confusion.csv", "per_class.csv"}
    assert found["gpu"][0] == found["cpu"][0]
    for one, other in zip(found["gpu"][1], found["cpu"][1], strict=True):
        assert one == pytest.approx(other, rel=1e-10)


def train_on_text(argv: list[str]) -> dict:
    """In a crew member. No clock makes the ranks meet where a busy machine is slow."""
    with mock.patch.object(load_chapter(LM).Meetings, "seconds", 1e9):
        return main_as(torch.float64, argv)


# The flags, and a collective of theirs. (No --recompute: what autograd keeps to compare with what
# is computed again says that it is on the CPU.)
WAYS_OF_TEXT = {
    "shard": ("", "reduce_scatter_single"),
    "sequence": ("--sequence 2", "all_to_all_single"),
    "tensor": ("--tensor 2", "all_reduce"),
    "replicas": ("--replicas 2 --accumulate 2", "all_reduce"),
}


@pytest.mark.parametrize("way", table(WAYS_OF_TEXT, ["sequence"]))
def test_language_model(way: str, gpu_crew: Crew, tmp_path: Path) -> None:
    """09 trains as one process does, each rank on its own GPU, and does not wait for it in an
    ordinary step: the third and the fourth of five."""
    flags, name = WAYS_OF_TEXT[way]
    argv = [*TRAIN, "--print-freq", "5", *flags.split(), "--output-dir", str(tmp_path)]
    task = on_gpus, 2, {}, train_on_text, argv
    micro = 2 if "--accumulate" in flags else 1
    for rank, seen in enumerate(gpu_crew.run(*task, world_size=2)):
        assert seen.answer["exit"] is None, seen.answer
        place = f"cuda:{rank}"
        assert seen.values("set_device", "index") == {str(rank)}
        assert seen.values("pin_memory", "device") == {str(rank)}
        assert seen.values("layer", "place") == {place}
        (init,) = seen.of("init")
        assert (init["backend"], init["device_id"], init["current"]) == ("nccl", place, str(rank))
        assert name in seen.values("collective", "name", backend="nccl")
        assert seen.values("collective", "place") == {place}
        waited = {row["backwards"] for row in seen.of("wait")}
        assert 5 * micro in waited
        assert not waited & {*range(2 * micro + 1, 4 * micro + 1)}, seen.of("wait")
    assert furthest(weights_of(tmp_path), plain_training(argv)[0]) < 1e-10
