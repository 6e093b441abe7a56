"""What can be read off the chapters without running them: sizes, hints, shared functions, tags."""

from __future__ import annotations

import ast
import difflib
import re
from pathlib import Path

import pytest
from harness import CHAPTERS, ROOT, load_chapter

HUB, DP, SPAWN, APEX = "02_distributed", "01_dataparallel", "03_multiprocessing", "04_apex"
HOROVOD, SLURM, EVAL = "05_horovod", "06_slurm", "07_dist_eval"
ALL_CHAPTERS = [DP, HUB, SPAWN, APEX, HOROVOD, SLURM, EVAL]
# 04 holds two ways to do the same, 06 two ways to be started and a way to be stopped.
LINE_CAP = {HUB: 460, APEX: 601, SLURM: 618}
DEFAULT_LINE_CAP = 560
# Changed lines (added plus removed) against 02, the docstring aside.
CHANGED_CAP = {DP: 90, SPAWN: 55, APEX: 176, HOROVOD: 120, SLURM: 230, EVAL: 150}

# Functions that must be the same, to the letter, in the chapters named.
EVERYWHERE = [
    "refuse_if", "parse_args", "load_image", "synthetic_images", "build_datasets", "build_model",
    "save_checkpoint", "RunLog", "to_device",
]  # fmt: skip
ON_TORCH = [HUB, SPAWN, APEX, SLURM, EVAL]
SAME = {
    **{name: ALL_CHAPTERS for name in EVERYWHERE},
    "build_loaders": [c for c in ALL_CHAPTERS if c != SLURM],
    "load_checkpoint": [c for c in ALL_CHAPTERS if c != SLURM],
    "build_optimizer": [DP, HUB, SPAWN, SLURM, EVAL],
    "train_one_epoch": [DP, HUB, SPAWN, EVAL],
    "evaluate": [DP, HUB, SPAWN, HOROVOD, SLURM],
    "run": [DP, HUB, SPAWN],
    "setup_distributed": [HUB, SPAWN, APEX, EVAL],
    "wrap_model": [HUB, SPAWN, SLURM, EVAL],
    "all_reduce_sum": ON_TORCH,
    "broadcast_buffers": ON_TORCH,
    "cleanup": ON_TORCH,
    "main": [HUB, EVAL],
}
SEAMS = ["setup_distributed", "wrap_model", "all_reduce_sum", "broadcast_buffers", "cleanup"]
ALLOWED_IMPORTS = {
    "argparse", "collections", "csv", "datetime", "importlib", "itertools", "json", "math", "os",
    "pathlib", "re", "resource", "shutil", "signal", "socket", "sys", "time", "torch",
    "torchvision", "tqdm",
}  # fmt: skip
OWN_LIBRARY = {APEX: {"apex"}, HOROVOD: {"horovod"}}


def source(chapter: str) -> str:
    return (ROOT / chapter / "main.py").read_text()


def definitions(chapter: str) -> dict[str, str]:
    """Source of each top-level function and class, decorators and comments inside included."""
    text = source(chapter)
    lines = text.splitlines()
    found = {}
    for node in ast.parse(text).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            first = min([node.lineno, *(d.lineno for d in node.decorator_list)])
            found[node.name] = "\n".join(lines[first - 1 : node.end_lineno])
    return found


def functions(chapter: str) -> list[ast.FunctionDef]:
    return [n for n in ast.walk(ast.parse(source(chapter))) if isinstance(n, ast.FunctionDef)]


def code_lines(chapter: str) -> list[str]:
    """The file without its docstring."""
    text = source(chapter)
    return text.splitlines()[ast.parse(text).body[0].end_lineno :]


def test_every_chapter_is_here() -> None:
    assert CHAPTERS == ALL_CHAPTERS


@pytest.mark.parametrize("chapter", CHAPTERS)
def test_sizes(chapter: str) -> None:
    lines = source(chapter).splitlines()
    assert len(lines) <= LINE_CAP.get(chapter, DEFAULT_LINE_CAP)
    assert max(map(len, lines)) <= 100
    sizes = {f.name: f.end_lineno - f.lineno + 1 for f in functions(chapter)}
    assert {name: size for name, size in sizes.items() if size > 60} == {}


