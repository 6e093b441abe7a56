"""The tools that read RUN/metrics.jsonl: the reader, the plot, the TensorBoard event files."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

NEEDS = "the tools' pictures and event files: pip install matplotlib tensorboard"
pytest.importorskip("matplotlib", reason=NEEDS)
pytest.importorskip("tensorboard", reason=NEEDS)

import plot  # noqa: E402
import to_tensorboard  # noqa: E402
from harness import TOOLS, run  # noqa: E402
from run_log import FIELDS, RunLogError, read_run  # noqa: E402

Row = dict[str, Any]
START_TIME = 1_700_000_000.0


def start(resumed_from_step: int = 0) -> Row:
    return {"event": "start", "resumed_from_step": resumed_from_step, "torch": "2.15.0"}


def train(step: int, shift: float = 0.0) -> Row:
    row = {"event": "train", "time": START_TIME + step, "step": step, "max_memory": 1000 + step}
    return row | {"loss": 2.5 / step + shift, "acc1": 90.0 - 50.0 / step + shift}


def evaluation(step: int, shift: float = 0.0) -> Row:
    row = {"event": "eval", "time": START_TIME + step, "step": step, "images": 400}
    return row | {"loss": 3.0 / step + shift, "acc1": 88.0 - 50.0 / step + shift}


def end(step: int) -> Row:
    return {"event": "end", "best_acc1": 80.0, "step": step}


def rows_to(last: int, first: int = 1, shift: float = 0.0) -> list[Row]:
    """A train row every step and an eval row every fourth."""
    rows = []
    for step in range(first, last + 1):
        rows.append(train(step, shift))
        if step % 4 == 0:
            rows.append(evaluation(step, shift))
    return rows


def lines(*rows: Row) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


def write_run(folder: Path, *rows: Row) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "metrics.jsonl").write_text(lines(*rows))
    return folder


def append(folder: Path, text: str) -> None:
    with (folder / "metrics.jsonl").open("a") as file:
        file.write(text)


def refused(main: Callable[[list[str]], None], *argv: str | Path) -> str:
    """What Python prints of the exit with which a tool refuses its command line."""
    with pytest.raises(SystemExit) as caught:
        main([str(word) for word in argv])
    return str(caught.value.code)


# ---- the reader ----


def test_a_resume_drops_the_rows_beyond_it(tmp_path: Path) -> None:
    """And an `end` before it; events and fields of a later version are no hindrance."""
    first = [start(), *rows_to(11), {"event": "note", "text": "from a later version"}]
    second = [start(8), *rows_to(14, first=9, shift=0.5), end(14)]
    folder = write_run(tmp_path, *first, *second)
    assert read_run(folder).end == end(14)

    append(folder, lines(start(12), *rows_to(16, first=13, shift=0.7)))
    seen = read_run(folder)
    shifts = [0.0] * 8 + [0.5] * 4 + [0.7] * 4
    assert seen.train == [train(step, shift) for step, shift in enumerate(shifts, 1)]
    assert seen.eval == [evaluation(step, shifts[step - 1]) for step in (4, 8, 12, 16)]
    assert seen.end is None, "the resumed run has not ended"
    assert [row["resumed_from_step"] for row in seen.starts] == [0, 8, 12]
    assert read_run(folder / "metrics.jsonl") == seen

    append(folder, lines(start(), train(1, 0.5)))
    assert (read_run(folder).train, read_run(folder).eval) == ([train(1, 0.5)], [])


HALF = lines(train(9))[:40]


@pytest.mark.parametrize(
    "left_behind",
    [HALF + lines(start(8))[:25], lines(train(9)).rstrip("\n"), "\0" * 64 + "\n"],
    ids=["half a line and half a start", "no newline", "zeros, as after a power cut"],
)
def test_what_a_killed_run_left_before_a_start_is_skipped(tmp_path: Path, left_behind: str) -> None:
    folder = write_run(tmp_path, start(), *rows_to(8))
    append(folder, left_behind + lines(start(4), train(5, 0.5), end(5)))
    seen = read_run(folder)
    assert seen.train == [*map(train, range(1, 5)), train(5, 0.5)]
    assert (seen.eval, seen.end) == ([evaluation(4)], end(5))
    assert [row["resumed_from_step"] for row in seen.starts] == [0, 4]


@pytest.mark.parametrize(
    "broken",
    [HALF + "\n" + lines(train(9)), "[1, 2]\n"],
    ids=["no JSON", "no event"],
)
def test_a_broken_line_is_named(tmp_path: Path, broken: str) -> None:
    folder = write_run(tmp_path, start(), *rows_to(2))
    append(folder, broken)
    with pytest.raises(RunLogError, match=r"metrics\.jsonl, line 4: no event of a run"):
        read_run(folder)


# ---- the picture ----


def curves(*folders: Path) -> list[list[tuple[str, list[int], list[float]]]]:
    """For each half of the picture its curves: the colour, the steps and the values."""
    figure = plot.draw([read_run(folder) for folder in folders], [f.name for f in folders])
    return [
        [(line.get_color(), list(line.get_xdata()), list(line.get_ydata())) for line in axes.lines]
        for axes in figure.axes
    ]


def test_the_curves_are_the_rows(tmp_path: Path) -> None:
    """Less what is no number, and less the single steps with which longer rows begin an epoch."""
    blue, red, green = plot.COLORS[:3]
    rows = [*rows_to(8), train(9) | {"loss": None}, train(10) | {"acc1": float("nan")}]
    one = write_run(tmp_path / "one", start(), *rows)
    steps = [*range(1, 9), 10]
    loss, accuracy = curves(one)
    assert loss[0] == (blue, steps, [train(step)["loss"] for step in steps])
    assert loss[1] == (red, [4, 8], [evaluation(step)["loss"] for step in (4, 8)])
    assert accuracy[0][1:] == (list(range(1, 10)), [train(step)["acc1"] for step in range(1, 10)])
    assert accuracy[1] == (red, [4, 8], [evaluation(step)["acc1"] for step in (4, 8)])

    two = write_run(tmp_path / "two", start(), *(train(step) for step in (1, 4, 8, 9, 12)))
    assert curves(two)[0][0][1] == [4, 8, 12]
    assert [line[0] for line in curves(one, two, one)[1]] == [blue, blue, red, red, green, green]


def test_pictures_replace_their_own_kind_only(tmp_path: Path) -> None:
    """A real launch. One run goes into its own folder, and is drawn anew each time."""
    folder = write_run(tmp_path / "a_$run$", start(), *rows_to(8), end(8))
    (folder / "curve.png").write_bytes(b"the last picture")
    drawn = run([sys.executable, TOOLS / "plot.py", folder], tmp_path, 60)
    assert (drawn.returncode, drawn.stdout) == (0, f"{folder / 'curve.png'}\n"), drawn.output
    assert drawn.stderr == ""
    assert (folder / "curve.png").read_bytes().startswith(b"\x89PNG")

    (tmp_path / "mine.png").write_bytes(b"mine")
    assert refused(plot.main, folder, "--out", tmp_path / "mine.png") == "2"
    assert (tmp_path / "mine.png").read_bytes() == b"mine"
    other = write_run(tmp_path / "other", start(), *rows_to(4))
    assert refused(plot.main, folder, other) == "2"
    plot.main([str(folder), str(other), "--out", str(tmp_path / "both.png")])
    assert (tmp_path / "both.png").read_bytes().startswith(b"\x89PNG")
    begun = write_run(tmp_path / "begun", start())
    assert "no train or eval row" in refused(plot.main, begun)


# ---- TensorBoard ----


def read_events(folder: Path) -> Any:
    """TensorBoard's own view of a run's event files."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    sizes = {"scalars": 0, "tensors": 0}
    return EventAccumulator(str(folder / "tensorboard"), size_guidance=sizes).Reload()


