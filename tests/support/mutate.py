"""Break every protection on purpose, and see a test go red: what tables of patches share.

python -m pytest tests/mutations doctor/tests -m proof -k set_epoch  # whose names hold the word
python -m pytest tests/mutations doctor/tests --touched main  # what a change since main touches

A patch replaces a piece of text in each file of its table that holds it, in a copy of the
repository; then its test must fail. That is a test session a patch, so it is part of `make proof`.
"""

import ast
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest
from harness import ROOT


class Mutation(NamedTuple):
    """name: what is lost. old becomes new in every file that has it (at least `files` of them).
    test: a pytest argument; at least one test of it must fail."""

    name: str
    files: int
    old: str
    new: str
    test: str


class Table:
    """path: the file of PATCHES, from the root; files: what a patch may change."""

    def __init__(self, path: str, patches: dict, files: Callable[[Mutation], list[Path]]) -> None:
        self.path, self.files, self.mutations = path, files, mutations_of(patches)

    def patched(self, mutation: Mutation) -> dict[Path, str]:
        """The files that it changes, as they become."""
        texts = {path: path.read_text() for path in self.files(mutation)}
        return {
            path: text.replace(mutation.old, mutation.new)
            for path, text in texts.items()
            if mutation.old in text
        }

    def assert_fits(self) -> None:
        """The text of each patch stands in the files, and its test is there."""
        loose = [one.name for one in self.mutations if len(self.patched(one)) < one.files]
        assert not loose
        for mutation in self.mutations:
            file, test = mutation.test.partition("[")[0].split("::")
            assert f"def {test}(" in (ROOT / file).read_text(), mutation.test

    def assert_noticed(self, mutation: Mutation, copy: Path) -> None:
        """The test, which is green in this session, fails without the protection."""
        changed = self.patched(mutation)
        for path, text in changed.items():
            if path.suffix == ".py":
                ast.parse(text)  # what is no Python any test would notice
            (copy / path.relative_to(ROOT)).write_text(text)
        command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider"]
        # By what `make test` runs; where that has none of its rows, pytest selects nothing (5).
        tiers = [[*command, "-m", tier, mutation.test] for tier in ("not proof", "proof")]
        # Or there might be bytecode of the mutation before.
        env = os.environ | {"PYTHONDONTWRITEBYTECODE": "1", "TEST_PATIENCE": "120"}
        try:
            for words in tiers:
                done = subprocess.run(
                    words, cwd=copy, env=env, capture_output=True, text=True, timeout=1800
                )
                if done.returncode != 5:
                    break
        finally:
            for path in changed:
                (copy / path.relative_to(ROOT)).write_text(path.read_text())
        # 1 is pytest's word for failed tests; a broken session would prove nothing.
        assert done.returncode == 1 and " failed" in done.stdout.splitlines()[-1], done

    def touched(self, diff: str, before: dict) -> list[Mutation]:
        """Those whose text stands in a changed line, whose test has one, or which are not as
        before. diff: of no context; before: PATCHES as they were."""
        lines: dict[Path, set[int]] = {}
        for line in diff.splitlines():
            if line.startswith("+++ "):
                path = ROOT / line[6:]
            elif hunk := re.match(r"@@ -\S+ \+(\d+)(?:,(\d+))? @@", line):
                first, count = int(hunk[1]), int(hunk[2] or 1)
                # Where lines are gone, the two around them have changed.
                changed = range(first, first + count) if count else range(first, first + 2)
                lines.setdefault(path, set()).update(changed)
        known = {*mutations_of(before)}

        def touches(mutation: Mutation) -> bool:
            file = ROOT / mutation.test.split("::")[0]
            return (
                mutation not in known
                or (file in lines and bool(lines_of_test(mutation.test) & lines[file]))
                or any(
                    lines_of(path.read_text(), mutation.old) & lines[path]
                    for path in self.patched(mutation)
                    if path in lines
                )
            )

        return list(filter(touches, self.mutations))


def mutations_of(patches: dict) -> list[Mutation]:
    return [Mutation(*patch, test) for test, rows in patches.items() for patch in rows]


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


@pytest.fixture(scope="session")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of the repository, to be patched."""
    ignore = shutil.ignore_patterns(".git", ".venv*", "data", "runs", "__pycache__", ".*_cache")
    return shutil.copytree(ROOT, tmp_path_factory.mktemp("mutated") / "copy", ignore=ignore)


def git(*words: str) -> subprocess.CompletedProcess:
    return subprocess.run(["git", "-C", ROOT, *words], capture_output=True, text=True)


def check_base(base: str) -> None:
    """Raises UsageError."""
    if git("cat-file", "-e", f"{base}^{{commit}}").returncode:
        raise pytest.UsageError(f"--touched {base}: git knows no such commit")


def take_touched(base: str, config: pytest.Config, items: list[pytest.Item]) -> None:
    """--touched BASE: the patches that a change since then may have made toothless, and no other.
    A table that was not there then is all new."""
    diff = git("diff", "--unified=0", "--no-ext-diff", "--no-renames", base, "--").stdout
    wanted: dict[str, list[Mutation]] = {}
    mine, others = [], []
    for item in items:
        mutation = getattr(getattr(item, "callspec", None), "params", {}).get("mutation")
        if mutation is not None:
            table = item.module.TABLE
            if table.path not in wanted:
                before: dict = {"__name__": "before", "PATCHES": {}}
                exec(git("show", f"{base}:{table.path}").stdout, before)
                wanted[table.path] = table.touched(diff, before["PATCHES"])
            if mutation not in wanted[table.path]:
                others.append(item)
                continue
        mine.append(item)
    items[:] = mine
    config.hook.pytest_deselected(items=others)
