"""docs/examples/slurm/job.sbatch: a script of one's own, written for torchrun, on a real Slurm."""

import sys
from pathlib import Path

import pytest
from harness import ROOT
from slurm import mini_slurm

pytestmark = pytest.mark.xdist_group("slurm")
JOB = ROOT / "docs/examples/slurm/job.sbatch"
CONVERTED = ROOT / "docs/examples/convert/multi.py"
SMALL = "--gres gpu:1 --cpus-per-task 1 --time 5"
# A user's script: that of convert.md, which also says where each of its ranks was.
NOTES = """
import os

with open("rank." + os.environ["RANK"], "w") as file:
    file.write(os.uname().nodename + " of " + os.environ["WORLD_SIZE"])
"""


@pytest.mark.proof
def test_trains_on_two_nodes(tmp_path: Path) -> None:
    """Sent by a line without another flag than those of the machines, as the page has it."""
    script = tmp_path / "train.py"
    script.write_text(NOTES + CONVERTED.read_text())
    path = f"PATH={Path(sys.executable).parent}:/usr/local/bin:/usr/bin:/bin"
    with mini_slurm(netns=True) as slurm:
        submit = ["sbatch", "--wait", *SMALL.split(), JOB, "train.py", "--epochs", "1"]
        # Without the mark of the test: the job outlives the sbatch that sends it.
        result = slurm.run("env", "-u", "LAUNCHED_BY_TEST", path, *submit, cwd=tmp_path)
    (log,) = tmp_path.glob("job.sbatch-*.log")
    assert result.returncode == 0, result.output + log.read_text()
    places = {file.name: file.read_text() for file in tmp_path.glob("rank.*")}
    assert places == {"rank.0": "n1 of 2", "rank.1": "n2 of 2"}
    lines = [line for line in log.read_text().splitlines() if line.startswith("epoch")]
    assert len(lines) == 1 and lines[0].endswith(" of 301 right"), log.read_text()
