"""An elastic run on one machine: two torchruns, one is killed, a third comes, it goes on.

python docs/examples/handbook/elastic_nodes.py
"""

import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch
import torch.distributed as dist

LOST, GAINED, END = 4, 8, 12  # before these steps a node goes, a node comes, and all is done
TIMES = "is_host=0,last_call_timeout=2,keep_alive_interval=1,keep_alive_max_attempt=5"
DATA = torch.arange(1.0, 5.0, dtype=torch.float64)  # the global batch: four numbers


def slope(weight: torch.Tensor, share: torch.Tensor) -> torch.Tensor:
    return (2 * (weight - share)).sum()  # of (weight - x)**2, over a share of the data


def train(checkpoint: Path) -> None:
    dist.init_process_group("gloo")
    rank, world_size = dist.get_rank(), dist.get_world_size()
    start, weight = torch.load(checkpoint) if checkpoint.exists() else (0, torch.zeros(1).double())
    for step in range(start, END):
        if world_size == 1 and not LOST <= step < GAINED:
            time.sleep(600)  # until the other node is there: its torchrun ends this process
        if step == start:
            count = os.environ["TORCHELASTIC_RESTART_COUNT"]
            print(f"rank {rank} of {world_size} from step {step}, restart count {count}")
        if world_size == 2 and step == LOST and rank == 1:
            print(f"before step {step} the power goes out")
            os.kill(os.getppid(), signal.SIGKILL)  # its torchrun
            os.kill(os.getpid(), signal.SIGKILL)
        gradient = slope(weight, DATA[rank::world_size])  # every world size shares out the same
        dist.all_reduce(gradient)
        weight = weight - 0.05 * gradient / len(DATA)
        if rank == 0:
            torch.save((step + 1, weight), f"{checkpoint}.tmp")
            os.replace(f"{checkpoint}.tmp", checkpoint)
    dist.barrier()
    dist.destroy_process_group()


def main() -> None:
    store = dist.TCPStore("127.0.0.1", 0, is_master=True)  # the meeting point: outlives the nodes
    with tempfile.TemporaryDirectory() as folder:
        checkpoint = Path(folder, "last.pt")

        def node(address: str) -> subprocess.Popen:
            flags = f"--nnodes 1:2 --max-restarts 3 --local-addr {address} --rdzv-backend c10d"
            flags += f" --rdzv-id demo --rdzv-endpoint 127.0.0.1:{store.port} --rdzv-conf {TIMES}"
            command = [sys.executable, "-m", "torch.distributed.run", *flags.split()]
            command += [__file__, str(checkpoint)]
            env = os.environ | {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
            return subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True)

        nodes = [node("127.0.0.1"), node("localhost")]  # ranks follow the order of these names
        nodes[1].wait()
        while torch.load(checkpoint)[0] < GAINED:
            time.sleep(0.2)
        nodes.append(node("localhost"))
        for name, torchrun in zip("ABC", nodes, strict=True):
            for line in torchrun.communicate()[0].splitlines():
                print(f"node {name}: {line}")
            print(f"node {name}: torchrun ended with {torchrun.returncode}")
        _, resumed = torch.load(checkpoint)
    weight = torch.zeros(1, dtype=torch.float64)
    for _ in range(END):
        weight = weight - 0.05 * slope(weight, DATA) / len(DATA)
    torch.testing.assert_close(resumed, weight)
    print(f"weight {resumed.item():.6f}, equal to one process that was never disturbed")


if __name__ == "__main__":
    train(Path(sys.argv[1])) if "RANK" in os.environ else main()
