"""The commands on the pages: each is understood by the program that it starts, and those marked
```bash run are run, in both languages the same ones (test_pages.py), and print what stands below
them. And the flags that the reference lists."""

import contextlib
import importlib.util
import io
import os
import re
import shlex
import sys
from pathlib import Path

import fits
import pytest
from check_twins import Command, but_rounding, commands
from harness import (
    CHAPTERS,
    ROOT,
    TINY,
    download,
    events,
    flags_of,
    load_chapter,
    run,
    run_short,
)
from slurm import shared_cluster
from torch.distributed.run import get_args_parser

HUB = "02_distributed"
ON_CPU = {"CUDA_VISIBLE_DEVICES": ""}
PAGES = sorted((ROOT / "docs").glob("*/**/*.md"))
LAUNCHERS = ("python", "python3", "torchrun", "horovodrun", "srun", "sbatch")
PROGRAM = re.compile(r"(?:\./)?(0[1-9]_\w+)/(?!minimal)\w+\.(py|sbatch)")
ALWAYS_RUN = "02_distributed/minimal.py"
# So few steps that a test can wait for them; the last of two equal flags counts.
SMALL = ["--synthetic", "40", *TINY, "--epochs", "1"]


def mistake(command: Command) -> str | None:
    """What the programs in a command would complain about; None if it starts no chapter."""
    at = [n for n, word in enumerate(command.words) if PROGRAM.fullmatch(word)]
    launcher = command.words[0]
    if not at or launcher not in LAUNCHERS:
        return None
    match = PROGRAM.fullmatch(command.words[at[0]])
    if not (ROOT / match[0].removeprefix("./")).is_file():
        return f"there is no {match[0]}"
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said):
            if launcher == "torchrun":
                get_args_parser().parse_args(command.words[1:])
            if "tools/fits.py" in command.words[: at[0]]:
                fits.parse(command.words[at[0] :])
                return ""
            words = command.words[at[0] + 1 :]
            if not {"-h", "--help"} & set(words):
                # A job file hands its arguments to main.py, or to that of another chapter.
                main = re.match(r"MAIN=(\w+)/main\.py ", command.line) or match
                load_chapter(main[1]).build_parser().parse_args(words)
    except SystemExit as error:
        return (said.getvalue().strip() or str(error)).splitlines()[-1]
    return ""


def test_commands_parse() -> None:
    """And the page of each chapter starts its chapter."""
    wrong, started = [], set()
    for page in PAGES:
        for command in commands(page.read_text(encoding="utf-8")):
            said = mistake(command)
            if said:
                wrong.append(f"{page.relative_to(ROOT)}: {command.line}: {said}")
            if said == "" and f"{page.stem}/" in command.line:
                started.add(page.stem)
    assert wrong == []
    assert started >= set(CHAPTERS)


@pytest.mark.parametrize("language", ["zh", "en"])
def test_reference_has_every_flag(language: str) -> None:
    """In the parsers' order: what all chapters share, then each one's own, then 09's; with the
    defaults that are the same on every machine."""
    text = (ROOT / "docs" / language / "reference.md").read_text(encoding="utf-8")
    parts = text.partition('id="flags-language-model"')[::2]
    for part, chapters in zip(parts, ([HUB, *CHAPTERS], ["09_language_model"]), strict=True):
        assert_has_flags(part, chapters)


def assert_has_flags(text: str, chapters: list[str]) -> None:
    listed = dict(re.findall(r"^\| `(--[\w-]+)[^|]* \| ([^|]+) \|", text, re.M))
    known: dict[str, object] = {}
    for chapter in chapters:
        parser = load_chapter(chapter).build_parser()
        for flag in flags_of(chapter):
            known.setdefault(flag, parser.get_default(flag[2:].replace("-", "_")))
    assert list(listed) == list(known)
    elsewhere = ("--workers", "--output-dir", "--nprocs")  # of the machine, of the chapter
    elsewhere += ("--end-token",)  # a table needs it written otherwise
    for flag, default in known.items():
        if default is not None and default is not False and flag not in elsewhere:
            value = f"{default:g}" if isinstance(default, int | float) else default
            assert listed[flag] == f"`{value}`", flag


def to_be_run() -> list:
    """What is marked so, each once: a verdict in both languages, of all else the twin is the same.
    One of them in every test run."""
    texts = [page.read_text("utf-8") for page in PAGES]
    found = {(*c.words, c.printed): c for text in texts for c in commands(text) if c.run}
    assert any(command.printed for command in found.values())
    assert len(found) > 1 and sum(ALWAYS_RUN in words for words in found) == 1
    return [
        pytest.param(
            command,
            id=" ".join(command.words)[:60],
            marks=() if ALWAYS_RUN in words else pytest.mark.proof,
        )
        for words, command in found.items()
    ]


@pytest.mark.parametrize("command", to_be_run())
def test_marked_commands_run(command: Command, tmp_path: Path) -> None:
    """As they stand there, in the repository's root, but a chapter in few steps."""
    words = command.words
    chapter = next((m[1] for m in map(PROGRAM.fullmatch, words) if m), None)
    if words[0] == "horovodrun" and importlib.util.find_spec("horovod") is None:
        pytest.skip("needs Horovod: PYTHON=python bash 05_horovod/install.sh")
    cluster = shared_cluster() if words[0] == "srun" else None
    if words[0] == "srun" and cluster is None:
        pytest.skip("needs Slurm as root: sudo tools/mini_slurm.sh install")
    for name in [*CHAPTERS, "docs", "doctor", "tools"]:
        (tmp_path / name).symlink_to(ROOT / name)
    download(words, tmp_path)
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    env = ON_CPU | {"PATH": path, "LC_ALL": "C.UTF-8"}  # or a verdict would be in the tester's own
    full = ["bash", "-euc", shlex.join([*words, *(SMALL if chapter else [])])]
    launch = cluster.user(*full) if cluster else full
    result = (run if chapter else run_short)(launch, tmp_path, 240, env)
    assert result.returncode == 0, result.output
    assert but_rounding(command.printed) in but_rounding(result.stdout)
    if chapter:
        logs = [
            row for log in tmp_path.glob("runs/*/*.jsonl") for row in events(log.parent, log.name)
        ]
        assert {"end", "eval"} & {row["event"] for row in logs}
        named = set(re.findall(r"`(\w+)`", (ROOT / "docs/en/reference.md").read_text("utf-8")))
        assert {name for row in logs for name in row} <= named
