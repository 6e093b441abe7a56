"""Draws the loss and the accuracy of one or more runs into one PNG.

    python tools/plot.py runs/02_distributed                       # runs/02_distributed/curve.png
    python tools/plot.py runs/02_distributed runs/04_apex --out compare.png

RUN is a chapter's --output-dir, or the metrics.jsonl in it. One run goes to RUN/curve.png, which
is drawn anew each time; several runs have no folder of their own, so they need --out. A file that
--out names is never replaced without --force.
"""

import argparse
import math
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from run_log import LOG_NAME, Event, Run, RunLogError, find_log, own_folder, read_run, run_names

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SIZE_PX = (1600, 700)
DPI = 125
# Okabe and Ito's palette, without its yellow: readers who are colour-blind can tell these apart.
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
INK, QUIET, GRID = "#222222", "#6B7280", "#E5E7EB"
SMOOTH_FROM = 60
MARKERS_UP_TO = 40
# matplotlib's own font has no Chinese: a title in Chinese needs one of these on the machine.
CJK_FONTS = ("Noto Sans CJK SC", "Source Han Sans SC", "Microsoft YaHei", "PingFang SC", "SimHei")

Points = tuple[Sequence[float], list[float]]


def parse_args(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        description="Draw the loss and the accuracy of one or more runs into one PNG."
    )
    parser.add_argument(
        "runs", nargs="+", metavar="RUN", help="a chapter's --output-dir, or its metrics.jsonl"
    )
    parser.add_argument(
        "--out",
        metavar="FILE.png",
        help="where to write; needed for several runs (one run: RUN/curve.png, replaced each time)",
    )
    parser.add_argument("--force", action="store_true", help="replace the file that --out names")
    parser.add_argument(
        "--x", choices=("step", "epoch"), default="step", help="the horizontal axis (step)"
    )
    parser.add_argument("--title", help="above the picture (one run: its name)")
    return parser.parse_args(argv)


def choose_out(args: argparse.Namespace, logs: list[Path]) -> Path:
    """The file to write, after the checks that keep other files safe."""
    folder = own_folder(logs[0]) if len(logs) == 1 else None
    default = folder / "curve.png" if folder else None
    if args.out is None:
        if default is None:
            which = "several runs" if len(logs) > 1 else f"a log not called {LOG_NAME}"
            raise RunLogError(f"where to draw {which}? add --out compare.png")
        return default
    out = Path(args.out)
    if out.suffix.lower() != ".png":
        raise RunLogError(f"--out {out} is not a .png: give --out {out.with_suffix('.png')}")
    if out.is_dir():
        raise RunLogError(f"--out {out} is a folder: give --out {out / 'curve.png'}")
    is_default = default is not None and out.absolute() == default.absolute()
    if out.exists() and not (args.force or is_default):
        raise RunLogError(f"{out} exists: add --force to replace it, or give another --out")
    if not out.parent.is_dir():
        raise RunLogError(f"{out.parent} does not exist: type mkdir -p {out.parent} first")
    return out


def epochs_done(run: Run, steps: Sequence[int]) -> list[float]:
    """How many epochs are done at each step; a resumed run may have other steps per epoch."""
    stretches: list[tuple[int, float, int]] = []
    for start in run.starts:
        first_step, steps_per_epoch = start["resumed_from_step"], start.get("steps_per_epoch")
        if not steps_per_epoch:
            raise RunLogError(f"{run.path} does not say steps_per_epoch: use --x step")
        # A resume from further back takes the place of the later ones before it.
        stretches = [old for old in stretches if old[0] < first_step]
        epochs = first_step / steps_per_epoch
        if stretches:
            before, epochs_before, old_steps_per_epoch = stretches[-1]
            epochs = epochs_before + (first_step - before) / old_steps_per_epoch
        stretches.append((first_step, epochs, steps_per_epoch))
    done = []
    for step in steps:
        first_step, epochs, steps_per_epoch = stretches[0]
        for stretch in stretches:
            if stretch[0] < step:
                first_step, epochs, steps_per_epoch = stretch
        done.append(epochs + (step - first_step) / steps_per_epoch)
    return done


def points(run: Run, rows: list[Event], name: str, x: str) -> Points:
    """Where the rows have a finite number under this name: their place on the axis, and it."""
    rows = [row for row in rows if row.get(name) is not None and math.isfinite(row[name])]
    steps = [row["step"] for row in rows]
    return epochs_done(run, steps) if x == "epoch" else steps, [row[name] for row in rows]


