"""Forgets a line of docs/examples/convert/multi.py, runs what is left under the doctor, and writes
down what each process did: docs/assets/results/break-it.json, for the first screen of the site.

    python -m tools.site.record_breaks          # all of them, on two CPU processes: minutes
    python -m tools.site.record_breaks wrap     # one, to look at

break_it.py makes the pictures of it: make figures.
"""

import contextlib
import json
import os
import sys
import tempfile
from pathlib import Path

from .source import ROOT, SiteError

sys.path.append(str(ROOT / "doctor"))
from ddp_doctor.against.comparison import Comparison
from ddp_doctor.against.runs import run_of
from ddp_doctor.checks import judge
from ddp_doctor.job import Job
from ddp_doctor.ranks import Rank, read_ranks
from ddp_doctor.report import Report

EXAMPLES = ROOT / "docs/examples/convert"
RECORDED = ROOT / "docs/assets/results/break-it.json"
SHOWN = 8  # images of an epoch
LAUNCH = ["torchrun", "--standalone", "--nproc-per-node", "2", "train.py", "--epochs", "2"]
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", *LAUNCH[1:]]
SINGLE = "python single.py"
# What is forgotten: its line, the part of the line, and what stands there instead.
BREAKS = {
    "world_size": ("batch = args", " // world_size", ""),
    "sampler": ("train_loader = ", "sampler=sampler", "shuffle=True"),
    "share": ("val_loader = ", ", sampler=share", ""),
    "wrap": ("ddp_model = ", "DistributedDataParallel(model)", "model"),
    "set_epoch": ("sampler.set_epoch", "sampler.set_epoch(epoch)", ""),
    "call": ("loss = ", "ddp_model(inputs)", "model(inputs)"),
    "all_reduce": ("dist.all_reduce", "dist.all_reduce(totals)", ""),
    "print": ("step 7: one line", "if rank == 0:", "if True:"),
    "save": ("step 7: one writer", "if rank == 0:", "if True:"),
}
COMPARED = ("world_size",)  # with single.py, as one run alone does not show it
# The work is done, and gloo's threads race with the end of Python: docs/en/troubleshooting.md#end
GLOO_ABORT = "terminate called without an active exception"


def line_of(text: str) -> int:
    """The one line of multi.py that has the text, from 0."""
    lines = (EXAMPLES / "multi.py").read_text(encoding="utf-8").splitlines()
    found = [n for n, line in enumerate(lines) if text in line]
    if len(found) != 1:
        raise SiteError(f"{text!r} is in {len(found)} lines of multi.py")
    return found[0]


def forgotten(name: str) -> str:
    """multi.py without it; nothing is forgotten in "right"."""
    lines = (EXAMPLES / "multi.py").read_text(encoding="utf-8").splitlines()
    if name != "right":
        text, part, instead = BREAKS[name]
        before = lines[line_of(text)]
        lines[line_of(text)] = before.replace(part, instead)
        if before.count(part) != 1:
            raise SiteError(f"{part!r} is not once in {before!r}")
    return "\n".join(lines) + "\n"


def launch(words: list[str], without: str | None = None, tries: int = 3) -> tuple[Job, list[Rank]]:
    """A run in the current folder, under the doctor's recorder."""
    with tempfile.TemporaryDirectory() as name:
        quiet = ["sh", "-c", 'OMP_NUM_THREADS=1 exec "$@" > printed.txt 2> errors.txt', "-"]
        job = Job(Path(name), without)
        job.start([*quiet, *words])
        try:
            job.wait(30 if without is not None else 0, 120, None)
        finally:
            if job.process.poll() is None:
                job.end()
            job.over()
        ranks = read_ranks(job.traces)
    if job.process.returncode and not job.ended:
        errors = Path("errors.txt").read_text()
        if GLOO_ABORT not in errors:
            raise SiteError(f"{words} ended by an error:\n{errors}")
        if tries > 1:
            return launch(words, without, tries - 1)
    return job, ranks


def of_rank(rank: Rank, other: Rank) -> dict:
    """What one process did. again: images of epoch 1 that stood at the same place in epoch 0. both:
    those that the other rank had in the same place. weights: their norms, when the recorder looked
    last at both in each epoch."""
    epochs = [one.column("indices") for one in rank.trained()]
    theirs = [one.column("indices") for one in other.trained()]
    evaluated = [one for one in rank.passes.values() if not one.steps]
    steps = rank.trained()[0].steps
    both = rank.figures["weights"].keys() & other.figures["weights"].keys()
    looked = [max(n for n in both if n <= steps * e) for e in (1, 2)]
    return {
        "epochs": [epoch[:SHOWN] for epoch in epochs],
        "images": len(epochs[0]),
        "again": sum(a == b for a, b in zip(*epochs, strict=True)),
        "both": sum(a == b for a, b in zip(epochs[0], theirs[0], strict=True)),
        "steps": steps,
        "batch": len(rank.trained()[0].batches[0]["indices"]),
        "weights": [round(sum(norm for norm, *_ in rank.figures["weights"][n]), 4) for n in looked],
        "evaluated": len(evaluated[0].column("indices")),
        "writes": bool(rank.events["wrote"]),
    }


def record(name: str) -> dict:
    """A run without it: what the ranks did, what was printed, what the doctor found."""
    report = Report("en")
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        folder = os.getcwd()  # without links, as the recorder sees it
        Path("train.py").write_text(forgotten(name), encoding="utf-8")
        against = []
        if name in COMPARED:
            single = (EXAMPLES / "single.py").read_text(encoding="utf-8")
            Path("single.py").write_text(single, encoding="utf-8")
            _, alone = launch([sys.executable, "single.py"], "")
            _, ranks = launch(TORCHRUN, "")
            comparison = Comparison(run_of("A", alone), run_of("B", ranks), report)
            comparison.compare()
            against = [
                {"kind": seen.kind, "name": seen.name, "values": seen.values}
                for seen in comparison.seen
                if seen.kind == "differs"
            ]
        else:
            _, ranks = launch(TORCHRUN)
        judge(ranks, report)
        found = {
            "ranks": [of_rank(one, other) for one, other in zip(ranks, ranks[::-1], strict=True)],
            "printed": Path("printed.txt").read_text(encoding="utf-8").splitlines(),
            "findings": [
                {"name": one.name, "at": [one.file, one.line], "values": one.values}
                for one in report.findings
            ],
            "against": against,
        }
        return json.loads(json.dumps(found).replace(f"{folder}/", ""))


def main() -> None:
    if names := sys.argv[1:]:
        print(json.dumps({name: record(name) for name in names}, indent=1))
        return
    import torch  # not above: the site is built without

    version = json.dumps(torch.__version__.partition("+")[0])
    runs = [f'"{name}": {json.dumps(record(name))}' for name in ("right", *BREAKS)]
    lines = ",\n  ".join(runs)  # a run a line
    RECORDED.write_text(f'{{"torch": {version}, "runs": {{\n  {lines}\n}}}}\n', encoding="utf-8")


if __name__ == "__main__":
    main()
