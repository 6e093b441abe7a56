"""tools/links.py over gloo: a link that loses data is named, wherever it does."""

from pathlib import Path

import gpu_check
import links
import pytest
from crew import Crew

FAULTS = {
    "nothing": None,
    "one pair": ("send", [1, 0], None, None),
    "one size": ("all_reduce", [0, 1], 1 << 20, None),
    "one round": ("broadcast", [1, 0], None, 1),
}
TOPOLOGY = """\
\t\x1b[4mGPU0\tGPU1\tGPU2\tNIC0\tCPU Affinity\tNUMA Affinity\x1b[0m
GPU0\t X \tNV12\tSYS\tPHB\t0-31\t0
GPU1\tNV12\t X \tPIX\tPHB\t0-31\t0
GPU2\tSYS\tPIX\t X \tSYS\t32-63\t1
NIC0\tPHB\tPHB\tSYS\t X
"""


def measured(file: str, fault: tuple | None) -> None:
    """In a crew member. fault: what, ranks, and of which size and round the last number is lost."""
    own, calls = links.go, {}

    def go(what: str, ranks: list[int], buffer: object) -> None:
        size = 4 * len(buffer)
        place = (what, *ranks, size)
        round_ = calls[place] = calls.get(place, -1) + 1
        own(what, ranks, buffer)
        if (
            fault
            and fault[:2] == (what, ranks)
            and fault[2] in (None, size)
            and fault[3] in (None, round_)
        ):
            buffer[-1] = -1

    links.go = go
    try:
        links.MOST_ON_CPU = 1 << 20
        links.main(file)
    finally:
        links.go = own


@pytest.mark.parametrize("kind", FAULTS, ids=lambda kind: kind.replace(" ", "-"))
def test_what_is_lost_is_named(kind: str, crew: Crew, tmp_path: Path) -> None:
    fault, kit = FAULTS[kind], gpu_check.Kit("cpu", tmp_path)
    kit.run = lambda words, quiet: crew.run(measured, str(words[-1]), fault, world_size=2)
    if not fault:
        assert gpu_check.links(kit) == "60 transfers by 2 ranks, no bit is wrong"
        assert [row[0] for row in kit.table] == ["between", "0 and 1", "all, all_reduce"]
        return
    with pytest.raises(gpu_check.Failed) as failed:
        gpu_check.links(kit)
    what, ranks, size, round_ = fault
    wrong = kit.data["rows"]
    assert {(row["what"], tuple(row["ranks"])) for row in wrong} == {(what, tuple(ranks))}
    assert {row["size"] for row in wrong} == ({size} if size else {1 << 10, 1 << 15, 1 << 20})
    assert {row["round"] for row in wrong} == ({round_} if round_ is not None else {0, 1})
    said = f"{what} {ranks[0]}-{ranks[1]}, {size or 1024} bytes, round {(round_ or 0) + 1}: 1 of "
    assert said in str(failed.value), failed.value


def test_ways_between_gpus() -> None:
    told = gpu_check.topology(TOPOLOGY)
    assert told == {"GPU0 GPU1": "NV12", "GPU0 GPU2": "SYS", "GPU1 GPU2": "PIX"}
    assert gpu_check.in_words("NV12") == "12 links of NVLink" and gpu_check.usual("NV12") == 300
    assert gpu_check.in_words("PIX") == "one PCIe switch" and gpu_check.usual("") is None


def test_a_gpu_alone(tmp_path: Path) -> None:
    kit = gpu_check.Kit("cuda", tmp_path)
    kit.gpus = 1
    with pytest.raises(gpu_check.NotHere):
        gpu_check.links(kit)