def many_steps(rows: list[Event]) -> list[Event]:
    """The train rows without those of a single step among longer ones, as each epoch begins with:
    the mean over one batch stands for little, and would make the curve jump."""
    lengths = [b["step"] - a["step"] for a, b in pairwise([{"step": 0}, *rows])]
    longest = max(lengths, default=1)
    return [r for r, n in zip(rows, lengths, strict=True) if n != 1 or longest == 1] or rows


def smooth(values: list[float], window: int) -> list[float]:
    """The centred moving average; towards both ends the window shrinks to a quarter.

    Whole windows there would hide how steeply a run begins, and single points show only noise.
    """
    sums = [0.0]
    for value in values:
        sums.append(sums[-1] + value)
    averages = []
    for i in range(len(values)):
        half = max(1, window // 8, min(window // 2, i, len(values) - 1 - i))
        first, beyond = max(0, i - half), min(len(values), i + half + 1)
        averages.append((sums[beyond] - sums[first]) / (beyond - first))
    return averages


def draw_train(axes: "Axes", series: Points, color: str, alone: bool) -> None:
    """The training curve, averaged where there are many points: over them, or in their place.

    Behind several runs the bare points would be one cloud.
    """
    places, values = series
    if len(values) >= SMOOTH_FROM:
        if alone:
            axes.plot(places, values, color=color, linewidth=0.7, alpha=0.25)
        values = smooth(values, max(9, len(values) // 30))
    marker = "o" if len(values) == 1 else None
    width, strength = (1.5, 0.9) if alone else (1.2, 0.55)
    axes.plot(places, values, color=color, linewidth=width, alpha=strength, marker=marker)


def draw_eval(axes: "Axes", series: Points, color: str, light: bool = False) -> None:
    """A validation curve, with a mark at each measurement unless they would hide the line."""
    style: dict[str, Any] = {"linewidth": 2.2, "markersize": 4.5}
    if light:
        style = {"linewidth": 1.3, "markersize": 2.5, "alpha": 0.5, "linestyle": "--"}
    if len(series[0]) <= MARKERS_UP_TO:
        style["marker"] = "o"
    axes.plot(*series, color=color, **style)


def best(run: Run) -> str:
    """The best validation accuracy, for the legend; empty when there is none."""
    accuracies = [row["acc1"] for row in run.eval if row.get("acc1") is not None]
    return f"best {max(accuracies):.1f} %" if accuracies else ""


def facts(run: Run) -> str:
    """One line on a run: its best accuracy, and what its last part ran on."""
    start = run.starts[-1]
    parts = [best(run)]
    if start.get("device"):
        parts.append(f"{start.get('world_size', 1)} x {start['device']}")
    if start.get("global_batch_size"):
        parts.append(f"global batch {start['global_batch_size']}")
    if start.get("torch"):
        parts.append(f"torch {start['torch']}")
    return ", ".join(filter(None, parts))


def draw(runs: list[Run], names: list[str], x: str, title: str | None) -> "Figure":
    """The picture: loss on the left, accuracy on the right.

    With one run the colours tell training from validation, with several they tell the runs apart.
    """
    from matplotlib.figure import Figure

    alone = len(runs) == 1
    colors = pick_colors(len(runs))
    # A Figure of its own, without pyplot, is drawn by Agg: no display is needed.
    figure = Figure(figsize=(SIZE_PX[0] / DPI, SIZE_PX[1] / DPI), dpi=DPI, layout="constrained")
    figure.get_layout_engine().set(w_pad=0.1, h_pad=0.08, rect=(0.006, 0, 0.988, 1))
    loss_axes, accuracy_axes = figure.subplots(1, 2)
    for run, color in zip(runs, colors, strict=True):
        eval_color = COLORS[1] if alone else color
        for axes, name in ((loss_axes, "loss"), (accuracy_axes, "acc1")):
            draw_train(axes, points(run, many_steps(run.train), name, x), color, alone)
            draw_eval(axes, points(run, run.eval, name, x), eval_color)
        draw_eval(accuracy_axes, points(run, run.eval, "acc5", x), eval_color, light=True)
    decorate(loss_axes, "Loss", x)
    decorate(accuracy_axes, "Accuracy (%)", x)
    # The whole scale, except where it would press a run that has just begun to the bottom.
    accuracy_axes.set_ylim(0, 102 if accuracy_axes.get_ylim()[1] > 50 else None)
    add_keys(loss_axes, accuracy_axes, alone)
    if alone:
        line = ": ".join(filter(None, [names[0] if title else "", facts(runs[0])]))
        name_runs(figure, [line], [None], title or names[0])
    else:
        labels = [f"{name}   {best(run)}" for name, run in zip(names, runs, strict=True)]
        name_runs(figure, labels, colors, title)
    return figure


def pick_colors(count: int) -> list[Any]:
    """A colour for each run: from the palette, or from a ramp where the palette is too short."""
    if count <= len(COLORS):
        return list(COLORS[:count])
    from matplotlib import colormaps

    return [colormaps["turbo"](0.05 + 0.9 * i / (count - 1)) for i in range(count)]


def decorate(axes: "Axes", title: str, x: str) -> None:
    """What both halves have in common: a title, a light grid, and no box."""
    axes.set_title(title, loc="left", fontsize=12, fontweight="bold", color=INK, pad=10)
    axes.set_xlabel(x, fontsize=11, color=QUIET)
    axes.grid(axis="y", color=GRID, linewidth=0.9)
    axes.set_axisbelow(True)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.spines["bottom"].set_color(QUIET)
    axes.tick_params(labelsize=10.5, colors=INK, length=0, pad=6)
    axes.margins(x=0.02)
    axes.locator_params(axis="x", nbins=7, integer=x == "step")
    axes.xaxis.set_major_formatter(lambda at, _: f"{at:,.0f}" if at == round(at) else f"{at:g}")


def add_keys(loss_axes: "Axes", accuracy_axes: "Axes", alone: bool) -> None:
    """Say in each half which line is training and which is validation."""
    from matplotlib.lines import Line2D

    train_color, eval_color = COLORS[:2] if alone else (QUIET, QUIET)
    train = Line2D([], [], color=train_color, linewidth=1.3, label="training")
    top1 = Line2D([], [], color=eval_color, linewidth=2.4, label="validation")
    top5 = Line2D(
        [], [], color=eval_color, linewidth=1.3, alpha=0.6, linestyle="--", label="validation top 5"
    )
    quiet = {"frameon": False, "fontsize": 10.5, "labelcolor": INK}
    loss_axes.legend(handles=[train, top1], loc="best", **quiet)
    # Good curves leave this corner free; those that have just begun may not.
    corner = "lower right" if accuracy_axes.get_ylim()[1] > 100 else "best"
    accuracy_axes.legend(handles=[train, top1, top5], loc=corner, **quiet)


def name_runs(figure: "Figure", labels: list[str], colors: list[Any], title: str | None) -> None:
    """The title and the names of the runs, above both halves; no colour: a line of plain text."""
    from matplotlib.lines import Line2D

    handles = [
        Line2D([], [], color=color or "none", linewidth=4, label=text)
        for color, text in zip(colors, labels, strict=True)
    ]
    plain = not any(colors)
    legend = figure.legend(
        handles=handles,
        loc="outside upper left",
        title=title,
        title_fontproperties={"size": 15, "weight": "bold"},
        alignment="left",
        # What fits beside each other in the picture's width.
        ncols=max(1, min(len(labels), 130 // (max(map(len, labels)) + 6))),
        frameon=False,
        fontsize=11,
        labelcolor=QUIET if plain else INK,
        handlelength=0 if plain else 1.3,
        handletextpad=0 if plain else 0.8,
        borderpad=0.3,
    )
    legend.get_title().set_color(INK)


def look() -> dict[str, Any]:
    """matplotlib's settings for the picture, whatever the user's own are."""
    from matplotlib import font_manager

    installed = set(font_manager.get_font_names())
    fonts = ["DejaVu Sans", *(font for font in CJK_FONTS if font in installed)]
    # A name with a $ in it is a name, not a formula.
    return {"font.family": fonts, "text.parse_math": False, "savefig.facecolor": "white"}


def main(argv: Sequence[str] | None = None) -> None:
    """Read the runs, draw them, print where the picture is."""
    args = parse_args(argv)
    try:
        import matplotlib
    except ImportError as error:
        raise SystemExit(f"plot.py needs matplotlib ({error}): pip install matplotlib") from error
    try:
        logs = [find_log(path) for path in args.runs]
        names = run_names(logs)
        out = choose_out(args, logs)
        runs = [read_run(log) for log in logs]
        for run in runs:
            if not run.train and not run.eval:
                raise RunLogError(f"{run.path} has no train or eval row yet: try again later")
        with matplotlib.rc_context():
            matplotlib.rcdefaults()
            matplotlib.rcParams.update(look())
            draw(runs, names, args.x, args.title).savefig(out)
    except (RunLogError, OSError) as error:
        raise SystemExit(str(error)) from error
    print(out)


if __name__ == "__main__":
    main()
