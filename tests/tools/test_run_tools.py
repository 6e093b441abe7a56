"""The tools that read RUN/metrics.jsonl: the reader, the plot, the TensorBoard event files."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

NEEDS = "the tools' pictures and event files: pip install matplotlib tensorboard"
pytest.importorskip("matplotlib", reason=NEEDS)
pytest.importorskip("tensorboard", reason=NEEDS)
TOOLS = Path(__file__).resolve().parents[2] / "tools"

import plot  # noqa: E402
import run_log  # noqa: E402
import to_tensorboard  # noqa: E402

Row = dict[str, Any]
START_TIME = 1_700_000_000.0


def start(resumed_from_step: int = 0, steps_per_epoch: int = 4, **other: Any) -> Row:
    return {
        "event": "start",
        "time": START_TIME + resumed_from_step,
        "torch": "2.15.0",
        "device": "cpu",
        "world_size": 2,
        "global_batch_size": 256,
        "resumed_from_step": resumed_from_step,
        "steps_per_epoch": steps_per_epoch,
        "args": {"lr": 0.1, "arch": "resnet18", "note": "a|b é"},
        **other,
    }


def train(step: int, shift: float = 0.0) -> Row:
    return {
        "event": "train",
        "epoch": (step - 1) // 4,
        "step": step,
        "loss": 2.5 / step + shift,
        "acc1": 90.0 - 50.0 / step + shift,
        "lr": 0.01 * step,
        "images_per_second": 500.0 + step,
        "data_wait": 0.03 / step,
        "max_memory": 1000.0 + step,
    }


def evaluation(step: int, shift: float = 0.0) -> Row:
    return {
        "event": "eval",
        "epoch": step // 4 - 1,
        "step": step,
        "loss": 3.0 / step + shift,
        "acc1": 88.0 - 50.0 / step + shift,
        "acc5": 99.0 - 20.0 / step + shift,
        "images": 400,
        "seconds": 1.2,
    }


def end(step: int) -> Row:
    return {"event": "end", "best_acc1": 80.0, "step": step, "seconds": 12.0}


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


def append(log: Path, text: str) -> None:
    with log.open("a") as file:
        file.write(text)


def refusal(main: Callable[[list[str]], None], *argv: str | Path) -> str:
    """The one line with which a tool refuses its command line."""
    with pytest.raises(SystemExit) as caught:
        main([str(word) for word in argv])
    message = caught.value.code
    # A string: Python prints it and exits with 1.
    assert isinstance(message, str) and message and "\n" not in message
    return message


@contextmanager
def tool(name: str, *argv: str | Path) -> Iterator[subprocess.Popen[str]]:
    """A tool as a real process; whatever happens, nothing of it is left."""
    process = subprocess.Popen(
        [sys.executable, str(TOOLS / name), *map(str, argv)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


# --- the reader -----------------------------------------------------------------------------------


def test_reads_every_row_and_ignores_unknown_events(tmp_path: Path) -> None:
    rows = rows_to(8)
    rows.insert(3, {"event": "note", "text": "from a later version"})
    rows.insert(5, train(6) | {"extra": [1, 2]})
    run = run_log.read_run(write_run(tmp_path, start(), *rows, end(8)))
    assert run.starts == [start()]
    assert run.train == [row for row in rows if row["event"] == "train"]
    assert [row["step"] for row in run.eval] == [4, 8]
    assert run.end == end(8)
    assert run_log.read_run(tmp_path / "metrics.jsonl") == run


def test_a_resume_drops_the_rows_beyond_it(tmp_path: Path) -> None:
    folder = write_run(
        tmp_path,
        start(),
        *rows_to(11),
        start(8),
        *rows_to(14, first=9, shift=0.5),
        end(14),
        start(12),
        *rows_to(16, first=13, shift=0.7),
    )
    run = run_log.read_run(folder)
    shifts = [0.0] * 8 + [0.5] * 4 + [0.7] * 4
    assert run.train == [train(step, shift) for step, shift in enumerate(shifts, 1)]
    assert run.eval == [
        evaluation(4), evaluation(8), evaluation(12, 0.5), evaluation(16, 0.7)
    ]  # fmt: skip
    assert run.end is None, "the resumed run has not ended"
    assert [row["resumed_from_step"] for row in run.starts] == [0, 8, 12]


def test_a_restart_from_the_beginning_drops_everything(tmp_path: Path) -> None:
    run = run_log.read_run(write_run(tmp_path, start(), *rows_to(6), start(), train(1, 0.5)))
    assert (run.train, run.eval) == ([train(1, 0.5)], [])


def test_a_half_written_last_line_is_left_for_later(tmp_path: Path) -> None:
    last = lines(train(3))
    for cut in range(len(last)):
        log = write_run(tmp_path, start(), *rows_to(2)) / "metrics.jsonl"
        append(log, last[:cut])
        whole = [1, 2] if cut < len(last) - 1 else [1, 2, 3]
        assert [row["step"] for row in run_log.read_run(log).train] == whole, last[:cut]
        reader = run_log.RunReader(log)
        first_look = reader.poll()
        append(log, last[cut:] + lines(end(3)))
        assert first_look + reader.poll() == [start(), *rows_to(3), end(3)], last[:cut]


HALF = lines(train(9))[:40]
RESUMED = lines(start(4), train(5, 0.5), end(5))
RESUMED_LOGS = {
    "glued": HALF + RESUMED,
    "on its own line": HALF + "\n" + RESUMED,
    "half a start": lines(start(8))[:30] + RESUMED,
    "two in a row": HALF + lines(start(8))[:25] + RESUMED,
    "only the newline missing": lines(train(9)).rstrip("\n") + RESUMED,
    "zeros, as after a power cut": "\0" * 64 + RESUMED,
}


@pytest.mark.parametrize("text", RESUMED_LOGS.values(), ids=list(RESUMED_LOGS))
def test_half_a_line_before_a_resumed_start_is_skipped(tmp_path: Path, text: str) -> None:
    log = write_run(tmp_path, start(), *rows_to(8)) / "metrics.jsonl"
    append(log, text)
    run = run_log.read_run(log)
    assert run.train == [*(train(step) for step in range(1, 5)), train(5, 0.5)]
    assert run.eval == [evaluation(4)]
    assert run.end == end(5)
    assert [row["resumed_from_step"] for row in run.starts] == [0, 4]


@pytest.mark.parametrize("size", [1, 7, 100])
def test_reading_bit_by_bit_gives_the_same_as_reading_at_once(tmp_path: Path, size: int) -> None:
    text = lines(start(), *rows_to(8)) + RESUMED_LOGS["glued"] + "\n" + lines(start(5), end(6))
    source, log = text.encode(), tmp_path / "metrics.jsonl"
    log.write_bytes(source)
    at_once = run_log.RunReader(log).poll()
    assert len(at_once) == 16
    log.write_bytes(b"")
    reader, bit_by_bit = run_log.RunReader(log), []
    with log.open("ab", buffering=0) as file:
        for i in range(0, len(source), size):
            file.write(source[i : i + size])
            bit_by_bit += reader.poll()
    assert bit_by_bit == at_once


@pytest.mark.parametrize(
    ("broken", "line", "says"),
    [
        ("garbage\n" + lines(train(3)), 4, "not JSON"),
        (HALF + "\n" + lines(train(9)), 4, "not JSON"),
        (HALF + lines(train(9)) + lines(train(10)), 4, "not JSON"),
        ("\n\n" + HALF + "\n" + HALF + "\n" + RESUMED, 6, "not JSON"),
        ('{"loss": 2.0}\n', 4, "event"),
        ("[1, 2]\n", 4, "event"),
        ('{"event": "train", "loss": 2.0}\n', 4, "step"),
        ('{"event": "eval", "step": 1.5}\n', 4, "step"),
        ('{"event": "eval", "step": 4, "acc5": "high"}\n', 4, "acc5"),
        ('{"event": "start", "resumed_from_step": -1}\n', 4, "resumed_from_step"),
    ],
)
def test_a_broken_line_is_named(tmp_path: Path, broken: str, line: int, says: str) -> None:
    log = write_run(tmp_path, start(), *rows_to(2)) / "metrics.jsonl"
    append(log, broken)
    with pytest.raises(run_log.RunLogError) as caught:
        run_log.read_run(tmp_path)
    assert f"{log}, line {line}: " in str(caught.value)
    assert says in str(caught.value)


def test_a_log_that_is_replaced_while_being_followed_is_an_error(tmp_path: Path) -> None:
    log = write_run(tmp_path, start(), *rows_to(8)) / "metrics.jsonl"
    reader = run_log.RunReader(log)
    reader.poll()
    log.write_text(lines(start()))
    with pytest.raises(run_log.RunLogError, match="replaced"):
        reader.poll()


def test_names_are_as_short_as_they_can_be(tmp_path: Path) -> None:
    logs = [tmp_path / name / "metrics.jsonl" for name in ("a/02", "b/02", "b/04")]
    assert run_log.run_names(logs[1:]) == ["02", "04"]
    assert run_log.run_names(logs) == ["a/02", "b/02", "b/04"]
    assert run_log.run_names([tmp_path / "h100.jsonl"]) == ["h100"]
    with pytest.raises(run_log.RunLogError, match="twice"):
        run_log.run_names([logs[0], logs[1], logs[0]])


# --- the picture ----------------------------------------------------------------------------------


def pixels(picture: Path) -> Any:
    """Height x width x (red, green, blue), 0 to 255."""
    from matplotlib.image import imread

    return (imread(picture)[..., :3] * 255).round().astype(int)


def count_pixels(image: Any, color: str) -> int:
    return int((image == [int(color[i : i + 2], 16) for i in (1, 3, 5)]).all(axis=-1).sum())


def test_one_run_is_drawn_into_its_own_folder(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "02_distributed", start(), *rows_to(80), end(80))
    with tool("plot.py", folder) as process:
        stdout, stderr = process.communicate(timeout=60)
    assert (process.returncode, stdout, stderr) == (0, f"{folder / 'curve.png'}\n", "")
    image = pixels(folder / "curve.png")
    assert image.shape == (700, 1600, 3)
    # 1,000 pixels are a curve of some length, beyond the sample line in the key.
    for half in (image[100:, :800], image[100:, 800:]):
        assert count_pixels(half, plot.COLORS[1]) > 1000
        assert count_pixels(half, "#ffffff") > half.shape[0] * half.shape[1] / 2


def test_three_runs_are_drawn_in_three_colours(tmp_path: Path) -> None:
    folders = [
        write_run(tmp_path / f"run{i}", start(), *rows_to(40, shift=4.0 * i)) for i in range(3)
    ]
    out = tmp_path / "three.png"
    plot.main([*map(str, folders), "--out", str(out), "--x", "epoch", "--title", r"$\no_formula$"])
    image = pixels(out)
    assert image.shape == (700, 1600, 3)
    for color in plot.COLORS[:3]:
        for half in (image[100:, :800], image[100:, 800:]):
            assert count_pixels(half, color) > 500, color
    assert count_pixels(image, plot.COLORS[3]) == 0


def drawn_lines(run: run_log.Run, x: str) -> list[list[tuple[list[float], list[float]]]]:
    """For each half of the picture its curves, as the places and values that were drawn."""
    figure = plot.draw([run], ["a"], x, None)
    return [
        [(list(line.get_xdata()), list(line.get_ydata())) for line in axes.lines]
        for axes in figure.axes
    ]


def test_the_curves_are_the_rows(tmp_path: Path) -> None:
    rows = [start(), *rows_to(8), train(9) | {"loss": None}, train(10) | {"acc1": float("nan")}]
    run = run_log.read_run(write_run(tmp_path, *rows))
    steps = list(range(1, 9))

    def values(make: Callable[[int], Row], places: list[int], name: str) -> tuple[list, list]:
        return places, [make(step)[name] for step in places]

    loss, accuracy = drawn_lines(run, "step")
    assert loss == [values(train, [*steps, 10], "loss"), values(evaluation, [4, 8], "loss")]
    assert accuracy == [
        values(train, [*steps, 9], "acc1"),
        values(evaluation, [4, 8], "acc1"),
        values(evaluation, [4, 8], "acc5"),
    ]
    assert drawn_lines(run, "epoch")[0][1][0] == [1, 2], "an eval row ends its epoch"


def test_single_first_steps_are_not_drawn() -> None:
    """A row of one step among rows of many; not where all rows are of one."""

    def kept(*steps: int) -> list[int]:
        return [row["step"] for row in plot.many_steps([{"step": step} for step in steps])]

    assert kept(1, 4, 8, 9, 12) == [4, 8, 12]
    assert kept(1, 2, 3) == [1, 2, 3]
    assert kept(1) == [1] and kept() == []


def test_many_points_are_drawn_bare_and_smoothed(tmp_path: Path) -> None:
    rows = [train(step, shift=0.3 * (-1) ** step) for step in range(1, 201)]
    run = run_log.read_run(write_run(tmp_path, start(), *rows))
    (_, bare), (places, smoothed), _ = drawn_lines(run, "step")[0]
    assert bare == [row["loss"] for row in rows]
    assert places == list(range(1, 201))
    wanted = [train(step)["loss"] for step in places]
    assert max(abs(a - b) for a, b in zip(smoothed[20:], wanted[20:], strict=True)) < 0.11
    assert plot.smooth([3.0] * 9, 5) == pytest.approx([3.0] * 9)
    assert plot.smooth([0.0, 0.0, 0.0, 9.0, 0.0, 0.0, 0.0], 3) == [0, 0, 3, 3, 3, 0, 0]


def test_epochs_after_a_resume_with_other_steps_per_epoch(tmp_path: Path) -> None:
    starts = [start(0, 4), start(8, 10), start(28, 5), start(18, 2)]
    run = run_log.Run(tmp_path, starts=starts)
    assert plot.epochs_done(run, [4, 8, 13, 18, 20]) == [1, 2, 2.5, 3, 4]


def test_plot_never_replaces_a_file_that_is_not_its_own(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", start(), *rows_to(8))
    other = tmp_path / "other.png"
    other.write_bytes(b"a picture of mine")
    assert "--force" in refusal(plot.main, folder, "--out", other)
    assert other.read_bytes() == b"a picture of mine"
    plot.main([str(folder), "--out", str(other), "--force"])
    assert pixels(other).shape == (700, 1600, 3)

    own = folder / "curve.png"
    own.write_bytes(b"old")
    plot.main([str(folder)])
    assert pixels(own).shape == (700, 1600, 3)
    own.write_bytes(b"old")
    plot.main([str(folder), "--out", str(own)])
    assert pixels(own).shape == (700, 1600, 3)


def test_plot_refuses_in_one_line(tmp_path: Path) -> None:
    one, two = (write_run(tmp_path / name, start(), *rows_to(8)) for name in "ab")
    begun = write_run(tmp_path / "begun", start())
    no_epochs = write_run(tmp_path / "no_epochs", start(steps_per_epoch=0), *rows_to(4))
    renamed = tmp_path / "h100.jsonl"
    renamed.write_text(lines(start(), *rows_to(4)))
    assert "--out compare.png" in refusal(plot.main, one, two)
    assert "--out" in refusal(plot.main, renamed)
    assert "twice" in refusal(plot.main, one, one / "metrics.jsonl", "--out", tmp_path / "x.png")
    assert "x.png" in refusal(plot.main, one, "--out", tmp_path / "x.pdf")
    assert "mkdir -p" in refusal(plot.main, one, "--out", tmp_path / "new" / "x.png")
    assert "no train or eval row" in refusal(plot.main, begun)
    assert "--x step" in refusal(plot.main, no_epochs, "--x", "epoch")
    assert not list(tmp_path.glob("**/*.png")), "a refusal writes nothing"


# --- TensorBoard ----------------------------------------------------------------------------------


def read_events(folder: Path) -> Any:
    """TensorBoard's own view of a folder of event files."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    accumulator = EventAccumulator(str(folder), size_guidance={"scalars": 0, "tensors": 0})
    return accumulator.Reload()


