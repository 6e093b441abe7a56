"""doctor --speed: what it says where an effect is made by hand."""

import json
import multiprocessing
import os
import re
import runpy
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from crew import Crew
from examined import OLDEST
from harness import ROOT, Result, run
from tiers import table

from doctor.before import Before
from doctor.recorder.notes import FOLDER, WHOLE
from doctor.report import LANGUAGES, Report
from doctor.speed import PLAN, SPEED
from doctor.speed.trial import Speed, Trial, compared, lines_of, planned

PROGRAM = """\
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler, IterableDataset

dist.init_process_group("gloo")
rank, world_size = dist.get_rank(), dist.get_world_size()


class Points(Dataset):
    def __len__(self):
        return 2080

    def __getitem__(self, i):
        SLOW_ITEM
        return torch.randn(16), i % 4


train_set = Points()
sampler = DistributedSampler(train_set, drop_last=True)
loader = DataLoader(train_set, 8, sampler=sampler, num_workers=0)
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(16, 8), nn.ReLU(), nn.Linear(8, 4))
ddp_model = DistributedDataParallel(model)
SLOW_LINK
optimizer = torch.optim.SGD(model.parameters(), lr=1e9)
first = [p.detach().clone() for p in model.parameters()]

for epoch in range(1):
    sampler.set_epoch(epoch)
    for inputs, targets in loader:
        loss = nn.functional.cross_entropy(ddp_model(inputs), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        SLOW_STEP

assert all(map(torch.equal, first, model.parameters()))
"""
PLAIN = {"SLOW_ITEM": "pass", "SLOW_STEP": "pass", "SLOW_LINK": ""}
LINK = """
def slow_link(_, bucket):
    time.sleep(0.06)
    return dist.all_reduce(bucket.buffer(), async_op=True).get_future().then(lambda f: f.value()[0])


ddp_model.register_comm_hook(None, slow_link)
"""
SLEEP = "time.sleep(0.005)"
ACCUMULATION = (
    "    for inputs, targets in loader:\n",
    "    for number, (inputs, targets) in enumerate(loader, start=1):\n",
    "        optimizer.zero_grad()\n        loss.backward()\n        optimizer.step()\n",
    "        loss.backward()\n        if number % 2 == 0:\n            optimizer.step()\n"
    "            optimizer.zero_grad()\n",
)
BY_HAND = (  # as nanoGPT and llama2.c do without no_sync
    *ACCUMULATION,
    "        loss = nn.",
    "        ddp_model.require_backward_grad_sync = number % 2 == 0\n        loss = nn.",
)
NO_SYNC = (
    *ACCUMULATION[:2],
    "        loss = nn.",
    "        if number % 2:\n            with ddp_model.no_sync():\n"
    "                ddp_model(inputs).sum().backward()\n            continue\n        loss = nn.",
)
STREAM = (
    "class Points(Dataset):",
    "class Stream(IterableDataset):\n    def __iter__(self):\n        for i in range(1040):\n"
    "            SLOW_ITEM\n            yield torch.randn(16), i % 4\n\n\nclass Points(Dataset):",
    "loader = DataLoader(train_set, 8, sampler=sampler, num_workers=0)",
    "loader = DataLoader(Stream(), 8)",
)
TWO = (
    "        optimizer.step()\n",
    "        optimizer.step()\n        other.step()\n",
    "first = [",
    "other = torch.optim.Adam(model.parameters())\nfirst = [",
)
IN_PLACE = (
    "        loss = nn.",
    "        assert inputs.abs().max() < 100\n        inputs.mul_(1000)\n        loss = nn.",
)
LISTS = (  # as of a detection: images of unlike sizes are no tensor
    "num_workers=0)",
    "collate_fn=lambda rows: tuple(zip(*rows)))",
    "        loss = nn.",
    "        inputs, targets = torch.stack(inputs), torch.tensor(targets)\n        loss = nn.",
)
WHOLE_BATCHES = (  # from the data set: a loader's batch is one of them
    "return torch.randn(16), i % 4",
    "return torch.randn(8, 16), torch.full((8,), i % 4)",
    "DataLoader(train_set, 8, sampler=sampler, num_workers=0)",
    "DataLoader(train_set, 1, sampler=sampler, collate_fn=lambda rows: rows[0])",
)
SHORT = ("range(1)", "range(7)", "return 2080", "return 320")
WORKERS = ("num_workers=0", "num_workers=1, persistent_workers=True")
STATIC = ("DistributedDataParallel(model)", "DistributedDataParallel(model, static_graph=True)")
COMPILED = ("DistributedDataParallel(model)", "torch.compile(DistributedDataParallel(model))")
OWN_CALL = ("        optimizer.step()\n", "        optimizer.step()\n        dist.barrier()\n")
EVALUATES = (
    "    sampler.set_epoch(epoch)\n",
    "    sampler.set_epoch(epoch)\n    with torch.no_grad():\n"
    "        val = [ddp_model(inputs) for inputs, _ in DataLoader(Points(), 500)]\n"
    "    assert len(val) == 5\n",
)
FIRST_EVALUATES = (  # every few steps, while the other ranks wait
    *ACCUMULATION[:2],
    "        SLOW_STEP\n",
    "        SLOW_STEP\n        if rank == 0 and number % 4 == 0:\n"
    "            [time.sleep(0.15) for _ in DataLoader(Points(), 1040)]\n",
)
NO_LOADER = ("in loader:", "in [(torch.randn(8, 16), torch.arange(8) % 4)] * 130:")
# Of each: what SLOW_ITEM, SLOW_STEP and WIDTH are, other changes, and what is said.
SAID = {
    "a slow data set": ({"SLOW_ITEM": SLEEP}, (), ["input_costs"]),
    "a slow data set on one rank": (
        {"SLOW_ITEM": f"{SLEEP} if rank == 1 else None"}, (), ["waits_input"],
    ),
    "a slow rank": (
        {"SLOW_STEP": "time.sleep(0.05) if rank == 1 else None"}, (), ["waits"],
    ),
    "a slow link": ({"SLOW_LINK": LINK}, (), ["communication_waits"]),
    "a slow step": ({"SLOW_STEP": "time.sleep(0.06)"}, (), ["step"]),
    "accumulation": ({"SLOW_ITEM": SLEEP}, ACCUMULATION, ["input_costs"]),
    "accumulation with no_sync": ({"SLOW_LINK": LINK}, NO_SYNC, ["communication_waits"]),
    "accumulation by hand": ({"SLOW_LINK": LINK}, BY_HAND, ["communication_waits"]),
    "a stream": ({"SLOW_ITEM": SLEEP}, STREAM, ["input_costs"]),
    "two optimizers": ({"SLOW_ITEM": SLEEP}, TWO, ["input_costs"]),
    "batches that are changed": ({"SLOW_ITEM": SLEEP}, IN_PLACE, ["input_costs"]),
    "batches that are lists": ({"SLOW_ITEM": SLEEP}, LISTS, ["input_costs"]),
    "a data set of whole batches": (
        {"SLOW_ITEM": "time.sleep(0.02)"}, WHOLE_BATCHES, ["input_costs"],
    ),
    "short epochs": ({"SLOW_ITEM": SLEEP}, SHORT, ["input_costs"]),
    "workers that stay": ({"SLOW_ITEM": SLEEP}, WORKERS + SHORT, ["input_costs"]),
    "a static graph": ({"SLOW_LINK": LINK}, STATIC, ["communication_waits"]),
    "a compiled model": ({"SLOW_STEP": "time.sleep(0.06)"}, COMPILED, ["step"]),
    "a collective of its own": ({"SLOW_STEP": "time.sleep(0.06)"}, OWN_CALL, ["rest", "own_calls"]),
    "an evaluation": ({"SLOW_STEP": "time.sleep(0.06)"}, EVALUATES, ["step"]),
    "an evaluation on one rank": ({"SLOW_STEP": "time.sleep(0.06)"}, FIRST_EVALUATES, ["step"]),
    "no loader": ({"SLOW_STEP": "time.sleep(0.06)"}, NO_LOADER, ["rest", "no_loader"]),
}  # fmt: skip
CLAIMS = ["waits", "waits_input", "input_costs", "communication_costs", "communication_waits"]
CLAIMS += ["waits_somehow", "step", "rest", "no_loader", "sharded", "no_ddp", "own_calls"]
ALWAYS = [
    "batches that are changed",
    "a slow data set on one rank",
    "accumulation with no_sync",
    "no loader",
]
ATTACHED = []