def assert_shows(events: Any, rows: list[Row]) -> None:
    """TensorBoard shows every number of the rows and nothing else, in single precision."""
    wanted: dict[str, list] = {}
    for row in rows:
        for name in FIELDS[row["event"]]:
            if row.get(name) is not None:
                point = (row["step"], row["time"], pytest.approx(row[name], rel=1e-6))
                wanted.setdefault(f"{row['event']}/{name}", []).append(point)
    shown = {tag: events.Scalars(tag) for tag in events.Tags()["scalars"]}
    assert wanted == {
        tag: [(point.step, point.wall_time, point.value) for point in points]
        for tag, points in shown.items()
    }


def test_event_files_hold_the_rows(tmp_path: Path) -> None:
    """Converting again doubles nothing, in a TensorBoard that is running neither, and spares the
    files of others."""
    rows = rows_to(8)
    rows[2]["max_memory"] = None
    folder = write_run(tmp_path / "run", start(), *rows)
    (folder / "tensorboard").mkdir()
    (folder / "tensorboard" / "mine").write_bytes(b"mine")
    to_tensorboard.main([str(folder)])
    events = read_events(folder)
    assert_shows(events, rows)
    (text,) = events.Tensors("start/text_summary")
    assert '"torch": "2.15.0"' in text.tensor_proto.string_val[0].decode()

    append(folder, lines(start(6), *rows_to(9, first=7, shift=0.5), end(9)))
    to_tensorboard.main([str(folder)])
    kept = [row for row in rows if row["step"] <= 6] + rows_to(9, first=7, shift=0.5)
    for view in (events.Reload(), read_events(folder)):
        assert_shows(view, kept)
    assert (folder / "tensorboard" / "mine").read_bytes() == b"mine"


# ---- what both refuse ----


@pytest.mark.parametrize("main", [plot.main, to_tensorboard.main], ids=["plot", "to_tensorboard"])
def test_refusals_write_nothing(tmp_path: Path, main: Callable[[list[str]], None]) -> None:
    for name, text, says in (
        ("empty", "", "no start event yet"),
        ("text", "step,loss\n", "line 1: no event of a run"),
        ("no_start", lines(*rows_to(3)), "train before any start"),
    ):
        append(write_run(tmp_path / name), text)
        assert says in refused(main, tmp_path / name)
    assert "give a run's --output-dir" in refused(main, tmp_path)
    assert {path.name for path in tmp_path.glob("*/*")} == {"metrics.jsonl"}
