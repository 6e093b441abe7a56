"""Draws every number that one or more runs have logged into one PNG.

    python tools/plot.py runs/02_distributed                       # runs/02_distributed/curve.png
    python tools/plot.py runs/02_distributed runs/04_apex --out compare.png

RUN is a chapter's --output-dir. The train and eval rows of its log may hold any numbers: each name
gets a panel unless it never changes, the first two of validation (loss and acc1) a large one; of
more than 42 names the first 42. One run goes to RUN/curve.png, which is drawn anew each time;
several runs have no folder of their own, so they need --out, which never replaces a file.
"""

import argparse
import math
import sys
from collections.abc import Sequence
from pathlib import Path

import matplotlib.style
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from run_log import Event, Run, RunLogError, numbers, read_run, run_folder

WIDTH, DPI = 12.8, 125
LARGE, SMALL = 5.6, 2.6  # heights of a row of panels; as the width, in inches
# Okabe and Ito's palette, without its yellow: readers who are colour-blind can tell these apart.
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
INK, QUIET, GRID = "#222222", "#6B7280", "#E5E7EB"
MARKERS_UP_TO = 40
PANELS = 42  # two large ones and ten rows: 300 would take minutes


def parse_args(argv: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("runs", nargs="+", metavar="RUN", help="a chapter's --output-dir")
    out = "a new file; needed for several runs (one run: RUN/curve.png, replaced each time)"
    parser.add_argument("--out", metavar="FILE.png", type=Path, help=out)
    args = parser.parse_args(argv)
    if len(args.runs) > len(COLORS):
        parser.error(f"{len(args.runs)} runs: give at most {len(COLORS)}, or colours look alike")
    if len(args.runs) > 1 and not args.out:
        parser.error("where to draw several runs? add --out compare.png")
    if args.out and args.out.exists():
        parser.error(f"--out {args.out} exists: give another one, or remove it first")
    return args


def fields(runs: list[Run]) -> list[str]:
    """The names of all numbers, in the order of the logs, those of validation first; without those
    that never change, as the number of validation images."""
    rows = [row for run in runs for row in run.eval] + [row for run in runs for row in run.train]
    names = dict.fromkeys(name for row in rows for name in numbers(row))
    return [name for name in names if any(changes(run, name) for run in runs)]


def changes(run: Run, name: str) -> bool:
    """Whether a number has more than one value in a run, or was logged but once."""
    values = points(run.eval, name)[1] + points(run.train, name)[1]
    return len(values) == 1 or len(set(values)) > 1


def points(rows: list[Event], name: str) -> tuple[list[float], list[float]]:
    """Where the rows are that have a number under this name, in epochs, and the numbers."""
    rows = [row for row in rows if name in numbers(row)]
    return [row["at"] for row in rows], [row[name] for row in rows]


def draw_run(axes: Axes, run: Run, name: str, colors: Sequence[str], labels: Sequence) -> None:
    """The training curve, thin, and that of validation."""
    epochs, values = points(run.train, name)
    thin = {"linewidth": 1.4, "alpha": 0.7, "marker": "o" if len(values) == 1 else None}
    axes.plot(epochs, values, color=colors[0], label=labels[0], **thin)

    epochs, values = points(run.eval, name)
    bold = {"linewidth": 2.2, "markersize": 4.5}
    bold["marker"] = "o" if len(values) <= MARKERS_UP_TO else None
    axes.plot(epochs, values, color=colors[1], label=labels[1], **bold)


def draw(runs: list[Run], names: list[str]) -> Figure:
    """Two large panels above, the others in rows of four. With one run the colours tell training
    from validation, with several they tell the runs apart."""
    titles = fields(runs)[:PANELS]
    small_rows = math.ceil(max(0, len(titles) - 2) / 4)
    heights = [LARGE] + small_rows * [SMALL]
    # A Figure of its own, without pyplot, is drawn by Agg: no display is needed.
    figure = Figure(figsize=(WIDTH, sum(heights)), dpi=DPI, layout="constrained")
    figure.get_layout_engine().set(w_pad=0.1, h_pad=0.1)
    grid = figure.add_gridspec(len(heights), 4, height_ratios=heights)
    small = [grid[row, column] for row in range(1, len(heights)) for column in range(4)]
    places = [grid[0, :2], grid[0, 2:], *small]
    for number, (field, place) in enumerate(zip(titles, places, strict=False)):
        axes = figure.add_subplot(place)
        if len(runs) == 1:
            draw_run(axes, runs[0], field, COLORS, ("training", "validation"))
        else:
            for run, name, color in zip(runs, names, COLORS, strict=False):
                draw_run(axes, run, field, (color, color), (None, f"{name}   {best(run)}"))
        decorate(axes, field, ticks=7 if number < 2 else 4)
    keys = axes.get_legend_handles_labels()
    figure.legend(*keys, loc="outside lower center", ncols=4, frameon=False, labelcolor=INK)
    line = facts(runs[0], names[0]) if len(runs) == 1 else "thin: training, bold: validation"
    figure.suptitle(line, x=0.01, ha="left", fontsize=11, color=INK)
    return figure


def decorate(axes: Axes, title: str, ticks: int) -> None:
    """What all panels have in common: a title, a light grid, and no box."""
    axes.set_title(title, loc="left", fontsize=12, fontweight="bold", color=INK, pad=10)
    axes.set_xlabel("epochs", fontsize=11, color=QUIET)
    axes.grid(axis="y", color=GRID, linewidth=0.9)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.spines["bottom"].set_color(QUIET)
    axes.tick_params(labelsize=10.5, colors=INK, length=0, pad=6)
    axes.locator_params(axis="x", nbins=ticks, integer=True)


def best(run: Run) -> str:
    """The best score of a run that has ended, as it says itself; else empty."""
    scores = numbers(run.end or {}).items()
    return ",  ".join(f"{n.replace('_', ' ', 1)} {value:.4g}" for n, value in scores)


def facts(run: Run, name: str) -> str:
    """A line on a run: its name, its best score, and what its last part ran on."""
    start = run.starts[-1]
    parts = [name, best(run), f"{start.get('world_size', 1)} x {start.get('device')}"]
    parts += [
        f"global batch {start.get('args', {}).get('batch_size')}",
        f"torch {start.get('torch')}",
    ]
    return ",  ".join(filter(None, parts))


def main(argv: Sequence[str] | None = None) -> None:
    args = parse_args(argv)
    try:
        out = args.out or run_folder(args.runs[0]) / "curve.png"
        runs = [read_run(folder) for folder in args.runs]
        for run in runs:
            if not fields([run]):
                raise RunLogError(f"{run.path} has no number to draw yet: try again later")
    except RunLogError as error:
        raise SystemExit(str(error)) from error
    # Whatever the user's own settings are; and a name with a $ in it is a name, not a formula.
    with matplotlib.style.context(["default", {"text.parse_math": False}]):
        try:
            draw(runs, args.runs).savefig(out)
        except OSError as error:
            raise SystemExit(f"cannot write {out}: {error.strerror}") from error
    if left_out := fields(runs)[PANELS:]:
        print(f"not drawn: {len(left_out)} more names, from {left_out[0]!r} on", file=sys.stderr)
    print(out)


if __name__ == "__main__":
    main()