@pytest.fixture(scope="module")
def crew() -> Iterator[Crew]:
    with Crew(2) as members:
        yield members


def begin(folder: str) -> None:
    """In a crew member: as a process begins that --speed has started."""
    os.environ[FOLDER] = f"{folder}/traces"
    os.environ[SPEED] = "1"
    os.chdir(folder)
    from doctor.attach import attach

    if not ATTACHED:
        ATTACHED.append(attach("torch"))


def measure(script: str, folder: str) -> None:
    """In a crew member: run a script as --speed does, to the end of its windows."""
    begin(folder)
    sys.argv = [script]
    multiprocessing.set_start_method("fork", force=True)
    from doctor.recorder.notes import notes
    from doctor.speed import windows

    notes.begin(os.environ[FOLDER])
    windows.windows.__init__()
    runpy.run_path(script, run_name="__main__")


def changed(kind: str) -> str:
    words, texts, _ = SAID[kind]
    text = PROGRAM
    for old, new in zip(texts[::2], texts[1::2], strict=True):
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    for old, new in (PLAIN | words).items():
        text = text.replace(old, new)
    return text


def speed_of(crew: Crew, text: str, folder: Path, world_size: int = 2) -> Speed:
    (folder / "traces").mkdir(parents=True)
    (folder / "traces" / WHOLE).touch()
    (folder / "script.py").write_text(text)
    plan = planned([{"seconds": 0.02, "settle": 3}]) | {"steps": 8}
    (folder / "traces" / PLAN).write_text(json.dumps(plan))
    crew.run(measure, str(folder / "script.py"), str(folder), world_size=world_size)
    trial = Trial.__new__(Trial)
    trial.traces = folder / "traces"
    trial.read()
    assert len(trial.ready) == world_size
    return Speed(trial)


