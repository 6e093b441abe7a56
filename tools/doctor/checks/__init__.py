"""What may be wrong in a script: a file for each subject."""

from collections import defaultdict

from ..ranks import Rank
from ..report import SEVERITIES, Report
from .communication import check_collectives
from .data import check_randomness, check_samples
from .evaluation import check_buffers, check_evaluation
from .files import check_files
from .speed import check_devices, check_speed
from .training import check_learning, check_rate, check_schedule, check_steps, check_weights, sweeps

CHECKS = (  # those between ranks of a data-parallel group
    (check_samples, "same_samples", "overlapping_samples", "same_order", "unequal_targets"),
    (check_steps, "unequal_steps"),
    (check_weights, "no_averaging", "unequal_gradients", "drifting_weights"),
    (check_randomness, "equal_randomness"),
    (check_evaluation, "wrong_evaluation", "mean_of_means"),
    (check_buffers, "unequal_buffers"),
)
CHECKS_OF_ALL = (
    (check_learning, "untrained", "lost_gradient", "clipped", "no_sync"),
    (check_devices, "shared_gpu"),
    (check_files, "shared_file", "wrapped_keys"),
    (check_collectives, "collective_order"),
    (check_speed, "slow_step"),
    (check_schedule, "schedule"),
    (check_rate, "learning_rate"),
)
ALONE = """
    same_order untrained clipped no_sync shared_gpu shared_file wrapped_keys wrong_evaluation
    slow_step schedule
""".split()  # what one rank can show, too


def judge(ranks: list[Rank], report: Report) -> None:
    """All checks; a mistake in one of them is told, and does not stop the others."""
    by_group = defaultdict(list)
    for rank in ranks:
        by_group[tuple(rank.model.get("group") or ())].append(rank)
    groups = list(by_group.values())
    if any(len(group) == 1 for group in groups):
        groups = [ranks]  # one that crashed before it had a model, or no DDP
    report.all_ranks = len(ranks) == ranks[0].world

    for rank in ranks:
        for event in rank.events["trouble"]:
            text = event["text"]
            report.skip("all", f"{report.say('recorder')}: {text}")

    for check, *names in (*CHECKS, *CHECKS_OF_ALL):
        between = (check, *names) in CHECKS
        report.mild = between and sweeps(ranks)
        for group in groups if between else [ranks]:
            try:
                why = check(group, report)  # None, or why it could not check
            except Exception as error:
                why = f"{report.say('doctor')}: {error!r}"
            for name in names if why else []:
                report.skip(name, why)
        for name in names:
            if len(ranks) == 1 and name not in ALONE:
                report.skip(name, "alone" if ranks[0].world == 1 else "machines")
        report.checked += [name for name in names if name not in report.not_checked]
    report.findings.sort(key=lambda finding: SEVERITIES.index(finding.severity))
