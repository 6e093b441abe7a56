"""What both READMEs say of the doctor."""

import os
import re
import shlex
import sys
from pathlib import Path

import pytest
from harness import ROOT, run_short
from tiers import table

COMMAND = re.compile(r"```bash\n(python doctor .+)\n```\n\n```text\n(.+?)```", re.S)
PAGES = {"en": "README.md", "zh": "README.zh-CN.md"}


@pytest.mark.parametrize("language", table(PAGES, ["en"]))
def test_front_page(language: str, tmp_path: Path) -> None:
    """Its command prints what it shows, of the example from which set_epoch is gone."""
    example = (ROOT / "docs/examples/convert/multi.py").read_text().splitlines(keepends=True)
    lacking = [line for line in example if "set_epoch" not in line]
    assert len(lacking) == len(example) - 1
    (tmp_path / "train.py").write_text("".join(lacking))
    (tmp_path / "doctor").symlink_to(ROOT / "doctor")

    text = (ROOT / PAGES[language]).read_text("utf-8")
    assert f"**[{len(list(ROOT.glob('docs/examples/cases/*.py')))} " in text
    [(command, output)] = COMMAND.findall(text)
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    done = run_short(shlex.split(command), tmp_path, env={"LANG": "C", "PATH": path})
    assert done.returncode == 1 and output in done.stdout, done.output