@pytest.mark.parametrize(
    "kind",
    table(SAID, ALWAYS),
    ids=lambda kind: kind.replace(" ", "-"),
)
def test_what_is_said(kind: str, crew: Crew, tmp_path: Path) -> None:
    if OLDEST and kind == "a compiled model":
        pytest.skip("minutes of compiling in torch 2.6")
    speed = speed_of(crew, changed(kind), tmp_path)
    passes = 2 if kind == "accumulation" else 1  # without no_sync
    assert speed.bytes == passes * 172 * 4
    batches = 2 if "accumulation" in kind else 1
    samples = 1 if kind == "no loader" else 8 * batches
    assert speed.own(0, "plain") * speed.step == pytest.approx(samples, rel=0.1)
    for language in LANGUAGES:
        report = Report(language)
        lines, _ = lines_of(speed, report)
        print("\n".join(lines))
        said = []
        for name in CLAIMS:
            pattern = re.sub(r"\\{\w+\\}", ".+", re.escape(report.words[f"speed_{name}"][0]))
            said += [name for line in lines if re.fullmatch(pattern, line)]
        wanted = SAID[kind][2]
        if any(line.startswith(report.say("against_undecided")) for line in lines):
            wanted = [name for name in wanted if name not in ("step", "rest")]  # on a busy machine
        if wanted == ["waits"] and speed.clear("input") is None:  # there, too
            wanted = ["waits_somehow"]
        assert said == wanted


def test_cpus_of_all_ranks() -> None:
    """Slurm, say, gives each rank CPUs of its own."""
    trial = Trial.__new__(Trial)
    trial.ready = {0: {"cpus": [0, 1]}, 1: {"cpus": [2, 3]}, 2: {"cpus": [2, 3]}}
    trial.windows = {rank: [] for rank in trial.ready}
    assert Speed(trial).cpus == 4


