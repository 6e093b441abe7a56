"""A rank fails, torchrun starts all anew, and they go on from the checkpoint.

python docs/examples/handbook/elastic_resume.py
"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

STEPS = 6


def make() -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    model = nn.Linear(4, 1).double()
    return model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def batch(step: int) -> torch.Tensor:
    """The global batch of a step: it depends on the step alone, not on what was drawn before."""
    return torch.randn(8, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(step))


def train(checkpoint: Path) -> None:
    dist.init_process_group("gloo")
    rank, attempt = dist.get_rank(), os.environ["TORCHELASTIC_RESTART_COUNT"]
    bare, optimizer = make()
    start = 0
    if checkpoint.exists():
        state = torch.load(checkpoint)
        bare.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        start = state["step"]
    print(f"rank {rank} attempt {attempt}: from step {start}\n", end="")  # one write a line
    model = nn.parallel.DistributedDataParallel(bare)
    for step in range(start, STEPS):
        if (rank, step, attempt) == (1, 3, "0"):
            print(f"rank {rank} attempt {attempt}: fails in step {step}\n", end="")
            os._exit(1)
        optimizer.zero_grad()
        model(batch(step).chunk(2)[rank]).square().mean().backward()
        optimizer.step()
        if rank == 0:
            state = {"model": bare.state_dict(), "optimizer": optimizer.state_dict()}
            torch.save(state | {"step": step + 1}, f"{checkpoint}.tmp")
            os.replace(f"{checkpoint}.tmp", checkpoint)  # never half a file under this name
        dist.barrier()  # so that this example fails after the save, every time
    dist.destroy_process_group()


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
        command += ["--nproc-per-node", "2", "--max-restarts", "1", __file__, f"{folder}/last.pt"]
        fresh_store = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}  # see the page
        subprocess.run(command, env=os.environ | fresh_store, check=True)
        resumed = torch.load(f"{folder}/last.pt")["model"]
    model, optimizer = make()  # the same in one process, undisturbed
    for step in range(STEPS):
        optimizer.zero_grad()
        model(batch(step)).square().mean().backward()
        optimizer.step()
    torch.testing.assert_close(resumed, dict(model.state_dict()))
    print("equal to one process that was never disturbed")


if __name__ == "__main__":
    if "RANK" in os.environ:
        train(Path(sys.argv[1]))
    else:
        main()
