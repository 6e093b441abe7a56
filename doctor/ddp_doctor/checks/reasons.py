"""Why a relation between ranks may break rightly, or nobody can tell whether it does.

A check that compares ranks has three passes: a relation breaks; no reason holds; only then it is
asked why, which chooses kind, line and words. A slip there is a wrong word, never a false alarm. A
reason is a function of what the check has seen, by the name that words/ say it by, given once to
each relation that it silences. EVENTS.md has them all (findings.silent_in).
"""

import re
from collections import defaultdict
from collections.abc import Callable
from typing import Any

from ..findings import silences
from ..ranks import failed
from .equal import averages_weights, differences

CHOSEN = "Subset|Random|Weighted|RASampler|Repeat"  # samplers that may leave samples out
DRAWN = "Weighted|RASampler|Repeat"  # and of these, those that may draw one twice, or never
# Relation -> its reasons, in the order in which they are asked.
REASONS: dict[str, list[Callable[[Any], bool]]] = defaultdict(list)


def reason(*relations: str) -> Callable:
    """relations: each with the finding that tells of it, as finding/relation."""

    def decorate(holds: Callable) -> Callable:
        for relation in relations:
            silences(relation.split("/")[0], holds.__name__)
            REASONS[relation].append(holds)
        return holds

    return decorate


def meant(relation: str, seen: object) -> str:
    """The name of the first reason that holds, or ""."""
    return next((holds.__name__ for holds in REASONS[relation] if holds(seen)), "")


# ---- of samples, in training (data.Shares) and where they are evaluated (evaluation.Coverage) ----

SAME, OVERLAP = "same_samples/whole", "overlapping_samples/parts"
SAMPLES = (SAME, OVERLAP)
LOOKED = "wrong_evaluation/looked"


@reason(LOOKED)
def iterable(seen: object) -> bool:
    """An IterableDataset has no indices; some data sets have no length either."""
    return any(one.loader["iterable"] or one.loader["root"] is None for one in seen.passes)


@reason(OVERLAP, LOOKED)
def repeats(seen: object) -> bool:
    """A sample may come twice on one rank, too."""
    return seen.repeats()


@reason(*SAMPLES, LOOKED)
def files(seen: object) -> bool:
    """Equal indices may mean other samples."""
    return not seen.comparable()


@reason(LOOKED)
def grouped(seen: object) -> bool:
    """An index may stand for several samples."""
    return any(one.grouped() for one in seen.passes)


# ---- of an evaluation: are all samples in it, each once, and told? ----

ADDED = "wrong_evaluation/added"
WHOLE = "wrong_evaluation/whole"
ONCE = "wrong_evaluation/once"
DIVIDED = "wrong_evaluation/divided"
SCORES = "wrong_evaluation/scores"


@reason(WHOLE, ONCE)
def chosen(seen: object) -> bool:
    """A sampler chooses what is evaluated."""
    return any(re.search(CHOSEN, one.loader["sampler"]) for one in seen.passes)


@reason(ADDED, ONCE, SCORES)
def joined(seen: object) -> bool:
    """Each rank has written a file, from which one result may be made."""
    return seen.joined


@reason(ONCE)
def gathered(seen: object) -> bool:
    """Of what accelerate has prepared, gather_for_metrics leaves repeats out."""
    return seen.accelerate


@reason(DIVIDED)
def views(seen: object) -> bool:
    """Ranks add up what each says of all samples."""
    return seen.largest >= seen.size


# ---- of gradients and weights (weights.Replicas) ----

AVERAGED = "no_averaging/averaged"
BEGUN = "no_averaging/begun"
GRADIENTS = "unequal_gradients/gradients"
RATES = "drifting_weights/rates"
WEIGHTS = "drifting_weights/weights"
COPIES = (AVERAGED, BEGUN, GRADIENTS, RATES, WEIGHTS)
STEPS = "unequal_steps/left_out"


@reason(*COPIES, STEPS)
def local(seen: object) -> bool:
    """Weights part, and the script itself makes them equal again."""
    return averages_weights(seen.ranks)


@reason(*COPIES)
def together(seen: object) -> bool:
    """Ranks work on one sample, or each has a part of the model: nobody can tell which."""
    teams = seen.teams
    return teams.together or (teams.exchange and bool(seen.begun or seen.beside))


@reason(AVERAGED, GRADIENTS)
def error(seen: object) -> bool:
    """They differ right before a rank ended by an error, which says more; or ranks have parted at
    the first collective that would average weights."""
    if not seen.averages:
        return seen.parted and seen.stopped
    last = seen.gradients["step"] == len(seen.first.steps)
    return last and any(map(failed, seen.ranks)) and not (seen.unhooked or seen.beside)


@reason(RATES)
def steps(seen: object) -> bool:
    """Ranks have left a loop at different times."""
    return seen.parted


def averages_inside(seen: object) -> bool:
    """Whether the optimizer itself averages, as ZeRO may: gradients differ before nearly each step,
    and weights move and stay equal after it. Then gradients have nothing to be equal for."""
    step = seen.gradients["step"]
    mine = seen.first.figures["weights"]
    later = {n: one for n, one in differences(seen.ranks, "weights").items() if n >= step}
    moved = bool(later) and mine[max(later)] != mine[min(mine)]
    return moved and not any(later.values()) and len(seen.alike) < len(seen.by_step) / 4
