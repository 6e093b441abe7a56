"""What may be wrong in a script: a file for each subject. A check is asked in this order."""

from ..findings import CHECKS, KINDS, SEVERITIES, Check, needs_of
from ..ranks import Rank
from ..report import Report

from . import steps  # isort: skip  (the others ask whether ranks made equal steps)
from . import communication, data, evaluation, files, loss, optimizer, randomness, weights
from .teams import Teams

__all__ = ["communication", "data", "evaluation", "files", "loss", "optimizer", "randomness"]
__all__ += ["steps", "weights"]


def judge(ranks: list[Rank], report: Report) -> None:
    """All checks; a mistake in one of them is told, and does not stop the others."""
    report.all_ranks = len(ranks) == ranks[0].world
    report.teams = Teams(ranks)
    report.fsdp = any("FSDP" in rank.model.get("wrappers", []) for rank in ranks)
    report.blocked = blocked(ranks, report)
    for check in CHECKS:
        judge_one(check, ranks, report)
    if report.cut:
        report.checked = []
        names = [name for check in CHECKS for name in check.names if not report.has(name)]
        report.not_checked = dict.fromkeys(names, report.cut)
    report.findings.sort(key=lambda finding: SEVERITIES.index(finding.severity))


def judge_one(check: Check, ranks: list[Rank], report: Report) -> None:
    report.mild = check.between and weights.sweeps(ranks)
    groups = report.teams.groups if check.between else [ranks]
    for group in groups if not report.blocked.keys() >= set(check.names) else []:
        try:
            why = check.function(group, report) if not report.has(check.unless) else "steps"
        except Exception as error:
            why = f"{report.say('doctor')}: {error!r}"
        for name in check.names if why else []:
            if not report.has(name):
                report.skip(name, why)

    for name in check.names:
        if name in report.blocked:
            report.skip(name, report.blocked[name])
        elif name in report.taken_out:
            report.skip(name, "taken_out")
        elif KINDS[name].alone or name in report.not_checked or report.has(name):
            pass
        elif len(ranks) == 1:
            report.skip(name, "alone" if ranks[0].world == 1 else "machines")
        elif all(len(group) == 1 for group in groups):
            report.skip(name, "together")
    report.checked += [name for name in check.names if name not in report.not_checked]


def blocked(ranks: list[Rank], report: Report) -> dict[str, str]:
    """Findings of which nothing can be said, because a probe is missing or has failed."""
    troubles = {}
    for event in ranks[0].events["trouble"]:
        values = {"torch": ranks[0].process["torch"], "text": event["text"]}
        why = report.say("missing" if event["missing"] else "failed", **values)
        troubles.setdefault(event["probe"], why)
    found = {}
    for check in CHECKS:
        for name in check.names:
            for probe in sorted(needs_of(check, name) & troubles.keys()):
                found.setdefault(name, troubles[probe])
    return found
