"""--touched BASE: the patches that a change since then may have made toothless, and no other."""

import ast
import re
import subprocess
from pathlib import Path

import pytest
from harness import ROOT
from mutations import MUTATIONS, Mutation
from test_mutations import files_of, patched

TABLE = "tests/mutations/mutations.py"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--touched", metavar="BASE", help="patches that a change since BASE touches")


def git(*words: str) -> subprocess.CompletedProcess:
    return subprocess.run(["git", "-C", ROOT, *words], capture_output=True, text=True)


def pytest_configure(config: pytest.Config) -> None:
    base = config.getoption("touched", None)
    if base and git("cat-file", "-e", f"{base}:{TABLE}").returncode:
        raise pytest.UsageError(f"--touched {base}: git knows no such commit, or it has no {TABLE}")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if not (base := config.getoption("touched", None)):
        return
    before: dict = {"__name__": "before"}
    exec(git("show", f"{base}:{TABLE}").stdout, before)
    diff = git("diff", "--unified=0", "--no-ext-diff", "--no-renames", base, "--").stdout
    names = {mutation.name for mutation in touched(diff, before["MUTATIONS"])}
    others = [
        item
        for item in items
        if item.path.parent == Path(__file__).parent
        and "callspec" in vars(item)
        and item.callspec.params["mutation"].name not in names
    ]
    items[:] = [item for item in items if item not in others]
    config.hook.pytest_deselected(items=others)


def touched(diff: str, before: list) -> list[Mutation]:
    """Those whose text stands in a changed line, whose test has one, or which are not as before."""
    lines: dict[Path, set[int]] = {}
    for line in diff.splitlines():
        if line.startswith("+++ "):
            path = ROOT / line[6:]
        elif hunk := re.match(r"@@ -\S+ \+(\d+)(?:,(\d+))? @@", line):
            first, count = int(hunk[1]), int(hunk[2] or 1)
            # Where lines are gone, the two around them have changed.
            changed = range(first, first + count) if count else range(first, first + 2)
            lines.setdefault(path, set()).update(changed)
    texts = {path: path.read_text() for path in files_of(ROOT) if path in lines}
    known = {tuple(mutation) for mutation in before}

    def touches(mutation: Mutation) -> bool:
        file = ROOT / mutation.test.split("::")[0]
        return (
            tuple(mutation) not in known
            or (file in lines and bool(lines_of_test(mutation.test) & lines[file]))
            or any(
                lines_of(text, mutation.old) & lines[path]
                for path, text in texts.items()
                if patched(path, text, mutation) != text
            )
        )

    return list(filter(touches, MUTATIONS))


def lines_of(text: str, part: str) -> set[int]:
    found = set()
    for match in re.finditer(re.escape(part.strip("\n")), text):
        first = text.count("\n", 0, match.start()) + 1
        found.update(range(first, first + match[0].count("\n") + 1))
    return found


def lines_of_test(test: str) -> set[int]:
    file, name = test.partition("[")[0].split("::")
    for node in ast.parse((ROOT / file).read_text()).body:
        if isinstance(node, ast.FunctionDef) and node.name == name:
            return set(range(node.lineno, node.end_lineno + 1))
    return set()
