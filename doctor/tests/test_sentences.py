"""What a verdict says is true, and its advice helps: not only the finding's name."""

import random
from pathlib import Path

import faults
import numpy
import pytest
from crew import Crew
from examined import examined_text
from tiers import table

from ddp_doctor import checks
from ddp_doctor.against.comparison import singular
from ddp_doctor.command import last_line
from ddp_doctor.ranks import Rank
from ddp_doctor.recorder import seeds
from ddp_doctor.report import Report

LOOP = "    for images, targets in loader:\n"
COUNTED = (LOOP, "    for number, (images, targets) in enumerate(loader, 5 * epoch):\n")
SAVED = '        torch.save(model.state_dict(), "checkpoint.pt")\n'
FIXED_SEED = ("torch.manual_seed(rank)  # for dropout\n", "", ", nn.Dropout()", "")
OWN_GENERATOR = (
    *faults.NOISE,
    "class Noisy(TensorDataset):\n",
    "class Noisy(TensorDataset):\n    own = torch.Generator()\n",
    "return image + torch.randn(8), target",
    "return image + torch.randn(8, generator=self.__dict__.setdefault('own', self.own)), target",
)
NAMES = "        self.names = sorted(str(n) for n in range(70))\n"
IMPORTS = ("from datetime import timedelta\n", "import random\nfrom datetime import timedelta\n")
# right.py broken: the finding's full name, and parts of what is said in English.
SAID = {
    "averaged in every second step": (
        ("ddp = DDP(model)\n", "ddp = model\n", LOOP,
         COUNTED[1] + "        ddp = DDP(model) if number % 2 else model\n"),
        "no_averaging:some", "in some steps only: at step 1,", "at step 2 they are equal",
    ),
    "one step around DDP": (
        (*COUNTED, "(ddp(images)", "((model if number == 3 else ddp)(images)"),
        "unequal_gradients:later", "at step 4; in 3 steps before", "all_reduce_perf",
    ),
    "a state loaded on one rank": (
        ("torch.manual_seed(rank)", "if rank == 0:\n"
         "    optimizer.param_groups[0]['lr'] *= 0.1\n"
         "    scheduler.last_epoch = 30\ntorch.manual_seed(rank)"),
        "drifting_weights:loaded", "begin at steps 30 and 0", "not on one alone",
    ),
    "buffers that DDP does not send": (
        ("DDP(model)", "DDP(model, broadcast_buffers=False)", "ddp = ",
         "torch.manual_seed(rank)\nmodel.register_buffer('noise', torch.randn(4))\nddp = ",
         "in model.buffers()", "in model[1].buffers()"),
        "drifting_weights:buffers", "Buffers of the model that never change", "broadcast_buffers=T",
    ),
    "shares that nobody adds up, and their last batches": (
        ("share, batch_size=8", "share, batch_size=8, drop_last=True",
         "    dist.all_reduce(totals)\n", ""),
        "wrong_evaluation:share", "8 of 21 on rank 0", "all_reduce the sums",
    ),
    "a barrier in what rank 0 saves": (
        (SAVED, SAVED + "        dist.barrier()\n    dist.barrier()\n"),
        "collective_order:extra", "Rank 0 called barrier (script.py:50), and rank 1 did not",
        "call, script.py:51", "under if rank == 0:",
    ),
    "an evaluation of one batch": (
        ("share, batch_size=8", "share, batch_size=64", "        dist.broadcast(buffer, 0)\n",
         "        pass\n"),
        "unequal_buffers", "BatchNorm's statistics differ",
    ),
    "a generator that the data set keeps": (
        (*OWN_GENERATOR, *FIXED_SEED),
        "equal_randomness:workers", "(self.own)", "A generator that the data set keeps",
        "leave them out",
    ),
    "seeds by rank, and one for all in the loop": (
        ("torch.manual_seed(rank)  # for dropout\n",
         "def setup_seed(seed):\n    torch.manual_seed(seed)\n\n\nsetup_seed(42 + rank)\n",
         "    sampler.set_epoch(epoch)\n", "    sampler.set_epoch(epoch)\n    setup_seed(42)\n"),
        "equal_randomness:seeded",
        "script.py:35 seeds all alike again, after script.py:31 had seeded by rank",
    ),
    "seeds by rank, anew in each epoch": (
        (*faults.NOISE, ", nn.Dropout()", "", "    sampler.set_epoch(epoch)\n",
         "    sampler.set_epoch(epoch)\n    torch.manual_seed(42 + rank)\n"),
        "equal_randomness:again", "script.py:36 gives each the same seed", "or by the epoch",
    ),
    "an order that the loop seeds": (
        ("sampler = DistributedSampler(train_set)\n",
         "train_set = Subset(train_set, range(rank, 70, 2))\n"
         "sampler = torch.utils.data.RandomSampler(train_set)\n",
         "    sampler.set_epoch(epoch)\n", "    torch.manual_seed(42 + rank)\n"),
        "same_order:seeded", "as script.py:31 gives each epoch the same seed", "seed + epoch",
    ),
    "a list shuffled after a seed by rank": (
        (*IMPORTS, *faults.FILES, NAMES,
         f"{NAMES}        random.seed(7)\n        random.seed(rank)\n"
         "        random.shuffle(self.names)\n"),
        "overlapping_samples:files:shuffled",
        "script.py:23 shuffles 70 in another order on each, by the seed of script.py:22",
    ),
    "a list shuffled with one seed, but not sorted": (
        (*IMPORTS, *faults.FILES, NAMES,
         f"{NAMES}        self.names = self.names[:: 1 - 2 * rank]\n"
         "        random.Random(7).shuffle(self.names)\n"),
        "overlapping_samples:files:sorted", "script.py:22 shuffles 70 with one seed", "Sort them",
    ),
    "a short list that each rank shuffles, beside shares that overlap": (
        (*IMPORTS, *faults.FAULTS["overlapping_samples"], "ddp = ",
         "random.Random(rank).shuffle([1, 2, 3])\nddp = "),
        "overlapping_samples", "samples came to more than one rank.\n",
    ),
    "a seed in worker_init_fn": (
        (*faults.NOISE, *FIXED_SEED, "num_workers=2",
         "num_workers=2, worker_init_fn=lambda n: torch.manual_seed(n)"),
        "equal_randomness:epochs", "(torch)", "seed nothing of your own in them",
    ),
}  # fmt: skip