def read_scalars(folder: Path) -> dict[str, list[tuple[int, float]]]:
    events = read_events(folder)
    return {
        tag: [(point.step, point.value) for point in events.Scalars(tag)]
        for tag in events.Tags()["scalars"]
    }


def wanted_scalars(rows: list[Row]) -> dict[str, list[tuple[int, Any]]]:
    """What TensorBoard must show for these rows; it keeps values in single precision."""
    names = {
        "train": ("loss", "acc1", "lr", "images_per_second", "data_wait", "max_memory"),
        "eval": ("loss", "acc1", "acc5"),
    }
    return {
        f"{event}/{name}": [
            (row["step"], pytest.approx(row[name], rel=1e-6))
            for row in rows
            if row["event"] == event and row.get(name) is not None
        ]
        for event in names
        for name in names[event]
    }


def test_event_files_hold_the_rows(tmp_path: Path) -> None:
    rows = rows_to(8)
    rows[2]["max_memory"] = None
    rows[-1]["time"] = START_TIME + 77
    folder = write_run(tmp_path / "run", start(), *rows, end(8))
    to_tensorboard.main([str(folder)])
    events = read_events(folder / "tensorboard")
    assert read_scalars(folder / "tensorboard") == wanted_scalars(rows)
    assert [point.wall_time for point in events.Scalars("eval/loss")] == [
        START_TIME, START_TIME + 77
    ]  # fmt: skip
    (text,) = events.Tensors("args/text_summary")
    shown = text.tensor_proto.string_val[0].decode()
    assert "| lr | 0.1 |" in shown and '| arch | "resnet18" |' in shown
    assert '| note | "a\\|b é" |' in shown
    (text,) = events.Tensors("start/text_summary")
    assert '| torch | "2.15.0" |' in text.tensor_proto.string_val[0].decode()


