"""The lines that only a GPU runs, and that no test has run: tests/pretended/LINES.md.

Where all tests with pretended GPUs run, `pytest tests/pretended` or `make proof`, their processes
write into a folder which lines they run (see pretended_gpus/lines.py); at the end of the session a
line that nothing has run must have its reason in tests/pretended/not_run.txt.

    python tests/support/line_report.py FOLDER    # each line, and the programs that ran it
"""

import os
import re
import shutil
import sys
import tempfile
from collections import defaultdict
from pathlib import Path

import pretended_gpus
import pytest
from harness import ROOT
from pretended_gpus.lines import FOLDER, lines_of, programs

TESTS = ROOT / "tests/pretended"
REASONS, PAGE = TESTS / "not_run.txt", TESTS / "LINES.md"
OWN_FOLDER = pytest.StashKey[Path]()  # of the session that has made it
HEAD = """\
# Lines for GPUs that no test has run

Written by `pytest tests/pretended --write-lines`. A line counts if a machine without GPUs cannot
reach it, and so does an arm of a conditional expression. {run} of {all} have been run, on pretended
GPUs: they fit together, which says nothing of real GPUs. The others, and why:

"""


def reasons() -> dict[str, list[str]]:
    """Reasons, and under each of them its lines, as `file: function: code`. * is anything."""
    found: dict[str, list[str]] = {}
    for row in REASONS.read_text().splitlines():
        if row.startswith(" "):
            found[list(found)[-1]].append(row.strip())
        elif row:
            found[row] = []
    return found


def matching(pattern: str, lines: set[str]) -> set[str]:
    exact = re.escape(pattern).replace(r"\*", ".*")
    return {line for line in lines if re.fullmatch(exact, line)}


def lines_run(folder: Path) -> dict[str, set[str]]:
    """All lines, and the programs that ran them."""
    ran = defaultdict(set)
    for file in folder.iterdir():
        for row in file.read_text().splitlines():
            path, number, program = row.split("\t")
            ran[path, int(number)].add(program)
    found = {}
    for path, source in programs().items():
        for number, line in enumerate(lines_of(path, source)):
            found.setdefault(f"{path}: {line.name}", ran[path, number])
            # The same code twice in a function: both must run.
            found[f"{path}: {line.name}"] &= ran[path, number]
    return found


def judge(ran: dict[str, set[str]], why: dict[str, list[str]]) -> tuple[str, list[str]]:
    """The page, and what is wrong: a line without a reason, or a reason without a line."""
    missed = {line for line, by in ran.items() if not by}
    page, wrong = HEAD.format(run=len(ran) - len(missed), all=len(ran)), []
    left = set(missed)
    for reason, patterns in why.items():
        page += f"- {reason}\n"
        for pattern in patterns:
            here = matching(pattern, missed)
            left -= here
            page += "".join(f"    - `{line}`\n" for line in sorted(here))
            wrong += [f"it has a reason, and was run: {line}" for line in
                      sorted(matching(pattern, ran.keys() - missed))]  # fmt: skip
            wrong += [] if here else [f"a reason for no line: {pattern}"]
    return page, wrong + [f"nothing has run it: {line}" for line in sorted(left)]


# ---- a session of pytest ----
def all_will_run(config: pytest.Config) -> bool:
    """Whether every test with pretended GPUs is in this session."""
    option = config.option
    chosen = option.keyword or option.markexpr not in ("", "proof or not proof")
    folders = [Path(config.invocation_params.dir, word) for word in config.args]
    here = any(TESTS.is_relative_to(folder.resolve()) for folder in folders)
    return here and not chosen and not option.collectonly and not pretended_gpus.why_not()


def begin(config: pytest.Config) -> None:
    """The processes of pytest-xdist, and all that tests start, inherit the variable."""
    mine = f"lines-of-gpus{str(ROOT).replace('/', '-')}-"
    if mine not in os.environ.get(FOLDER, mine):
        del os.environ[FOLDER]  # of a session that tries a mutation: here are other lines
    if FOLDER not in os.environ and all_will_run(config):
        os.environ[FOLDER] = tempfile.mkdtemp(prefix=mine)
        config.stash[OWN_FOLDER] = Path(os.environ[FOLDER])


def finish(config: pytest.Config, passed: bool) -> list[str]:
    """What is wrong, if all tests ran and passed."""
    if not (folder := config.stash.get(OWN_FOLDER, None)):
        return []
    page, wrong = judge(lines_run(folder), reasons())
    shutil.rmtree(folder)
    if config.getoption("--write-lines") and not wrong and passed:
        PAGE.write_text(page)
    elif not wrong and page != PAGE.read_text():
        wrong = [f"not as these tests saw it, see its head: {PAGE}"]
    return wrong if passed else []


if __name__ == "__main__":
    for line, by in lines_run(Path(sys.argv[1])).items():
        print(f"{line}\n    {', '.join(sorted(by)) or 'NOT RUN'}")
