"""The tools that read RUN/metrics.jsonl: the reader and the plot."""

import json
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("matplotlib", reason="needs requirements-dev.txt")

import plot
from harness import TOOLS, run
from run_log import read_run

Row = dict[str, Any]


STEPS = 4  # of an epoch


def start(done: int = 0) -> Row:
    """After so many steps of the run."""
    row = {"event": "start", "torch": "2.15.0", "steps_per_epoch": STEPS, "at": done / STEPS}
    return row | {"epoch": done // STEPS, "step": done % STEPS, "args": {"batch_size": 8}}


def measured(event: str, done: int, shift: float = 0.0) -> Row:
    """After so many steps of the run. "at" is what the reader adds."""
    row = {"event": event, "time": 1_700_000_000.0 + done, "at": done / STEPS}
    row |= {"epoch": (done - 1) // STEPS} | (
        {"step": (done - 1) % STEPS + 1} if event == "train" else {}
    )
    return row | {
        "loss": 2.5 / done + shift,
        "acc1": 90.0 - 50.0 / done + shift,
        "memory": 1000 + done,
    }


train, evaluation = partial(measured, "train"), partial(measured, "eval")


END = {"event": "end", "best_acc1": 80.0}


def rows_to(last: int, first: int = 1, shift: float = 0.0) -> list[Row]:
    """A train row every step and an eval row every fourth."""
    rows = []
    for step in range(first, last + 1):
        rows.append(train(step, shift))
        if step % 4 == 0:
            rows.append(evaluation(step, shift))
    return rows


def write(folder: Path, *rows: Row | str) -> Path:
    """Append to a run's log: rows as lines, a text as it is."""
    folder.mkdir(exist_ok=True)
    with (folder / "metrics.jsonl").open("a") as file:
        for row in rows:
            if not isinstance(row, str):
                row = json.dumps({k: v for k, v in row.items() if k != "at"}) + "\n"
            file.write(row)
    return folder


def refused(main: Callable[[list[str]], None], *argv: str | Path) -> str:
    """What Python prints of the exit with which a tool refuses its command line."""
    with pytest.raises(SystemExit) as caught:
        main([str(word) for word in argv])
    return str(caught.value.code)


# ---- the reader ----


def test_a_resume_drops_the_rows_beyond_it(tmp_path: Path) -> None:
    """And an `end` before it; events of a later version are no hindrance."""
    folder = write(tmp_path / "run", start(), *rows_to(11), {"event": "note", "text": "new"})
    write(folder, start(8), *rows_to(14, first=9, shift=0.5), END)
    assert read_run(folder).end == END

    write(folder, start(12), *rows_to(16, first=13, shift=0.7))
    seen = read_run(folder / "metrics.jsonl")
    shifts = [0.0] * 8 + [0.5] * 4 + [0.7] * 4
    assert seen.train == [train(step, shift) for step, shift in enumerate(shifts, 1)]
    assert seen.eval == [evaluation(step, shifts[step - 1]) for step in (4, 8, 12, 16)]
    assert seen.end is None, "the resumed run has not ended"
    assert seen.starts == [start(0), start(8), start(12)]


def test_an_epoch_that_is_evaluated_again(tmp_path: Path) -> None:
    """A run was killed behind its evaluation, and goes on from the save before that."""
    at_the_end = start(8) | {"epoch": 1, "step": STEPS}
    folder = write(tmp_path / "run", start(), *rows_to(8), at_the_end, evaluation(8, 0.5))
    seen = read_run(folder)
    assert seen.train == [train(step) for step in range(1, 9)]
    assert seen.eval == [evaluation(4), evaluation(8, 0.5)]


HALF = json.dumps(train(9))[:40]


@pytest.mark.parametrize(
    "left_behind",
    [HALF + json.dumps(start(8))[:25], json.dumps(train(9)), "\0" * 64 + "\n"],
    ids=["half a line and half a start", "no newline", "zeros, as after a power cut"],
)
def test_what_a_killed_run_left_before_a_start_is_skipped(tmp_path: Path, left_behind: str) -> None:
    folder = write(tmp_path / "run", start(), *rows_to(8), left_behind)
    write(folder, start(4), train(5, 0.5))
    seen = read_run(folder)
    assert seen.train == [*map(train, range(1, 5)), train(5, 0.5)]
    assert (seen.eval, seen.starts) == ([evaluation(4)], [start(0), start(4)])


NO_PLACE = "epoch, step or steps_per_epoch of a row '{}' is missing, or no number of a run"
# What is written behind two good rows, and what is said of it.
BAD_ROWS = {
    "no steps": (start() | {"steps_per_epoch": 0}, NO_PLACE.format("start")),
    "no epoch": ({"event": "eval", "loss": 1.0}, NO_PLACE.format("eval")),
    "words": (train(3) | {"epoch": "2"}, NO_PLACE.format("train")),
    "too many steps": (train(3) | {"step": 10**400}, NO_PLACE.format("train")),
    "no end": (train(3) | {"epoch": float("inf")}, NO_PLACE.format("train")),
    "too deep": ("[" * 100_000 + "\n", "line 3: no event of a run"),
}


@pytest.mark.parametrize("case", BAD_ROWS)
def test_rows_of_no_run(case: str, tmp_path: Path) -> None:
    """One line says which."""
    row, said = BAD_ROWS[case]
    folder = write(tmp_path / "run", start(), train(1), row, train(4))
    assert said in refused(plot.main, folder)
    assert not (folder / "curve.png").exists()


# ---- the picture ----


def test_pictures_replace_their_own_kind_only(tmp_path: Path) -> None:
    """A real launch. One run goes into its own folder, and is drawn anew each time."""
    folder = write(tmp_path / "a_$_$", start(), *rows_to(8), END)
    (folder / "curve.png").write_bytes(b"the last picture")
    drawn = run([sys.executable, TOOLS / "plot.py", folder], tmp_path)
    assert (drawn.returncode, drawn.stdout) == (0, f"{folder / 'curve.png'}\n"), drawn.output
    assert drawn.stderr == ""
    assert (folder / "curve.png").read_bytes().startswith(b"\x89PNG")

    (tmp_path / "mine.png").write_bytes(b"mine")
    assert refused(plot.main, folder, "--out", tmp_path / "mine.png") == "2"
    assert (tmp_path / "mine.png").read_bytes() == b"mine"
    assert refused(plot.main, folder, folder) == "2"
    there = tmp_path / "nowhere/new.png"
    assert refused(plot.main, folder, "--out", there) == (
        f"cannot write {there}: No such file or directory"
    )
    assert "no number to draw" in refused(plot.main, write(tmp_path / "begun", start()))


def test_more_than_a_picture_holds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    """Too many names, which is said, and numbers too large."""
    rows = [train(step) | {"large": [1e308, -1e308, 10**400][step - 1]} for step in (1, 2, 3)]
    folder = write(tmp_path / "run", start(), *rows)
    runs = [read_run(folder)]
    assert plot.fields(runs) == ["loss", "acc1", "memory"]
    monkeypatch.setattr(plot, "PANELS", 2)
    assert len(plot.draw(runs, ["run"]).axes) == 2
    plot.main([str(folder)])
    assert capsys.readouterr().err == "not drawn: 1 more names, from 'memory' on\n"
