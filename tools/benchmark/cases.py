"""What notices a real mistake? Each case file alone, under torch's check, traincheck, the doctor.

    python tools/benchmark/cases.py                         # all of docs/examples/cases
    python tools/benchmark/cases.py trl_unwrapped           # one of them
    python tools/benchmark/cases.py --traincheck ENV/bin --write

Each case runs faulty and mended, on two CPU processes. traincheck learns its rules from the mended
run, its best case; what a second mended run breaks as well is chance, and does not count. It needs
an environment of its own: pip install traincheck==0.2.0 and a build of torch for CPUs.
--write: into docs/assets/results/cases/, for the page.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path

from processes import ROOT, end_on_signals, run_bounded

sys.path.append(str(ROOT))
from tools.site.verdicts import COMPARISON, Case, all_cases

DOCTOR = [sys.executable, ROOT / "doctor"]
TORCHRUN = [sys.executable, "-m", "torch.distributed.run"]
TORCHRUN += ["--standalone", "--nproc-per-node", "2"]


# The work is done, and gloo's threads race with the end of Python: docs/en/troubleshooting.md#end
GLOO_ABORT = "terminate called without an active exception"


def launched(words: list, folder: Path, tries: int = 3, **environment: str) -> str | None:
    """Why a run in the folder failed: the first error that a rank tells."""
    folder.mkdir(parents=True, exist_ok=True)
    log = folder / "log.txt"
    command = ["env", "-C", folder, *words]
    quiet = {"OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore", **environment}
    ended = run_bounded(command, quiet, 200, log)
    text = log.read_text(errors="replace")
    if ended and GLOO_ABORT in text and tries > 1:
        return launched(words, folder, tries - 1, **environment)
    errors = re.findall(r"^(?:\[rank\d\]: )?(\w*Error: .{,300})", text, re.M)
    signals = re.findall(r"traceback : (Signal \d+ \(\w+\))", text)
    return ended and (errors + signals + [ended])[0]


# Over gloo, DETAIL crashes in what DDP writes to a log (torch 2.13.0, 2.15.0), so it is left out.
NO_LOG = """\
import runpy, sys, torch
torch.distributed.Logger.set_construction_data_and_log = lambda *_: None
del sys.argv[0]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def by_torch(case: Case, folder: Path) -> dict:
    """Each way by itself and under torch's own check of collectives."""
    start = folder / "start.py"
    start.write_text(NO_LOG)
    said = {}
    for level in ("OFF", "DETAIL"):
        for way in ([], ["--mended"]):
            name = "-".join([level.lower(), "mended" if way else "faulty"])
            words = [*TORCHRUN, start, case.path, *way]
            said[name] = launched(words, folder / name, TORCH_DISTRIBUTED_DEBUG=level)
    return said


def by_doctor(case: Case, folder: Path) -> dict:
    said = {}
    for name, way in {"faulty": [], "mended": ["--mended"]}.items():
        verdict = folder / f"doctor-{name}" / "verdict.json"
        options = ["--lang", "en", "--json", verdict]
        launched([*DOCTOR, *options, *TORCHRUN, case.path, *way], verdict.parent)
        found = json.loads(verdict.read_text())["findings"]
        said[name] = [{key: row[key] for key in ("id", "severity", "line")} for row in found]
    return said


def by_traincheck(case: Case, folder: Path, tools: Path) -> dict:
    """How many of the rules that hold in the mended run are broken, and which first."""
    folder = folder / "traincheck"
    folder.mkdir(parents=True)
    copy = folder / case.path.name
    copy.write_text(case.text)
    for name, way in {"reference": " --mended", "faulty": "", "mended": " --mended"}.items():
        launch = f"{tools}/torchrun --standalone --nproc-per-node 2 {copy.name}{way}\n"
        (folder / f"{name}.sh").write_text(f"#!/bin/bash\n{launch}")

    def call(tool: str, *words: str) -> str:
        command = ["env", "-C", folder, tools / f"traincheck-{tool}", *words]
        path = {"PATH": f"{tools}:{os.environ['PATH']}", "OMP_NUM_THREADS": "1"}
        log = folder / f"{tool}-{len(list(folder.glob('*.log')))}.log"
        failed = run_bounded(command, path, 600, log)
        if failed and tool != "collect":  # what is collected may fail itself
            raise RuntimeError(f"traincheck-{tool}: {failed}")
        return log.read_text(errors="replace")

    script_of = ["--pyscript", copy.name, "--models-to-track", "model"]
    broken = {}
    try:
        call("collect", *script_of, "--shscript", "reference.sh", "--output-dir", "reference")
        call("infer", "-f", "reference", "-o", "invariants.json")
        for name in ("faulty", "mended"):
            call("collect", *script_of, "--shscript", f"{name}.sh", "--output-dir", name)
            text = call("check", "-f", name, "-i", "invariants.json", "--no-html-report")
            [summary] = folder.glob(f"traincheck_checker_results_*/{name}/violations_summary.json")
            rows = json.loads(summary.read_text())["violations"]
            rows.sort(key=lambda row: row["first_step"])
            broken[name] = [row["display_name"] for row in rows]
    except (RuntimeError, ValueError) as error:
        return {"failed": str(error)}
    count = int(re.search(r"(\d+) invariants checked", text)[1])
    only = [name for name in broken["faulty"] if name not in broken["mended"]]
    chance = len(broken["mended"])
    return {"rules": count, "broken": len(only), "by_chance": chance, "first": only[:10]}


def versions(tools: Path | None) -> dict[str, str]:
    found = {"torch": version("torch")}
    if tools:
        code = "from importlib.metadata import version as v; print(v('traincheck'), v('torch'))"
        said = subprocess.check_output([tools / "python", "-c", code], text=True)
        found["traincheck"], found["torch under it"] = said.split()
    return found


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0], allow_abbrev=False)
    parser.add_argument("cases", nargs="*", metavar="CASE", help="else all")
    parser.add_argument("--traincheck", type=Path, metavar="BIN", help="where its commands are")
    parser.add_argument("--write", action="store_true", help="into docs/assets/results/cases")
    args = parser.parse_args()
    known = all_cases()
    for name in args.cases:
        if name not in known:
            parser.error(f"no case {name}; there are {', '.join(known)}")
    if args.traincheck and not (args.traincheck / "traincheck-collect").exists():
        parser.error(f"--traincheck {args.traincheck}: there is no traincheck-collect in it")
    return args


def main() -> None:
    args = parse_args()
    end_on_signals()
    known = all_cases()
    before = json.loads(COMPARISON.read_text())
    written = before["cases"] if args.write else {}
    for name in args.cases or known:
        with tempfile.TemporaryDirectory(prefix="cases-") as folder:
            place = Path(folder)
            row = written.get(name, {})
            row |= {**by_torch(known[name], place), "doctor": by_doctor(known[name], place)}
            if args.traincheck:
                row["traincheck"] = by_traincheck(known[name], place, args.traincheck.absolute())
        print(name, json.dumps(row, indent=1), flush=True)
        written[name] = row
        if args.write:
            cases = {name: written[name] for name in known if name in written}
            measured = before["versions"] | versions(args.traincheck)
            text = json.dumps({"versions": measured, "cases": cases}, indent=1)
            COMPARISON.write_text(text + "\n")


if __name__ == "__main__":
    main()
