"""The doctor finds what is wrong in a script, and nothing in a right one."""

import csv
import json
import os
import re
import runpy
import shlex
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path
from types import SimpleNamespace
from zipfile import ZipFile

import faults
import pytest
import torch
from crew import Crew
from examined import contract, examined_text, record, shown
from harness import (
    CHAPTERS,
    HOROVOD,
    PATIENCE,
    ROOT,
    SLURM,
    TINY,
    command_for,
    finish,
    run,
    run_short,
    start,
)
from probes_lost import EVERY
from slurm import skip_without_slurm
from tiers import table
from torch.utils.data import BatchSampler, DataLoader
from warm import torchrun_environments

from ddp_doctor import checks
from ddp_doctor.checks.evaluation import counted
from ddp_doctor.checks.randomness import equal_stream
from ddp_doctor.command import NAMES, check_line, parse_args
from ddp_doctor.findings import CHECKS, KINDS, SEVERITIES, SILENT
from ddp_doctor.ranks import Pass, Rank, ranks_of
from ddp_doctor.recorder.contents import contents, fingerprint
from ddp_doctor.recorder.loaders import is_of_accelerate
from ddp_doctor.report import LANGUAGES, Report, explain, read_words

WRAPPER = """class Wrapper(torch.optim.Optimizer):
    def __init__(self, optimizer):
        self.optimizer = optimizer

    param_groups = property(lambda self: self.optimizer.param_groups)

    def step(self):
        self.optimizer.step()


optimizer = """


def test_a_scheduler_of_a_wrapper(crew: Crew, tmp_path: Path) -> None:
    """As accelerate and Lightning Fabric wrap optimizers: the script steps another object."""
    words = (
        "optimizer = ",
        WRAPPER,
        "CosineAnnealingLR(optimizer",
        "CosineAnnealingLR(Wrapper(optimizer)",
    )
    report = examined_text(crew, faults.changed(faults.broken("schedule"), words), tmp_path)["en"]
    assert [found.name for found in report.findings] == ["schedule"]


@pytest.fixture(scope="module")
def show(request: pytest.FixtureRequest) -> Iterator[Callable]:
    yield from shown(request)


@pytest.mark.parametrize("fault", faults.FAULTS)
def test_fault_is_found(fault: str, crew: Crew, tmp_path: Path, show: Callable) -> None:
    """This finding, in these words, and no other that is wrong."""
    reports = examined_text(crew, faults.broken(fault), tmp_path)
    which = fault.split(":")[0]
    for language, report in reports.items():
        serious = {found.id for found in report.findings if found.severity in SEVERITIES[:2]}
        assert serious <= {which}, report.findings
        [found] = [found for found in report.findings if found.id == which]
        if language == "en":
            show(fault, [found])


ONE_SCHEDULER = (*faults.COSINE, "        scheduler.step()\n", "        rank or scheduler.step()\n")
BESIDE = (
    "ddp = DDP(model)\n", "ddp = DDP(model)\nhead = nn.Linear(3, 3)\n",
    "SGD(ddp.parameters(),", "SGD([*ddp.parameters(), *head.parameters()],",
    "(ddp(images), targets)", "(head(ddp(images)), targets)",
)  # fmt: skip
END = "    dist.destroy_process_group()\n"
ONE_FILE = (END, "    torch.save(head.state_dict(), 'head.pt')\n" + END)
FOLDER = Path(__file__).parent / "right"
DIVIDED, TENSOR = FOLDER / "divided_classes.py", FOLDER / "tensor_parallel.py"
# By hand, and without the sum of the gradients of what all ranks were given: each has a part.
PARTS = (
    "        return x + self.down(torch.relu(self.up(self.norm(x))))\n",
    "        up, down = [one.to_local() for one in (self.up.weight, self.down.weight)]\n"
    "        hidden = torch.relu(nn.functional.linear(self.norm(x), up))\n"
    "        part = nn.functional.linear(hidden, down)\n"
    "        place = [torch.distributed.tensor.Partial()]\n"
    "        mesh = self.up.weight.device_mesh\n"
    "        part = torch.distributed.tensor.DTensor.from_local(part, mesh, place)\n"
    "        return x + part.full_tensor()\n",
    "nn.Linear(width, hidden)", "nn.Linear(width, hidden, bias=False)",
    "nn.Linear(hidden, width)", "nn.Linear(hidden, width, bias=False)",
)  # fmt: skip


