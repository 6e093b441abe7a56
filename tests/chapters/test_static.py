"""What can be read off the chapters without running them: sizes, shared functions, tags."""

import ast
import difflib
import re
import sys
from functools import cache

import pytest
from harness import CHAPTERS, ROOT, flags_of

HUB, DP, SPAWN, APEX = "02_distributed", "01_dataparallel", "03_multiprocessing", "04_apex"
HOROVOD, SLURM, EVAL = "05_horovod", "06_slurm", "07_dist_eval"
ALL_CHAPTERS = [DP, HUB, SPAWN, APEX, HOROVOD, SLURM, EVAL]
# How densely a chapter may be written, and elastic.py: expression nodes and characters a code line,
# written-out tuple assignments, merges by |=; and at least so many blank lines for 100 lines inside
# of functions. On 2026-11-22 nanoGPT's train.py had 4.5 nodes and 40 characters, PyTorch's example
# imagenet/main.py 4.3 and 36.
BOUNDS = {"nodes": 5.2, "characters": 48, "tuples": 4, "merges": 0}
LEAST_BLANK = 5
LINE_CAP = {DP: 557, HUB: 570, SPAWN: 626, APEX: 745, HOROVOD: 590, SLURM: 724, EVAL: 717}
# Changed lines (added plus removed) against 02, the docstring aside.
CHANGED_CAP = {DP: 130, SPAWN: 75, APEX: 230, HOROVOD: 110, SLURM: 210, EVAL: 180}

# Functions that must be the same, to the letter, in the chapters named.
EVERYWHERE = [
    "fail", "load_image", "synthetic_images", "build_datasets", "check_data", "build_model",
    "learning_rate", "check_output_dir", "save_checkpoint", "RunLog", "to_device", "log_start",
]  # fmt: skip
ON_TORCH = [HUB, SPAWN, APEX, SLURM, EVAL]
SAME = {
    **{name: ALL_CHAPTERS for name in EVERYWHERE},
    "pick_device": [c for c in ALL_CHAPTERS if c != DP],
    "build_loaders": [c for c in ALL_CHAPTERS if c != SLURM],
    "load_checkpoint": [c for c in ALL_CHAPTERS if c != SLURM],
    "build_optimizer": [DP, HUB, SPAWN, SLURM, EVAL],
    "train_one_epoch": [DP, HUB, SPAWN, HOROVOD, EVAL],
    "evaluate": [DP, HUB, SPAWN, HOROVOD, SLURM],
    "run": [DP, HUB, SPAWN, HOROVOD],
    "setup_distributed": [HUB, SPAWN, APEX, EVAL],
    "wrap_model": [HUB, SPAWN, SLURM, EVAL],
    "all_reduce_sum": ON_TORCH,
    "broadcast_buffers": ON_TORCH,
    "check_same": [c for c in ALL_CHAPTERS if c != DP],
    "cleanup": ON_TORCH,
    "main": [HUB],
}
SEAMS = ["setup_distributed", "wrap_model", "all_reduce_sum", "broadcast_buffers", "cleanup"]
ALLOWED_IMPORTS = sys.stdlib_module_names | {"torch", "torchvision", "tqdm"}
OWN_LIBRARY = {APEX: {"apex"}, HOROVOD: {"horovod"}}


def source(chapter: str) -> str:
    return (ROOT / chapter / "main.py").read_text()


@cache
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


def code_lines(chapter: str) -> list[str]:
    """The file without its docstring."""
    text = source(chapter)
    return text.splitlines()[ast.parse(text).body[0].end_lineno :]


def test_every_chapter_is_here() -> None:
    assert CHAPTERS == ALL_CHAPTERS


def density(text: str) -> dict[str, float]:
    """What BOUNDS speaks of. Code lines are neither blank, nor comments, nor docstrings."""
    tree, lines = ast.parse(text), text.splitlines()
    documented = [
        node.body[0]
        for node in ast.walk(tree)
        if isinstance(node, ast.Module | ast.FunctionDef | ast.ClassDef) and ast.get_docstring(node)
    ]
    prose = {n for doc in documented for n in range(doc.lineno, doc.end_lineno + 1)}
    bare = {n: line.strip() for n, line in enumerate(lines, 1) if n not in prose and line.strip()}
    code = {n: line for n, line in bare.items() if not line.startswith("#")}
    expressions = sum(isinstance(node, ast.expr) for node in ast.walk(tree)) - len(documented)
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    inside = {n for f in functions for n in range(f.lineno, f.end_lineno + 1)}
    return {
        "nodes": expressions / len(code),
        "characters": sum(map(len, code.values())) / len(code),
        "blank": 100 * sum(not lines[n - 1].strip() for n in inside - prose) / len(inside),
        "tuples": sum(
            isinstance(node, ast.Assign)
            and isinstance(node.targets[0], ast.Tuple)
            and isinstance(node.value, ast.Tuple)
            for node in ast.walk(tree)
        ),
        "merges": text.count(" |= "),
    }


