"""Right programs of other kinds than one script under DDP, each written as its project would: the
doctor has nothing to say to any. Beside them faulty ones that are much alike, which it names."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from crew import Crew
from doctor.report import Report
from examined import assert_all_ran, examined
from tiers import table

FOLDER = Path(__file__).parent / "right"
RANKS = {  # of those that need more than two
    "pipeline_of_three": 3,
    "tensor_and_data_parallel": 4,
    "tensor_parallel_in_ddp": 4,
    "wrong_pairs_alike": 4,
}
WRONG = {
    "wrong_context_parallel": "no_averaging",
    "wrong_infinite_loader": "same_order",
    "wrong_local_rank": "same_samples",
    "wrong_no_sampler": "same_samples",
    "wrong_own_share": "wrong_evaluation",
    "wrong_padding": "wrong_evaluation",
    "wrong_pairs_alike": "same_samples",
    "wrong_scheduler": "schedule",
    "wrong_skip": "unequal_steps",
}
RIGHT = sorted(path.stem for path in FOLDER.glob("*.py") if path.stem not in WRONG)
CORE = """
    dataset_readers expert_parallel grpo gathered_and_cut lock_file looks_first prefetch_thread
    results_by_files scheduler_by_design sequence_halves tensor_parallel_by_hand views_added_up
    wrong_local_rank wrong_no_sampler
""".split()

# Notes, as right and wrong programs look alike here: they say what was seen, and when it is right.
NOTES = {
    "equal_stages": "no_averaging",
    "experts_of_one_seed": "no_averaging",
    "gathered_and_cut": "wrong_evaluation",
    "wrong_context_parallel": "no_averaging",
}
NOT_IN_2_6 = ["sharded_checkpoint", "tensor_and_data_parallel"]  # FSDP2 on CPUs


@pytest.fixture(scope="module")
def crew() -> Iterator[Crew]:
    with Crew(max(RANKS.values())) as members:
        yield members


def report_on(name: str, crew: Crew, folder: Path) -> Report:
    if name in NOT_IN_2_6 and not hasattr(torch.cpu.Stream, "record_event"):
        pytest.skip("FSDP2 does not train on CPUs in torch 2.6")
    report = examined(crew, FOLDER / f"{name}.py", folder, world_size=RANKS.get(name, 2))["en"]
    if name != "wrong_skip":  # where a rank waits in vain
        assert_all_ran(folder, report)
    return report


def by_severity(report: Report) -> tuple[set[str], set[str]]:
    """The ids of findings: those that are worse than a note, and notes."""
    notes = {found.id for found in report.findings if found.severity == "note"}
    return {found.id for found in report.findings} - notes, notes


@pytest.mark.parametrize("name", table(RIGHT, [name for name in CORE if name not in WRONG]))
def test_nothing_to_say(name: str, crew: Crew, tmp_path: Path) -> None:
    report = report_on(name, crew, tmp_path)
    worse, notes = by_severity(report)
    assert not worse and notes <= {NOTES.get(name)}, report.findings


@pytest.mark.parametrize("name", table(WRONG, [name for name in CORE if name in WRONG]))
def test_is_named(name: str, crew: Crew, tmp_path: Path) -> None:
    """This finding, and no other."""
    report = report_on(name, crew, tmp_path)
    worse, notes = by_severity(report)
    assert (notes if name in NOTES else worse) == {WRONG[name]}, report.findings
    assert not (worse if name in NOTES else notes), report.findings


def test_programs() -> None:
    """Whole and short, and each is right or in the table of wrong ones."""
    for path in FOLDER.glob("*.py"):
        lines = path.read_text().splitlines()
        assert 25 <= len(lines) <= 70 and lines[0].startswith('"""'), path
        assert (path.stem in WRONG) == lines[0].startswith('"""Wrong: '), path
    assert {*RANKS, *NOTES, *NOT_IN_2_6} <= {*RIGHT, *WRONG}
