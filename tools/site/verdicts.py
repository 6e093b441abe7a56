"""What the doctor said of faults and cases, as pages show it, in their language.

verdicts.json holds what was found, in none; `pytest doctor/tests --write-verdicts` writes it.
"""

import difflib
import json
import re
import sys
from dataclasses import dataclass
from pathlib import Path

from .source import ROOT, SiteError

sys.path += [str(ROOT / "doctor"), str(ROOT / "docs/examples/doctor")]
import faults

from ddp_doctor import checks  # noqa: F401  (they name the kinds of findings)
from ddp_doctor.report import Report

CASES = ROOT / "docs/examples/cases"
VERDICTS = ROOT / "docs/assets/results/doctor/verdicts.json"
COMPARISON = ROOT / "docs/assets/results/cases/comparison.json"
BRANCHES = re.compile(r"^( *)if MENDED:\n((?:\1 .*\n|\n)+)(?:\1else:\n((?:\1 .*\n|\n)+))?", re.M)


@dataclass
class Case:
    """A file of docs/examples/cases, and what its docstring says."""

    path: Path
    text: str
    project: str
    report: str  # such as issue 7245
    date: str
    what: str
    url: str
    finding: str  # the doctor's, or nothing
    at: str  # a text of the line that the doctor names

    def line(self) -> int:
        code = self.text.index('"""\n', 3)
        [place] = [found.start() for found in re.finditer(re.escape(self.at), self.text[code:])]
        return self.text.count("\n", 0, code + place) + 1

    def branch(self, mended: bool) -> list[str]:
        """The code of the faulty or of the mended program alone, in lines."""

        def chosen(found: re.Match) -> str:
            indent, then, other = found.groups(default="")
            return re.sub(rf"^{indent}    ", indent, then if mended else other, flags=re.M)

        text = self.text[self.text.index('"""\n', 3) + 4 :]
        return BRANCHES.sub(chosen, text).splitlines()


def read_case(path: Path) -> Case:
    text = path.read_text(encoding="utf-8")
    first = r'"""(\S+) ((?:issue|pull|commit) \w+), (\d{4}-\d\d-\d\d): (.+)\n\n(https://\S+)\n'
    doctor = re.search(r"^Doctor: (\w+)(?: at (.+))?$", text, re.M).groups(default="")
    return Case(path, text, *re.match(first, text).groups(), *doctor)


def all_cases() -> dict[str, Case]:
    return {path.stem: read_case(path) for path in sorted(CASES.glob("*.py"))}


def difference(wrong: list[str], right: list[str], context: int) -> list[str]:
    """The mistake and its remedy, as a fence."""
    lines = list(difflib.unified_diff(wrong, right, n=context, lineterm=""))[2:]
    changes = [line for line in lines if line.strip("+- ") and line[:2] != "@@"]
    return ["```diff", *changes, "```", ""]


def of_case(case: Case) -> list[str]:
    """Where it is from, and how it is mended."""
    name = case.path.name
    source = f"[{name}](../examples/cases/{name})"
    links = f"[{case.project} {case.report}]({case.url}), {case.date} · {source}"
    return [links, "", *difference(case.branch(False), case.branch(True), 2)]


def of_fault(name: str) -> list[str]:
    right = faults.RIGHT.read_text(encoding="utf-8")
    return difference(faults.broken(name).splitlines(), right.splitlines(), 0)


def verdict(path: str, name: str, language: str) -> tuple[list[str], list[str]]:
    """A fault or a case, which is in that file, as Markdown; and what the doctor said."""
    case = CASES / f"{name}.py"
    file = case if case.is_file() else Path(faults.__file__)
    if file != ROOT / path or (file != case and name not in faults.FAULTS):
        raise SiteError(f"{path} has no case or fault {name}")
    report = Report(language)
    for row in json.loads(VERDICTS.read_text(encoding="utf-8"))[name]:
        report.find(row["name"], row["at"], mild=row["mild"], **row["values"])
    said = [line for found in report.findings for line in report.told(found)]
    shown = of_case(read_case(case)) if file == case else of_fault(name)
    return shown, said or [report.say("nothing")]
