"""The demo behind `make demo`: chapter 02 on real JPEG files, from nothing to a curve.

    python tools/demo.py
    python tools/demo.py 08_fsdp2

Draws the toy ImageNet into data/toy-small if it is not there, trains a chapter that torchrun
starts, 02_distributed or the one named, on it with one process per GPU (two processes on a machine
without one) and names what came out. Every call starts a new run folder; an older one is never
touched.
"""

import os
import subprocess
import sys
import time
from pathlib import Path

import torch
from run_log import read_run

ROOT = Path(__file__).resolve().parents[1]
DATA = Path("data", "toy-small")
# For two slow cores: a step of ResNet-18, which has nine times the weights, costs them more than
# twice as much, at two thirds of the width.
TOY = ("--size", 160, "--spread", 10)
MODEL = ("--arch", "shufflenet_v2_x1_0", "--image-size", 96, "--lr", 0.2)
EPOCHS, BATCH_SIZE = 6, 32
STARTED_BY_TORCHRUN = ("02_distributed", "04_apex", "07_dist_eval", "08_fsdp2")


def call(step: str, *words: object) -> None:
    """Run a command in the repository's folder, shown as a reader would type it."""
    shown = " ".join(str(word) for word in words)
    shown = shown.replace(f"{sys.executable} -m torch.distributed.run", "torchrun")
    print(f"\n{step}\n$ {shown}", flush=True)
    # A thread per process, as torchrun would choose with a warning: the processes share the CPUs.
    env = {"OMP_NUM_THREADS": "1"} | os.environ
    status = subprocess.call([str(word) for word in words], cwd=ROOT, env=env)
    if status:
        raise SystemExit(f"demo: the command above ended with status {status}")


def main() -> None:
    chapter = sys.argv[1].strip("/") if len(sys.argv) > 1 else "02_distributed"
    if chapter not in STARTED_BY_TORCHRUN:
        raise SystemExit(f"demo: {chapter} is none of {', '.join(STARTED_BY_TORCHRUN)}")
    if not (ROOT / DATA).exists():
        call("drawing 2000 JPEG files, 18 MB", sys.executable, "tools/toy_imagenet.py", DATA, *TOY)
    processes = torch.cuda.device_count() or 2
    # The toy is small: more GPUs share the batch, so that the number of steps stays.
    batch_size = max(BATCH_SIZE // processes, 1) * processes
    run_dir = Path("runs", time.strftime("demo-%Y%m%d-%H%M%S"))
    call(
        f"training {EPOCHS} epochs on {processes} processes",
        *(sys.executable, "-m", "torch.distributed.run", "--standalone"),
        *("--nproc-per-node", processes, f"{chapter}/main.py", "--data", DATA),
        *(*MODEL, "--epochs", EPOCHS, "--batch-size", batch_size, "--output-dir", run_dir),
    )
    call("drawing the curve", sys.executable, "tools/plot.py", run_dir)

    run = read_run(ROOT / run_dir)
    last = run.eval[-1]
    print(f"\nvalidation: {last['acc1']:.2f} % of {last['images']} images right, exactly")
    print(f"checkpoint: {run_dir / 'checkpoint.pt'} (the best epoch: {run_dir / 'best.pt'})")
    print(f"curve:      {run_dir / 'curve.png'}")


if __name__ == "__main__":
    main()
