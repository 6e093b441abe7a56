"""What only real launches show: two jobs side by side, two machines, the lines of the README."""

import re
import subprocess
from pathlib import Path

import pytest
from crew import Crew, call_main
from harness import (
    CHAPTERS,
    LAUNCHED_BY_TORCHRUN,
    ROOT,
    TINY,
    assert_same,
    command_for,
    finish,
    free_port,
    launch_lines,
    load_chapter,
    load_state,
    rows,
    start,
)

HUB, SPAWNS = "02_distributed", "03_multiprocessing"

ARGV = ["--synthetic", "40", *TINY, "--epochs", "1"]
# Two processes a job share these machines' GPUs, which nccl refuses.
on_cpu = {"CUDA_VISIBLE_DEVICES": ""}


@pytest.mark.proof
def test_two_nodes(crew: Crew, tmp_path: Path) -> None:
    """Two parents of 03 that meet on loopback stand for two machines: one job, and of its two
    local ranks 0 only the global rank 0 writes. Its result is that of two local processes. (For
    torchrun, test_slurm.py has machines with networks of their own; ranks and address of 03:
    test_flags.py.)"""
    port = free_port()
    argv = [*ARGV, "--output-dir", "run", "--nnodes", "2", "--master-port", port]
    started = [
        start(command_for(SPAWNS, [*argv, "--node-rank", node], 1), tmp_path, on_cpu)
        for node in range(2)
    ]
    results = [finish(node) for node in started]
    outputs = results[0].output + results[1].output
    assert [result.returncode for result in results] == [0, 0], outputs
    assert rows(tmp_path / "run", "start")[0]["world_size"] == 2
    for event in ("start", "eval", "end"):
        assert len(rows(tmp_path / "run", event)) == 1
        assert len(re.findall(f"^{event}  ", outputs, re.MULTILINE)) == 1, outputs

    argv = [*ARGV, "--output-dir", str(tmp_path / "local")]
    for answer in crew.run(call_main, SPAWNS, argv, world_size=2):
        assert answer["exit"] is None, answer
    two_nodes, one_node = (load_state(tmp_path / f"{n}/checkpoint.pt") for n in ("run", "local"))
    assert_same(two_nodes["model"], one_node["model"])


@pytest.mark.parametrize("chapter", CHAPTERS)
def test_docstring(chapter: str) -> None:
    """The lines that a reader copies from the top of the file are understood by its parser; it says
    what has changed, and names no file that a copy of it does not have."""
    lines, text = launch_lines(chapter), load_chapter(chapter).__doc__
    assert " main.py --synthetic" in text and "--data /imagenet" in text
    assert "Changed against 02_distributed" in text or chapter == HUB
    assert not re.search(r"docs/|minimal\.py|\.md\b", text)
    for line in lines:
        before, after = line.split(" main.py")
        assert (before.split()[0] == "torchrun") == (chapter in LAUNCHED_BY_TORCHRUN)
        words = after.split()
        args, unknown = load_chapter(chapter).build_parser().parse_known_args(words)
        assert not unknown and (args.data or args.synthetic), line


README_LINES = re.search(r"```bash\n(TRY\(\).*?)```", (ROOT / "README.md").read_text(), re.S)[1]
# A clock that goes on by a second at each look, and launchers that say what they were given.
STAND_INS = """
date() { echo >>clock; echo $(wc -l <clock); }
for name in python torchrun horovodrun srun; do eval "$name() { echo $name \\"\\$@\\"; }"; done
"""


def test_lines_of_the_readmes(tmp_path: Path) -> None:
    """One for each chapter, the same in both languages: understood by its parser, and typed twice
    it writes into two folders, which it names."""
    assert README_LINES in (ROOT / "README.zh-CN.md").read_text()
    script = STAND_INS + README_LINES.split("TRY python")[0]
    lines = re.findall("^TRY .*", README_LINES, re.M)
    script += "\n".join(line for line in lines for _ in range(2))
    bash = subprocess.run(["bash", "-euc", script], cwd=tmp_path, capture_output=True, text=True)
    assert bash.returncode == 0, bash.stderr
    said = bash.stdout.splitlines()
    folders = set()
    for number, line in enumerate(said[1::2]):
        chapter = CHAPTERS[number // 2]
        before, after = line.split(f"{chapter}/main.py ")
        assert before.strip() in lines[number // 2]
        args = load_chapter(chapter).build_parser().parse_args(after.split())
        assert (args.epochs, said[2 * number].split()[-1]) == (3, str(args.output_dir))
        folders.add(args.output_dir)
    assert len(folders) == len(said) / 2 == 2 * len(CHAPTERS)
