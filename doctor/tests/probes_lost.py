"""What the doctor would have recorded without one of its probes: it must not find more then."""

from pathlib import Path

from ddp_doctor.checks import judge
from ddp_doctor.findings import CHECKS, needs_of
from ddp_doctor.ranks import ranks_of, read_events
from ddp_doctor.recorder import modules
from ddp_doctor.recorder.probes import OF_FSDP, OF_HOROVOD, OF_SAFETENSORS, OF_TWO, PROBES
from ddp_doctor.report import Report
from ddp_doctor.without.changes import CHANGES

# What goes with a probe: events, or fields that then have this value.
NOTHING_TRAINED = {"step": {"passes": [], "learned": []}}
NO_STEP = ("step", "model", "figures", "unhooked")
GOES: dict[str, tuple[tuple, dict]] = {
    "rank": (("rank",), {}),
    "collectives": (("collective", "lost", "dtensor"), {"step": {"exchanged": []}}),
    "join": (("join",), {}),
    "lost": (("lost",), {}),
    "loader_made": ((), {"loader": {"at": None}}),
    "pass": (("pass", "batch", "end", "drew"), NOTHING_TRAINED),
    "batch": (("batch", "end", "drew"), NOTHING_TRAINED),
    "indices": ((), {"batch": {"indices": None}}),
    "worker": (("drew",), {}),
    "items": (("drew",), {}),
    "stream": (("drew",), {}),
    "emptied": ((), {"step": {"left": False, "thrown": 0}}),
    "backward": (("no_sync", "lost"), NOTHING_TRAINED),
    "divisors": (("divisors",), {}),
    "gradients": (NO_STEP, {}),
    "step": (NO_STEP, {}),
    "optimizer_made": ((), {"step": {"made": None}, "model": {"at": None}}),
    "restore": (("restored",), {}),
    "scheduler": (("scheduler",), {"step": {"schedules": []}}),
    "scale": ((), {"clip": {"scaled": False}}),
    "unscale": ((), {"clip": {"scaled": True}}),
    "clip": (("clip",), {}),
    "wrap": (("unhooked",), {}),
    "forward": ((), {"step": {"rows": [], "begun": {}}}),
    "no_sync": (("no_sync",), {}),
    "to_empty": (("unset",), {}),
    "held": ((), {"step": {"held": None}}),
    "seed": ((), dict.fromkeys(("step", "pass"), {"seeded": {}})),
    "save": (("saved", "wrote"), {}),
    "load": (("loaded",), {}),
    "files": (("wrote", "locked", "opened"), {}),
    "safetensors": ((), {}),  # some of "wrote"
    "printed": (("printed",), {}),
    "exit": (("exit",), {}),
    "horovod": (("rank", "collective"), {}),
}
NAMES = {probe.name for probe in (*PROBES, *OF_FSDP, *OF_SAFETENSORS, *OF_HOROVOD)}
COMPARED = {probe.name for probe in (*OF_TWO, *CHANGES)}  # where two runs are
EVERY = NAMES | COMPARED | {probe.name for probe in modules.PROBES}


def without(probe: str, events: list[dict]) -> list[dict]:
    gone, changed = GOES[probe]
    left = [event | changed.get(event["e"], {}) for event in events if event["e"] not in gone]
    for event in left:
        if event.get("indices", 0) is None:
            del event["indices"]
    return left


def assert_nothing_new(traces: Path, full: Report) -> None:
    """Without each probe in turn, no finding appears, and what needs it counts as not checked."""
    files = {path: read_events(path) for path in traces.glob("*.jsonl")}
    had = {(found.id, found.severity) for found in full.findings}

    def judge_without(probes: list[str], lost: dict[Path, list[dict]]) -> None:
        trouble = [{"e": "trouble", "t": 0, "probe": probe, "text": probe, "missing": True}
                   for probe in probes]  # fmt: skip
        report = Report("en")
        judge(ranks_of({p: [*e[:1], *trouble, *e[1:]] for p, e in lost.items()}), report)
        has = {(found.id, found.severity) for found in report.findings}
        assert has <= had, (probes, has - had)
        needing = {n for check in CHECKS for n in check.names if needs_of(check, n) & {*probes}}
        assert needing <= report.not_checked.keys(), probes

    silent = []  # had nothing to record
    for probe in sorted(NAMES):
        lost = {path: without(probe, events) for path, events in files.items()}
        if lost == files:
            silent.append(probe)
        else:
            judge_without([probe], lost)
    judge_without(silent, files)
