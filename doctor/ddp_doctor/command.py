"""Is this distributed script right? Put before its launch line, it says what is wrong.

    python doctor torchrun --nproc-per-node 2 train.py --epochs 2
    python doctor --steps 50 python train_with_spawn.py
    python doctor --seconds 60 horovodrun -np 2 python train.py
    python doctor --against "python single.py" torchrun --nproc-per-node 2 train.py

The command really runs, and writes its files. A recorder in each of its Python
processes notes samples, gradients, weights, collectives and files, and changes
nothing: no collective, no random number, no order. When the command has ended,
the notes of all ranks are compared. Two epochs with an evaluation show most.

A folder, one file, or a command (pip install ./doctor); needs Python 3.10 and the torch
of the script (2.6 or newer).
Exit status: 1 for a wrong result or a hang ahead, 2 if the command could not be
run to its end, or the doctor failed, 3 if something could not be checked because
this torch lacks what the recorder attaches to, or the recorder had to stop, else
0. --explain ID says more of a finding.

--against COMMAND runs COMMAND first, the same training on one process, say, both
for 30 steps or a few more, and says where the two part: then 1 is also for a
difference that no known cause explains, and 3 for what could not be compared.
"""

import argparse
import errno
import io
import json
import locale
import os
import re
import shlex
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from itertools import pairwise
from pathlib import Path

from .against.comparison import Comparison
from .against.first import for_second_run
from .against.runs import Run, run_of
from .against.where import parting, tell_place
from .before import Before
from .checks import judge
from .findings import KINDS
from .job import ENDS, HEARD, Job
from .ranks import STILL, Rank, failed, read_ranks, read_stack
from .report import LANGUAGES, Report, explain, last_line, listed, own_call, short
from .speed.interval import FEWEST
from .speed.numbers import Speed
from .speed.rent import Rent
from .speed.said import compared, lines_of
from .speed.trial import LEAST, PATIENCE, Trial
from .without import ALONE, PARTS

TAKEN_OUT = {  # not to be checked
    "unequal_buffers": "batchnorm",
    "equal_randomness": "draws",
    "untrained": "growth",
    "drifting_weights": "growth",
}
NAMES = [name for name in KINDS if ":" not in name]


def names(text: str) -> list[str]:
    found = text.split(",")
    for name in found:
        if name not in NAMES:
            known = ", ".join(NAMES)
            raise argparse.ArgumentTypeError(f"{name}: no such finding; there are {known}")
    return found


def parts(text: str) -> str:
    names = text.split(",")
    unknown = [name for name in names if name not in (*PARTS, *ALONE, "all")]
    if unknown:
        known = ", ".join((*PARTS, *ALONE))
        raise argparse.ArgumentTypeError(f"{unknown[0]}: no such part; there are {known}, all")
    return ",".join((*PARTS, *(ALONE if "growth" in names else ()))) if "all" in names else text


def launch_line(text: str) -> list[str]:
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r} is no command: {error}") from None
    if not words:
        raise argparse.ArgumentTypeError("no command: type a launch line in quotes")
    return words


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="doctor",
        description=(__doc__ or "").partition("\n")[0],  # python -OO has none
        usage=f"{own_call()} [options] command ...".replace("%", "%%"),
        allow_abbrev=False,
    )
    parser.add_argument("--steps", type=int, help="end the job when all ranks made them")
    parser.add_argument("--seconds", type=float, default=0, help="end the job after them")
    parser.add_argument(
        "--still", type=float, metavar="SECONDS", help="end a job that stands still for so long"
    )
    parser.add_argument("--json", metavar="FILE", help="write the verdict there too")
    parser.add_argument("--lang", choices=LANGUAGES, help="of the verdict; else your locale's")
    parser.add_argument(
        "--against",
        type=launch_line,
        metavar="COMMAND",
        help="run this one first: is it the same training?",
    )
    parser.add_argument(
        "--without",
        type=parts,
        metavar="PART[,PART]",
        help=f"take out of both runs of --against: {', '.join(PARTS)}, or all; or growth",
    )
    parser.add_argument(
        "--no-where",
        dest="where",
        action="store_false",
        help="where gradients part, do not run both again to see in which module",
    )
    parser.add_argument(
        "--speed", action="store_true", help="measure what input and communication cost, no more"
    )
    ids = {"type": names, "metavar": "ID[,ID]", "default": []}
    parser.add_argument("--allow", **ids, help="findings that are notes")
    parser.add_argument("--explain", **ids, help="say more of findings, and run nothing")
    parser.add_argument("command", nargs=argparse.REMAINDER, help="the usual launch line")
    args = parser.parse_args()
    if args.explain:
        return args
    if not any(args.command[:1]):
        parser.error("no command: type your launch line after it, such as torchrun … train.py")
    if args.speed and (args.without or args.steps is not None or args.still or args.allow):
        parser.error("--speed goes with --against, --seconds, --json and --lang alone")
    if args.without and not args.against:
        parser.error("--without changes both runs of --against COMMAND")
    if args.steps is None:
        args.steps = 30 if args.against else 0
    if args.steps < 0 or not args.seconds >= 0:
        parser.error("--steps and --seconds are numbers above 0")
    if args.still is not None and not args.still >= STILL:
        parser.error(f"--still {args.still:g}: at least {STILL}, as short silences are common")
    if args.json:
        check_json(args, parser)
    return args


