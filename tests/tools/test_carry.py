"""make carry, in a small repository that has only the chapters."""

import shutil
from pathlib import Path

import pytest
from harness import CHAPTERS, ROOT, Result, run

FILES = [f"{chapter}/main.py" for chapter in CHAPTERS] + ["docs/examples/own/multilabel.py"]


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for name in [*FILES, "tools/carry.py"]:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    author = ["-c", "user.name=a", "-c", "user.email=a@example.org"]
    for words in (["init", "-q"], ["add", "."], [*author, "commit", "-qm", "chapters"]):
        assert run(["git", *words], tmp_path).returncode == 0
    return tmp_path


def carry(tree: Path, old: str, new: str) -> Result:
    hub = tree / FILES[1]
    text = hub.read_text()
    assert text.count(old) == 1
    hub.write_text(text.replace(old, new))
    return run(["make", "--no-print-directory", "-C", tree, "-f", ROOT / "Makefile", "carry"], tree)


def test_a_change_arrives_in_every_file(tree: Path) -> None:
    """One that 05 cannot have is listed, because it merges without a conflict."""
    done = carry(tree, "    model.train()\n", "    model.train()\n    model.no_sync()\n")
    assert done.returncode == 0, done.output
    for name in FILES:
        assert "    model.no_sync()\n" in (tree / name).read_text(), name
    asked = [line.split(":")[0] for line in done.lines("does it belong here?")]
    assert asked == ["01_dataparallel/main.py", "05_horovod/main.py"], done.output


def test_a_conflict_is_solved_before_the_next_change(tree: Path) -> None:
    done = carry(tree, "two processes on generated images", "two processes")
    assert ": 1 conflicts" not in done.stdout, done.output  # docstrings are not merged
    done = carry(tree, "device = setup_device(local_rank)", "device = setup_device(rank)")
    assert "01_dataparallel/main.py: 1 conflicts" in done.stdout, done.output
    done = carry(tree, "model.eval()", "model.eval()  # more")
    assert done.returncode == 2 and "error: solve the conflicts in 01_dataparallel" in done.output
