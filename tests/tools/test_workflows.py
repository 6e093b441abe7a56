"""The workflows of .github, which cannot run here. `make lint` holds them against GitHub's schema,
and a broken one is red at its first run; a version that was forgotten is not."""

import re

import pytest
from harness import ROOT

yaml = pytest.importorskip("yaml", reason="needs requirements-dev.txt")


def test_smoke_runs_on_every_python() -> None:
    """With the torch that `make test` installs, for which Python 3.10 is too old."""
    newest = re.search(r"^torch==(.*)$", (ROOT / "constraints.txt").read_text(), re.MULTILINE)[1]
    jobs = yaml.safe_load((ROOT / ".github/workflows/ci.yml").read_text())["jobs"]
    rows = jobs["smoke"]["strategy"]["matrix"]["include"]
    pythons = [f"3.{minor}" for minor in range(10, 15)]
    assert [row["python"] for row in rows] == [python for python in pythons for _ in range(2)]
    assert [row["torch"] == newest for row in rows] == [False, False] + [False, True] * 4
