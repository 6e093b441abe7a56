"""Every example of the handbook runs, and prints what its pages show.

`pytest tests/handbook --write-outputs` writes what was printed beside each example.
"""

import ast
import doctest
import re
import shlex
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from harness import ROOT, run_short
from warm import run_warm

EXAMPLES = sorted((ROOT / "docs/examples/handbook").glob("*.py"))
ON_CPU = {"CUDA_VISIBLE_DEVICES": "", "PYTHONUNBUFFERED": ""}  # as the pages say
PAGES = sorted(ROOT.glob("docs/??/handbook/*.md"))
# These train, start torchrun, or Pythons by mp.spawn, again and again, print what torchrun tells
# them, or wait for a timeout: 5 to 15 s.
ONLY_LAUNCHED = {"cifar_train", "coll_monitored_barrier", "elastic_env", "elastic_logs",
                 "elastic_nodes", "elastic_resume", "elastic_signals", "group_init_errors",
                 "group_init_methods", "group_new_group_missing", "group_timeout",
                 "hand_processes"}  # fmt: skip


def words_of(example: Path) -> list[str]:
    """The line of its docstring that starts it, in words."""
    name = str(example.relative_to(ROOT))
    lines = [x.strip() for x in ast.get_docstring(ast.parse(example.read_text())).splitlines()]
    (line,) = [x for x in lines if name in x and x.startswith(("torchrun ", "python "))]
    return shlex.split(line)


def really_launched(example: Path, logs: Path) -> str:
    """What that line prints, with this Python; all of rank 0, then all of rank 1...: on one pipe
    the lines of two ranks may run into each other."""
    launcher, *words = words_of(example)
    if launcher == "torchrun":
        words = ["-m", "torch.distributed.run", "--redirects", "1", "--log-dir", logs, *words]
    result = run_short([sys.executable, *words], ROOT, env=ON_CPU)
    assert result.returncode == 0, result.output
    # torchrun makes a folder of logs for each launch; those before the last one aborted.
    launches = sorted(logs.glob("*"), key=lambda path: path.stat().st_mtime_ns)
    written = [path for last in launches[-1:] for path in last.glob("attempt_0/*/stdout.log")]
    written.sort(key=lambda path: int(path.parts[-2]))
    return result.stdout + "".join(path.read_text() for path in written)


def warm(example: Path, folder: Path) -> str:
    """The same from processes that have imported torch already."""
    launcher, *words = words_of(example)
    ranks = int(words[words.index("--nproc-per-node") + 1]) if launcher == "torchrun" else 0
    while Path(words[0]).suffix != ".py":
        words = words[1:]
    statuses, outs, errs = run_warm(words, folder, ranks, cwd=ROOT)
    assert not any(statuses), (statuses, outs, errs)
    return "".join(outs)


def by_rank(text: str) -> list[str]:
    """Lines of ranks come in any order: those that begin with "rank N", by N; others, first."""

    def rank(line: str) -> int:
        found = re.match(r"rank (\d+)\b", line)
        return int(found[1]) if found else -1

    return sorted(text.splitlines(), key=rank)


RUNS = [pytest.param(warm, e, id=e.stem) for e in EXAMPLES if e.stem not in ONLY_LAUNCHED]
RUNS += [
    pytest.param(
        really_launched,
        e,
        id=f"{e.stem}-launched",
        marks=pytest.mark.proof,
    )
    for e in EXAMPLES
]


@pytest.mark.parametrize(("prints", "example"), RUNS)
def test_example(
    prints: Callable, example: Path, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    printed, shown = by_rank(prints(example, tmp_path)), example.with_suffix(".txt")
    assert printed
    if request.config.getoption("--write-outputs"):
        shown.write_text("\n".join(printed) + "\n")
    assert printed == shown.read_text().splitlines()


# Ranks that part on purpose, or one alone: see "Before the process ends".
NO_BARRIER = {"coll_monitored_barrier", "group_timeout", "group_new_group_missing",
              "group_init_errors"}  # fmt: skip


def test_examples_end_with_a_barrier() -> None:
    """Nothing is sent after it."""
    without = set()
    for example in EXAMPLES:
        text, ending, _ = example.read_text().rpartition("dist.destroy_process_group()")
        if ending and re.findall(r"\bdist\.(\w+)\(", text)[-1] != "barrier":
            without.add(example.stem)
    assert without == NO_BARRIER


@pytest.mark.parametrize("page", PAGES, ids=lambda path: f"{path.parts[-3]}-{path.stem}")
def test_sessions_on_pages(page: Path) -> None:
    """Python sessions (```pycon) of a page, in one namespace, from top to bottom."""
    blocks = re.findall(r"^ *```pycon\n(.*?)^ *```", page.read_text(), re.S | re.M)
    test = doctest.DocTestParser().get_doctest("\n".join(blocks), {}, page.stem, str(page), 0)
    assert len(test.examples) == page.read_text().count(">>> "), "not in a pycon fence"
    runner = doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS)
    said: list[str] = []
    runner.run(test, out=said.append)
    assert runner.failures == 0, "".join(said)
