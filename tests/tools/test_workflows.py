"""The workflows of .github, which cannot run here. `make lint` holds them against GitHub's schema;
this is about what a schema does not know."""

import re
from pathlib import Path

import pytest
from harness import ROOT, run

yaml = pytest.importorskip("yaml", reason="needs requirements-dev.txt")

WORKFLOWS = sorted((ROOT / ".github/workflows").glob("*.yml"))
JOBS = {
    f"{path.stem}-{name}": job
    for path in WORKFLOWS
    for name, job in yaml.safe_load(path.read_text())["jobs"].items()
}


def settings(job: dict) -> list[dict[str, str]]:
    """The rows of a job's matrix."""
    return job.get("strategy", {}).get("matrix", {}).get("include", [{}])


@pytest.mark.parametrize("job", JOBS.values(), ids=JOBS)
def test_job(job: dict, tmp_path: Path) -> None:
    """It is bounded; what it refers to is there: the job that it needs, a setting of its matrix in
    each row, files whose sum it takes, what it asks of make."""
    text = yaml.safe_dump(job, width=10_000)
    assert "timeout-minutes" in job
    assert job.get("needs", "test") in {name.split("-", 1)[1] for name in JOBS}
    for files in re.findall(r"hashFiles\((.*?)\)", text):
        for file in re.findall(r"[\w./-]+", files):
            assert (ROOT / file).is_file(), file
    for row in settings(job):
        assert set(re.findall(r"matrix\.(\w+)", text)) <= row.keys(), row
    for target in re.findall(r"\bmake ([a-z]\S*)$", "\n".join(commands(job)), re.MULTILINE):
        make = ["make", "--dry-run", f"VENV={tmp_path}/none", "PYTHON=python3", target]
        result = run(make, ROOT)
        assert result.returncode == 0, result.output


def commands(job: dict) -> list[str]:
    """What its steps run, once for each row of its matrix."""
    return [
        re.sub(r"\$\{\{ matrix\.(\w+) \}\}", lambda name: row[name[1]], step["run"])  # noqa: B023
        for row in settings(job)
        for step in job["steps"]
        if "run" in step
    ]


def test_smoke_runs_on_every_python() -> None:
    """With the torch that `make test` installs, for which Python 3.10 is too old."""
    newest = re.search(r"^torch==(.*)$", (ROOT / "constraints.txt").read_text(), re.MULTILINE)[1]
    rows = settings(JOBS["ci-smoke"])
    pythons = [f"3.{minor}" for minor in range(10, 15)]
    assert [row["python"] for row in rows] == [python for python in pythons for _ in range(2)]
    assert [row["torch"] == newest for row in rows] == [False, False] + [False, True] * 4