@pytest.mark.parametrize(
    ("script", "words", "name"),
    [
        (faults.RIGHT, ONE_SCHEDULER, "drifting_weights:schedulers"),
        (faults.RIGHT, BESIDE, "unequal_gradients:beside"),
        (DIVIDED, ONE_FILE, "shared_file:parts"),
        (TENSOR, PARTS, "drifting_weights:added"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_advice_fits(script: Path, words: tuple, name: str, crew: Crew, tmp_path: Path) -> None:
    """A scheduler that one rank steps, weights that DDP does not have, a part of each rank, of a
    model or of a gradient: the usual advice of the finding would not help."""
    report = examined_text(crew, faults.changed(script.read_text(), words), tmp_path)["en"]
    assert name in [found.name for found in report.findings], report.findings


ON_THREE = ["same_samples", "overlapping_samples", "unequal_steps:epochs", "no_averaging"]
ON_THREE += ["drifting_weights", "wrong_evaluation:share", "collective_order"]


@pytest.mark.proof
def test_three_ranks(tmp_path: Path) -> None:
    """One rank that differs from two equal ones is found as well, and a right script is right."""
    with Crew(3) as crew:
        for fault in ("", *ON_THREE):
            folder = tmp_path / fault.replace(":", "-") / "run"
            folder.mkdir(parents=True)
            text = faults.broken(fault) if fault else faults.RIGHT.read_text()
            report = examined_text(crew, text, folder, 3)["en"]
            serious = {f.id for f in report.findings if f.severity in SEVERITIES[:2]}
            wanted = {fault.split(":")[0]} if fault else set()
            assert serious == wanted, (fault, report.findings)


def test_same_bits(crew: Crew, tmp_path: Path) -> None:
    """The doctor changes nothing of the training."""
    examined_text(crew, faults.RIGHT.read_text(), tmp_path)
    watched = torch.load(tmp_path / "checkpoint.pt")
    (tmp_path / "checkpoint.pt").unlink()
    crew.run(alone, str(tmp_path / "script.py"), str(tmp_path), world_size=2)
    unwatched = torch.load(tmp_path / "checkpoint.pt")
    assert all(torch.equal(watched[name], unwatched[name]) for name in unwatched)


def alone(script: str, folder: str) -> None:
    """In a crew member: run a script without the recorder."""
    os.chdir(folder)
    runpy.run_path(script, run_name="__main__")


def test_line_of_a_class_of_its_own(crew: Crew, tmp_path: Path) -> None:
    """A finding names the line where an object is made, not one in the __init__ of its class."""
    own = "class Own(DataLoader):\n    def __init__(self, *args, **options):\n"
    own += "        super().__init__(*args, **options)\n\n\nloader = Own("
    text = faults.changed(faults.broken("same_order"), ("\nloader = DataLoader(", "\n" + own))
    report = examined_text(crew, text, tmp_path)["en"]
    [found] = report.findings
    assert "loader = Own(" in text.splitlines()[found.line - 1], found


def test_equal_stream() -> None:
    """Two ranks of several are enough, and these two must draw."""

    def found(*states: tuple[int, int]) -> str:
        step = {"optimizer": 1, "begun": {}}
        return equal_stream([[step | {"random": {"torch": s}} for s in two] for two in states])

    assert found((1, 2), (1, 3)) == found((1, 1), (5, 6), (5, 6)) == "torch"
    assert found((1, 2), (5, 5), (5, 5)) == found((1, 2), (2, 3)) == ""


IMAGES, LABELS = torch.rand(4, 3, 2, 2), torch.arange(4)
OBJECTS = [{"boxes": torch.rand(n, 4), "labels": torch.arange(n)} for n in (4, 0, 2, 1)]


@pytest.mark.parametrize("count", [4, None], ids=["indices", "stream"])
@pytest.mark.parametrize(
    ("batch", "targets", "items"),
    [
        ((IMAGES, LABELS), 4, 4),
        ({"pixels": IMAGES, "labels": LABELS}, 4, 4),
        ((IMAGES, OBJECTS), 0, 4),
        ({"pixels": IMAGES, "objects": OBJECTS}, 0, 4),
        (OBJECTS, 0, 0),
        ((IMAGES, torch.zeros(0, 6)), 0, 4),  # objects of all images: there is none
        ((torch.zeros(0, 6), torch.zeros(0, 2)), 0, 0),
    ],
)
def test_what_a_batch_tells(batch: object, targets: int, items: int, count: int | None) -> None:
    """A number for each item, and none of what has no row for each."""
    assert [len(column) for column in contents(batch, count)[:2]] == [targets, items]


class Table:
    """Its rows are found as those of pandas are."""

    iloc = property(lambda table: table.rows)

    def __init__(self, *rows: str) -> None:
        self.rows = rows

    def __len__(self) -> int:
        return len(self.rows)


def test_fingerprint_of_a_table() -> None:
    def of(table: Table) -> str:
        return fingerprint(SimpleNamespace(folder="images", table=table))

    assert of(Table("a.png", "b.png")) == of(Table("a.png", "b.png"))
    assert of(Table("a.png", "b.png")) != of(Table("a.png", "c.png"))


def test_rows_that_are_no_items() -> None:
    """As in YOLO's batches: seven objects in four images, all in one tensor."""
    assert contents((IMAGES, torch.rand(7, 6)), 4) == contents((IMAGES,), 4)


def test_counts_of_an_evaluation() -> None:
    """Five samples, of which a padded sampler gives rank 1 one again: what tells that it was left
    out is the count of all batches, not a number of one batch that happens to be as large."""

    def phase(*numbers: tuple[float, list[float]]) -> list[list[Pass]]:
        loader, found = {"iterable": False, "batch_size": 2}, []
        for indices in ([0, 2, 4], [1, 3, 0]):
            one = Pass(loader, place=0, first=1)
            one.batches = [{"t": 1, "indices": indices[:2]}, {"t": 3, "indices": indices[2:]}]
            one.reduced = [{"t": t, "at": ["x.py", 1], "values": [values[len(found)]]}
                           for t, values in numbers]  # fmt: skip
            found.append([one])
        return found

    assert 5 in counted(phase((4, [3.0, 2.0])), 1)  # once, at the end
    assert 5 in counted(phase((2, [2.0, 2.0]), (4, [1.0, 0.0])), 1)  # batch by batch
    assert 5 in counted(phase((4, [0.7, 0.9]), (4, [3.0, 2.0])), 1)  # by a function for all
    assert 5 not in counted(phase((2, [3.0, 2.0]), (4, [4.0, 1.0])), 1)  # objects in images


def test_two_findings_about_files(crew: Crew, tmp_path: Path) -> None:
    text = faults.broken("shared_file").replace("model.state_dict()", "ddp.state_dict()")
    report = examined_text(crew, text, tmp_path)["en"]
    assert {found.id for found in report.findings} == {"shared_file", "wrapped_keys"}


def test_loaders_of_accelerate(monkeypatch: pytest.MonkeyPatch) -> None:
    """transformers imports it for scripts that never use it."""
    monkeypatch.setitem(sys.modules, "accelerate", sys)
    kind = type("BatchSamplerShard", (BatchSampler,), {"__module__": "accelerate.data_loader"})
    loader = DataLoader(range(8), batch_size=2)
    prepared = DataLoader(range(8), batch_sampler=kind(loader.sampler, 2, False))
    assert not is_of_accelerate(loader) and is_of_accelerate(prepared)


def test_a_mistake_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """A check that breaks is told, and the others go on."""
    [check] = [check for check in checks.CHECKS if "same_samples" in check.names]
    monkeypatch.setattr(check, "function", lambda ranks, report: ranks[7])
    report = Report("en")
    checks.judge([Rank(rank=0, world=2), Rank(rank=1, world=2)], report)
    assert "IndexError" in report.not_checked["same_samples"]
    assert "shared_file" in report.checked


def test_words_and_pages() -> None:
    """Both languages tell the same figures; the page has a heading for each finding."""
    words = {language: read_words(language) for language in LANGUAGES}
    assert words["en"].keys() == words["zh"].keys() and set(KINDS) <= set(words["en"])
    for name, lines in words["en"].items():
        places = [sorted(re.findall(r"{(\w+)", text[name][0])) for text in words.values()]
        assert places[0] == places[1] and len(lines) == len(words["zh"][name]), name
        filled = name.split(":")[0] not in NAMES  # the advice of a finding is shown as it stands
        assert filled or not any("{" in text[name][-1] for text in words.values() if text[name][1:])
    for name, kind in KINDS.items():
        assert kind.severity in SEVERITIES
        for language in LANGUAGES:
            page = (ROOT / "docs" / language / "doctor.md").read_text()
            assert f'<a id="{name.split(":")[0]}">' in page, name


@pytest.mark.parametrize("language", LANGUAGES)
def test_explanations(language: str) -> None:
    """Each finding has one, the page's own text, with the advice of each of its kinds."""
    page = (ROOT / "docs" / language / "doctor.md").read_text()
    text = (ROOT / f"doctor/ddp_doctor/words/explained.{language}.md").read_text()
    assert sorted(re.findall(r"<!-- (.*) -->", text)) == sorted(NAMES)
    for name in NAMES:
        title, _, paragraph, _, *advices = explain(language, name).split("\n")
        assert name in title and len(paragraph) > 80, name
        assert all(advice.startswith("-> ") for advice in advices) and advices, name
        assert f'/doctor/ddp_doctor/words/explained.{language}.md "table {name}")\n' in page, name
        assert f"\n| [`{name}`](#{name}) | " in page, name


TOOL = [sys.executable, ROOT / "doctor"]
TORCHRUN = [
    sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2",
]  # fmt: skip
ONE_RANK = [*TORCHRUN[:-1], "1"]  # where the job's other ranks would show no more


def test_bad_use(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    """What no command is started for."""
    monkeypatch.chdir(tmp_path)
    Path("plain.py").write_text("print(1)\n")
    said = {
        ("--json", "no/folder/v.json", "true"): "--json no/folder/v.json: no file can",
        ("--json", "plain.py", "true"): "--json plain.py: this file would be overwritten; type",
        ("--json", "/proc/v.json", "true"): "--json /proc/v.json: no file can be written there",
        ("--json", ".", "true"): "--json .: no file can be written there",
        ("",): "no command: type your launch line after it",
        ("--steps", "-1", "true"): "--steps and --seconds are numbers above 0",
        ("--seconds", "nan", "true"): "--steps and --seconds are numbers above 0",
        (): "no command: type your launch line after it",
        ("--still", "5", "true"): "--still 5: at least 60",
        ("--without", "all", "true"): "--without changes both runs of --against COMMAND",
        ("--against", "it's", "true"): '--against: "it\'s" is no command: No closing quotation',
        ("--against", "", "true"): "--against: no command: type a launch line in quotes",
        ("--against", "x", "--without", "noise", "true"): "--without: noise: no such part; there",
        ("--explain", "same_ordr"): "argument --explain: same_ordr: no such finding",
    }
    for words, line in said.items():
        monkeypatch.setattr(sys, "argv", [str(TOOL[1]), "--lang", "en", *words])
        with pytest.raises(SystemExit) as ended:
            parse_args()
        error = capsys.readouterr().err
        assert ended.value.code == 2 and "Traceback" not in error, (words, error)
        assert line in error.splitlines()[-1], (words, error)


def test_a_command_without_torch(tmp_path: Path) -> None:
    (tmp_path / "plain.py").write_text("print(1)\n")
    (tmp_path / "broken.py").write_text("import torch\nimport no_such_module\n")
    for words, line in {
        (
            "--lang",
            "en",
            "no-such-program",
            "x",
        ): "cannot be started: no-such-program: No such",
        ("--lang", "en", "false"): "it ended with status 1, and had not used torch by then",
        ("--lang", "zh", sys.executable, "plain.py"): "没有一个 Python 进程用过 torch",
        (sys.executable, "broken.py"): "optimizer was used: status 1, ModuleNotFoundError(",
    }.items():
        result = run([*TOOL, *words], tmp_path)
        assert result.returncode == 2, result.output
        assert line in result.stderr.splitlines()[-1], result.output
        assert "doctor/ddp_doctor" not in result.stderr, result.output


def test_the_second_line_is_looked_at_first(tmp_path: Path) -> None:
    """No command runs for minutes before another one is found to be mistyped."""
    for name, words in {
        "gone.py": (sys.executable, "gone.py", "train.py"),
        "away.py": (sys.executable, "-m", "torch.distributed.run", "--nnodes", "1", "away.py"),
        "no-torchrun": ("no-torchrun", "train.py"),
    }.items():
        result = run([*TOOL, "--lang", "en", "--against", "true", *words], tmp_path)
        assert result.returncode == 2, result.output
        assert f"cannot be started: {name}: No such file" in result.stderr, result.output
        assert "running" not in result.stdout
    for words in ([__file__], ["-m", "train", "gone.py"], ["-c", "1", "gone.py"], ["-u", "bin"]):
        check_line([sys.executable, *words], Report("en").say)


def endless(folder: Path) -> Path:
    script = folder / "script.py"
    script.write_text(faults.RIGHT.read_text().replace("range(3)", "range(10**6)"))
    return script


def test_ctrl_c(tmp_path: Path) -> None:
    """No process is left behind (run and finish look for them), there is a verdict, and nothing
    looks like an error of the program."""
    process = start([*TOOL, *ONE_RANK, endless(tmp_path)], tmp_path)
    deadline = time.monotonic() + PATIENCE
    while not (tmp_path / "checkpoint.pt").exists():
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.2)
    process.send_signal(signal.SIGINT)
    result = finish(process)
    assert result.returncode == 0, result.output
    for said in ("ends the job (ctrl-c)", "ended: ctrl-c", "Nothing found.", "same_order"):
        assert said in result.stdout, result.output
    assert "Traceback" not in result.output and "ended by" not in result.output, result.output


SPAWNED = """
import torch


def train(rank):
    for images in torch.utils.data.DataLoader(torch.ones(5, 2)):
        pass
    images[rank + 1]


if __name__ == "__main__":
    torch.multiprocessing.spawn(train, nprocs=1)
"""
ABORTS = {
    "images[rank + 1]": "__import__('os').abort()",
    "torch.multiprocessing.spawn(train, nprocs=1)": "train(0)",
}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ({}, "rank 0 ended by IndexError('index 1 is out of bounds"),
        pytest.param(
            ABORTS,
            "collective_order (a process ended without an error",
            marks=pytest.mark.proof,
        ),
    ],
    ids=["error", "abort"],
)
def test_an_error_of_the_script(words: dict, said: str, tmp_path: Path) -> None:
    """It is told with its own words also by mp.spawn, whose children exit with 1. Where there are
    none, as when gloo aborts a process over unequal collectives, these are not "checked"."""
    text = SPAWNED
    for old, new in words.items():
        text = text.replace(old, new)
    (tmp_path / "script.py").write_text(text)
    result = run([*TOOL, "--lang", "en", sys.executable, "script.py"], tmp_path)
    assert said in result.stdout, result.output
    assert "Nothing found until the script failed." in result.stdout, result.output
    assert result.returncode == 2, result.output


def test_ended_by_a_signal_to_all(tmp_path: Path) -> None:
    """An error of a rank just before the doctor is told to end is none of its own."""

    def ended(error: str, before: float) -> dict:
        start = {"e": "process", "t": 0, "pid": 1, "host": "a", "torch": "2"}
        rank = {"e": "rank", "t": 1, "rank": 0, "world": 1, "group": "0"}
        step = {"e": "step", "t": 2, "passes": [], "learned": []}
        leaves = {"e": "exit", "t": 100 - before, "error": error, "at": None}
        [found] = ranks_of({tmp_path / "a.jsonl": [start, rank, step, leaves]}, stopped=100)
        return found.ended

    assert ended("KeyboardInterrupt()", 0.5) == ended("None", -0.5) == {}
    assert ended("ValueError()", 2)["error"] == "ValueError()"
    assert ended("None", 0.5)["error"] == "None"


@pytest.mark.parametrize("by", table(["--still", "--seconds"], ["--still"]))
def test_hang(by: str, tmp_path: Path) -> None:
    """A run that stands still is ended, and judged by where the ranks were. By --still it is not
    waited for as long as users must."""
    copy = shutil.copytree(ROOT / "doctor/ddp_doctor", tmp_path / "doctor")
    sooner = {
        "recorder/notes.py": ("IDLE = 20 ", "IDLE = 5 "),
        "ranks.py": ("STILL = 60 ", "STILL = 20 "),
    }
    for name, (users, ours) in sooner.items() if by == "--still" else ():
        source = (copy / name).read_text()
        assert users in source
        (copy / name).write_text(source.replace(users, ours))
    text = faults.broken("collective_order").replace("seconds=10", "seconds=600")
    (tmp_path / "script.py").write_text(text)
    words = [by, "20" if by == "--still" else "60", "--lang", "en", *TORCHRUN, "script.py"]
    result = run([sys.executable, copy, *words], tmp_path)
    assert result.returncode == 1 and "HANG AHEAD  collective_order" in result.stdout, result.output
    lines = text.splitlines()
    for rank, call in enumerate(("barrier", "all_reduce")):
        [line] = {n for n, one in enumerate(lines, 1) if f"dist.{call}(" in one}
        assert f"rank {rank} stood still at script.py:{line}, in {call}\n" in result.stdout
    assert f"ended: {by[2:]}\n" in result.stdout and "Traceback" not in result.output


@pytest.mark.proof
def test_a_rank_that_never_comes(tmp_path: Path) -> None:
    """Nothing can be judged then; where the processes stood still is told."""
    (tmp_path / "script.py").write_text(
        "import os, time\nimport torch.distributed as dist\n"
        "if os.environ['RANK'] == '1':\n    time.sleep(600)\n"
        "dist.init_process_group('gloo')\n"
    )
    result = run([*TOOL, "--still", "60", *TORCHRUN, "script.py"], tmp_path)
    for line in ("4", "5, in init_process_group"):
        assert f"a process stood still at script.py:{line}\n" in result.stdout, result.output
    assert "it was ended (still) before a loader" in result.stderr and result.returncode == 2


FLAGS = ["--synthetic", "80", "--epochs", "2", *TINY, "--workers", "1", "--output-dir", "out"]


def launched(chapter: str, argv: list, folder: Path) -> None:
    """A chapter under the doctor, by its own launcher: nothing is found."""
    command = command_for(chapter, argv, 1 if chapter.startswith("01") else 2)
    result = run([*TOOL, "--json", folder / "verdict.json", *command], folder)
    assert result.returncode == 0, result.output
    written = json.loads((folder / "verdict.json").read_text())
    assert written["findings"] == [], result.output
    assert "all" not in [row["id"] for row in written["not_checked"]], written


@pytest.mark.parametrize("chapter", [HOROVOD])
def test_horovodrun(chapter: str, tmp_path: Path) -> None:
    """Its only launch in `make test`. With loader workers."""
    launched(chapter, [*FLAGS, "--synthetic", "24", "--epochs", "1"], tmp_path)


@pytest.mark.proof
@pytest.mark.right
@pytest.mark.parametrize("chapter", CHAPTERS)
def test_chapters(chapter: str, tmp_path: Path) -> None:
    """Two epochs, an evaluation and a resume of each chapter."""
    if chapter == SLURM:
        skip_without_slurm()
    launched(chapter, FLAGS, tmp_path)
    launched(chapter, [*FLAGS, "--evaluate", "--resume", "out/checkpoint.pt"], tmp_path)
    launched(chapter, [*FLAGS, "--epochs", "3", "--resume"], tmp_path)


def test_compiled_collectives(crew: Crew, tmp_path: Path) -> None:
    """torch.compile traces functional collectives as a whole, although they are replaced."""
    (tmp_path / "traces").mkdir()
    (tmp_path / "script.py").write_text(
        "import torch\n"
        "import torch.distributed as dist\n"
        "from torch.distributed._functional_collectives import all_reduce\n\n"
        'dist.init_process_group("gloo")\n'
        "@torch.compile(fullgraph=True, backend='eager')\n"
        "def add(x):\n"
        "    return all_reduce(x, 'sum', dist.group.WORLD)\n"
        "torch.save(add(torch.ones(2)), f'sum{dist.get_rank()}.pt')\n"
        "dist.barrier()\n"
        "dist.destroy_process_group()\n"
    )
    crew.run(record, str(tmp_path / "script.py"), str(tmp_path), "", world_size=2)
    assert [torch.load(tmp_path / f"sum{rank}.pt").tolist() for rank in (0, 1)] == [[2.0, 2.0]] * 2


@pytest.mark.proof
def test_same_bits_compiled(tmp_path: Path) -> None:
    """Nothing that torch.compile traces has been replaced."""
    command = command_for("02_distributed", [*FLAGS, "--compile"], 2)
    (tmp_path / "watched").mkdir()
    for words, folder in (([*TOOL, *command], tmp_path / "watched"), (command, tmp_path)):
        result = run(words, folder)
        assert result.returncode == 0 and "recorder had" not in result.output, result.output
        assert "Nothing found." in result.output or words is command, result.output
    watched, unwatched = (
        torch.load(folder / "out/checkpoint.pt")["model"]
        for folder in (tmp_path / "watched", tmp_path)
    )
    assert all(torch.equal(watched[name], unwatched[name]) for name in unwatched)


def test_one_file(tmp_path: Path) -> None:
    """make doctor.pyz packs all that a run needs, words and recorder too. A finding that is allowed
    is a note, which is no failure; the job, which a shell script starts, is ended."""
    packed = tmp_path / "doctor.pyz"
    make = ["make", "-C", ROOT, "doctor.pyz", f"PYZ={packed}"]
    packed.write_text("the one before")
    made = run(["bash", "-c", f"ulimit -f 300; exec {shlex.join(map(str, make))}"], tmp_path)
    assert made.returncode != 0 and "File too large" in made.output
    assert packed.read_text() == "the one before" and [*tmp_path.iterdir()] == [packed]
    made = run(make, tmp_path)
    assert made.returncode == 0, made.output
    own = {*ROOT.glob("doctor/ddp_doctor/**/*.py"), *ROOT.glob("doctor/ddp_doctor/words/*")}
    files = {str(file.relative_to(ROOT / "doctor")) for file in own} | {"__main__.py"}
    names = {name for name in ZipFile(packed).namelist() if not name.endswith("/")}
    assert names == files - {"ddp_doctor/__main__.py"}
    text = faults.broken("same_order").replace("range(3)", "range(10**6)")
    (tmp_path / "script.py").write_text(text)
    (tmp_path / "train.sh").write_text(shlex.join(map(str, [*TORCHRUN, "script.py"])) + "\n")
    words = [sys.executable, packed, "--lang", "zh", "--steps", "12", "--json", "verdict.json"]
    words += ["--allow", "same_order,shared_file", "bash", "train.sh"]
    result = run_short(words, tmp_path)
    assert result.returncode == 0 and "提示  same_order" in result.stdout, result.output
    assert "结束：steps\n" in result.stdout, result.output
    written = json.loads((tmp_path / "verdict.json").read_text())
    assert [found["name"] for found in written["findings"]] == ["same_order"]
    assert [row["id"] for row in written["not_checked"]] == ["clipped"]
    assert "shared_file" in written["checked"]
    more = shlex.join([sys.executable, str(packed), "--lang", "zh", "--explain", "same_order"])
    assert f"     {more}\n" in result.stdout, result.output
    result = run(shlex.split(more), tmp_path)
    assert result.stdout == explain("zh", "same_order") + "\n", result.output


def test_installed(tmp_path: Path) -> None:
    """pip install ./doctor, or the address of a repository with #subdirectory=doctor, installs the
    doctor and nothing else, as a command that calls itself by its name; also into an environment
    without torch, which is the script's. Of the root pip says in a line what to type instead."""
    tree = tmp_path / "tree"  # a build leaves files beside what it builds
    ignore = shutil.ignore_patterns("__pycache__", "build", "*.egg-info", "tests")
    shutil.copytree(ROOT / "doctor", tree / "doctor", symlinks=True, ignore=ignore)
    for name in ("LICENSE", "pyproject.toml", "tools/not_installed.py"):
        (tree / name).parent.mkdir(exist_ok=True)
        shutil.copyfile(ROOT / name, tree / name)
    git = ["git", "-C", tree, "-c", "user.name=a", "-c", "user.email=a"]
    for words in (["init", "-q"], ["add", "."], ["commit", "-qm", "all"]):
        assert run([*git, *words], tmp_path).returncode == 0
    pip = [sys.executable, "-m", "pip"]
    build = [*pip, "wheel", "--no-index", "--no-deps", "--no-build-isolation"]
    for root in (tree, f"git+file://{tree}"):
        made = run([*build, root], tmp_path)
        assert made.returncode == 1 and "pip install ./doctor, or" in made.output, made.output
        assert "Traceback" not in made.output, made.output
    for place in (f"git+file://{tree}#subdirectory=doctor", tree / "doctor"):
        made = run([*build, place], tmp_path)
        assert made.returncode == 0, made.output
        [wheel] = tmp_path.glob("*.whl")
        doctor = ROOT / "doctor"
        files = [*doctor.glob("ddp_doctor/**/*.py"), *doctor.glob("ddp_doctor/words/*")]
        names = ZipFile(wheel).namelist()
        packed = {name for name in names if ".dist-info/" not in name}
        assert packed == {str(file.relative_to(doctor)) for file in files}
        [license] = [name for name in names if name.endswith("/LICENSE")]
        assert ZipFile(wheel).read(license) == (ROOT / "LICENSE").read_bytes()

    assert run([sys.executable, "-m", "venv", "--without-pip", "room"], tmp_path).returncode == 0
    into = ["--python", tmp_path / "room/bin/python"]
    done = run([*pip, *into, "install", "--no-index", wheel], tmp_path)
    assert done.returncode == 0, done.output
    installed = list(tmp_path.glob("room/lib/*/site-packages/*.dist-info"))
    assert len(installed) == 1, "it needs no package"
    env = {"PATH": f"{tmp_path / 'room/bin'}:{os.environ['PATH']}"}
    words = ["ddp-doctor", "--lang", "en", sys.executable, faults.RIGHT]
    result = run_short(words, tmp_path, env=env | torchrun_environments(1)[0])
    assert result.returncode == 0 and "\nNothing found.\n" in result.stdout, result.output
    result = run(["ddp-doctor", "--help"], tmp_path, env=env)
    assert result.stdout.startswith("usage: ddp-doctor [options]"), result.output


def test_processes_that_never_met(crew: Crew, tmp_path: Path) -> None:
    """A script for one GPU, put under torchrun: nothing crashes, and nothing is divided."""
    words = ("args = parser.parse_args()", 'args = parser.parse_args(["--epochs", "1"])')
    text = (ROOT / "docs/examples/convert/single.py").read_text()
    report = examined_text(crew, faults.changed(text, words), tmp_path)["en"]
    [found] = [found for found in report.findings if found.id == "no_averaging"]
    assert "2 processes were launched together, and never met" in found.seen


def test_contract_of_the_two_halves() -> None:
    """What EVENTS.md says of writers and readers; examined.py compares it with every run."""
    doctor = ROOT / "doctor/ddp_doctor"
    readers = ["ranks", "without/draws"]
    readers += [
        f"against/{name}" for name in ("first", "runs", "inputs", "comparison", "drawn", "where")
    ]
    both = {name: doctor / f"{name}.py" for name in readers}
    both = {file.stem: file for file in both.values()}
    both |= {file.stem: file for file in (doctor / "checks").glob("*.py")}
    files = [file for file in doctor.rglob("*.py") if file.parent.name != "speed"]
    written = {file.stem: file.read_text() for file in files}
    for event, row in contract().items():
        assert re.search(rf'event\(\s*"{event}"', written[row.writer]) or event == "figures", event
        read = "".join(both[reader].read_text() for reader in row.readers)
        lost = [name for name in row.fields if f'"{name}"' not in read and f".{name}" not in read]
        assert not lost, f"{event}: nobody reads {lost}"
        probes = {*row.probes} - {""}
        assert probes <= EVERY, event
        assert event in probes or event not in EVERY, f"{event}: a probe with that name"
    names = re.findall(r'event\(\s*"(\w+)"', "".join(written.values()))
    assert set(names) == set(contract())


def with_reasons(text: str) -> str:
    """EVENTS.md, with the reasons of each finding as its checks have them, and what these say."""
    head, mark, part = text.partition('<a id="nothing">')
    words = read_words("en")
    order = [name for name in words if name in set().union(*SILENT.values())]

    def filled(row: re.Match) -> str:
        found = set().union(*(SILENT[name] for name in row[1].split("`, `")))
        reasons = ", ".join(name for name in order if name in found)
        return f"| `{row[1]}` | {row[2]} | {reasons or '(nothing: it is Checked)'} |"

    part = re.sub(r"^\| `(.*)` \| (.*?) \| (.*?) \|", filled, part, flags=re.M)
    begin, end = (part.index(line) for line in ("| reason |", "\n## Which printed"))
    says = {name: re.sub(r"\{\w+\}", "…", words[name][0]) for name in order}
    rows = "".join(f"| {name} | {text} |\n" for name, text in says.items())
    table = f"| reason | the verdict says |\n| --- | --- |\n{rows}"
    return head + mark + part[:begin] + table + part[end:]


def test_where_a_check_looks_at_nothing(request: pytest.FixtureRequest) -> None:
    """EVENTS.md has each check once, the reasons that its verdict can give (--write-verdicts prints
    them anew), programs that are there."""
    file = ROOT / "doctor/EVENTS.md"
    if request.config.getoption("--write-verdicts"):
        file.write_text(with_reasons(file.read_text()))
    assert file.read_text() == with_reasons(file.read_text()), "pytest --write-verdicts"
    part = file.read_text().partition('<a id="nothing">')[2]
    rows = re.findall(r"^\| `(.*)` \| .* \| (.*) \| (.*) \| (.*) \|$", part, re.M)
    here, listed = Path(__file__).parent, []
    tests = "".join(path.read_text() for path in here.glob("*.py"))
    files = {path.stem for path in here.glob("right/*.py")}
    for names, reasons, *shown_by in rows:
        listed += names.split("`, `")
        assert reasons
        for name in chain(*csv.reader(shown_by, skipinitialspace=True)):
            known = name in ("fault", *files) or f'"{name}"' in tests or f"def {name}(" in tests
            assert known, name
    assert sorted(listed) == sorted(name for check in CHECKS for name in check.names)