@pytest.mark.parametrize(
    ("samples", "plain", "alone", "said"),
    [
        ((16, 16), (0.1, 0.1), (0.1, 0.1), "speed_step"),
        # Rank 0 evaluates, while its clock stands still, and rank 1 waits in its steps.
        ((16, 16), (0.1, 0.15), (0.1, 0.1), "speed_step"),
        ((24, 8), (0.1, 0.1), (0.05, 0.05), "speed_communication_costs"),
    ],
    ids=["equal", "one-waits", "unlike-batches"],
)
def test_ranks_together(samples: tuple, plain: tuple, alone: tuple, said: str) -> None:
    """Windows made by hand: seconds a step as it is, and without communication."""
    trial = Trial.__new__(Trial)
    trial.ready = dict.fromkeys((0, 1), {"workers": 2, "cpus": [0], "ddp": 1, "sharded": False})
    seconds = {"plain": plain, "input": plain, "communication": alone}
    trial.windows = {
        rank: [
            {"kind": kind, "steps": 10, "samples": 10 * samples[rank], "batches": 10,
             "bytes": 1e8, "collectives": 0, "seconds": 10 * seconds[kind][rank]}
            for _ in range(3) for kind in seconds
        ] for rank in (0, 1)
    }  # fmt: skip
    report = Report("en")
    lines, _ = lines_of(Speed(trial), report)
    beginning = report.words[said][0].partition("{")[0]
    assert any(line.startswith(beginning) for line in lines), lines


def write(text: str, *names: str) -> None:
    for name in names:
        Path(name).write_text(text)


def overwrite_with_its_time() -> None:
    """As shutil.copy2 of a file that came with best.pt, from one archive."""
    then = os.stat("best.pt")
    write("BEST.PT", "best.pt")
    os.utime("best.pt", ns=(then.st_atime_ns, then.st_mtime_ns))


def link_anew() -> None:
    os.remove("latest.pt")
    os.symlink("out/last.pt", "latest.pt")


