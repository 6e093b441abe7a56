"""Patches of doctor_mutations.py: each takes something away that the doctor needs to be right."""

from pathlib import Path

import pytest
from doctor_mutations import PATCHES
from harness import ROOT
from mutate import Mutation, Table

FILES = sorted((ROOT / "doctor/ddp_doctor").rglob("*.py"))
TABLE = Table("doctor/tests/doctor_mutations.py", PATCHES, lambda _: FILES)


def test_every_patch_of_the_doctor_still_fits() -> None:
    TABLE.assert_fits()


@pytest.mark.proof
@pytest.mark.parametrize("mutation", TABLE.mutations, ids=lambda mutation: mutation.name)
def test_is_noticed(mutation: Mutation, copy: Path) -> None:
    TABLE.assert_noticed(mutation, copy)