def check_json(args: argparse.Namespace, parser: argparse.ArgumentParser) -> None:
    """Before a run of minutes: no script is written over, and the file can be made."""
    file = Path(args.json).absolute()
    words = filter(os.path.exists, (*args.command, *(args.against or ())))
    if file.exists() and (file.suffix == ".py" or any(file.samefile(word) for word in words)):
        parser.error(f"--json {args.json}: this file would be overwritten; type another name")
    refused = file.is_dir()
    try:
        if file.is_file():
            file.open("ab").close()
        elif not file.exists():
            tempfile.TemporaryFile(dir=file.resolve().parent).close()
    except OSError:
        refused = True
    if refused:
        parser.error(f"--json {args.json}: no file can be written there")


def fail(line: str) -> None:
    print(f"doctor: error: {line}", file=sys.stderr)
    sys.exit(2)


def script_of(command: list[str]) -> str | None:
    """The file that a launch line of python or torchrun runs, if it is one."""
    words = command[1:] if re.match(r"python|torchrun", os.path.basename(command[0])) else []
    for before, word in pairwise(["", *words]):
        if word == "-c" or (before == "-m" and not word.startswith("torch.distributed.")):
            return None
        if word.endswith(".py"):
            return word
    return None


def check_line(command: list[str], say: Callable) -> None:
    """Before anything runs for minutes: is there what this launch line names?"""
    for name, there in ((command[0], shutil.which), (script_of(command), os.path.isfile)):
        if name and not there(name):
            not_started(name, errno.ENOENT, say)


def not_started(name: str, number: int, say: Callable) -> None:
    """number: of the error. A file that is there lacks the program that runs it."""
    if os.path.isfile(name) and number in (errno.ENOENT, errno.EACCES, errno.ENOEXEC):
        by = "python" if name.endswith(".py") else "bash"
        fail(say("no_program", command=name, line=shlex.join([by, name])))
    fail(say("not_started", command=name, why=os.strerror(number)))


@contextmanager
def recorded(make: Callable) -> Iterator[Job]:
    """A job in a folder of its own, for as long as it is asked."""
    job = folder = None
    try:
        folder = tempfile.mkdtemp(prefix="doctor-")
        if os.pathsep in folder:
            fail(f"TMPDIR: {folder}: PYTHONPATH takes no colon: put TMPDIR=/tmp before the command")
        job = make(Path(folder))
    except OSError as error:
        where = f"{folder}: " if folder else ""
        fail(f"nothing can be recorded in TMPDIR: {where}{error.strerror}")
    else:
        yield job
    finally:
        if job:
            job.clear()
        elif folder:
            shutil.rmtree(folder, ignore_errors=True)


