"""skill/: complete after `make skill`, and of use in another project's folder."""

import json
import re
import sys
from pathlib import Path

import pytest
from harness import PATIENCE, ROOT, run, run_short

pytest.importorskip("pygments", reason="needs requirements-dev.txt")


@pytest.fixture(scope="module")
def skill(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("skills") / "pytorch-multi-gpu"
    words = ["make", "--no-print-directory", "-C", ROOT, "skill", f"SKILL={folder}"]
    made = run([*words, f"VENV={Path(sys.prefix)}"], folder.parent)
    assert made.returncode == 0, made.output
    return folder


def test_names_what_is_there(skill: Path) -> None:
    """The form of agentskills.io; files, and headings of recipes."""
    text = (skill / "SKILL.md").read_text()
    name, about = re.match(r"---\nname: (.+)\ndescription: (.+)\n---\n", text).groups()
    assert name == skill.name and len(about) <= 1024
    named = set(re.findall(r"`([\w.]+\.(?:py|md|pyz))`", text))
    assert named == {path.name for path in skill.iterdir()} - {"SKILL.md", "naive.py"}
    recipes = (skill / "recipes.md").read_text()
    for heading in re.findall(r"`(\{#[\w-]+\})`", text):
        assert heading in recipes, heading
    assert "class DistributedWeightedSampler" in recipes
    for page in skill.glob("*.md"):
        for target in re.findall(r"\]\(([^)#]+)", page.read_text()):
            assert target.startswith("http") or (skill / target).exists(), (page.name, target)


@pytest.mark.proof
def test_commands_run_elsewhere(skill: Path, tmp_path: Path) -> None:
    """In a project that has nothing else, with the example before and after."""
    text = (skill / "SKILL.md").read_text()
    command, compare = re.findall(r"```bash\n(.+)\n```", text)
    (tmp_path / "train.py").write_text((skill / "multi.py").read_text())
    prepare = f"PATH={Path(sys.executable).parent}:$PATH; cp {skill}/doctor.pyz .; "
    launch = prepare + command
    done = run_short(["bash", "-c", launch], tmp_path, PATIENCE)
    assert done.returncode == 0, done.output
    verdict = json.loads((tmp_path / "verdict.json").read_text())
    assert verdict["findings"] == [] and "same_order" in verdict["checked"]
    (tmp_path / "before.py").write_text((skill / "single.py").read_text())
    done = run_short(["bash", "-c", prepare + compare], tmp_path, PATIENCE)
    assert done.returncode == 0 and "Nothing differs." in done.stdout, done.output
    proof = json.loads((tmp_path / "proof.json").read_text())["against"]
    assert proof["first_difference"] is None and "`first_difference`" in text
    (asked,) = re.findall(r"`python (doctor\.pyz --explain \w+)`", text)
    said = run([sys.executable, *asked.split()], tmp_path)
    assert said.returncode == 0 and "set_epoch" in said.stdout, said.output

    (tmp_path / "train.py").write_text(
        (skill / "multi.py").read_text().replace("sampler.set_epoch(epoch)", "pass")
    )
    done = run_short(["bash", "-c", launch], tmp_path, PATIENCE)
    assert done.returncode == 1, done.output
    (found,) = json.loads((tmp_path / "verdict.json").read_text())["findings"]
    for field in ("id", "severity", "file", "line", "seen", "advice"):
        assert field in found and f"`{field}`" in text
