"""Break every protection on purpose, and see a test go red.

python -m pytest tests/mutations -m proof -k set_epoch  # those whose name holds the word
python -m pytest tests/mutations --touched main  # those that a change since main touches
"""

import ast
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from harness import ROOT
from mutations import MUTATIONS, TASKS, Mutation


def files_of(root: Path) -> list[Path]:
    tools = [root / "tools/gpu_check.py", root / "tools/links.py"]
    tools += sorted((root / "doctor").rglob("*.py"))
    site = [root / f"tools/site/{name}.py" for name in ("hooks", "plain", "theme")]
    styles = root / "docs/assets/stylesheets"
    site += [styles / "site.css", styles / "approaches.css", root / "docs/overrides/main.html"]
    site += sorted(root.glob("docs/assets/javascripts/s*.js"))
    tasks = sorted(root.glob("docs/examples/tasks/*/*.py"))
    return [*sorted(root.glob("0[1-9]_*/main.py")), *tools, *site, *tasks]


def patched(path: Path, text: str, mutation: Mutation) -> str:
    """What the file becomes: of tasks only by the patch of a test of them, which has no other."""
    if mutation.old not in text:
        return text
    if path.is_relative_to(ROOT / "docs/examples") != mutation.test.startswith(TASKS):
        return text
    return text.replace(mutation.old, mutation.new)


def test_every_patch_still_fits() -> None:
    """Its text stands in the files, and its test is there."""
    texts = {path: path.read_text() for path in files_of(ROOT)}
    for mutation in MUTATIONS:
        found = {path: patched(path, text, mutation) for path, text in texts.items()}
        changed = [path for path, text in found.items() if text != texts[path]]
        assert len(changed) >= mutation.files, mutation.name
        file, test = mutation.test.partition("[")[0].split("::")
        assert f"def {test}(" in (ROOT / file).read_text(), mutation.test


def test_a_part_that_is_none(pytestconfig: pytest.Config) -> None:
    part_of = pytestconfig.pluginmanager.getplugin(f"{ROOT}/tests/conftest.py").part_of
    assert part_of("3/10") == (3, 10)
    for text in ("3", "0/10", "11/10", "a tenth", ""):
        with pytest.raises(pytest.UsageError, match="which of how many, such as 3/10"):
            part_of(text)


def test_touched(pytestconfig: pytest.Config) -> None:
    """--touched: by a line of what is patched, by one of its test, and by the patch itself."""
    touched = pytestconfig.pluginmanager.getplugin(f"{ROOT}/tests/mutations/conftest.py").touched

    def names(file: str, words: str, before: list = MUTATIONS) -> set[str]:
        lines = (ROOT / file).read_text().splitlines()
        [at] = [number for number, line in enumerate(lines, 1) if words in line]
        diff = f"--- a/{file}\n+++ b/{file}\n@@ -{at},7 +{at} @@ where\n-old\n+new\n"
        return {mutation.name for mutation in touched(diff, before)}

    assert names("07_dist_eval/main.py", "dist.all_reduce(pairs)") == {
        "the all-reduce of the confusion matrix"
    }
    assert "the rank in the seed" in names(
        "tests/chapters/test_sampling.py", "def test_dropout_differs("
    )
    assert names("README.md", "make proof", MUTATIONS[1:]) == {MUTATIONS[0].name}


@pytest.fixture(scope="session")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    ignore = shutil.ignore_patterns(".git", ".venv*", "data", "runs", "__pycache__", ".*_cache")
    return shutil.copytree(ROOT, tmp_path_factory.mktemp("mutated") / "copy", ignore=ignore)


@pytest.mark.proof
@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.name)
def test_is_noticed(mutation: Mutation, copy: Path) -> None:
    """The test, which is green in this session, fails without the protection."""
    for path in files_of(ROOT):
        before = path.read_text()
        text = patched(path, before, mutation)
        if path.suffix == ".py" and text != before:
            ast.parse(text)  # what is no Python any test would notice
        (copy / path.relative_to(ROOT)).write_text(text)
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider"]
    command += ["-m", "not proof", mutation.test]  # by what `make test` runs
    # Or there might be bytecode of the mutation before.
    env = os.environ | {"PYTHONDONTWRITEBYTECODE": "1", "TEST_PATIENCE": "120"}
    done = subprocess.run(command, cwd=copy, env=env, capture_output=True, text=True, timeout=1800)
    # 1 is pytest's word for failed tests; a broken session would prove nothing.
    assert done.returncode == 1 and " failed" in done.stdout.splitlines()[-1], done
