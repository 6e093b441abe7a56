"""What a verdict says is true, and its advice helps: not only the finding's name."""

from pathlib import Path

import faults
import pytest
from crew import Crew
from examined import examined_text

from ddp_doctor import checks
from ddp_doctor.against.comparison import singular
from ddp_doctor.command import last_line
from ddp_doctor.ranks import Rank
from ddp_doctor.report import Report

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
    unused = "RuntimeError('Expected to have finished reduction in the prior iteration" + " …" * 99
    told = last_line(
        f"{unused}. Parameter indices which did not receive grad for rank 1: 2 3\\n In"
    )
    assert told.endswith(" … Parameter indices which did not receive grad for rank 1: 2 3 …")
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
