"""What only chapter 05 has: compression, install.sh, and elastic.py, whose workers are killed,
regained, sent away and added while it trains.

What it shares with the others (equal training, exact evaluation, resume, errors, a rank that is
killed) is in their tables.
"""

import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from unittest import mock

import pytest
import torch
from crew import Crew
from harness import HOROVOD, ROOT, Result, load_chapter, load_state, rows, run
from plain_training import LOW_RATE, arguments, difference, train, train_plainly
from with_tiny_model import tiny_float32

CHAPTER = ROOT / HOROVOD
needs_horovod = pytest.mark.skipif(
    importlib.util.find_spec("horovod") is None,
    reason="needs Horovod: PYTHON=python bash 05_horovod/install.sh",
)


@needs_horovod
def test_compression_rounds_and_no_more(crew: Crew, tmp_path: Path) -> None:
    """Gradients sent in 16 bits: close to those in 32, and not the same, on ranks that agree."""
    argv = [*arguments(tmp_path, LOW_RATE), "--fp16-allreduce"]
    answers = crew.run(train, HOROVOD, argv, tiny_float32, world_size=2)
    assert answers[0] == answers[1]
    state = load_state(tmp_path / "checkpoint.pt")
    far = difference(train_plainly(tiny_float32, LOW_RATE)[0], state)
    moved = difference(train_plainly(tiny_float32, LOW_RATE, epochs=0)[0], state)
    print(f"\nlargest difference with --fp16-allreduce: {far:.1e}, of weights moved by {moved:.1e}")
    assert 1e-6 < far < 1e-3 < 100 * far < moved


def threads_of_rank(chapter: str) -> int:
    """In a crew member: with how many threads it computes on a machine with six cores."""
    module = load_chapter(chapter)
    cores = mock.patch("os.sched_getaffinity", return_value=set(range(6)))
    with mock.patch.dict(os.environ), cores:
        del os.environ["OMP_NUM_THREADS"]
        module.setup_distributed(module.build_parser().parse_args(["--synthetic"]))
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    return threads


@needs_horovod
def test_ranks_share_the_cores(crew: Crew) -> None:
    """With as many threads as cores in each, two ranks on two cores train at a fifth of the speed.
    (03: test_flags.py; 06: test_slurm_ranks.py; torchrun sees to it itself.)"""
    assert crew.run(threads_of_rank, HOROVOD, world_size=2) == [3, 3]


def imported(name: str, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """main.py or elastic.py of the chapter, afresh, by the name that the other one imports."""
    spec = importlib.util.spec_from_file_location(name, CHAPTER / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, name, module)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("missing", [pytest.param(False, marks=needs_horovod), True])
@pytest.mark.parametrize("name", ["main", "elastic"])
def test_not_set_up(
    name: str, missing: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Not installed, or built for another torch, as far as the import can tell; or not launched:
    one process where many were meant is no fallback. One line says what to type."""
    says = "start it (with horovodrun -np 2 -H localhost:2 --gloo python|by horovodrun, as the )"
    if missing:
        says = "cannot import Horovod.*: bash 05_horovod/install.sh"
        monkeypatch.setitem(sys.modules, "horovod.torch", None)  # an import of it fails
    module = imported("main", monkeypatch)
    if name == "elastic":
        module = imported(name, monkeypatch)
        # The command of its docstring is understood.
        words = re.sub(r"\\\n\s*", "", module.__doc__)
        assert module.parse_args(re.search(r"elastic\.py (--.*)", words)[1].split()).synthetic
    with pytest.raises(SystemExit, match=f"^05_horovod: error: {says}") as ended:
        module.main(["--synthetic", "--output-dir", str(tmp_path / "run")])
    assert "\n" not in ended.value.code and not (tmp_path / "run").exists()


# -------------------------------------------------------------------------------------- install.sh


def install(folder: Path, *argv: str, **env: str) -> Result:
    """Run the script with an empty store of wheels and an empty folder for its temporary files,
    which must be empty again when it ends."""
    scratch = folder / "scratch"
    scratch.mkdir(parents=True)
    env = {
        "PYTHON": sys.executable,
        "XDG_CACHE_HOME": str(folder / "cache"),
        "TMPDIR": str(scratch),
    } | env
    result = run([shutil.which("bash"), CHAPTER / "install.sh", *argv], folder, 60, env)
    assert not list(scratch.iterdir()), result.output
    return result


def test_mistakes(tmp_path: Path) -> None:
    """-I -S hides what is installed, as an environment without torch would."""
    bare = tmp_path / "python"
    bare.write_text(f'#!/bin/sh\nexec "{sys.executable}" -I -S "$@"\n')
    bare.chmod(0o755)
    for number, (argv, env, says) in enumerate([
        (["--gpu"], {}, "unknown argument --gpu"),
        ([], {"PYTHON": "no-such-python"}, "no no-such-python here"),
        ([], {"PYTHON": str(bare)}, "has no torch"),
    ]):  # fmt: skip
        result = install(tmp_path / str(number), *argv, **env)
        assert result.returncode != 0, result.output
        assert result.stderr.startswith("error: "), result.output
        assert result.stderr.count("\n") == 1 and says in result.stderr, result.output


def test_other_source_is_refused(tmp_path: Path) -> None:
    """A package that calls itself Horovod 0.28.1 and is not the release is not unpacked."""
    for tool in ("g++", "cmake", "make"):
        if shutil.which(tool) is None:
            pytest.skip(f"needs a compiler: apt-get install {tool}")
    fake, index = tmp_path / "horovod-0.28.1", tmp_path / "index"
    fake.mkdir()
    index.mkdir()
    (fake / "setup.py").write_text("raise SystemExit('it ran')\n")
    tar = ["tar", "-czf", index / "horovod-0.28.1.tar.gz", fake.name]
    subprocess.run(tar, cwd=tmp_path, check=True)
    result = install(tmp_path, "--cpu", PIP_NO_INDEX="1", PIP_FIND_LINKS=str(index))
    assert result.returncode != 0, result.output
    assert result.lines("DO NOT MATCH THE HASHES"), result.output
    assert result.lines("error: the source of Horovod was not fetched"), result.output
    assert not result.lines("it ran") and not list(tmp_path.glob("cache/**/*.whl")), result.output


# -------------------------------------------------------------------------------------- elastic.py

# What happens, and after which step, is a plan that the workers carry out themselves, so that no
# test depends on how fast this machine is. They also write down which images they have seen and a
# digest of the weights whenever they save their state.

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


def train_by_plan(folder: Path, plan: list, *options: str) -> list[tuple[int, int]]:
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
    assert train_by_plan(tmp_path, [[1, 48, 0, "kill"]]) == [(2, 0), (1, 8)]
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
    worlds = train_by_plan(tmp_path, plan, "--blacklist-cooldown-range", "1", "1")
    # 6 steps an epoch for two ranks, 12 for one.
    assert worlds == [(2, 0), (1, 2), (2, 8), (1, 19), (2, 27), (1, 27), (2, 31)]


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
