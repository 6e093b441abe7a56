"""docs/examples/kubernetes/job.yaml: its parts fit each other and the schema of Kubernetes, and its
command, run once for each pod, is one training. There is no cluster here."""

import json
import re
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest
from harness import ROOT, TINY, finish, free_port, rows, run, start

yaml = pytest.importorskip("yaml", reason="needs requirements-dev.txt")
HUB = "02_distributed"
FILE = ROOT / "docs/examples/kubernetes/job.yaml"
SERVICE, JOB = yaml.safe_load_all(FILE.read_text())
POD = JOB["spec"]["template"]["spec"]
(CONTAINER,) = POD["containers"]
(COMMAND,) = CONTAINER["args"]
# The schemas are files of this package; it is downloaded, not installed.
SCHEMAS = (
    "kubernetes-validate==1.37.0"
    " --hash=sha256:85136d018a27b50ec7fc049d902bfa5193f5976807e6c0f408e3ab6fe078cad9\n"
)
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


@pytest.mark.parametrize("way", ["job", pytest.param("trainjob", marks=pytest.mark.proof)])
def test_the_command_trains(way: str, tmp_path: Path) -> None:
    """Two pods stand side by side on loopback. Kubernetes tells each its number; what Kubeflow sets
    for a TrainJob takes the place of all flags of torchrun."""
    port = free_port()
    command = COMMAND
    for old, new in (ON_LOOPBACK | {"29500": str(port)}).items():
        assert command.count(old) == 1, old
        command = command.replace(old, new)
    pods = [{"JOB_COMPLETION_INDEX": str(number)} for number in range(2)]
    if way == "trainjob":
        command = re.sub(r"(distributed\.run) .*?(\S+/main\.py)", r"\1 \2", command)
        assert "--n" not in command and "--master" not in command
        same = {"PET_NNODES": "2", "PET_NPROC_PER_NODE": "1", "PET_MASTER_ADDR": "127.0.0.1"}
        same |= {"PET_MASTER_PORT": str(port)}
        pods = [same | {"PET_NODE_RANK": str(number)} for number in range(2)]
    command = " ".join([command, *TINY, "--epochs 1"])
    started = [
        start([*CONTAINER["command"], command], tmp_path, {"CUDA_VISIBLE_DEVICES": "", **pod})
        for pod in pods
    ]
    results = [finish(pod) for pod in started]
    outputs = results[0].output + results[1].output
    assert [result.returncode for result in results] == [0, 0], outputs
    (first,) = rows(tmp_path / "run1", "start")
    assert first["world_size"] == 2
    assert len(rows(tmp_path / "run1", "end")) == 1
    assert "start  " in results[0].stdout and "start  " not in results[1].stdout  # rank 0's pod


def mistakes(schemas: Path, document: dict[str, Any]) -> list[str]:
    """What Kubernetes 1.37 would refuse, names that it does not know among it."""
    from jsonschema import Draft7Validator
    from referencing import Registry
    from referencing.jsonschema import DRAFT7

    def read(name: str) -> Any:
        return json.loads(zipfile.Path(schemas, f"{folder}/{name}.json").read_text())

    folder = "kubernetes_validate/kubernetes-json-schema/v1.37.0-local-strict"
    shared = DRAFT7.create_resource(read("_definitions"))
    registry = Registry().with_resource("_definitions.json", shared)
    name = {"batch/v1 Job": "job-batch-v1", "v1 Service": "service-v1"}
    schema = read(name[f"{document['apiVersion']} {document['kind']}"])
    return [
        error.message for error in Draft7Validator(schema, registry=registry).iter_errors(document)
    ]


@pytest.mark.proof
def test_the_schema(tmp_path: Path) -> None:
    """A name written wrong is found as well, or the test would prove nothing."""
    (tmp_path / "schemas.txt").write_text(SCHEMAS)
    download = [sys.executable, "-m", "pip", "download", "--no-deps", "--require-hashes"]
    got = run([*download, "-r", "schemas.txt", "-d", tmp_path], tmp_path, 300)
    assert "DO NOT MATCH" not in got.output
    if got.returncode != 0:
        pytest.skip("needs a package index")
    (schemas,) = tmp_path.glob("*.whl")
    assert [mistakes(schemas, document) for document in (SERVICE, JOB)] == [[], []]
    spec = JOB["spec"] | {"backofLimit": 0}
    (found,) = mistakes(schemas, JOB | {"spec": spec})
    assert "backofLimit" in found
