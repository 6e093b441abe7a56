"""Writes the log of one or more runs as TensorBoard event files.

    python tools/to_tensorboard.py runs/02_distributed             # runs/02_distributed/tensorboard
    python tools/to_tensorboard.py runs/02_distributed --follow    # in a second terminal, live
    tensorboard --logdir runs

RUN is a chapter's --output-dir, or the metrics.jsonl in it. With --out DIR one run goes to DIR
itself, several go to DIR/<name of the run>. Run again, it replaces the event files that it wrote
before, so no point is doubled; a folder that holds anything else is refused.

With --follow it goes on until the run writes its last line, or until Ctrl-C. A run that is killed
and resumed meanwhile is followed on; a log without its first line is waited for.
"""

import argparse
import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from run_log import (
    FIELDS,
    LOG_NAME,
    Event,
    RunLogError,
    RunReader,
    drop_redone,
    find_log,
    own_folder,
    read_run,
    run_names,
)

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter

# The end of the name of every file written here: what may be replaced, and what is not ours.
SUFFIX = ".from_metrics"


def parse_args(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        description="Write the log of one or more runs as TensorBoard event files."
    )
    parser.add_argument(
        "runs", nargs="+", metavar="RUN", help="a chapter's --output-dir, or its metrics.jsonl"
    )
    parser.add_argument(
        "--out",
        metavar="DIR",
        help="where to write (RUN/tensorboard); several runs: DIR/<name of the run>",
    )
    parser.add_argument(
        "--follow", action="store_true", help="go on until the run ends; Ctrl-C stops it earlier"
    )
    parser.add_argument(
        "--interval", type=float, default=5.0, metavar="S", help="seconds between two looks (5)"
    )
    args = parser.parse_args(argv)
    if not 0 < args.interval <= 3600:
        parser.error(f"--interval {args.interval:g}: give seconds, more than 0, up to 3600")
    return args


def choose_folders(out: str | None, logs: list[Path]) -> list[Path]:
    """The folder of event files for each run."""
    if out is not None:
        return [Path(out)] if len(logs) == 1 else [Path(out, name) for name in run_names(logs)]
    folders = []
    for log in logs:
        folder = own_folder(log)
        if folder is None:
            raise RunLogError(f"where to write {log}, not called {LOG_NAME}? add --out DIR")
        folders.append(folder / "tensorboard")
    return folders


def own_files(folder: Path) -> list[Path]:
    """The event files that this tool wrote into the folder; raises if it holds anything else."""
    if not folder.exists():
        return []
    if not folder.is_dir():
        raise RunLogError(f"{folder} is a file: give --out DIR")
    files = sorted(folder.iterdir())
    for file in files:
        if not file.name.endswith(SUFFIX):
            raise RunLogError(f"{folder} holds other files ({file.name}): give a new folder, --out")
    return files


class Conversion:
    """One run on its way into event files."""

    def __init__(self, log: Path, folder: Path) -> None:
        self.reader = RunReader(log)
        self.folder = folder
        self.writer: SummaryWriter | None = None
        self.wall_time: float | None = None
        self.rows = 0
        self.ended = False
        # Whether this is past the first look: the rows are then as new as the look.
        self.live = False

    def step(self) -> None:
        """Write what the log has gained."""
        for event in drop_redone(self.reader.poll()):
            self.ended = event["event"] == "end"
            if event["event"] == "start":
                self._start(event)
            elif event["event"] in FIELDS:
                self._write_row(event)
        if self.writer is not None:
            self.writer.flush()
        self.live = True

    def _start(self, event: Event) -> None:
        """Open an event file where one is needed, and note what the run was started with."""
        from torch.utils.tensorboard import SummaryWriter

        step = event["resumed_from_step"]
        if self.writer is None:
            for file in own_files(self.folder):
                file.unlink()
            self.writer = SummaryWriter(self.folder, filename_suffix=SUFFIX)
        elif self.live:
            # The steps beyond the checkpoint are already in the first file, and come again:
            # purge_step tells TensorBoard to forget them. In one batch they were dropped before.
            self.writer.close()
            self.writer = SummaryWriter(self.folder, purge_step=step + 1, filename_suffix=SUFFIX)
        self.wall_time = event.get("time")
        rest = {name: value for name, value in event.items() if name not in ("event", "args")}
        for tag, values in (("args", event.get("args") or {}), ("start", rest)):
            self.writer.add_text(tag, as_table(values), step, walltime=self.wall_time)

    def _write_row(self, row: Event) -> None:
        # A row without a time of its own: now, or if it is old the start, the last time known.
        wall_time = row.get("time") or (None if self.live else self.wall_time)
        for name in FIELDS[row["event"]]:
            if row.get(name) is not None:
                tag = f"{row['event']}/{name}"
                self.writer.add_scalar(tag, row[name], row["step"], walltime=wall_time)
        self.rows += 1

    def close(self) -> None:
        """Finish the event file."""
        if self.writer is not None:
            self.writer.close()
            print(f"{self.folder}: {self.rows} rows")


def as_table(values: dict[str, object]) -> str:
    """A Markdown table, which is how TensorBoard shows text."""
    lines = ["| name | value |", "| --- | --- |"]
    for name, value in values.items():
        text = json.dumps(value, ensure_ascii=False).replace("|", "\\|")
        lines.append(f"| {name} | {text} |")
    return "\n".join(lines)


def convert(args: argparse.Namespace) -> None:
    """Write the event files of all runs, once or until the runs end."""
    logs = [find_log(path) for path in args.runs]
    run_names(logs)
    folders = choose_folders(args.out, logs)
    for log, folder in zip(logs, folders, strict=True):
        own_files(folder)
        if not args.follow:
            read_run(log)
    conversions = [Conversion(*pair) for pair in zip(logs, folders, strict=True)]
    try:
        for conversion in conversions:
            conversion.step()
        while args.follow and not all(conversion.ended for conversion in conversions):
            time.sleep(args.interval)
            for conversion in conversions:
                conversion.step()
    except KeyboardInterrupt:
        print("stopped before the run's end; the same command writes all of it again")
    finally:
        for conversion in conversions:
            conversion.close()


def main(argv: Sequence[str] | None = None) -> None:
    """Check what the conversion needs, then convert."""
    args = parse_args(argv)
    try:
        import torch.utils.tensorboard  # noqa: F401
    except ImportError as error:
        raise SystemExit(
            f"to_tensorboard.py needs TensorBoard ({error}): pip install torch tensorboard"
        ) from error
    try:
        convert(args)
    except (RunLogError, OSError) as error:
        raise SystemExit(str(error)) from error


if __name__ == "__main__":
    main()
