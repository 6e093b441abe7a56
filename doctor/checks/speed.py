"""GPUs that are shared, and time that is lost."""

from itertools import permutations

from ..findings import SLOW, TRAINING, WASTED, check, finds
from ..ranks import Rank
from ..report import Report, listed


@check()
@finds("shared_gpu", WASTED, "convert.md#step-1", "gradients step", alone=True)
def check_devices(ranks: list[Rank], report: Report) -> str | None:
    """Are there two ranks on a GPU, or memory of a rank on another's?"""
    using = [rank for rank in ranks if rank.device]
    if not using:
        return "cpu"
    at = ranks[0].model.get("at")
    for one, other in permutations(using, 2):
        own = other.device["own"]
        if one.process["host"] != other.process["host"]:
            continue
        if one.device["own"] == own:
            return report.find("shared_gpu", at, ranks=listed([one, other]))
        if own in one.device["used"]:
            return report.find("shared_gpu:memory", at, other=one.rank)
    return None


@check()
@finds("slow_step", SLOW, "troubleshooting.md#slow-input", TRAINING, alone=True)
def check_speed(ranks: list[Rank], report: Report) -> None:
    """Is time lost that the script could have?"""
    for rank in ranks:
        model = rank.model
        if model.get("unused") and rank.steps and not any(s["without"] for s in rank.steps):
            report.find("slow_step:unused", model["at"])
        for one in rank.trained():
            batches = one.batches[2:]
            if len(batches) < 10:
                continue
            waited = sum(batch["wait"] for batch in batches[1:] if batch["idle"])
            share = waited / max(1e-9, batches[-1]["t"] - batches[0]["t"])
            if share > 0.3 and waited > 1:
                share = round(100 * share)
                report.find("slow_step", one.loader["at"], share=share, rank=rank.rank)