@pytest.mark.parametrize("chapter", CHAPTERS)
def test_hints_and_docstrings(chapter: str) -> None:
    for function in functions(chapter):
        arguments = [*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs]
        arguments += [a for a in (function.args.vararg, function.args.kwarg) if a]
        bare = [a.arg for a in arguments if a.annotation is None and a.arg != "self"]
        assert not bare and function.returns is not None, f"{function.name}: {bare}"
    for node in ast.parse(source(chapter)).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and node.name != "main":
            assert ast.get_docstring(node), node.name


@pytest.mark.parametrize("name", sorted(SAME))
def test_shared_functions_are_identical(name: str) -> None:
    ours = definitions(HUB)[name]
    assert ours.strip()
    for chapter in SAME[name]:
        assert definitions(chapter)[name] == ours, f"{name} of {chapter} is not that of {HUB}"


def test_no_shared_function_is_forgotten() -> None:
    """Whatever 02 defines is either compared above, or listed here with its reason."""
    own = {"build_parser"}  # each chapter adds its own flags; test_flags.py compares the others
    assert set(definitions(HUB)) == set(SAME) | own
    for name, chapters in SAME.items():
        others = [c for c in CHAPTERS if c not in chapters and name in definitions(c)]
        same = [c for c in others if definitions(c)[name] == definitions(HUB)[name]]
        assert not same, f"{name} is the same in {same} too: list it"


@pytest.mark.parametrize("chapter", CHAPTERS)
def test_seams(chapter: str) -> None:
    """The same small functions stand for the engine everywhere, in the same order."""
    names = [name for name in definitions(chapter) if name in SEAMS]
    assert names == SEAMS


@pytest.mark.parametrize("chapter", sorted(set(CHAPTERS) - {HUB}))
def test_changed_lines(chapter: str) -> None:
    diff = difflib.unified_diff(code_lines(HUB), code_lines(chapter), n=0, lineterm="")
    changed = [line for line in list(diff)[2:] if line[0] in "+-"]
    assert 0 < len(changed) <= CHANGED_CAP[chapter]


@pytest.mark.parametrize("chapter", CHAPTERS)
def test_order_of_functions(chapter: str) -> None:
    """What a chapter shares with 02 comes in 02's order, so that two files line up."""
    hub = list(definitions(HUB))
    shared = [name for name in definitions(chapter) if name in hub]
    assert shared == [name for name in hub if name in shared]


@pytest.mark.parametrize("chapter", CHAPTERS)
def test_imports(chapter: str) -> None:
    names = set()
    for node in ast.walk(ast.parse(source(chapter))):
        if isinstance(node, ast.Import):
            names |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0
            names.add(node.module.split(".")[0])
    assert names <= ALLOWED_IMPORTS | OWN_LIBRARY.get(chapter, set())


@pytest.mark.parametrize("chapter", CHAPTERS)
def test_docstring(chapter: str) -> None:
    text = ast.get_docstring(ast.parse(source(chapter)))
    assert f"{chapter}/main.py --synthetic" in text
    assert "--data /data/imagenet" in text
    assert "Changed against 02_distributed" in text or chapter == HUB
    site = re.search(r"^site_url: (\S+)", (ROOT / "mkdocs.yml").read_text(), re.M)[1]
    for language, prefix in (("en", "en/"), ("zh", "")):
        assert f" {site}{prefix}chapters/{chapter}/\n" in text
        assert (ROOT / "docs" / language / "chapters" / f"{chapter}.md").is_file()


@pytest.mark.parametrize("chapter", sorted(set(CHAPTERS) - {"01_dataparallel"}))
def test_dist_tags(chapter: str) -> None:
    """Every use of the process group carries [dist] on its line, or in the comment above it."""
    lines = source(chapter).splitlines()
    use = r"\b(dist|hvd)\.\w+\(|(?<!class )\b(Distributed|Resumable)Sampler\("
    uses = [n for n, line in enumerate(lines) if re.search(use, line)]
    assert len(uses) >= 5
    for number in uses:
        nearby = lines[number]
        above = number - 1
        while lines[above].lstrip().startswith("#"):
            nearby += lines[above]
            above -= 1
        assert "[dist]" in nearby or "get_world_size" in nearby, f"{chapter}:{number + 1}"
    # A tag gives its reason, but for a call of a seam, which gives it where it is defined.
    for line in lines:
        if match := re.search(r"# \[dist\](.*)", line):
            assert match[1].strip() or any(seam in line for seam in [*SEAMS, "gather_rows"]), line


