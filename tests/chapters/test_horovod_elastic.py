"""05_horovod/elastic.py: workers killed, regained, sent away and added while it trains.

What happens, and after which step, is a plan that the workers carry out themselves, so that no test
depends on how fast this machine is. They also write down which images they have seen and a digest
of the weights whenever they save their state.
"""

from __future__ import annotations

import importlib.util
import json
import re
import sys
from pathlib import Path
from types import ModuleType

import pytest
from harness import ROOT, load_state, rows, run

CHAPTER = ROOT / "05_horovod"
needs_horovod = pytest.mark.skipif(
    importlib.util.find_spec("horovod") is None,
    reason="needs Horovod: bash 05_horovod/install.sh",
)
# Two names for this machine, as a failed host is shut out by its name.
HOSTS = "localhost:1\n127.0.0.1:1\n"
# 100 images, of which two ranks take 16 a step and one takes 8: every epoch leaves out 4.
TRAIN, DONE, VAL, EPOCHS = 100, 96, 25, 4
ARGV = ["--synthetic", str(TRAIN), "--image-size", "16", "--batch-size", "8", "--workers", "0"]
ARGV += ["--commit-every", "2", "--epochs", str(EPOCHS), "--output-dir", "run"]

# The plan is a list of [epoch, images done in it, rank, deed], each done once.
WORKER = f"""
import hashlib, json, os, signal, sys, time
from pathlib import Path

sys.path.insert(0, {str(CHAPTER)!r})
import elastic
import torch
from elastic import hvd
from torch import nn

plan, seen, states = json.loads(os.environ["PLAN"]), [], []


class Seen(torch.utils.data.Dataset):
    def __init__(self, images):
        self.images = images

    def __len__(self):
        return len(self.images)

    def __getitem__(self, index):
        seen.append(index)
        return self.images[index]


def build_datasets(args):
    train_set, val_set, classes = real_datasets(args)
    return Seen(train_set), val_set, classes


def build_model(arch, classes, pretrained):
    norm = [nn.BatchNorm2d(8), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten()]
    return nn.Sequential(nn.Conv2d(3, 8, 3, stride=2), *norm, nn.Linear(32, classes))


def save(state):
    real_save(state)
    states[:] = [state]
    parameters = list(state.model.parameters())
    momentum = [state.optimizer.state[p]["momentum_buffer"] for p in parameters]
    weights = [tensor.detach().numpy().tobytes() for tensor in parameters + momentum]
    digest = hashlib.sha256(b"".join(weights)).hexdigest()
    row = dict(epoch=state.sampler.epoch, done=state.sampler.processed_num, images=seen)
    row |= dict(digest=digest)
    with open(f"saved-{{os.getpid()}}.jsonl", "a") as file:
        file.write(json.dumps(row) + "\\n")
    seen.clear()


def restore(state):
    real_restore(state)
    seen.clear()


def record_batch(sampler, *batch):
    real_record(sampler, *batch)
    for epoch, done, rank, deed in plan:
        if [epoch, done, rank] == [sampler.epoch, sampler.processed_num, hvd.rank()]:
            try:
                Path(f"did-{{epoch}}-{{done}}").touch(exist_ok=False)
            except FileExistsError:
                continue
            if deed == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            hosts = dict(stay=os.environ["HOROVOD_HOSTNAME"] + ":1\\n", grow={HOSTS!r})
            if deed in hosts:
                Path("new").write_text(hosts[deed])
                Path("new").replace("hosts.txt")
            deadline = time.monotonic() + 60  # for the news of hosts to arrive
            while states[0]._host_messages.empty():
                assert time.monotonic() < deadline, deed
                time.sleep(0.05)


real_datasets, elastic.build_datasets = elastic.build_datasets, build_datasets
elastic.build_model = build_model
State, Sampler = hvd.elastic.TorchState, hvd.elastic.ElasticSampler
real_save, State.save = State.save, save
real_restore, State.restore = State.restore, restore
real_record, Sampler.record_batch = Sampler.record_batch, record_batch
elastic.main()
"""


def horovodrun(folder: Path, plan: list, *more: str, options: tuple = ("-np", "2")) -> None:
    """Run it as the docstring says, on the two hosts that are this machine, to its good end."""
    (folder / "worker.py").write_text(WORKER)
    (folder / "hosts.txt").write_text(HOSTS)
    launch = [Path(sys.executable).parent / "horovodrun", "--min-np", "1", *options]
    # On a busy machine a new worker needs more than the usual 30 seconds to import torch.
    launch += ["--gloo", "--network-interfaces", "lo", "--gloo-timeout-seconds", "120"]
    discover = f"{CHAPTER}/discover_hosts.sh hosts.txt"
    launch += ["--host-discovery-script", discover, sys.executable, "worker.py", *ARGV, *more]
    result = run(launch, folder, 300, {"PLAN": json.dumps(plan), "CUDA_VISIBLE_DEVICES": ""})
    assert result.returncode == 0, result.output


