"""Writes the log of a run as TensorBoard event files.

    python tools/to_tensorboard.py runs/02_distributed             # runs/02_distributed/tensorboard
    tensorboard --logdir runs

RUN is a chapter's --output-dir. Called again, while the run goes on or later, it writes all of it
anew, and TensorBoard, running or not, forgets what the files before have: no point is doubled.
"""

import argparse
import json
from collections.abc import Sequence

from run_log import RunLogError, numbers, read_run
from torch.utils.tensorboard import SummaryWriter

# The end of the name of every file written here: what may be removed.
SUFFIX = ".from_metrics"


def convert(path: str) -> None:
    """Write every number of the run's rows, at its step and time."""
    run = read_run(path)
    folder = run.path.parent / "tensorboard"
    # A TensorBoard that is running goes on from the newest file, so that one stays.
    for file in sorted(folder.glob(f"*{SUFFIX}"))[:-1]:
        file.unlink()

    # purge_step: from which step on TensorBoard forgets the points of the files before.
    with SummaryWriter(folder, purge_step=0, filename_suffix=SUFFIX) as writer:
        # Four spaces begin a block of code: TensorBoard shows text as Markdown.
        text = json.dumps(run.starts[-1], indent=4).replace("\n", "\n    ")
        steps = run.starts[-1]["steps_per_epoch"]
        writer.add_text("start", f"    {text}", round(run.starts[-1]["at"] * steps))

        rows = sorted(run.train + run.eval, key=lambda row: row["at"])
        for row in rows:
            for name, value in numbers(row).items():
                tag, step = f"{row['event']}/{name}", round(row["at"] * steps)
                writer.add_scalar(tag, value, step, walltime=row.get("time"))
    print(f"{folder}: {len(rows)} rows")


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run", metavar="RUN", help="a chapter's --output-dir")
    try:
        convert(parser.parse_args(argv).run)
    except RunLogError as error:
        raise SystemExit(str(error)) from error


if __name__ == "__main__":
    main()
