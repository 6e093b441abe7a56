"""The doctor finds what is wrong in a script, and nothing in a right one."""

from __future__ import annotations

import contextlib
import os
import runpy
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from crew import Crew
from harness import ROOT

sys.path.append(str(ROOT / "tools"))
sys.path.append(str(ROOT / "docs/examples/doctor"))
import doctor  # noqa: E402
import faults  # noqa: E402


@pytest.fixture(scope="module")
def crew() -> Iterator[Crew]:
    with Crew(2) as members:
        yield members


def under_doctor(script: str, folder: str) -> str:
    """In a crew member: run a script with the recorder; how it ended."""
    os.chdir(folder)
    sys.argv = [script]
    error = None
    doctor.start(f"{folder}/traces")
    try:
        runpy.run_path(script, run_name="__main__")
    except Exception as raised:
        error = raised
    finally:
        doctor.stop(error)
    return repr(error)


def examined(crew: Crew, text: str, folder: Path, language: str = "en") -> doctor.Report:
    script = folder / "script.py"
    script.write_text(text)
    (folder / "traces").mkdir()
    with contextlib.suppress(AssertionError):  # a rank that gloo has aborted
        crew.run(under_doctor, str(script), str(folder), world_size=2)
    report = doctor.Report(language)
    doctor.judge(doctor.read_ranks(folder / "traces"), report)
    return report


def test_nothing_in_a_right_script(crew: Crew, tmp_path: Path) -> None:
    report = examined(crew, Path(faults.__file__).with_name("right.py").read_text(), tmp_path)
    assert report.findings == []
    assert report.not_checked.keys() == {"shared_gpu"}


@pytest.mark.parametrize("fault", faults.FAULTS)
def test_fault_is_found(fault: str, crew: Crew, tmp_path: Path) -> None:
    """This finding, in these words, and no other that is wrong."""
    report = examined(crew, faults.broken(fault), tmp_path)
    serious = {found.id for found in report.findings if found.severity in doctor.SEVERITIES[:2]}
    which = fault.split(":")[0]
    assert serious <= {which}, report.findings
    [found] = [found for found in report.findings if found.id == which]
    words = doctor.WORDS[fault][0].split("{")[0]
    assert found.seen.startswith(words), found
    assert found.at and Path(found.at[0]).name == "script.py"
