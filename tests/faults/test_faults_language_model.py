"""What becomes of 09 when a rank dies, when it is told to end, and when its disk is full. (In which
moment of a save, in warm processes: test_language_model_resume.py.)"""

import json
import os
import re
import signal
import sys
import time
from contextlib import nullcontext
from functools import partial
from pathlib import Path

import pytest
import torch
from crew import Crew, call_main
from fault_table import FaultTable
from harness import PATIENCE, ROOT, alive, events, finish, kill_all, rows, start
from refusals import call, one_line, runs_well
from test_faults import NO_GPU, WITH_FAULT, fault, go
from test_faults_data import filled, shown, small_disk  # noqa: F401

LM = "09_language_model"
RUN = "--synthetic 3000 --width 32 --layers 1 --heads 2 --context 16 --batch-size 8 --lr 0.01"
RUN = [*RUN.split(), "--sample", "0", "--print-freq", "1", "--eval-steps", "5"]
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]


def weights_of(run_dir: Path) -> dict[str, torch.Tensor]:
    from safetensors.torch import load_file

    return load_file(run_dir / "model.safetensors")


def go_well(crew: Crew, run_dir: Path) -> dict[str, torch.Tensor]:
    argv = [*RUN, "--steps", "10", "--resume", "--output-dir", str(run_dir)]
    for answer in crew.run(call_main, LM, argv, world_size=2):
        assert answer["exit"] is None, answer
    return weights_of(run_dir)


# Rank 0 flushes a record, its part, .metadata and a record in each save: the sixth is a part.
DEATHS = {"start-up": (0, "start", 0), "mid-epoch": (1, "step 8", 5), "saving": (0, "save 6", 5)}


@pytest.mark.proof
@pytest.mark.parametrize("phase", DEATHS)
def test_death_of_a_rank(phase: str, crew: Crew, tmp_path: Path, fault_table: FaultTable) -> None:
    """The job ends, torchrun names the rank, and the next start ends with the bits of a run that
    nobody disturbed."""
    (rank, at, step), run_dir = DEATHS[phase], tmp_path / "run"
    command = [*TORCHRUN, WITH_FAULT, *RUN, "--steps", "10", "--output-dir", "run"]
    result, seconds = go(command, fault(LM, rank, at, tmp_path), tmp_path)
    assert result.returncode == 1, result.output
    unread = "Failed to parse reply file" in result.stderr  # see test_faults.py
    names = rf"rank\s*: {rank} \(local_rank: {rank}\)\s+exitcode\s*: -9"
    assert unread or re.search(names, result.stderr), result.output
    ended, expected = go_well(crew, run_dir), go_well(crew, tmp_path / "whole")
    assert [row["step"] for row in rows(run_dir, "start")][-1] == step
    assert all(torch.equal(ended[name], expected[name]) for name in expected)
    named = "" if unread else "the launcher names it, "
    outcome = f"job ends with status {result.returncode}, {named}--resume ends exactly alike"
    fault_table(f"rank {rank} killed, {phase}", LM, outcome, seconds)


@pytest.mark.proof
@pytest.mark.parametrize("how", ["SIGTERM", "Ctrl-C"])
def test_told_to_end(how: str, tmp_path: Path, fault_table: FaultTable) -> None:
    """All processes end by themselves; after a SIGTERM the last step is saved."""
    command = [*TORCHRUN, ROOT / LM / "main.py", *RUN, "--steps", "9999", "--output-dir", "run"]
    process, log = start(command, tmp_path, NO_GPU), tmp_path / "run/metrics.jsonl"
    deadline = time.monotonic() + PATIENCE
    while not log.exists() or log.read_text().count('"train"') < 7:
        if time.monotonic() > deadline or process.poll() is not None:
            kill_all(process)
            raise AssertionError(process.communicate())
        time.sleep(0.1)
    began = time.monotonic()
    if how == "SIGTERM":
        process.send_signal(signal.SIGTERM)
    else:
        os.killpg(process.pid, signal.SIGINT)
    while alive(process) and time.monotonic() < began + PATIENCE:
        process.poll()
        time.sleep(0.1)
    seconds, result = time.monotonic() - began, finish(process)
    assert result.returncode == 1 and "SIGKILL" not in result.output, result.output
    saved = json.loads((tmp_path / "run/checkpoints.json").read_text())["whole"][0]["step"]
    outcome = f"all processes end, status {result.returncode}; checkpoint whole"
    if how == "SIGTERM":
        assert events(tmp_path / "run")[-1]["event"] == "stopped", result.output
        place, steps = rows(tmp_path / "run", "train")[-1], 178 // 8
        assert saved == place["epoch"] * steps + place["step"]
        outcome = f"saved at its step, status {result.returncode}; all processes end"
    assert saved >= 5
    fault_table(f"{how} to the launcher", LM, outcome, seconds)


def test_full_disk(crew: Crew, small_disk: Path, fault_table: FaultTable) -> None:  # noqa: F811
    """One line, and the checkpoint before it stays. With room again it goes on."""
    argv = [*RUN, "--steps", "10", "--output-dir", "out"]
    ballast = small_disk / "ballast"
    (answer,) = crew.run(call, LM, argv, small_disk, partial(filled, ballast=ballast))
    line = one_line(answer)
    assert re.match(r"error: cannot save out/step10, where 0\.\d MB are free: ", line), answer
    ballast.unlink()
    runs_well(crew, LM, [*argv, "--resume"], small_disk, nullcontext)
    assert [row["step"] for row in rows(small_disk / "out", "start")] == [0, 5]
    assert sorted(path.name for path in (small_disk / "out").glob("step*")) == ["step10", "step5"]
    said = re.sub(r"\. unexpected pos.*", "", shown(line))
    outcome = f"{said}; the checkpoint before is whole, --resume goes on"
    fault_table("full disk while saving (tmpfs)", LM, outcome, None)