class Around:
    """What surrounds each of the runs: what the doctor was given to read, and the files that a run
    whose result is worth nothing may write over."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.stdin = None
        with suppress(OSError):  # a terminal, a pipe
            self.stdin = os.lseek(0, 0, os.SEEK_CUR)
        worthless = args.speed or args.without
        self.before = Before(args.command, args.against or []) if worthless else None

    def begin(self) -> None:
        """Each run reads from the beginning."""
        if self.stdin is not None:
            os.lseek(0, self.stdin, os.SEEK_SET)

    def tell(self, say: Callable) -> None:
        if self.before and (changed := self.before.changed()):
            print("\ndoctor: " + say("changed", files=listed(changed, 100)))
        if self.before and self.before.unseen:
            print("\ndoctor: " + say("unseen", folders=listed(self.before.unseen)))


def print_still(who: str, at: list, inside: str, say: Callable) -> None:
    print(say("still_in" if inside else "still", who=who, place=short(at), inside=inside))


def run(
    args: argparse.Namespace, around: Around, command: list[str], job: Job, say: Callable
) -> list[Rank]:
    stopped = perform(args, around, command, job, say)

    job.cut = job.stopped()
    if not job.cut and not any(job.traces.glob("*.jsonl")):
        fail(no_torch(job, say))
    ranks = read_ranks(job.traces, stopped, bool(job.cut))
    if job.cut and not any(rank.steps for rank in ranks):
        fail(f"no step could be recorded in TMPDIR: {job.cut}")
    status = job.process.returncode
    if not job.ended and not status and any(rank.steps and not rank.ended for rank in ranks):
        job.cut = job.cut or "silent"
    parted = len(ranks) > 1 and any(rank.events["collective"] for rank in ranks)
    if not parted and not any(rank.passes or rank.steps for rank in ranks):
        for path in job.traces.glob("*.stacks"):
            at, inside = read_stack(path)
            if at and "/bin/" not in at[0]:  # torchrun
                print_still(say("process"), at, inside, say)
        if status and not job.ended and "rounding" in (args.without or ""):
            print("doctor: " + say("quantized", do=without_rounding(args, say)))
        fail(say("early_by" if job.ended else "early", by=job.ended, why=job.why()))
    return ranks


def without_rounding(args: argparse.Namespace, say: Callable) -> str:
    """What to type where it cannot be taken out."""
    left = [part for part in args.without.split(",") if part not in ("rounding", *ALONE)]
    return say("leave_out", parts=",".join((*left, *ALONE)))


def no_torch(job: Job, say: Callable) -> str:
    """What may be the reason hangs on how it ended."""
    if job.ended:
        return say("no_torch_by", by=job.ended)
    if job.held():
        return say("no_torch_inner")
    if job.process.returncode:
        return say("no_torch_failed", why=job.why())
    return say("no_torch_left" if job.left() else "no_torch")


def perform(
    args: argparse.Namespace, around: Around, command: list[str], job: Job, say: Callable
) -> float:
    """The command runs until it ends, or is ended. Returns when we ended it."""
    around.begin()
    for number in HEARD:  # ENDS end the job as Ctrl-C does
        signal.signal(number, signal.default_int_handler if number in ENDS else job.pass_on)
    try:
        job.start(command)
    except OSError as error:
        not_started(shutil.which(command[0]) or command[0], error.errno, say)
    try:
        job.wait(args.steps, args.seconds, args.still)
    except KeyboardInterrupt:
        job.ended = "ctrl-c"
    finally:
        for number in HEARD:
            signal.signal(number, signal.SIG_IGN)  # nothing is to be left behind
        stopped = time.time() if job.ended else float("inf")
        if job.ended:
            print("\ndoctor: " + say("ends", by=job.ended))
            sys.stdout.flush()
        if job.ended or job.process.poll() is None:
            job.end()
        job.over()
    job.reason = job.ended or say("status", number=job.why())
    if left := job.left():
        found = {"count": len(left), "pids": listed(left), "folder": job.traces.parent}
        print("\ndoctor: " + say("left", **found))
    around.tell(say)
    return stopped


def broken(job: Job, ranks: list[Rank]) -> bool:
    """Whether there is nothing to compare with."""
    return job.ended == "ctrl-c" or bool(job.cut) or any(map(failed, ranks))


def print_ended(job: Job, ranks: list[Rank], say: Callable) -> None:
    steps = listed([len(rank.steps) for rank in ranks])
    by = job.ended or say("status", number=job.status())
    print("\ndoctor: " + say("made", ranks=listed(ranks), steps=steps, by=by))
    for rank in ranks:
        if failed(rank):
            at = f" ({short(rank.ended['at'])})" if rank.ended["at"] else ""
            print(say("raised", rank=rank.rank, error=last_line(rank.ended["error"]) + at))
        if rank.stack:
            print_still(f"rank {rank.rank}", rank.stack, rank.inside, say)


def run_in_folder(
    args: argparse.Namespace,
    around: Around,
    command: list[str],
    say: Callable,
    of_first: dict | None = None,
    where: int = 0,
) -> tuple[Job, list[Rank]]:
    """of_first: for the second of two runs. where: the step whose modules are looked at."""
    print("doctor: " + say("running", command=" ".join(command)), flush=True)
    without = (args.without or "") if args.against else None
    with recorded(lambda folder: Job(folder, without, of_first, where)) as job:
        ranks = run(args, around, command, job, say)
    print_ended(job, ranks, say)
    errors = " ".join(rank.ended.get("error", "") for rank in ranks)
    if "rounding" in (args.without or "") and all(
        re.search(kind, errors, re.I) for kind in ("double", "float|half")
    ):
        print("doctor: " + say("coarse", do=without_rounding(args, say)))
    return job, ranks


def look_again(
    args: argparse.Namespace, around: Around, comparison: Comparison, report: Report
) -> None:
    """Both commands once more, up to the step in which they part: where is it?"""
    parted = parting(comparison) if args.where else None
    if not parted:
        return
    print("\ndoctor: " + report.say("where_again", step=parted.step), flush=True)
    runs: list[Run] = []
    told = None
    for run, command in zip(comparison.runs, (args.against, args.command), strict=True):
        step = run.begun + parted.step
        own = argparse.Namespace(**{**vars(args), "steps": max(2, step)})  # one shows no teams
        try:
            job, ranks = run_in_folder(own, around, command, report.say, told, step)
        except SystemExit:  # its line is printed
            break
        if broken(job, ranks):
            break
        told = for_second_run(ranks)
        runs.append(run_of(run.label, ranks))
    again = None
    if len(runs) == 2:
        again = Comparison(*runs, Report(report.language), args.without or "")
        again.compare()
    try:
        tell_place(comparison, again)
    except Exception as error:  # a mistake of ours: what was compared stands
        comparison.say("skipped", "failed", error=repr(error))


def write_json(args: argparse.Namespace, found: object) -> None:
    if not args.json:
        return
    text = json.dumps(found, indent=1, ensure_ascii=False)
    try:
        Path(args.json).write_text(text + "\n", "utf-8", "backslashreplace")
    except OSError as error:
        fail(f"--json {args.json}: {error.strerror}")


def measure(args: argparse.Namespace, around: Around, command: list[str], report: Report) -> Speed:
    """How fast it is, and what its parts cost. Ends the doctor where that cannot be known."""
    say = report.say
    print("doctor: " + say("speed_running", command=" ".join(command)), flush=True)
    with recorded(lambda folder: Trial(folder, say)) as trial:
        perform(args, around, command, trial, say)
        trial.read()
        cut, why = trial.stopped(), trial.why()
        if not cut and not trial.torch:
            fail(no_torch(trial, say))
    if cut:
        fail(f"nothing can be recorded in TMPDIR: {cut}")
    if trial.ended == "alone":
        ready = {"ready": len(trial.ready), "world": trial.world()}
        fail(say("speed_alone", seconds=PATIENCE, **ready))
    failed = not trial.ended and trial.process.returncode
    speed = None if failed or trial.ended == "ctrl-c" or not trial.ready else Speed(trial)
    wanted = trial.steps(FEWEST) if trial.plan else 0
    if not speed or not speed.whole():
        names = {"": "speed_failed" if failed else "speed_short", "measured": "speed_untimed"}
        made = {"made": trial.made, "wanted": wanted or f"> {3 * LEAST * FEWEST}"}
        fail(say(names.get(trial.ended, "speed_cut"), why=why, by=trial.ended, **made))
    print("\ndoctor: " + say("speed_over"))
    lines, speed.decided = lines_of(speed, report, wanted)
    print("\n" + "\n".join(lines))
    return speed


def print_before(before: Before, report: Report) -> None:
    files = before.checkpoints()
    if files:
        print("doctor: " + report.say("before", files=listed(files)))
        if before.here(files):
            copy = "../" + os.path.basename(os.getcwd()) + "-copy"
            print("  -> " + report.advice("before", copy=shlex.quote(copy)))


def compare_speed(args: argparse.Namespace, around: Around, report: Report) -> int:
    """Status: 3 if something could not be told."""
    commands = filter(None, (args.against, args.command))
    runs = [measure(args, around, command, report) for command in commands]
    if args.against:
        print("\n" + compared(*runs, report))
    write_json(args, [speed.json() | Rent(speed).json() for speed in runs])
    return 0 if all(speed.decided for speed in runs) else 3


class Out(io.FileIO):
    """Whoever reads it may go (| head): then nobody does, and the job and the verdict go on."""

    def write(self, data: object) -> int:
        with suppress(BrokenPipeError):
            return super().write(data)
        return len(data)


def harmless(stream: io.TextIOWrapper | None) -> io.TextIOWrapper | None:
    """It loses no words that its encoding lacks, and no job for want of a reader."""
    if stream is None:
        return None
    out = io.BufferedWriter(Out(stream.fileno(), "w", closefd=False))
    return io.TextIOWrapper(
        out,
        stream.encoding,
        "backslashreplace",
        line_buffering=stream.line_buffering,
        write_through=stream.write_through,
    )


def main() -> None:
    sys.stdout, sys.stderr = map(harmless, (sys.stdout, sys.stderr))
    try:
        examine(parse_args())
    except Exception:  # status 1 is for what is wrong in the script
        traceback.print_exc()
        fail("this is a mistake of its own, and no verdict")


def examine(args: argparse.Namespace) -> None:
    chinese = str(locale.getlocale()[0]).startswith(("zh", "Chinese"))
    language = args.lang or ("zh" if chinese else "en")
    if args.explain:
        print("\n\n".join(explain(language, name) for name in args.explain))
        return

    report = Report(language, tuple(args.allow))
    report.options = f" --lang {args.lang}" if args.lang else ""
    for line in filter(None, (args.against, args.command)):
        check_line(line, report.say)
    around = Around(args)
    if around.before:
        print_before(around.before, report)
    if args.speed:
        sys.exit(compare_speed(args, around, report))
    first = None
    if args.against:
        one, first = run_in_folder(args, around, args.against, report.say)
        if broken(one, first) or (one.process.returncode and not one.ended):
            fail(report.say("no_comparison", why=one.cut or one.reason))
    told = for_second_run(first) if first else None
    job, ranks = run_in_folder(args, around, args.command, report.say, told)
    status = job.process.returncode

    report.broken = any(map(failed, ranks)) or bool(status and not job.ended)
    without = (args.without or "").split(",")
    report.taken_out = {name for name, part in TAKEN_OUT.items() if part in without}
    if job.cut:
        made = listed([len(rank.steps) for rank in ranks])
        report.cut = report.say("cut", steps=made, ranks=listed(ranks), why=report.word(job.cut))
    judge(ranks, report)
    comparison = None
    if first and not job.cut:
        comparison = Comparison(run_of("A", first), run_of("B", ranks), report, args.without or "")
        comparison.compare()
        if job.ended != "ctrl-c":
            look_again(args, around, comparison, report)
        report.differs = comparison.status() == 1
        both = {"a": shlex.join(args.against), "b": shlex.join(args.command)}
        print("\n" + report.say("against_runs", **both))
        print("\n" + comparison.text())
    print("\n" + report.text())
    write_json(args, report.json() | ({"against": comparison.json()} if comparison else {}))
    if report.failed() or (comparison and comparison.status() == 1):
        sys.exit(1)
    if status and not job.ended:
        sys.exit(2)
    sys.exit(3 if report.blocked or report.cut or (comparison and comparison.status()) else 0)