def test_no_tag_without_distribution() -> None:
    """01 has tags only in what it shares with 02."""
    shared = "\n".join(definitions(DP)[name] for name, chapters in SAME.items() if DP in chapters)
    for line in code_lines(DP):
        assert "[dist]" not in line or line in shared


SYNCS = {"item", "tolist", "cpu", "numpy", "synchronize", "barrier", "is_nonzero"}


@pytest.mark.parametrize("chapter", CHAPTERS)
def test_ordinary_step_does_not_wait(chapter: str) -> None:
    """In the training loop nothing reads the device or meets other ranks but the log branch."""
    (train,) = [f for f in functions(chapter) if f.name == "train_one_epoch"]
    (loop,) = [n for n in train.body if isinstance(n, ast.For)]
    branches = [n for n in loop.body if isinstance(n, ast.If)]
    assert len(branches) == 1 and "print_freq" in ast.unparse(branches[0].test)

    def calls(nodes: list[ast.stmt]) -> set[str]:
        found = (c.func for n in nodes for c in ast.walk(n) if isinstance(c, ast.Call))
        return {f.attr if isinstance(f, ast.Attribute) else getattr(f, "id", "") for f in found}

    ordinary = calls([n for n in loop.body if n is not branches[0]])
    assert not ordinary & (SYNCS | {"all_reduce_sum", "float", "int", "bool", "print", "event"})
    # The same search finds what the log branch does, so it can find something.
    assert {"tolist", "all_reduce_sum"} <= calls(branches)
    # Only Horovod's, which is where its thread has freed its tensors (all_reduce_sum of 05).
    assert not any(re.search(r"(?<!hvd\.)\bbarrier\(", line) for line in code_lines(chapter))


@pytest.mark.parametrize("chapter", CHAPTERS)
def test_every_flag_is_read(chapter: str) -> None:
    """Parsed and never read is how the 2019 scripts lost --workers (test_flags.py proves more)."""
    read = set(re.findall(r"\bargs\.(\w+)", source(chapter)))
    flags = {action.dest for action in load_chapter(chapter).build_parser()._actions} - {"help"}
    assert flags - read == set()


def test_no_apex_from_pypi() -> None:
    """PyPI's apex is another project: it must never be a requirement."""
    files = [*ROOT.glob("requirements*.txt"), *ROOT.glob("constraints*.txt")]
    assert len(files) >= 3
    for path in files:
        assert not re.search(r"^\s*apex\b", path.read_text(), re.MULTILINE | re.IGNORECASE), path


def test_oldest_versions_agree() -> None:
    """The oldest torch that we promise is the one that smoke-oldest installs."""
    promised = re.search(r"^torch>=(\S+)", Path(ROOT, "requirements.txt").read_text(), re.M)[1]
    tested = re.search(r"^torch==(\S+)", Path(ROOT, "requirements-oldest.txt").read_text(), re.M)[1]
    assert tested.startswith(promised)
    assert f"torch >= {promised}" in (ROOT / "README.md").read_text()


def training_of(skeleton: str) -> list[str]:
    """A skeleton's lines from the seed to the step, whatever their indent and comments."""
    text = (ROOT / "docs/examples/skeletons" / skeleton).read_text()
    part = text[text.index("torch.manual_seed(0)") : text.index("optimizer.step()")]
    return [line.split("  #")[0].strip() for line in part.splitlines()]


@pytest.mark.parametrize("skeleton", ["03.py", "06.py"])
def test_skeletons_train_alike(skeleton: str) -> None:
    """Each is a whole program, on a page of its own; what is not its chapter's idea is 02's."""
    assert len(training_of("02.py")) > 8
    assert training_of(skeleton) == training_of("02.py")
