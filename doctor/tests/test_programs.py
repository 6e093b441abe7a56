"""Each row of programs.py: what the doctor says of it, no more and no less."""

from pathlib import Path

import faults
import pytest
from crew import Crew
from examined import assert_all_ran, examined_text
from programs import PROGRAMS

ROWS = [
    pytest.param(what, marks=[*[pytest.mark.right] * row.right, *[pytest.mark.proof] * row.proof])
    for what, row in PROGRAMS.items()
]


@pytest.mark.parametrize("what", ROWS, ids=lambda what: what.replace(" ", "-"))
def test_program(what: str, crew: Crew, tmp_path: Path) -> None:
    row = PROGRAMS[what]
    reports = examined_text(crew, faults.changed(row.base, row.words), tmp_path)
    for report in reports.values():
        found = [one.name for one in report.findings if one.severity != "note"]
        assert found == row.found.split(), report.findings
        notes = [one.name for one in report.findings if one.severity == "note"]
        assert notes == row.notes.split(), report.findings
        wanted = row.not_checked()
        assert report.not_checked.keys() == wanted.keys(), report.not_checked
        for name, why in wanted.items():
            assert not why or report.not_checked[name] == report.say(why), why
    said = "\n".join(f"{one.seen}\n{one.advice}" for one in reports["en"].findings)
    said = said.replace(f"{tmp_path}/", "")
    assert all(part in said for part in row.said), said
    if not row.found.startswith(("collective_order", "unequal_steps:left")):  # it waits in vain
        assert_all_ran(tmp_path, reports["en"])
