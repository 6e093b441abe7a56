"""docs/examples/language_model/generate.py, and the tokenizer that the page of 09 makes: what they
write is what the run itself writes at its end."""

import re
import sys
from pathlib import Path

import pytest
from harness import ROOT, run
from plain_language_model import LM
from warm import run_warm

GENERATE = ROOT / "docs/examples/language_model/generate.py"
PAGE = ROOT / f"docs/en/chapters/{LM}.md"
TEXT = "Ada has 3 apples, gets 4 and has 7 apples. Ben has 2 boats, gets 6 and has 8 boats. "


@pytest.mark.parametrize("kind", ["tokenizer", pytest.param("bytes", marks=pytest.mark.proof)])
def test_it_writes_as_the_run_does(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same prompt, seed and number of tokens: a wrong shape would write another text. (The
    tokenizer's tokens do not fill the head.)"""
    pytest.importorskip("safetensors")
    for name, text in (("text", PAGE.read_text()), ("val", TEXT * 20)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "a.txt").write_text(text)
    monkeypatch.chdir(tmp_path)
    argv = "--data text --val val --width 32 --layers 2 --heads 4 --key-heads 2 --context 64"
    argv += " --batch-size 8 --steps 30 --lr 0.01 --sample 200 --output-dir run"
    if kind == "tokenizer":
        pytest.importorskip("tokenizers")
        [block] = re.findall(r"^```python example\n(.*?)^```", PAGE.read_text(), re.S | re.M)
        exec(block.replace("/shared/", "").replace("50_000", "300"), {})
        argv += " --tokenizer tokenizer.json"
    program = [ROOT / LM / "main.py", *argv.split()]
    codes, said, wrong = run_warm(program, tmp_path, 2, cwd=tmp_path)
    assert codes == [0, 0], wrong
    sample = re.sub(r"^(start|train|eval|end) .*\n", "", said[0], flags=re.M)
    prompt, written = sample.partition("[...]")[::2]
    assert TEXT.startswith(prompt) and len(prompt) >= 16 and len(written) > 100

    words = ["run/model.safetensors", prompt, *["tokenizer.json"] * (kind == "tokenizer")]
    env = {"PYTHONPATH": str(ROOT / LM)}
    result = run([sys.executable, GENERATE, *words], tmp_path, env=env)
    assert result.returncode == 0, result.output
    assert result.stdout.replace("\0", "\n") == prompt + written
