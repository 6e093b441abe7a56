"""What the doctor may find: a check says all about its findings in one place, above itself, and so
does a comparison of two runs (against/comparison.py) about what it needs."""

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps

WRONG, HANG, WASTED, NOTE = "wrong result", "hang ahead", "wasted", "note"
SEVERITIES = (WRONG, HANG, WASTED, NOTE)
# Probes (recorder/probes.py) that all checks need: any rank may seem to be one alone without them.
ALWAYS = {"all", "rank", "horovod"}
# And those without which nobody knows which batches are trained on.
TRAINING = "pass batch backward gradients step"


@dataclass
class Kind:
    """name: what follows a colon tells kinds of a finding apart; one that has no Kind of its own
    is as the finding."""

    name: str
    severity: str
    needs: set[str]  # probes
    alone: bool  # one rank can show it


@dataclass
class Check:
    """function(ranks, report) finds, and returns None, or why it could not check."""

    function: Callable
    names: list[str]
    between: bool  # ranks that have samples of their own: it is asked for each such group
    unless: str  # a finding behind which nothing can be said


KINDS: dict[str, Kind] = {}
SILENT: dict[str, set[str]] = defaultdict(set)  # a finding -> reasons why it may not be looked for
CHECKS: list[Check] = []
FACTS: dict[str, set[str]] = {}  # what two runs are compared by -> probes that it needs


def silences(name: str, reasons: str) -> None:
    SILENT[name] |= set(reasons.split())


def finds(
    name: str, severity: str, needs: str = "", alone: bool = False, silent: str = ""
) -> Callable:
    """silent: reasons that the check itself returns; others stand in checks/reasons.py."""
    silences(name, silent)

    def decorate(function: Callable) -> Callable:
        kind = Kind(name, severity, ALWAYS | set(needs.split()), alone)
        function.finds = [kind, *getattr(function, "finds", [])]
        return function

    return decorate


def check(between: bool = False, unless: str = "") -> Callable:
    def decorate(function: Callable) -> Callable:
        KINDS.update((kind.name, kind) for kind in function.finds)
        names = [kind.name for kind in function.finds if ":" not in kind.name]
        CHECKS.append(Check(function, names, between, unless))
        return function

    return decorate


def compares(fact: str, needs: str) -> Callable:
    """A method of Comparison, which is not called where a run lacks one of these probes."""
    FACTS[fact] = ALWAYS | set(needs.split())

    def decorate(method: Callable) -> Callable:
        @wraps(method)
        def call(comparison: object, *args: object) -> object:
            return None if fact in comparison.lost else method(comparison, *args)

        return call

    return decorate


def kind_of(name: str) -> Kind:
    return KINDS.get(name) or KINDS[name.split(":")[0]]


def needs_of(check: Check, name: str) -> set[str]:
    """The probes of a finding, and of the one behind which nothing can be said."""
    return KINDS[name].needs | (KINDS[check.unless].needs if check.unless else set())