def test_event_files_of_a_run_that_was_resumed_often(tmp_path: Path) -> None:
    # TensorBoard reads files in the order of their names, where 10 comes before 2.
    rows = [start(), *rows_to(6)]
    for i in range(1, 13):
        rows += [start(4 * i), *rows_to(4 * i + 6, first=4 * i + 1, shift=0.1 * i)]
    folder = write_run(tmp_path / "run", *rows)
    to_tensorboard.main([str(folder)])
    kept = [row for i in range(13) for row in rows_to(4 * i + 4, 4 * i + 1, 0.1 * i)]
    kept += rows_to(54, first=53, shift=1.2)
    assert kept[:6] == [*rows_to(5)[:5], train(5, 0.1)]
    scalars = read_scalars(folder / "tensorboard")
    assert scalars == wanted_scalars(kept)
    assert len(scalars["train/loss"]) == 54
    texts = read_events(folder / "tensorboard").Tensors("args/text_summary")
    assert [text.step for text in texts] == [4 * i for i in range(13)]


def test_converting_again_doubles_nothing_and_spares_other_files(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", start(), *rows_to(4))
    to_tensorboard.main([str(folder)])
    append(folder / "metrics.jsonl", lines(*rows_to(8, first=5)))
    to_tensorboard.main([str(folder)])
    assert read_scalars(folder / "tensorboard") == wanted_scalars(rows_to(8))

    before = sorted(file.name for file in (folder / "tensorboard").iterdir())
    mine = folder / "tensorboard" / "events.out.tfevents.1.mine"
    mine.write_bytes(b"mine")
    assert mine.name in refusal(to_tensorboard.main, folder)
    assert sorted(file.name for file in (folder / "tensorboard").iterdir()) == sorted(
        [*before, mine.name]
    )
    assert mine.read_bytes() == b"mine"
    assert "metrics.jsonl" in refusal(to_tensorboard.main, folder, "--out", folder)


def test_several_runs_go_to_a_folder_each(tmp_path: Path) -> None:
    runs = [write_run(tmp_path / name, start(), *rows_to(i)) for i, name in ((4, "a"), (8, "b"))]
    to_tensorboard.main([*map(str, runs), "--out", str(tmp_path / "all")])
    assert read_scalars(tmp_path / "all" / "a") == wanted_scalars(rows_to(4))
    assert read_scalars(tmp_path / "all" / "b") == wanted_scalars(rows_to(8))


def wait_for_point(folder: Path, tag: str, step: int, process: subprocess.Popen[str]) -> None:
    """Wait until the event files hold the point."""
    deadline = time.monotonic() + 60
    while True:
        if list(folder.glob("*tfevents*")):
            points = read_scalars(folder).get(tag, [])
            if points and points[-1][0] == step:
                return
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline, f"{tag} never came to step {step}"
        time.sleep(0.05)


def test_follow_goes_on_to_the_end_of_the_run_through_a_resume(tmp_path: Path) -> None:
    log, folder = tmp_path / "metrics.jsonl", tmp_path / "tensorboard"
    log.touch()
    with tool("to_tensorboard.py", tmp_path, "--follow", "--interval", "0.05") as process:
        half = lines(train(3))
        append(log, lines(start(), *rows_to(2)) + half[:50])
        wait_for_point(folder, "train/loss", 2, process)
        append(log, half[50:] + lines(*rows_to(11, first=4)))
        wait_for_point(folder, "train/loss", 11, process)
        append(log, HALF + lines(start(8), *rows_to(9, first=9, shift=0.5)))
        wait_for_point(folder, "train/loss", 9, process)
        append(log, lines(*rows_to(12, first=10, shift=0.5), end(12)))
        _, stderr = process.communicate(timeout=60)
    assert (process.returncode, stderr) == (0, "")
    kept = [*rows_to(8), *rows_to(12, first=9, shift=0.5)]
    assert read_scalars(folder) == wanted_scalars(kept)


def test_follow_ends_cleanly_at_ctrl_c(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", start(), *rows_to(6))
    with tool("to_tensorboard.py", folder, "--follow", "--interval", "600") as process:
        wait_for_point(folder / "tensorboard", "train/loss", 6, process)
        os.killpg(process.pid, signal.SIGINT)
        stdout, stderr = process.communicate(timeout=60)
    assert (process.returncode, stderr) == (0, "")
    assert "stopped" in stdout
    assert read_scalars(folder / "tensorboard") == wanted_scalars(rows_to(6))


# --- what both refuse -----------------------------------------------------------------------------


@pytest.mark.parametrize("main", [plot.main, to_tensorboard.main], ids=["plot", "to_tensorboard"])
def test_bad_input_is_one_line(tmp_path: Path, main: Callable[[list[str]], None]) -> None:
    no_log, empty, blank, half, text, no_start, parent = (
        tmp_path / name
        for name in ("no_log", "empty", "blank", "half", "text", "no_start", "parent")
    )
    no_log.mkdir()
    write_run(empty)
    write_run(blank)
    (blank / "metrics.jsonl").write_text("\n \n")
    write_run(half)
    (half / "metrics.jsonl").write_text(lines(start())[:30])
    write_run(text)
    (text / "metrics.jsonl").write_text("step,loss\n")
    write_run(no_start, *rows_to(3))
    write_run(parent / "02_distributed", start())
    binary = tmp_path / "checkpoint.pt"
    binary.write_bytes(bytes(range(256)) * 8)

    assert "does not exist: give a chapter's --output-dir" in refusal(main, tmp_path / "none")
    assert "holds no metrics.jsonl: give a chapter's" in refusal(main, no_log)
    assert f"such as {parent / '02_distributed'}" in refusal(main, parent)
    for folder in (empty, blank, half):
        assert "no start event yet: try again later" in refusal(main, folder)
    assert "line 1: not JSON; is this a metrics.jsonl?" in refusal(main, text)
    assert "line 1: train before any start" in refusal(main, no_start)
    assert "line 1: not JSON" in refusal(main, binary, "--out", tmp_path / "x.png")
    assert not list(tmp_path.glob("**/*.png")) and not list(tmp_path.glob("**/tensorboard"))


@pytest.mark.parametrize("name", ["plot.py", "to_tensorboard.py"])
def test_bad_input_of_the_real_script_exits_with_1(tmp_path: Path, name: str) -> None:
    with tool(name, tmp_path / "none") as process:
        stdout, stderr = process.communicate(timeout=60)
    assert (process.returncode, stdout) == (1, "")
    assert stderr.startswith(f"{tmp_path / 'none'} does not exist") and stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("main", "library", "says"),
    [
        (plot.main, "matplotlib", "pip install matplotlib"),
        (to_tensorboard.main, "torch.utils.tensorboard", "pip install torch tensorboard"),
    ],
)
def test_a_missing_library_is_one_line(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    main: Callable[[list[str]], None],
    library: str,
    says: str,
) -> None:
    monkeypatch.setitem(sys.modules, library, None)
    assert says in refusal(main, write_run(tmp_path, start(), *rows_to(4)))
