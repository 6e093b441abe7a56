"""GPUs that are not there: programs run their branches for GPUs on a machine without one.

    environment(2)    # the variables with which every Python process of a launch has two of them

A tensor "on a GPU" is a tensor of the CPU whose memory carries a label. Every call of torch passes
rules.py, which keeps the labels and raises what CUDA would raise; ranks.py puts gloo in the place
of nccl; machine.py answers what programs ask about the hardware; bypasses.py has the parts of
torch that no rule would see. Values, autograd, DDP's reducer, the loss scaler, the optimizers and
checkpoints are torch's own.

It cannot show kernels and their rounding, streams, memory, nccl itself, torch.compile, nor speed.

The rules follow torch's own code, so they hold for the torch of constraints.txt and no other.
"""

import os
from pathlib import Path

HERE = Path(__file__).resolve().parent
CONSTRAINTS = HERE.parents[2] / "constraints.txt"
# Environment variables: how many GPUs the machine has; and a folder for notes.py to write to.
GPUS, NOTES = "PRETENDED_GPUS", "PRETENDED_NOTES"


def pinned_torch() -> str:
    """The version that constraints.txt names."""
    lines = CONSTRAINTS.read_text().splitlines()
    (version,) = [line.removeprefix("torch==") for line in lines if line.startswith("torch==")]
    return version


def why_not() -> str:
    """Why there can be no pretended GPUs here; empty if there can."""
    import torch

    here, pinned = torch.__version__.partition("+")[0], pinned_torch()
    if here != pinned:
        return f"pretended GPUs are written for torch {pinned}, this is {here}"
    if not os.environ.get(GPUS) and torch.cuda.is_available():
        return "pretended GPUs are for machines without real ones"
    return ""


def environment(gpus: int, notes: Path | None = None, **more: str) -> dict[str, str]:
    """Variables for a launch: each of its Python processes then has so many GPUs, less those that
    CUDA_VISIBLE_DEVICES hides."""
    paths = [str(HERE / "everywhere"), os.environ.get("PYTHONPATH", "")]
    env = {GPUS: str(gpus), "PYTHONPATH": os.pathsep.join(filter(None, paths))}
    return env | ({NOTES: str(notes)} if notes else {}) | more


def begin() -> None:
    """This process has the GPUs of its environment from now on. It cannot be taken back."""
    import torch

    if reason := why_not():
        raise RuntimeError(reason)

    from . import bypasses, machine, ranks, rules

    machine.look()
    # torch asks this itself of a build that has CUDA.
    torch._C._ensureCUDADeviceGuardSet()
    machine.install()
    ranks.install()
    bypasses.install()
    rules.install()
