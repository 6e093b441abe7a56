"""Writes the log of a run as TensorBoard event files.

    python tools/to_tensorboard.py runs/02_distributed             # runs/02_distributed/tensorboard
    python tools/to_tensorboard.py runs/02_distributed --follow    # in a second terminal, live
    tensorboard --logdir runs

RUN is a chapter's --output-dir. Called again, it replaces the event files that it wrote before, so
no point is doubled, and no others.

With --follow it goes on until the run writes its last line, or until Ctrl-C. A run that is killed
and resumed meanwhile is followed on.
"""

import argparse
import json
import time
from collections.abc import Sequence

from run_log import FIELDS, Event, Run, RunLogError, read_run
from torch.utils.tensorboard import SummaryWriter

# The end of the name of every file written here: what may be replaced.
SUFFIX = ".from_metrics"
SECONDS_BETWEEN_LOOKS = 5


def open_writer(run: Run, purge_step: int | None) -> SummaryWriter:
    """A new event file; TensorBoard forgets what older ones have from `purge_step` on."""
    folder = run.path.parent / "tensorboard"
    writer = SummaryWriter(folder, purge_step=purge_step, filename_suffix=SUFFIX)
    # Four spaces begin a block of code: TensorBoard shows text as Markdown.
    text = json.dumps(run.starts[-1], indent=4).replace("\n", "\n    ")
    writer.add_text("start", f"    {text}", run.starts[-1]["resumed_from_step"])
    return writer


def write_rows(writer: SummaryWriter, rows: list[Event]) -> None:
    """Every number of the rows, at its step and time."""
    for row in rows:
        for name in FIELDS[row["event"]]:
            if row.get(name) is not None:
                tag = f"{row['event']}/{name}"
                writer.add_scalar(tag, row[name], row["step"], walltime=row.get("time"))
    writer.flush()


def convert(path: str, follow: bool) -> None:
    """Write the run's event files, once or until the run ends."""
    run = read_run(path)
    folder = run.path.parent / "tensorboard"
    for file in folder.glob(f"*{SUFFIX}"):
        file.unlink()

    written: list[Event] = []
    writer = open_writer(run, None)
    try:
        while True:
            rows = sorted(run.train + run.eval, key=lambda row: row["step"])
            if rows[: len(written)] != written:
                # A resumed run does the last steps again, which are in the event file already.
                resumed_from_step = run.starts[-1]["resumed_from_step"]
                written = [row for row in written if row["step"] <= resumed_from_step]
                writer.close()
                writer = open_writer(run, resumed_from_step + 1)
            write_rows(writer, rows[len(written) :])
            written = rows
            if run.end or not follow:
                break
            time.sleep(SECONDS_BETWEEN_LOOKS)
            run = read_run(path)
    except KeyboardInterrupt:
        print("stopped before the run's end; the same command writes all of it again")
    finally:
        writer.close()
    print(f"{folder}: {len(written)} rows")


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description="Write the log of a run as TensorBoard event files, to RUN/tensorboard."
    )
    parser.add_argument("run", metavar="RUN", help="a chapter's --output-dir")
    parser.add_argument("--follow", action="store_true", help="go on until the run ends, or Ctrl-C")
    args = parser.parse_args(argv)
    try:
        convert(args.run, args.follow)
    except RunLogError as error:
        raise SystemExit(str(error)) from error


if __name__ == "__main__":
    main()