def assert_airy(text: str, bounds: dict[str, float], least_blank: float) -> None:
    measured = density(text)
    assert measured.pop("blank") >= least_blank
    assert {name: value for name, value in measured.items() if value > bounds[name]} == {}


@pytest.mark.parametrize("file", [*(f"{c}/main.py" for c in CHAPTERS), f"{HOROVOD}/elastic.py"])
def test_reads_like_prose(file: str) -> None:
    text = (ROOT / file).read_text()
    nodes = 5.3 if file.startswith(EVAL) else 5.2  # its tables of results
    assert_airy(text, BOUNDS | {"nodes": nodes}, LEAST_BLANK)
    assert max(map(len, text.splitlines())) <= 88
    assert len(text.splitlines()) <= LINE_CAP.get(file.removesuffix("/main.py"), 10_000)
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef):
            assert node.end_lineno - node.lineno < 60, node.name


def test_the_doctor_reads_like_prose() -> None:
    """It is copied like a chapter."""
    rooms = (ROOT / "tools/doctor").rglob("*.py")
    text = "\n".join(room.read_text() for room in rooms)
    assert_airy(text, BOUNDS | {"nodes": 5.7}, 4)


@pytest.mark.parametrize("chapter", CHAPTERS)
def test_sections(chapter: str) -> None:
    """The same everywhere; and all but main says what it does. (Ruff wants the type hints.)"""
    ours, hub = (re.findall("^# ---- .+$", source(name), re.M) for name in (chapter, HUB))
    assert [mark for mark in ours if "precision" not in mark] == hub and len(hub) == 8
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


@pytest.mark.parametrize("chapter", sorted(set(CHAPTERS) - {HUB}))
def test_changed_lines(chapter: str) -> None:
    diff = difflib.unified_diff(code_lines(HUB), code_lines(chapter), n=0, lineterm="")
    changed = [line for line in list(diff)[2:] if line[0] in "+-"]
    assert 0 < len(changed) <= CHANGED_CAP[chapter]


@pytest.mark.parametrize("chapter", CHAPTERS)
def test_order_of_functions(chapter: str) -> None:
    """What a chapter shares with 02 comes in 02's order, so that two files line up; and everywhere
    the same small functions stand for the engine."""
    hub = list(definitions(HUB))
    shared = [name for name in definitions(chapter) if name in hub]
    assert shared == [name for name in hub if name in shared]
    assert [name for name in shared if name in SEAMS] == SEAMS


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


@pytest.mark.parametrize("chapter", sorted(set(CHAPTERS) - {"01_dataparallel"}))
def test_dist_tags(chapter: str) -> None:
    """Every use of the process group carries [dist] on its line, which is a line of code; and a
    tag has its reason behind it, or in a comment above, or where the seam is defined."""
    lines = source(chapter).splitlines()
    use = r"\b(dist|hvd)\.\w+\(|(?<!class )\b(Distributed|Resumable)Sampler\("
    uses = [line for line in lines if re.search(use, line)]
    assert len(uses) >= 5
    missing = [line for line in uses if "# [dist]" not in line and "get_world_size" not in line]
    assert not missing
    tagged = [number for number, line in enumerate(lines) if "# [dist]" in line]
    assert not [lines[number] for number in tagged if lines[number].lstrip().startswith("#")]
    seams = [*SEAMS, "check_same", "gather_rows", "all_shall_stop", "join_slurm"]
    for number in tagged:
        explained = lines[number].partition("# [dist]")[2].strip()
        above = number - 1
        while not explained and lines[above].strip():
            explained = lines[above].lstrip().startswith("#") or lines[above].endswith('"""')
            above -= 1
        assert explained or any(seam in lines[number] for seam in seams), lines[number]


def test_tags_of_one_process() -> None:
    """01 tags what it shares with 02, and what is there because of DataParallel."""
    shared = "\n".join(definitions(DP)[name] for name, chapters in SAME.items() if DP in chapters)
    own = [line for line in code_lines(DP) if "[dist]" in line and line not in shared]
    assert len(own) == 2 and all("InBfloat16(" in line or "DataParallel(" in line for line in own)


SYNCS = {"item", "tolist", "cpu", "numpy", "synchronize", "barrier", "is_nonzero"}


@pytest.mark.parametrize("chapter", CHAPTERS)
def test_ordinary_step_does_not_wait(chapter: str) -> None:
    """In the training loop nothing reads the device or meets other ranks but the log branch."""
    (train,) = ast.parse(definitions(chapter)["train_one_epoch"]).body
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
    read = re.findall(r"\bargs\.(\w+)", source(chapter))
    assert {flag.strip("-").replace("-", "_") for flag in flags_of(chapter)} <= set(read)
