"""GPUs that are shared, and time that is lost."""

from ..ranks import Rank
from ..report import Report, listed


def check_devices(ranks: list[Rank], report: Report) -> str | None:
    """Are there two ranks on a GPU, or memory of a rank on another's?"""
    mine = [(rank.process.get("host"), rank.device.get("own")) for rank in ranks]
    if not any(own for _, own in mine):
        return "cpu"
    at = ranks[0].model.get("at")
    for n, place in enumerate(mine):
        if place[1] and place in mine[:n]:
            both = listed([ranks[mine.index(place)], ranks[n]])
            return report.find("shared_gpu", at, ranks=both)
        others = {own for host, own in mine if host == place[0]} - {place[1]}
        if others & set(ranks[n].device.get("used", [])):
            return report.find("shared_gpu:memory", at, other=ranks[n].rank)
    return None


def check_speed(ranks: list[Rank], report: Report) -> None:
    """Is time lost that the script could have?"""
    for rank in ranks:
        model = rank.model
        if model.get("unused") and rank.steps and not any(s["without"] for s in rank.steps):
            report.find("slow_step:unused", model["at"])
        for one in [one for passes in rank.training().values() for one in passes]:
            batches = one.batches[2:]
            if len(batches) < 10:
                continue
            waited = sum(batch["wait"] for batch in batches[1:])
            share = waited / max(1e-9, batches[-1]["t"] - batches[0]["t"])
            if share > 0.3 and waited > 1:
                share = round(100 * share)
                report.find("slow_step", one.loader["at"], share=share, rank=rank.rank)
