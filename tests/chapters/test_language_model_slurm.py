"""09 under 06's job file, as its page says: two nodes, tar shards, stopped, requeued; then one."""

import io
import json
import re
import tarfile
from pathlib import Path

import pytest
from harness import ROOT, events
from plain_language_model import LM, SHAPE, furthest, weights_of
from slurm import MiniSlurm, mini_slurm
from test_slurm import PATH, TORCHRUN, until

pytestmark = pytest.mark.xdist_group("slurm")
# Stands for the chapter's main.py: in float64, and in the first start of a job it waits at the
# third step, on all ranks, until it is told to stop.
STAND_IN = """
import os, sys, time
from pathlib import Path

sys.path.insert(0, {support!r})
import torch
from harness import load_chapter

torch.set_default_dtype(torch.float64)
chapter = load_chapter({lm!r})
micro_batches = chapter.micro_batches


def waiting(args, data, step, work):
    if step == 2 and "SLURM_RESTART_COUNT" not in os.environ and args.steps == 5:
        Path(f"waits.{{os.environ['RANK']}}").write_text(os.uname().nodename)
        deadline = time.monotonic() + 500
        while not chapter.ASKED_TO_STOP:
            assert time.monotonic() < deadline, "nobody has asked this rank to stop"
            time.sleep(0.02)
    return micro_batches(args, data, step, work)


chapter.micro_batches = waiting
if __name__ == "__main__":
    chapter.main()
"""


def submit(slurm: MiniSlurm, here: Path, nodes: int, argv: list, *env: str) -> str:
    user = ["env", "-u", "LAUNCHED_BY_TEST", PATH, f"MAIN={LM}/main.py", *env]
    ask = ["--nodes", nodes, "--gres", "gpu:1", "--cpus-per-task", "1", "--job-name", "lm"]
    words = [*user, "sbatch", "--parsable", *ask, TORCHRUN, *argv]
    return slurm.checked(*words, cwd=here).strip()


def state_of(slurm: MiniSlurm, job: str) -> dict[str, str]:
    text = slurm.checked("scontrol", "show", "job", "--oneliner", job)
    return dict(re.findall(r"(\S+?)=(\S*)", text))


def ended(slurm: MiniSlurm, job: str, here: Path) -> tuple[str, str]:
    """How, and after how many restarts."""
    states = ("COMPLETED", "FAILED", "CANCELLED")
    until(lambda: state_of(slurm, job)["JobState"] in states, lambda: told(here))
    found = state_of(slurm, job)
    return found["JobState"], found["Restarts"]


def told(here: Path) -> str:
    return "\n".join(path.read_text()[-3000:] for path in here.rglob("*.log"))


@pytest.mark.proof
def test_two_nodes_then_one(tmp_path: Path) -> None:
    here, text = tmp_path / "job", tmp_path / "text"
    (here / LM).mkdir(parents=True)
    script = STAND_IN.format(support=str(ROOT / "tests/support"), lm=LM)
    (here / LM / "main.py").write_text(script)
    text.mkdir()
    for number in range(3):
        data = "\n".join(json.dumps({"text": f"Ada has {n} apples."}) for n in range(60)).encode()
        with tarfile.open(text / f"{number}.tar", "w") as archive:
            member = tarfile.TarInfo("texts.jsonl")
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    argv = [*SHAPE, "--data", text, "--tokens", here / "tokens", "--batch-size", 8, "--lr", 0.01]
    with mini_slurm(netns=True) as slurm:
        job = submit(slurm, here, 2, [*argv, "--steps", 5, "--print-freq", 1])
        until(
            lambda: (
                len(list(here.glob("waits.*"))) == 2 or state_of(slurm, job)["ExitCode"] != "0:0"
            ),
            lambda: told(here),
        )
        assert sorted(path.read_text() for path in here.glob("waits.*")) == ["n1", "n2"], told(here)
        slurm.checked("scancel", "--signal=USR1", job)
        run_dir = here / f"runs/lm-{job}"
        assert ended(slurm, job, here) == ("COMPLETED", "1"), told(here)
        said = [row["event"] for row in events(run_dir)]
        assert said.count("stopped") == 1 and said.count("start") == 2 and said[-1] == "end"
        ours = weights_of(run_dir)

        env = [f"RUN_DIR={here / 'whole'}", "SLURM_RESTART_COUNT=1"]
        job = submit(slurm, here, 1, [*argv, "--steps", 5], *env)  # nobody waits
        assert ended(slurm, job, here)[0] == "COMPLETED", told(here)
        assert furthest(ours, weights_of(here / "whole")) < 1e-10

        job = submit(slurm, here, 1, [*argv, "--steps", 7], f"RUN_DIR={run_dir}")
        assert ended(slurm, job, here)[0] == "COMPLETED", told(here)
    sizes = [row["world_size"] for row in events(run_dir) if row["event"] == "start"]
    assert sizes == [2, 2, 1]
    assert json.loads((run_dir / "checkpoints.json").read_text())["whole"][0]["step"] == 7
