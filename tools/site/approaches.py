"""The approaches as the minimal.py of the chapters show them: the same lines in the same order, and
where they differ, what each of these lines is for. tests/chapters/test_minimal.py holds the chain.
"""

import re
from functools import cache

from .source import read

HUB, SINGLE = "02_distributed", "docs/examples/minimal_single.py"
# As people choose: the commonest first, and last what is there to be understood.
CHAPTERS = (
    HUB, "08_fsdp2", "03_multiprocessing", "06_slurm", "04_apex", "05_horovod", "07_dist_eval",
    "01_dataparallel",
)  # fmt: skip
# What lines of main() and below it are for, by what stands in them: the first that fits. A line
# that none fits is training itself, and is in every file.
ROWS = {
    "start": r"def main|__main__|^main\(|mp\.spawn|processes = |folder:|meeting = |STEP_ID|raise ",
    "others": r"backend|rank, world_size = |hvd\.init|hostnames|first_node|MASTER|\"WORLD_SIZE",
    "who": r"device = |is_available|set_device|\"RANK|\"LOCAL_RANK|gpus = ",
    "sampler": r"sampler|loader = DataLoader",
    "wrap": r"_model = |fully_shard|for layer|broadcast_parameters",
    "call": r"autocast|logits = |fp16 = |dtype = ",
    "average": r"backward\(|optimizer\.step|scaler|DistributedOptimizer",
    "save": r"rank == 0|torch\.save|whole = |weights = ",
    "end": r"destroy_process_group|shutdown",
    "evaluate": "a block, see below",
}
EVALUATION = ("torch.manual_seed(1)", "accuracy")  # in its first line, and in its last


def minimal(chapter: str) -> str:
    return chapter if chapter.endswith(".py") else f"{chapter}/minimal.py"


def bare(line: str) -> str:
    """A line without its comment and its indentation."""
    return re.sub(r"(^|  )# .*", "", line).strip()


@cache
def lines_of(chapter: str) -> list[tuple[int, str, str]]:
    """From main() on: number, bare line, what it is for; "": training."""
    lines = read(minimal(chapter)).lines
    first = lines.index(next(line for line in lines if line.startswith("def main")))
    found, evaluates = [], False
    for n, line in enumerate(map(bare, lines[first:]), first + 1):
        evaluates |= EVALUATION[0] in line
        row = next((row for row, form in ROWS.items() if re.search(form, line)), "")
        found += [(n, line, "evaluate" if evaluates else row)] * bool(line)
        evaluates &= EVALUATION[1] not in line
    return found
