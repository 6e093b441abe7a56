"""Real mistakes of public projects: the doctor names each, and nothing in the mended program."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from cases import DOCTOR, TORCHRUN
from crew import Crew
from examined import OLDEST, assert_all_ran, examined, shown
from harness import ROOT, run
from tiers import but

from ddp_doctor.command import NAMES
from ddp_doctor.report import LANGUAGES, Finding, Report
from tools.site.verdicts import CASES, COMPARISON, all_cases

KNOWN = all_cases()
COMPARED = json.loads(COMPARISON.read_text())["cases"]  # "Who notices what?"
MISSED = [name for name, case in KNOWN.items() if case.finding == "nothing"]
SLOW = ["automodel_skip", "prime_rl_validation", "pytorch_rank0_validation"]
LAUNCHED = ["mmseg_scandir"]  # warm processes have one order of sets
# Others of the same finding run in `make test`.
ALIKE = {
    "accelerate_twice", "nanovlm_workers", "longlive_sampler", "funasr_no_sync", "kohya_unwrapped",
    "pytorch_moved", "trl_unwrapped", "libreyolo_predictions", "scrl_checkpoint",
    "torchsig_workers", "transformers_seed", "vector_quantize_mean", "rl_games_statistics",
    "prime_rl_tokens", "transformers_schedule", "stylegan2_order", "astropt_stream",
}  # fmt: skip
RUNS = but(KNOWN, {*SLOW, *LAUNCHED, *ALIKE})


@pytest.fixture(scope="module")
def show(request: pytest.FixtureRequest) -> Iterator[Callable]:
    yield from shown(request)


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


@pytest.mark.parametrize("name", RUNS)
def test_case(name: str, crew: Crew, tmp_path: Path, show: Callable) -> None:
    if OLDEST and name == "lightly_barlow":
        pytest.skip("no gradient comes through torch 2.6's functional all_reduce")
    case = KNOWN[name]
    for language, report in seen(crew, name, tmp_path / "faulty").items():
        wrong = [(f.id, f.line) for f in report.findings if f.severity != "note"]
        wrong = wrong or [(f.id, f.line) for f in report.findings if f.id == case.finding]
        # What follows from a mistake may stand below: an evaluation of overlapping shares, say.
        assert wrong[:1] == ([] if name in MISSED else [(case.finding, case.line())])
        if language == "en":
            show(name, [found for found in report.findings if found.id == case.finding][:1])


@pytest.mark.right
@pytest.mark.parametrize("name", RUNS)
def test_mended(name: str, crew: Crew, tmp_path: Path) -> None:
    if OLDEST and name == "lightly_barlow":
        pytest.skip("no gradient comes through torch 2.6's functional all_reduce")
    report = seen(crew, name, tmp_path / "mended", "--mended")["en"]
    assert [found for found in report.findings if found.severity != "note"] == []
    if name not in LAUNCHED:
        assert_all_ran(tmp_path / "mended", report)


@pytest.mark.proof
@pytest.mark.parametrize("name", KNOWN)
def test_table_is_of_today(name: str, crew: Crew, tmp_path: Path) -> None:
    """What "Who notices what?" says of the doctor. If it should be so: python
    tools/benchmark/cases.py --write, with the case's name or for all, then make pages."""
    report = seen(crew, name, tmp_path / "faulty")["en"]
    now = [{"id": f.id, "severity": f.severity, "line": f.line} for f in report.findings]
    assert now == COMPARED[name]["doctor"]["faulty"]


def test_table_has_what_there_is() -> None:
    """Each case, and no finding that is gone."""
    assert list(COMPARED) == list(KNOWN)
    for name, row in COMPARED.items():
        ids = {found["id"] for findings in row["doctor"].values() for found in findings}
        assert ids <= set(NAMES), name


def test_cases_are_shown() -> None:
    """Each is on the page of cases, and in the doctor's table if it is found."""
    for name in KNOWN:
        for language in LANGUAGES:
            page = (ROOT / "docs" / language / "cases.md").read_text()
            assert f'<a id="{name}">' in page, name
            assert f'{name}.py "verdict {name}")\n' in page, name
            doctor = (ROOT / "docs" / language / "doctor.md").read_text()
            assert (f"](cases.md#{name})" in doctor) == (name not in MISSED), name


def test_branches() -> None:
    """The two programs of a difference: each is whole, and neither asks which one it is."""
    for name, case in KNOWN.items():
        for mended in (False, True):
            text = "\n".join(case.branch(mended))
            compile(text, name, "exec")
            assert "MENDED:" not in text