def train(folder: Path, plan: list, *options: str) -> list[tuple[int, int]]:
    """Train with the plan, check what holds whatever happens, and return the worlds: how many
    ranks there were, from which step on."""
    horovodrun(folder, plan, options=("-np", "2", "--max-np", "4", *options))
    assert len(list(folder.glob("did-*"))) == len(plan)
    out = folder / "run"
    assert [(row["epoch"], row["images"]) for row in rows(out, "eval")] == [
        (epoch, VAL) for epoch in range(EPOCHS)
    ]
    assert len(rows(out, "end")) == 1
    saved = load_state(out / "checkpoint.pt")
    assert saved["epoch"] == EPOCHS and saved["step"] == rows(out, "end")[0]["step"]
    trained = rows(out, "train")
    for epoch in range(EPOCHS):
        assert sum(row["images"] for row in trained if row["epoch"] == epoch) == DONE
    for row in trained:  # peak 0.1 per 256 images, cosine
        share = (1, 0.853553, 0.5, 0.146447)[row["epoch"]]
        assert row["lr"] == pytest.approx(0.1 * 8 * row["world_size"] / 256 * share, rel=1e-4)

    # Of what is in the state that the run went on from, no image came twice.
    saved = "".join(file.read_text() for file in folder.glob("saved-*.jsonl"))
    commits = [json.loads(line) for line in saved.splitlines()]
    for epoch in range(EPOCHS):
        images = [i for row in commits if row["epoch"] == epoch for i in row["images"]]
        assert len(images) == len(set(images)) == DONE, (epoch, sorted(images))
    # At each point of the run all ranks, those that had just joined too, have had the same weights.
    weights = {}
    for row in commits:
        assert row["digest"] == weights.setdefault((row["epoch"], row["done"]), row["digest"]), row
    assert len(set(weights.values())) >= DONE // 32 * EPOCHS
    return [(row["world_size"], row["step"]) for row in rows(out, "start")]


@needs_horovod
def test_worker_killed(tmp_path: Path) -> None:
    """Rank 0 dies in mid-epoch, after step 9, one step after a commit. The other redoes that step
    alone, in two of its own, and goes on to the end. Started again for one epoch more, and with
    one process, it goes on from there."""
    assert train(tmp_path, [[1, 48, 0, "kill"]]) == [(2, 0), (1, 8)]
    assert rows(tmp_path / "run", "end")[0]["step"] == 8 + 8 + 12 + 12

    alone = ("-np", "1", "--max-np", "1")
    horovodrun(tmp_path, [], "--epochs", str(EPOCHS + 1), options=alone)
    again = rows(tmp_path / "run", "start")[2]
    assert (again["epoch"], again["step"], again["world_size"]) == (EPOCHS, 40, 1)
    assert [row["epoch"] for row in rows(tmp_path / "run", "eval")] == [0, 1, 2, 3, 4]
    assert rows(tmp_path / "run", "end")[1]["step"] == 40 + 12


@needs_horovod
@pytest.mark.proof
def test_workers_come_and_go(tmp_path: Path) -> None:
    """2 workers, one killed: 1, its host comes back: 2, leaves: 1, and is added again: 2. Then rank
    0 is killed before the newcomer's first commit, and there is 1, until the host is back."""
    plan = [
        [0, 48, 1, "kill"],  # goes back to 32
        [0, 72, 0, "wait"],  # commits 80; no checkpoint yet gives the newcomer momentum
        [2, 48, 0, "stay"],  # commits 64
        [3, 24, 0, "grow"],  # commits 32
        [3, 48, 0, "kill"],  # goes back to 32
        [3, 56, 0, "wait"],  # commits 64
    ]
    worlds = train(tmp_path, plan, "--blacklist-cooldown-range", "1", "1")
    # 6 steps an epoch for two ranks, 12 for one.
    assert worlds == [(2, 0), (1, 2), (2, 8), (1, 19), (2, 27), (1, 27), (2, 31)]


def elastic() -> ModuleType:
    """Imported afresh, with the main.py that lies beside it."""
    sys.modules.pop("main", None)
    sys.modules.pop("elastic", None)
    return importlib.import_module("elastic")


def test_user_errors(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Each is told in one line; the command of the docstring has none."""
    monkeypatch.syspath_prepend(CHAPTER)
    module = elastic()
    words = re.sub(r"\\\n\s*", "", module.__doc__)
    module.parse_args(re.search(r"elastic\.py (--.*)", words)[1].split())
    with pytest.raises(SystemExit, match="^2$"):
        module.main(["--synthetic", "--commit-every=0"])
    says = "argument --commit-every: 0 is not 1 or more"
    assert capsys.readouterr().err.endswith(f"error: {says}\n")

    says = "start it by horovodrun, as the first lines of .*elastic.py show"
    if importlib.util.find_spec("horovod") is None:
        says = "cannot import Horovod: bash 05_horovod/install.sh builds it"
    with pytest.raises(SystemExit, match=f"^05_horovod: error: {says}$"):
        module.main(["--synthetic"])
    monkeypatch.setitem(sys.modules, "horovod.torch", None)  # an import of it fails
    with pytest.raises(SystemExit, match="cannot import Horovod: bash 05_horovod/install.sh"):
        elastic().main(["--synthetic"])
    sys.modules.pop("main"), sys.modules.pop("elastic")


def test_discover_hosts(tmp_path: Path) -> None:
    """Lines of host:slots, or one line of complaint: never a list that is short by mistake."""
    script, file = CHAPTER / "discover_hosts.sh", tmp_path / "hosts.txt"
    file.write_text("a:1\n\n  # all of rack 2\nb.example:4 # slow\r\n")
    for argv, env in ([file], {}), ([], {"ELASTIC_HOSTS": str(file)}):
        result = run([script, *argv], tmp_path, 20, env)
        assert result.returncode == 0 and result.stdout == "a:1\nb.example:4\n", result.output
    wrong = tmp_path / "wrong.txt"
    for text in "a", "a:0", "a:1 b:1", ":2", None:
        argv = [wrong] if text else []
        wrong.write_text(f"ok:1\n{text}\n")
        result = run([script, *argv], tmp_path, 20)
        assert (result.returncode, result.stdout) == (1, ""), result.output
        assert result.stderr.count("\n") == 1, result.output
        assert not text or "is not host:slots" in result.stderr, result.output
