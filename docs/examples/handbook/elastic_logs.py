"""Where the last words of a rank are: log files, error.json, and what record is for.

python docs/examples/handbook/elastic_logs.py
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch.distributed as dist
from torch.distributed.elastic.multiprocessing.errors import record


@record  # without it there is no error.json, and torchrun's summary has no traceback
def train() -> None:
    rank = int(os.environ["RANK"])
    print(f"rank {rank} starts")
    dist.init_process_group("gloo")
    dist.barrier()  # now both have started, and are connected
    if rank == 1:
        raise ValueError("image 17 is broken")
    time.sleep(600)  # it would wait in a collective; torchrun ends it


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        command = ["--standalone", "--nproc-per-node", "2", "--log-dir", folder, "--redirects", "3"]
        torchrun = [sys.executable, "-m", "torch.distributed.run"]
        job = subprocess.run(
            [*torchrun, *command, __file__], capture_output=True, text=True, check=False
        )
        print(f"torchrun: exit status {job.returncode}, {len(job.stdout)} bytes on stdout")
        (attempt,) = Path(folder).glob("*/attempt_0")  # <log dir>/<run id>_<random>/attempt_<n>
        for path in sorted(attempt.rglob("*.*")):
            text = path.read_text()
            first = json.loads(text)["message"]["message"] if path.suffix == ".json" else text
            lines = first.splitlines() or ["(empty)"]
            print(f"{path.relative_to(attempt.parent)}: {lines[-1]}")
        root = job.stderr.split("Root Cause")[1].splitlines()
        for line in root:
            if line.strip().startswith(("rank", "exitcode", "ValueError")):
                print("root cause:", " ".join(line.split()).split(" (pid")[0])


if __name__ == "__main__":
    if "RANK" in os.environ:
        train()
    else:
        main()