WAYS = {  # what a run does, and what is another file then
    "nothing": (lambda: write("x", "new.pt", "out/new.pt"), []),
    "writes": (lambda: write("other", "best.pt"), ["best.pt"]),
    "as long, and linked": (
        lambda: (os.link("best.pt", "second.pt"), write("BEST.PT", "best.pt")), ["best.pt"],
    ),
    "keeps the time": (overwrite_with_its_time, ["best.pt"]),
    "appends": (lambda: Path("log.txt").open("a").write("more"), ["log.txt"]),
    "replaces": (lambda: (write("x", "new"), os.replace("new", "best.pt")), ["best.pt"]),
    "renames": (lambda: os.rename("out", "old"), ["out/last.pt"]),
    "deletes": (lambda: shutil.rmtree("out"), ["out/last.pt"]),
    "a subprocess": (lambda: os.system("mv log.txt best.pt"), ["best.pt", "log.txt"]),
    "a link": (link_anew, ["latest.pt"]),
    "a hard link": (lambda: os.link("best.pt", "second.pt"), []),
    "elsewhere": (lambda: write("x", "../elsewhere/far.bin"), ["elsewhere/far.bin"]),
}  # fmt: skip


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.replace(" ", "-"))
def test_files_of_before(way: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever has written, and whatever the file is called; and nothing that is as it was."""
    for name in ("here/best.pt", "here/out/last.pt", "here/log.txt", "elsewhere/far.bin"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(Path(name).name)
        os.utime(tmp_path / name, (1, 1))
    monkeypatch.chdir(tmp_path / "here")
    os.symlink("best.pt", "latest.pt")
    os.symlink("..", "out/up")
    before = Before(["python", "train.py", "--out=../elsewhere", ".."])
    assert before.checkpoints() == ["best.pt", "latest.pt", f"{tmp_path}/elsewhere/far.bin",
                                    "out/last.pt"]  # fmt: skip
    act, changed = WAYS[way]
    act()
    known = [path.removeprefix(f"{tmp_path}/") for path in before.changed()]
    also = ["latest.pt"] if "best.pt" in changed else []
    assert sorted(known) == sorted(changed + also) and before.changed() == []


def test_too_many_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was not looked at is named, and checkpoints are looked at first."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("doctor.before.EACH", 20)
    monkeypatch.setattr("doctor.before.MOST", 40)
    for folder in ("a/deep", "data", ".venv"):
        (tmp_path / folder).mkdir(parents=True)
        write("x", *(f"{folder}/{n}.png" for n in range(30)), f"{folder}/z.ckpt")
    write("x", ".venv/pyvenv.cfg")
    before = Before(["true"])
    assert before.checkpoints() == ["data/z.ckpt", "a/deep/z.ckpt"]
    assert before.unseen == ["data", "a/deep"] and before.here(before.checkpoints())
    (tmp_path / "a").rename(tmp_path.parent / f"{tmp_path.name}-a")
    os.symlink(tmp_path.parent / f"{tmp_path.name}-a", "a")  # a copy of here has no copy of it
    assert not before.here(["a/deep/z.ckpt"])


def test_pages_show_its_words() -> None:
    """The kept output has no sentence that it says no more."""
    for file, language in (("speed.en", "en"), ("speed.zh", "zh"), ("speed-programs", "en")):
        words = Report(language).words
        names = [name for name in words if name.startswith("speed_")]
        known = [line.removeprefix("    ") for name in names for line in words[name]]
        patterns = [re.sub(r"\\{\w+\\}", ".+", re.escape(line)) for line in known]
        text = (ROOT / f"docs/assets/results/doctor/{file}.md").read_text()
        for part in re.findall("```text\n(.+?)```", text, re.DOTALL):
            for line in filter(None, part.splitlines()):
                said = line.strip().removeprefix("-> ")
                assert any(re.fullmatch(pattern.strip(), said) for pattern in patterns), line


@pytest.mark.proof
def test_twice_as_fast(crew: Crew, tmp_path: Path) -> None:
    """Of a slow data set two ranks read twice as much."""
    text = changed("a slow data set")
    one, two = (speed_of(crew, text, tmp_path / f"{n}", n) for n in (1, 2))
    said = compared(one, two, Report("en"))
    assert 1.5 < float(re.search(r"are ([\d.]+) times", said)[1]) < 2.5, said


def command(folder: Path, *options: str) -> Result:
    """A real launch of train.py."""
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", 2]
    words = [ROOT / "doctor", "--lang", "en", "--speed", *options, *launch, "train.py"]
    return run([sys.executable, *words], folder)


@pytest.mark.proof
@pytest.mark.parametrize(
    ("options", "length", "said"),
    [
        ((), 16, "begins in nearly each"),
        (("--seconds", "20"), 160, "the run was ended (seconds)"),
        ((), 7, "measured: status 1, ZeroDivisionError('division by zero') (train.py:"),
    ],
)
def test_no_numbers(options: tuple, length: int, said: str, tmp_path: Path) -> None:
    text = changed("a slow step").replace("0.06", "0" if length == 16 else "1")
    text = text.replace("return 2080", f"return {length}").replace("range(1)", "range(9999)")
    text += "1 / 0\n" if length == 7 else ""
    text = text.replace("range(9999)", "range(3)") if length == 7 else text
    (tmp_path / "train.py").write_text(text)
    result = command(tmp_path, *options)
    assert result.returncode == 2 and said in result.output, result.output


@pytest.mark.proof
def test_a_command(tmp_path: Path) -> None:
    """A real launch: a checkpoint is named before and after, the job is ended, the numbers are in
    the file."""
    text = changed("a slow step").replace("0.06", "0.1").replace("return 2080", "return 64")
    text = text.replace("range(1)", "range(200)")
    text = text.replace(
        "assert all", "    torch.save(epoch, 'old.pt')\n    torch.save(1, 'new.pt')\nassert all"
    )
    (tmp_path / "train.py").write_text(text)
    (tmp_path / "old.pt").write_text("a year of training")
    os.utime(tmp_path / "old.pt", (1, 1))
    result = command(tmp_path, "--json", "speed.json")
    assert result.returncode == 0, result.output
    assert "the step itself" in result.output
    before, after = result.output.split("doctor: running")
    assert "may be lost: old.pt\n" in before and f"../{tmp_path.name}-copy" in before
    assert "changed or gone: old.pt\n" in after
    [found] = json.loads((tmp_path / "speed.json").read_text())
    assert found["ranks"] == 2 and len(found["a_second"]["plain"][0]) == 3
