"""Patches of mutations.py: each takes a protection of the chapters, tools, tasks or site away."""

from pathlib import Path

import pytest
from harness import ROOT
from mutate import Mutation, Table
from mutations import PATCHES, TASKS


def files_of(mutation: Mutation) -> list[Path]:
    """Tasks are changed by the patch of a test of them alone, which changes nothing else."""
    if mutation.test.startswith(TASKS):
        return sorted(ROOT.glob("docs/examples/tasks/*/*.py"))
    files = [*sorted(ROOT.glob("0[1-9]_*/main.py")), ROOT / "docs/overrides/main.html"]
    files += ROOT.glob("docs/examples/language_model/*.diff")
    files += [ROOT / f"tools/{name}.py" for name in ("fits", "gpu_check", "links", "toy_imagenet")]
    files += [ROOT / f"tools/site/{name}.py" for name in ("hooks", "pages", "plain", "theme")]
    files += [ROOT / f"docs/assets/stylesheets/{name}.css" for name in ("site", "approaches")]
    return files + sorted(ROOT.glob("docs/assets/javascripts/s*.js"))


TABLE = Table("tests/mutations/mutations.py", PATCHES, files_of)


def test_every_patch_still_fits() -> None:
    TABLE.assert_fits()


def test_touched() -> None:
    """--touched: by a line of what is patched, by one of its test, and by the patch itself."""

    def names(file: str, words: str, before: dict = PATCHES) -> set[str]:
        lines = (ROOT / file).read_text().splitlines()
        [at] = [number for number, line in enumerate(lines, 1) if words in line]
        diff = f"--- a/{file}\n+++ b/{file}\n@@ -{at},7 +{at} @@ where\n-old\n+new\n"
        return {mutation.name for mutation in TABLE.touched(diff, before)}

    assert names("07_dist_eval/main.py", "dist.all_reduce(pairs)") == {
        "the all-reduce of the confusion matrix"
    }
    assert "the rank in the seed" in names(
        "tests/chapters/test_sampling.py", "def test_dropout_differs("
    )
    first, *others = PATCHES
    before = {test: PATCHES[test] for test in others}
    assert names("README.md", "make proof", before) == {name for name, *_ in PATCHES[first]}


@pytest.mark.proof
@pytest.mark.parametrize("mutation", TABLE.mutations, ids=lambda mutation: mutation.name)
def test_is_noticed(mutation: Mutation, copy: Path) -> None:
    TABLE.assert_noticed(mutation, copy)
