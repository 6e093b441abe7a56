"""class.zip: what docs/en/class.md promises of it; the doctor judges as its answers say."""

import os
import re
import sys
import zipfile
from pathlib import Path

import pytest
from harness import ROOT, run

sys.path.insert(0, str(ROOT / "tools"))
import class_kit

LAUNCH = ["torchrun", "--standalone", "--nproc-per-node", "2"]
FINDINGS = {name: finding for name, (_, finding, *_) in class_kit.MISTAKES.items()}


@pytest.fixture(scope="module")
def kit(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Unpacked; made by a Python without packages, as `make class.zip` may be."""
    folder = tmp_path_factory.mktemp("kit")
    bare = [f"PYTHON={sys.executable} -S", f"PYZ={folder}/doctor.pyz", f"ZIP={folder}/class.zip"]
    made = run(["make", "-s", "-C", ROOT, "class.zip", *bare], folder)
    assert made.returncode == 0, made.output
    zipfile.ZipFile(folder / "class.zip").extractall(folder)
    return folder / "class"


def test_students_are_told_nothing(kit: Path) -> None:
    """Six scripts that run, none with a word about its mistake, and sheets without an answer."""
    scripts = {path.name: path.read_text() for path in (kit / "mistakes").iterdir()}
    assert scripts.keys() == FINDINGS.keys() and len(set(scripts.values())) == 6
    right = class_kit.right()
    assert "step" not in right.replace("optimizer.step()", "") and '"""' not in right[:20]
    for name, text in scripts.items():
        compile(text, name, "exec")
        assert text != right and "mistake" not in text
    sheets = [(kit / name).read_text("utf-8") for name in ("SHEET.md", "SHEET.zh-CN.md")]
    assert all(name in sheet for sheet in sheets for name in scripts)
    assert not any(found in sheet for sheet in sheets for found in FINDINGS.values() if found)
    steps = [(kit / name).read_text("utf-8") for name in ("STEPS.md", "STEPS.zh-CN.md")]
    assert all(text.count("\n### ") > 8 and "\n### 8. " in text for text in steps)
    for text in (*sheets, *steps):  # what they lead to is there
        links = re.findall(r"\]\((?!http)(.+?)\)", text)
        assert all((kit / link).is_file() for link in links) and "{#" not in text
    for name in ("FIGURES.html", "FIGURES.zh-CN.html"):  # by themselves: nothing is fetched
        page = (kit / name).read_text("utf-8")
        assert page.count("data-figure=") == 2 and not re.search(r"""(src|href)=["']?http""", page)
    for name in ("ANSWERS.md", "ANSWERS.zh-CN.md"):
        told = (kit / "answers" / name).read_text("utf-8")
        assert told.count("```diff") == 6 and all(found in told for found in FINDINGS.values())


def judged(kit: Path, folder: Path, script: Path, *flags: str) -> str:
    """As in a student's shell, whose environment is active."""
    env = {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    for name in ("single.py", "doctor.pyz"):
        (folder / name).write_bytes((kit / name).read_bytes())
    return run(["python", "doctor.pyz", *flags, *LAUNCH, script], folder, env=env).output


@pytest.mark.proof
@pytest.mark.parametrize("name", FINDINGS)
def test_the_doctor_judges(kit: Path, tmp_path: Path, name: str) -> None:
    """The first finding is the one of the answers; that of 6.py needs single.py beside it."""
    script = kit / "mistakes" / name
    said = judged(kit, tmp_path, script)
    if finding := FINDINGS[name]:
        found = [line for line in said.splitlines() if line.startswith(("WRONG", "HANG", "WAST"))]
        assert found and finding in found[0], said
        return
    assert "Nothing found." in said, said
    against = ("--steps", "1000", "--without", "all", "--against", "python single.py")
    said = judged(kit, tmp_path, script, *against)
    assert "DIFFERENT" in said and "Nothing differs." not in said, said
