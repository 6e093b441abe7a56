"""Is this distributed script right? Put before its launch line, it says what is wrong.

    python doctor torchrun --nproc-per-node 2 train.py --epochs 2
    python doctor --steps 50 python train_with_spawn.py
    python doctor --seconds 60 horovodrun -np 2 python train.py

The command really runs, and writes its files. A recorder in each of its Python
processes notes samples, gradients, weights, collectives and files, and changes
nothing: no collective, no random number, no order. When the command has ended,
the notes of all ranks are compared. Two epochs with an evaluation show most.

A folder; needs Python 3.10 and the torch of the script (2.6 or newer).
Exit status: 1 for a wrong result or a hang ahead, 2 if the command could not be
run to its end, 3 if something could not be checked because this torch lacks what
the recorder attaches to, else 0. docs/en/doctor.md explains every finding.
"""

import argparse
import json
import locale
import os
import signal
import sys
import tempfile
import time
from pathlib import Path

from .checks import judge
from .findings import KINDS
from .job import Job
from .ranks import Rank, read_ranks
from .report import LANGUAGES, Report, listed, short


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="doctor",
        description=__doc__.splitlines()[0],
        usage="python doctor [options] command ...",
        allow_abbrev=False,
    )
    parser.add_argument("--steps", type=int, default=0, help="end the job when all ranks made them")
    parser.add_argument("--seconds", type=float, default=0, help="end the job after them")
    parser.add_argument("--json", metavar="FILE", help="write the verdict there too")
    parser.add_argument("--lang", choices=LANGUAGES, help="of the verdict; else your locale's")
    parser.add_argument("--allow", metavar="ID[,ID]", default="", help="findings that are notes")
    parser.add_argument("command", nargs=argparse.REMAINDER, help="the usual launch line")
    args = parser.parse_args()
    if not args.command:
        parser.error("no command: type your launch line after it, such as torchrun … train.py")
    if args.steps < 0 or args.seconds < 0:
        parser.error("--steps and --seconds are numbers above 0")
    if args.json and not os.access(Path(args.json).absolute().parent, os.W_OK):
        parser.error(f"--json {args.json}: there is no folder that can be written")
    unknown = [name for name in args.allow.split(",") if args.allow and name not in KINDS]
    if unknown:
        names = ", ".join(name for name in KINDS if ":" not in name)
        parser.error(f"--allow {unknown[0]}: no such finding; there are {names}")
    return args


def fail(line: str) -> None:
    print(f"doctor: error: {line}", file=sys.stderr)
    sys.exit(2)


def run(args: argparse.Namespace, folder: Path) -> tuple[Job, list[Rank]]:
    # These end the job as Ctrl-C does; what nohup or a shell ignores stays ignored.
    ends = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    ends = [number for number in ends if signal.getsignal(number) != signal.SIG_IGN]
    for number in ends:
        signal.signal(number, signal.default_int_handler)
    words = " ".join(args.command)
    print(f"doctor: running {words}: it really trains, and writes its files", flush=True)

    try:
        job = Job(args.command, folder)
    except OSError as error:
        fail(f"the command cannot be started: {args.command[0]}: {error.strerror}")
    try:
        job.wait(args.steps, args.seconds)
    except KeyboardInterrupt:
        job.ended = "ctrl-c"
    finally:
        for number in ends:
            signal.signal(number, signal.SIG_IGN)  # nothing is to be left behind
        stopped = time.time() if job.ended else float("inf")
        if job.ended or job.process.poll() is None:
            job.end()

    status = job.process.returncode
    if not any(job.traces.glob("*.jsonl")):
        fail(
            f"it ended with status {status}, and no Python process of it has used torch: "
            "PYTHONPATH must reach them, and does not into containers or python -I"
        )
    ranks = read_ranks(job.traces, stopped)
    if not any(rank.passes or rank.steps for rank in ranks):
        fail(f"it ended with status {status} before a loader or an optimizer was used")
    return job, ranks


def main() -> None:
    args = parse_args()
    # What the command leaves running may still write there.
    with tempfile.TemporaryDirectory(prefix="doctor-", ignore_cleanup_errors=True) as name:
        job, ranks = run(args, Path(name))

    status = job.process.returncode
    steps = listed([len(rank.steps) for rank in ranks])
    by = job.ended or f"status {status}"
    print(f"\ndoctor: ranks {listed(ranks)}; steps {steps}; ended: {by}")
    for rank in ranks:
        error = rank.ended.get("error", "None")
        if error != "None":
            print(f"rank {rank.rank} ended by {error:.200}")
        if rank.stack:
            print(f"rank {rank.rank} stood still at {short(rank.stack)}")

    chinese = str(locale.getlocale()[0]).startswith(("zh", "Chinese"))
    report = Report(args.lang or ("zh" if chinese else "en"), tuple(args.allow.split(",")))
    judge(ranks, report)
    print("\n" + report.text())
    if "GITHUB_ACTIONS" in os.environ:
        print("", *(finding.annotation() for finding in report.findings), sep="\n")
    if args.json:
        text = json.dumps(report.json(), indent=1, ensure_ascii=False)
        Path(args.json).write_text(text + "\n")
    if report.failed():
        sys.exit(1)
    if status and not job.ended:
        sys.exit(2)
    sys.exit(3 if report.blocked else 0)
