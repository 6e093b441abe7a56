"""skill/: complete after `make skill`, which needs Python alone, and of use in another project."""

import json
import re
import sys
from pathlib import Path

import pytest
from harness import PATIENCE, ROOT, run, run_short

TASKS = ROOT / "docs/examples/tasks"
# The fields that agentskills.io has, and how long they may be.
FIELDS = {"name": 64, "description": 1024, "license": 100, "compatibility": 500}


@pytest.fixture(scope="module")
def skill(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Made by a Python without packages, where nothing is set up."""
    folder = tmp_path_factory.mktemp("skills") / "pytorch-multi-gpu"
    bare = [f"PYTHON={sys.executable} -S", f"VENV={folder.parent / 'none'}"]
    made = run(["make", "-C", ROOT, "skill", f"SKILL={folder}", *bare], folder.parent)
    assert made.returncode == 0, made.output
    assert [path.name for path in folder.parent.iterdir()] == [folder.name]
    return folder


def test_names_what_is_there(skill: Path) -> None:
    """The form of agentskills.io; files, and headings of pages; a difference for each kind."""
    text = (skill / "SKILL.md").read_text()
    head, body = re.fullmatch(r"---\n(.+?)---\n(.+)", text, re.S).groups()
    fields = dict(line.split(": ", 1) for line in head.splitlines())
    assert fields.keys() == FIELDS.keys() and fields["name"] == skill.name
    assert all(len(value) <= FIELDS[name] for name, value in fields.items())
    assert len(body) < 8000  # an assistant loads all of it

    kinds = re.search(r"KIND is one of ([\w\s,-]+)", body)[1]
    tasks = {f"task-{kind}.md" for kind in re.findall(r"[\w-]+", kinds)}
    assert len(tasks) == len(list(TASKS.iterdir()))
    named = set(re.findall(r"`(?:python SKILL/)?([\w.]+\.(?:pyz|py|md))", body))
    named -= {"train.py", "before.py"}
    assert named | tasks == {path.name for path in skill.iterdir()} - {"SKILL.md"}
    for heading, page in re.findall(r"`(\{#[\w-]+\})`(?: in `(\w+\.md)`)?", body):
        assert heading in (skill / (page or "recipes.md")).read_text(), heading
    assert "class DistributedWeightedSampler" in (skill / "recipes.md").read_text()


def test_pages_are_whole(skill: Path) -> None:
    """Code and differences to the letter, and no link that leads nowhere."""
    for name in ("convert", "recipes", "troubleshooting"):
        ours, theirs = (path / f"{name}.md" for path in (skill, ROOT / "docs/en"))
        # Of each block all below its first line.
        blocks = [page.read_text().split("```")[1::2] for page in (ours, theirs)]
        code, source = ([block.partition("\n")[2] for block in page] for page in blocks)
        assert len(code) > 10 and code == source, name
    for page in skill.glob("*.md"):
        for target in re.findall(r"\]\(([^)#]+)", page.read_text()):
            assert target.startswith("http") or (skill / target).exists(), (page.name, target)
    for kind in TASKS.iterdir():
        text = (skill / f"task-{kind.name.replace('_', '-')}.md").read_text()
        added = re.findall(r"^\+ *(\S.*)", text, re.M)
        code = (kind / "multi.py").read_text()
        assert "DIFFERENT: " in text and len(added) > 10 and all(line in code for line in added)


def test_the_doctor_is_in_it(skill: Path, tmp_path: Path) -> None:
    """And says more of a finding, where nothing else is."""
    text = (skill / "SKILL.md").read_text()
    (asked,) = re.findall(r"`python SKILL/(doctor\.pyz --explain \w+)`", text)
    said = run([sys.executable, "-S", *f"{skill}/{asked}".split()], tmp_path)
    assert said.returncode == 0 and "set_epoch" in said.stdout, said.output


@pytest.mark.proof
def test_commands_run_elsewhere(skill: Path, tmp_path: Path) -> None:
    """In a project that has nothing else, with the example before and after, and with mistakes."""
    text = (skill / "SKILL.md").read_text()
    commands = re.findall(r"```bash\n(.+)\n```", text)
    prepare = f"PATH={Path(sys.executable).parent}:$PATH; "
    check, compare = (prepare + line.replace("SKILL/", f"{skill}/") for line in commands)
    right = (skill / "multi.py").read_text()
    (tmp_path / "before.py").write_text((skill / "single.py").read_text())

    (tmp_path / "train.py").write_text(right)
    done = run_short(["bash", "-c", check], tmp_path, PATIENCE)
    assert done.returncode == 0, done.output
    verdict = json.loads((tmp_path / "verdict.json").read_text())
    assert verdict["findings"] == [] and "same_order" in verdict["checked"]
    done = run_short(["bash", "-c", compare], tmp_path, PATIENCE)
    assert done.returncode == 0 and "Nothing differs." in done.stdout, done.output
    proof = json.loads((tmp_path / "proof.json").read_text())["against"]
    assert proof["first_difference"] is None and "`first_difference`" in text

    (tmp_path / "train.py").write_text(right.replace("sampler.set_epoch(epoch)", "pass"))
    done = run_short(["bash", "-c", check], tmp_path, PATIENCE)
    assert done.returncode == 1, done.output
    (found,) = json.loads((tmp_path / "verdict.json").read_text())["findings"]
    for field in ("id", "severity", "file", "line", "seen", "advice"):
        assert field in found and f"`{field}`" in text

    # What the check of a single run cannot see.
    scaled = right.replace("loss.backward()", "(loss * world_size).backward()")
    (tmp_path / "train.py").write_text(scaled)
    done = run_short(["bash", "-c", compare], tmp_path, PATIENCE)
    assert done.returncode == 1 and "DIFFERENT: At step 1" in done.stdout, done.output
    assert right != scaled and "Nothing else found." in done.stdout
    proof = json.loads((tmp_path / "proof.json").read_text())["against"]
    assert "2 times as large" in proof["first_difference"]["text"]
