"""Real mistakes of public projects: the doctor names each, and nothing in the mended program."""

import difflib
import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from cases import CASES, DOCTOR, TORCHRUN, all_cases
from crew import Crew
from examined import assert_all_ran, examined, shown
from harness import ROOT, run

from doctor.report import LANGUAGES, Finding, Report

KNOWN = all_cases()
MISSED = [name for name, case in KNOWN.items() if case.finding == "nothing"]
SLOW = ["automodel_skip", "deepmd_steps", "prime_rl_validation", "pytorch_rank0_validation"]
LAUNCHED = ["mmseg_scandir"]  # warm processes have one order of sets
SLOW += LAUNCHED
RUNS = [pytest.param(name, marks=pytest.mark.proof if name in SLOW else ()) for name in KNOWN]


@pytest.fixture(scope="module")
def show(request: pytest.FixtureRequest) -> Iterator[Callable]:
    yield from shown(request, ROOT / "docs/assets/results/cases/cases", list(KNOWN))


def seen(crew: Crew, name: str, folder: Path, *argv: str) -> dict[str, Report]:
    """The reports on a case, by language."""
    folder.mkdir()
    if name not in LAUNCHED:
        return examined(crew, CASES / f"{name}.py", folder, *argv)
    reports = {language: Report(language) for language in LANGUAGES}
    for language, report in reports.items():
        options = ["--lang", language, "--json", "verdict.json"]
        run([*DOCTOR, *options, *TORCHRUN, CASES / f"{name}.py", *argv], folder)
        found = json.loads((folder / "verdict.json").read_text())["findings"]
        report.findings = [Finding(**row) for row in found]
    return reports


def section(name: str, report: Report) -> str:
    """The mistake and its remedy as a difference, and what the doctor says."""
    case = KNOWN[name]
    lines = difflib.unified_diff(case.branch(False), case.branch(True), n=2, lineterm="")
    changes = [line for line in list(lines)[2:] if not line.startswith("@@")]
    found = [finding for finding in report.findings if finding.id == case.finding]
    said = found[0].lines() if found else [report.say("nothing")]
    said = [re.sub(r"\S*docs/examples/cases/", "", line) for line in said]
    source = f"https://repository/docs/examples/cases/{name}.py"
    links = f"[{case.project} {case.report}]({case.url}), {case.date} · [{name}.py]({source})"
    parts = [links, "", "```diff", *changes, "```", "", "```text", *said, "```", "", ""]
    return re.sub(r"/tmp/\S+/", "", "\n".join(parts))  # folders of the test


@pytest.mark.parametrize("name", RUNS)
def test_case(name: str, crew: Crew, tmp_path: Path, show: Callable) -> None:
    case = KNOWN[name]
    for language, report in seen(crew, name, tmp_path / "faulty").items():
        wrong = [(f.id, f.line) for f in report.findings if f.severity != "note"]
        wrong = wrong or [(f.id, f.line) for f in report.findings if f.id == case.finding]
        # What follows from a mistake may stand below: an evaluation of overlapping shares, say.
        assert wrong[:1] == ([] if name in MISSED else [(case.finding, case.line())])
        show(language, name, section(name, report))

    report = seen(crew, name, tmp_path / "mended", "--mended")["en"]
    assert [found for found in report.findings if found.severity != "note"] == []
    if name not in LAUNCHED:
        assert_all_ran(tmp_path / "mended", report)


def test_cases_are_shown() -> None:
    """Each is short, and on both pages."""
    for name, case in KNOWN.items():
        assert 30 <= case.text.count("\n") <= 80, name
        for language in LANGUAGES:
            page = (ROOT / "docs" / language / "cases.md").read_text()
            assert f"{{#{name}}}" in page, name
            assert f"cases.{language}.md {name}\n" in page, name


def test_branches() -> None:
    """The two programs of a difference: each is whole, and neither asks which one it is."""
    for name, case in KNOWN.items():
        for mended in (False, True):
            text = "\n".join(case.branch(mended))
            compile(text, name, "exec")
            assert "MENDED:" not in text
