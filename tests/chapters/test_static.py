"""What can be read off the chapters without running them: shared functions, order, tags."""

import ast
import re
import sys
from functools import cache

import pytest
from harness import CHAPTERS, ROOT

pytestmark = pytest.mark.text
HUB, DP, SPAWN, APEX = "02_distributed", "01_dataparallel", "03_multiprocessing", "04_apex"
HOROVOD, SLURM, EVAL, FSDP = "05_horovod", "06_slurm", "07_dist_eval", "08_fsdp2"
ALL_CHAPTERS = [DP, HUB, SPAWN, APEX, HOROVOD, SLURM, EVAL, FSDP]
# Functions that must be the same, to the letter, in the chapters named.
EVERYWHERE = [
    "build_model", "lr_factor", "check_image_folders", "check_enough", "check_pretrained",
    "check_finite", "fingerprint", "load_image", "synthetic_datasets", "seed_of", "describe_run",
    "check_links", "check_same_run", "check_best", "save_checkpoints", "save_checkpoint",
    "is_finite", "HelpFormatter", "ignore_signals", "kill_workers", "describe_gpu", "typed",
]  # fmt: skip
NOT_DP = [c for c in ALL_CHAPTERS if c != DP]
ON_TORCH = [HUB, SPAWN, APEX, SLURM, EVAL, FSDP]
SAME = {
    **{name: ALL_CHAPTERS for name in EVERYWHERE},
    **{name: NOT_DP for name in ("build_datasets", "setup_device", "SeededDataset", "log")},
    **{name: NOT_DP for name in ("load_checkpoint", "peak_memory", "catch_signals")},
    **{name: NOT_DP for name in ("ResumableSampler", "Meetings")},
    **{name: ON_TORCH for name in ("batches", "check_gpus", "start_workers", "wait_for_gloo")},
    "build_loaders": [HUB, SPAWN, APEX, HOROVOD, SLURM, EVAL],
    "build_optimizer": [DP, HUB, SPAWN, SLURM, EVAL, FSDP],
    "train_one_epoch": [HUB, SPAWN, SLURM, EVAL, FSDP],
    "evaluate": [HUB, SPAWN, SLURM],
    "main": [HUB],
    "fail": [HUB, APEX, SLURM, EVAL, FSDP],
    "cpus_of_rank": [HUB, SPAWN, APEX, EVAL, FSDP],
    "check_launcher": [HUB, APEX, EVAL, FSDP],
    "check_flags": [HUB, SPAWN, HOROVOD, SLURM],
    "check_ranks": [HUB, APEX, EVAL, FSDP],
    "open_log": [DP, HUB, SPAWN, APEX, HOROVOD, EVAL, FSDP],  # 06 waits
    "log_start": [HUB, SPAWN, APEX, SLURM, EVAL, FSDP],
    "read_checkpoint": [c for c in NOT_DP if c != FSDP],  # 08 maps the file into memory
    "restore": [DP, HUB, SPAWN, SLURM, EVAL],
}
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


def test_every_chapter_is_here() -> None:
    assert CHAPTERS == ALL_CHAPTERS


@pytest.mark.parametrize("chapter", CHAPTERS)
def test_sections(chapter: str) -> None:
    """The same everywhere; and all but main says what it does. (Ruff wants the type hints.)"""
    ours, hub = (re.findall("^# ---- .+$", source(name), re.M) for name in (chapter, HUB))
    assert [mark for mark in ours if mark in hub] == hub and len(hub) == 7
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


# What asks who is who needs no tag where its line is about something else.
ASKS = ("get_rank", "get_world_size", "get_default_backend_for_device", "hvd.rank", "hvd.size")
SEAMS = ("gather_rows", "join_slurm")  # explained where they are defined


@pytest.mark.parametrize("chapter", NOT_DP)
def test_dist_tags(chapter: str) -> None:
    """Every use of the process group carries [dist] on its line, which is a line of code; and a
    tag has its reason behind it, or in a comment above, or where the function is defined."""
    lines = source(chapter).splitlines()
    use = r"\b(dist|hvd)\.\w+\(|(?<!class )\b(Distributed|Resumable)Sampler\("
    uses = [line for line in lines if re.search(use, line)]
    assert len(uses) >= 5
    missing = [u for u in uses if "# [dist]" not in u and not any(word in u for word in ASKS)]
    assert not missing
    tagged = [number for number, line in enumerate(lines) if "# [dist]" in line]
    assert not [lines[number] for number in tagged if lines[number].lstrip().startswith("#")]
    for number in tagged:
        explained = lines[number].partition("# [dist]")[2].strip()
        above = number - 1
        while not explained and lines[above].strip():
            explained = re.search(r'^ *# |# \[dist\] \w|"""$', lines[above])
            above -= 1
        assert explained or any(seam in lines[number] for seam in SEAMS), lines[number]


@pytest.mark.parametrize("chapter", CHAPTERS)
def test_every_flag_is_read(chapter: str) -> None:
    """Parsed and never read is how the 2019 scripts lost --workers (test_flags.py proves more)."""
    flags = re.findall(r'\("--([\w-]+)"', definitions(chapter)["build_parser"])
    read = re.findall(r"\bargs\.(\w+)", source(chapter))
    assert len(flags) > 15 and {flag.replace("-", "_") for flag in flags} <= set(read)
