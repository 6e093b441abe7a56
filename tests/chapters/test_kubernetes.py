"""docs/examples/kubernetes/job.yaml: its parts fit each other, and its command, run once for each
pod, is one training. There is no cluster here: what a schema forbids Kubernetes itself refuses."""

import re
import signal
import sys
import time
from itertools import product
from pathlib import Path
from subprocess import Popen

import pytest
from harness import (
    PATIENCE,
    ROOT,
    TINY,
    events,
    finish,
    free_port,
    load_state,
    rows,
    start,
)

yaml = pytest.importorskip("yaml", reason="needs requirements-dev.txt")
HUB = "02_distributed"
FILE = ROOT / "docs/examples/kubernetes/job.yaml"
SERVICE, JOB = yaml.safe_load_all(FILE.read_text())
POD = JOB["spec"]["template"]["spec"]
(CONTAINER,) = POD["containers"]
(COMMAND,) = CONTAINER["args"]
# What each of two pods with one process on a CPU has in place of the file's.
ON_LOOPBACK = {
    "--nproc-per-node 8": "--nproc-per-node 1",
    "train-0.train": "127.0.0.1",
    "--data /shared/imagenet": "--synthetic 40",
    "/shared/run1": "run1",
    f"{HUB}/main.py": str(ROOT / HUB / "main.py"),
    "torchrun": f"{sys.executable} -m torch.distributed.run",
}


def test_the_parts_fit() -> None:
    """What no schema knows, and what a cluster would not complain about: it would wait."""
    job, service = JOB["metadata"]["name"], SERVICE["metadata"]["name"]
    assert SERVICE["spec"] == {"clusterIP": "None", "selector": {"job-name": job}}
    assert POD["subdomain"] == service and f"--master-addr {job}-0.{service} " in COMMAND
    assert JOB["spec"]["completionMode"] == "Indexed"
    nodes = int(re.search(r"--nnodes (\d+)", COMMAND)[1])
    assert JOB["spec"]["completions"] == JOB["spec"]["parallelism"] == nodes
    gpus = int(re.search(r"--nproc-per-node (\d+)", COMMAND)[1])
    assert CONTAINER["resources"]["limits"]["nvidia.com/gpu"] == gpus
    # A pod that comes back takes the others with it, and so counts as many failures.
    assert JOB["spec"]["backoffLimit"] >= 3 * nodes and POD["restartPolicy"] == "Never"
    # torchrun's own 30 seconds, and what it needs to end.
    assert POD["terminationGracePeriodSeconds"] >= 45 and " --resume" in COMMAND
    assert CONTAINER["command"] == ["bash", "-c"] and COMMAND.startswith("exec torchrun ")
    mounts = {mount["name"]: mount["mountPath"] for mount in CONTAINER["volumeMounts"]}
    assert mounts["shm"] == "/dev/shm" and {volume["name"] for volume in POD["volumes"]} == {
        *mounts
    }


def pods(folder: Path, nodes: int, *more: str) -> list[Popen]:
    """Side by side on loopback. Kubernetes tells each its number."""
    command = COMMAND
    changes = ON_LOOPBACK | {"29500": str(free_port()), "--nnodes 2": f"--nnodes {nodes}"}
    for old, new in changes.items():
        assert command.count(old) == 1, old
        command = command.replace(old, new)
    words = [*CONTAINER["command"], " ".join([command, *TINY, "--print-freq 1", *more])]
    on_cpu = {"CUDA_VISIBLE_DEVICES": ""}
    return [
        start(words, folder, on_cpu | {"JOB_COMPLETION_INDEX": str(number)})
        for number in range(nodes)
    ]


@pytest.mark.proof  # torchrun over two machines runs in test_slurm.py
def test_the_command_trains(tmp_path: Path) -> None:
    """As it stands, in two pods. Kubernetes ends one of them, by SIGTERM to its process 1: both
    have saved at the same step. One pod goes on there to the end; no step is done twice."""
    log, started = tmp_path / "run1/metrics.jsonl", pods(tmp_path, 2, "--epochs 300")
    deadline = time.monotonic() + PATIENCE
    while not (log.exists() and log.read_text().count('"train"') > 2):
        assert time.monotonic() < deadline and started[0].poll() is None
        time.sleep(0.1)
    started[1].send_signal(signal.SIGTERM)
    results = [finish(pod) for pod in started]
    outputs = results[0].output + results[1].output
    assert 0 not in [result.returncode for result in results], outputs
    assert events(tmp_path / "run1")[-1]["event"] == "stopped", outputs
    assert "start  " in results[0].stdout and "start  " not in results[1].stdout  # rank 0's pod

    epochs = load_state(tmp_path / "run1/checkpoint.pt")["epoch"] + 2
    (last,) = (finish(pod) for pod in pods(tmp_path, 1, f"--epochs {epochs}"))
    assert last.returncode == 0, last.output
    assert [row["world_size"] for row in rows(tmp_path / "run1", "start")] == [2, 1]
    assert len(rows(tmp_path / "run1", "end")) == 1
    steps = [(row["epoch"], row["step"]) for row in rows(tmp_path / "run1", "train")]
    per_epoch = rows(tmp_path / "run1", "start")[0]["steps_per_epoch"]
    assert steps == list(product(range(epochs), range(1, per_epoch + 1)))
