"""A printed line may be anything, and is read in steps that grow as it does."""

import math
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import counted
import pytest
from tiers import table

from ddp_doctor import printed
from ddp_doctor.against import runs
from ddp_doctor.printed import BEFORE
from ddp_doctor.recorder import results
from ddp_doctor.recorder.results import LONGEST, Output

MOST = 400  # steps for a character: what grows as a square takes 500 where there are 1,000
# Characters of each class, and what patterns look for, cut off where they hope for more.
CLASSES = list("1a_ .-(é图")
PIECES = (
    "e|1e|1.|1a|1.1|+1|1e9|12:|1 s|1 s:|1 (|20240101_11|"
    "time|time |time(|time 1 (|elapsed_1|eta |mem |"
    "a/s|s/s/|1/s/|a(t|a (t)|memory used |val |val loss |test_acc|train |train loss |acc1.5|%|/|a/"
).split("|") + ["|", "1%|", "1%|a|", "1%|a/b|", "1%|  1/"]


def printed_lines(line: str) -> None:
    """Of a run whose first rank has printed this line."""
    events = [{"text": line, "place": 2}]
    run = SimpleNamespace(first=SimpleNamespace(events={"printed": events}), begun=0)
    runs.printed(run, False)


READERS: dict[str, Callable] = {  # results is called by printed
    "evaluation": printed.of_evaluation,
    "numbers": lambda line: list(printed.numbers_in(line)),
    "others": lambda line: printed.others(line, line.replace("1", "2"), 0.0),
    "share": lambda line: runs.re.search(runs.OF_TRAINING, line[:BEFORE]),
    "printed": printed_lines,
}


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> counted.Steps:
    for module in (printed, runs, results):
        monkeypatch.setattr(module, "re", counted)
    counted.steps.__init__()
    return counted.steps


@pytest.mark.parametrize("reader", READERS)
def test_steps(reader: str, steps: counted.Steps) -> None:
    """Lines of one piece again and again, with an end that no pattern hopes for."""
    for piece in CLASSES + PIECES:
        line = (piece * 1000)[:1000] + "!"
        steps.count, steps.most = 0, MOST * len(line)
        READERS[reader](line)
        assert steps.count > BEFORE


@pytest.mark.parametrize("classes", table([*CLASSES, "".join(CLASSES)], ["".join(CLASSES)]))
def test_a_long_line(classes: str, steps: counted.Steps) -> None:
    """100 KB. In `make test` all classes in one; in the proof each of them has all of it."""
    line = "".join(one * (100_000 // len(classes)) for one in classes)
    steps.most = MOST * len(line)
    printed.results(line)
    assert steps.count >= len(line)


def test_what_is_found_is_what_re_finds(steps: counted.Steps) -> None:
    """counted compares each match with re's; here are lines in which there are some."""
    for line in [*LINES, *Path(__file__).read_text().splitlines()[-90:]]:
        for read in READERS.values():
            read(line)
    assert steps.count > 10_000


LINES = {
    "Epoch 1: loss 0.5 time 0.21 (0.25)": "Epoch 1: loss 0.5 ~",
    "step_time_2: 0.5 acc 0.7": "~ acc 0.7",
    "time12.5 acc 0.7": "~ acc 0.7",
    "Batch (t): 0.2; img/s: 90 loss 1.5": "~; ~ loss 1.5",
    "85-92 val/s, 27 train/s": "85~, ~",
    "12 img/s: 90": "12 ~",
    "memory used at the end of the train (end-begin): 16, acc 1.5": "~, acc 1.5",
    "100%|####| 4/4 [00:01<00:00, 9it/s, accuracy=0.5]": "~ [~<~, ~, accuracy=0.5]",
    "run 12e4567 acc 0.5": "run ~ acc 0.5",
    f"mask {'01' * 200} acc 0.5": "mask ~ acc 0.5",
    "2024-01-01_12-30 loss 0.5": "~ loss 0.5",
    "20240101" + "1" * 200 + "!": "20240101" + "1" * 200 + "!",
    "loss 1.5e-5, lr 1e-3": "loss 1.5e-5, lr 1e-3",
}


@pytest.mark.parametrize("line", LINES)
def test_results(line: str) -> None:
    assert printed.results(line) == LINES[line]


def test_numbers_beyond_floats() -> None:
    """Of any number the last digit is worth something, and two of them can be compared."""
    assert printed.unit("1.5e999") == math.inf and printed.unit("1e" + "9" * 5000) == math.inf
    assert printed.unit("1.50e-5") == pytest.approx(1.01e-7) and printed.unit("15") == 0
    line = "a1.5e999 b12e4567 0.5"
    assert printed.others(line, line, 0.0) == []
    [(words, mine, theirs)] = printed.others(line, line.replace("0.5", "0.7"), 0.0)
    assert words.endswith("b12e4567 ") and (mine, theirs) == ("0.5", "0.7")


def test_words_of_numbers() -> None:
    found = list(printed.numbers_in("top5 0.5, loss: 1.5"))
    assert found == [("top", "5"), ("top5", "0.5"), ("loss", "1.5")]


def test_a_sign_that_stands_for_no_number() -> None:
    """'5 #' and '5 6' have not the same words."""
    run = [{"text": text, "place": 2} for text in ("5 #", "5 6")]
    first = SimpleNamespace(events={"printed": run})
    assert len(runs.printed(SimpleNamespace(first=first, begun=0))) == 2


def test_a_line_without_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """A dot for each batch: no more is kept than is read, and a short line comes whole."""
    told = []
    monkeypatch.setattr(results, "compares", lambda: True)
    monkeypatch.setattr(results.training, "weigh_again", lambda: None)
    monkeypatch.setattr(results.notes, "event", lambda what, **fields: told.append(fields["text"]))
    monkeypatch.setattr(Output, "count", 0)
    output = Output()
    for _ in range(2 * LONGEST):
        output.write("..")
        assert len(output.begun) <= LONGEST
    output.write("\nloss ")
    output.write("half")
    output.write(" a line\nbar 1\rbar 2\r")
    output.write("bar 3\n")
    assert told == ["." * 300, "loss half a line", "bar 3"]