# What pages' verdicts do not say, too.
CORE = {
    "a barrier in what rank 0 saves", "one step around DDP", "a state loaded on one rank",
    "seeds by rank, and one for all in the loop", "seeds by rank, anew in each epoch",
    "a list shuffled with one seed, but not sorted", "an order that the loop seeds",
    "a short list that each rank shuffles, beside shares that overlap",
}  # fmt: skip


@pytest.mark.parametrize("what", table(SAID, CORE), ids=lambda what: what.replace(" ", "-"))
def test_what_is_said(what: str, crew: Crew, tmp_path: Path) -> None:
    words, name, *parts = SAID[what]
    text = faults.changed(faults.RIGHT.read_text(), words)
    report = examined_text(crew, text, tmp_path)["en"]
    [found] = [found for found in report.findings if found.name == name] or [None]
    assert found, report.findings
    said = f"{found.seen}\n{found.advice}".replace(f"{tmp_path}/", "")
    assert all(part in said for part in parts), said


def test_advice_that_helps(crew: Crew, tmp_path: Path) -> None:
    """Followed to the letter, the same finding does not come again."""
    words = (*faults.NOISE, ", nn.Dropout()", "")
    text = faults.changed(faults.RIGHT.read_text(), words)
    assert examined_text(crew, text, tmp_path)["en"].findings == []


FROZEN = ("ddp = DDP(model)\n", "ddp = DDP(model)\nmodel[0].requires_grad_(False)\n")


