"""SIGTERM to torchrun: it passes the signal on, and gives the ranks time to save.

python docs/examples/handbook/elastic_signals.py
"""

import os
import signal
import subprocess
import sys
import time


def say(line: str) -> None:
    """One write for text and newline: lines of two ranks do not get mixed on their way."""
    print(f"{line}\n", end="", flush=True)


def train() -> None:
    rank, told = os.environ["RANK"], []
    signal.signal(signal.SIGTERM, lambda number, frame: told.append(signal.Signals(number).name))
    say(f"rank {rank} trains")
    while not told:  # the handler only takes a note: the step that is under way is finished first
        time.sleep(0.1)
    say(f"rank {rank} got {told[0]}, saves, leaves")


def main() -> None:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command += ["--nproc-per-node", "2", "--shutdown-timeout", "60", __file__]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as torchrun:
        for _ in range(2):
            print(torchrun.stdout.readline(), end="")
        torchrun.send_signal(signal.SIGTERM)  # what a cluster does when the time is up
        print(torchrun.stdout.read(), end="")
    print(f"torchrun: exit status {torchrun.returncode}")


if __name__ == "__main__":
    if "RANK" in os.environ:
        train()
    else:
        main()
