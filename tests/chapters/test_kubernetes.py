"""docs/examples/kubernetes/job.yaml: its parts fit each other, and its command, run once for each
pod, is one training. There is no cluster here: what a schema forbids Kubernetes itself refuses."""

import re
import sys
from pathlib import Path

import pytest
from harness import ROOT, TINY, finish, free_port, rows, start

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
    # A pod that comes back alone would meet a job that has lost the old one.
    assert JOB["spec"]["backoffLimit"] == 0 and POD["restartPolicy"] == "Never"
    assert CONTAINER["command"] == ["bash", "-c"] and COMMAND.startswith("exec torchrun ")
    mounts = {mount["name"]: mount["mountPath"] for mount in CONTAINER["volumeMounts"]}
    assert mounts["shm"] == "/dev/shm" and {volume["name"] for volume in POD["volumes"]} == {
        *mounts
    }


@pytest.mark.proof  # torchrun over two machines runs in test_slurm.py
def test_the_command_trains(tmp_path: Path) -> None:
    """Two pods stand side by side on loopback. Kubernetes tells each its number."""
    command = COMMAND
    for old, new in (ON_LOOPBACK | {"29500": str(free_port())}).items():
        assert command.count(old) == 1, old
        command = command.replace(old, new)
    command = " ".join([command, *TINY, "--epochs 1"])
    on_cpu = {"CUDA_VISIBLE_DEVICES": ""}
    started = [
        start([*CONTAINER["command"], command], tmp_path, on_cpu | {"JOB_COMPLETION_INDEX": number})
        for number in "01"
    ]
    results = [finish(pod) for pod in started]
    outputs = results[0].output + results[1].output
    assert [result.returncode for result in results] == [0, 0], outputs
    (first,) = rows(tmp_path / "run1", "start")
    assert first["world_size"] == 2
    assert len(rows(tmp_path / "run1", "end")) == 1
    assert "start  " in results[0].stdout and "start  " not in results[1].stdout  # rank 0's pod