def test_an_error_comes_first(crew: Crew, tmp_path: Path) -> None:
    """torch names layers that were frozen after DDP was made: the gradients of the step before,
    which it has not averaged, need no second explanation."""
    text = faults.changed(faults.RIGHT.read_text(), FROZEN)
    for language, report in examined_text(crew, text, tmp_path).items():
        assert report.findings == [], report.findings
        why = Report(language).word("error")
        assert report.not_checked["unequal_gradients"] == why
        assert report.not_checked["collective_order"] == why


def test_an_index_that_is_a_tuple(crew: Crew, tmp_path: Path) -> None:
    """A place of rows and columns, without collation: no two samples."""
    words = (
        "train_set = TensorDataset(images[:70], targets[:70])\n",
        "class Grid(TensorDataset):\n"
        "    def __getitem__(self, place):\n"
        "        row, column = place\n"
        "        part = range(10 * row + column, 10 * row + column + 54, 9)\n"
        "        return super().__getitem__(list(part))\n\n\n"
        "train_set = Grid(images[:70], targets[:70])\n",
        "sampler = DistributedSampler(train_set)\n", "",
        "DataLoader(train_set, batch_size=8, sampler=sampler)",
        "DataLoader(train_set, None, sampler=[(rank, n) for n in range(2, 7)])",
        "    sampler.set_epoch(epoch)\n", "",
    )  # fmt: skip
    text = faults.changed(faults.RIGHT.read_text(), words)
    report = examined_text(crew, text, tmp_path)["en"]
    assert report.findings == [], report.findings
    grouped = Report("en").word("grouped")
    assert report.not_checked["overlapping_samples"] == grouped


def test_ranks_that_wait() -> None:
    ranks = [Rank(n, 2, stack=["x.py", 7], still=100) for n in (0, 1)]
    report = Report("en")
    checks.judge(ranks, report)
    [found] = [found for found in report.findings if found.id == "collective_order"]
    assert "stand still" in found.seen and "while True" in found.advice


def test_an_error_is_told_in_whole_words() -> None:
    worker = "Caught ValueError in DataLoader worker process 0.\nOriginal Traceback (most recent "
    worker += "call last):\n  File 'x.py', line 1, in fetch\nValueError: bad 'image' cat.jpg\n"
    told = last_line(repr(ValueError(worker)))
    assert told == "ValueError: bad 'image' cat.jpg in a DataLoader worker"
    told = last_line(repr(KeyError("several " * 60)))
    assert len(told) <= 200 and told.endswith("several …")
    assert last_line("IndexError('x')") == "IndexError('x')"
    assert len(last_line("A" * 300)) > 100


@pytest.mark.parametrize(
    ("said", "better"),
    [
        ("gradients are 0.5 to 0.5 times as large in B", "gradients are 0.5 times as large in B"),
        ("B 的梯度是 1.002 到 1.002 倍", "B 的梯度是 1.002 倍"),
        ("第 1 步梯度不同（2 到 2 倍）：", "第 1 步梯度不同（2 倍）："),
        ("1 to 1.11 times", "1 to 1.11 times"),
        ("10.5 to 0.5 times", "10.5 to 0.5 times"),
        ("in 1 steps\n1 steps", "in 1 step\n1 steps"),
    ],
)
def test_numbers_of_a_sentence(said: str, better: str) -> None:
    assert singular(said) == better


def test_lists_that_are_given_by_keyword(monkeypatch: pytest.MonkeyPatch) -> None:
    """As random.shuffle(x=…) and random_split(dataset=…, lengths=…) are called; and a count may be
    a number of numpy's."""
    told = []
    monkeypatch.setattr(seeds.notes, "event", lambda _, **fields: told.append(fields["count"]))
    own = seeds.Seeds()
    own.shuffles(random.Random(0), x=[1, 2, 3])
    own.splits(dataset=range(4), lengths=[2, 2])
    own.of_numpy(x=numpy.int64(5))
    assert told == [3, 4, 5]
