"""china.md: the table of what clouds set in place of torchrun's flags. A shell reads its cells,
with values as the platforms give them, and torchrun's own parser the result."""

import re
import subprocess

import pytest
from harness import PATIENCE, ROOT
from torch.distributed.run import get_args_parser

PAGE = (ROOT / "docs/en/china.md").read_text(encoding="utf-8")
ROWS = re.findall(r"^\| `(PET_\w+)` \|(.+)\|$", PAGE, re.M)
# The second of two nodes of eight GPUs. By column of the table; what it has besides is the port.
PAI = "WORLD_SIZE=2 RANK=1 NPROC_PER_NODE=8 MASTER_ADDR=first MASTER_PORT=23456"
MODELARTS = "MA_NUM_HOSTS=2 VC_TASK_INDEX=1 MA_NUM_GPUS=8 VC_WORKER_HOSTS=first,second"
VOLCENGINE = (
    "MLP_WORKER_NUM=2 MLP_ROLE_INDEX=1 MLP_WORKER_GPU=8 "
    "MLP_WORKER_0_HOST=first MLP_WORKER_0_PORT=9006"
)


@pytest.mark.parametrize(
    ("column", "platform", "port"),
    [(0, PAI, 23456), (1, MODELARTS, 29500), (2, VOLCENGINE, 9006)],
    ids=["PAI", "ModelArts", "Volcengine"],
)
def test_torchrun_understands(
    column: int, platform: str, port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, cells in ROWS:
        value = cells.split("|")[column].strip().strip("`")
        shell = ["env", "-i", *platform.split(), "bash", "-c", f"echo {value}"]
        said = subprocess.run(shell, capture_output=True, text=True, timeout=PATIENCE, check=True)
        monkeypatch.setenv(name, said.stdout.strip())
    args = get_args_parser().parse_args(["train.py"])
    assert (args.nnodes, args.node_rank, args.nproc_per_node) == ("2", 1, "8")
    assert (args.master_addr, args.master_port) == ("first", port)
