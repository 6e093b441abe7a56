"""What ran where, in one line of both READMEs, the home page and the page on GPUs: read from the
results in docs/assets/results, not typed."""

import json
import re
from pathlib import Path

from .source import ROOT

RESULTS = ROOT / "docs/assets/results"
# A chapter's smoke test, in which it trains, resumes and evaluates.
SMOKE = re.compile(
    r"test_trains_resumes_and_evaluates\[(\d\d)_\w+\]|test_alone_in_a_folder\[by_torchrun\]"
)
WORDS = {
    "en": {
        "line": "**What has run where**: {ran}, and nobody has trained on the whole of ImageNet. "
        "Over {tests} tests run on CPUs, with two processes and more. ",
        "there": "[Results; what to run on two GPUs or eight]({gpu}).",
        "here": "[Results](#results).",
        "gpu": "chapters {chapters} on {count} {name}",
        "never": "{} on no GPU",
        "none": "nothing yet on several GPUs, of one machine or of several",
        "range": "{} to {}", "and": " and ", "comma": "; ",
    },
    "zh": {
        "line": "**实测过的硬件**：{ran}，也没有人用完整的 ImageNet 训练过。"
        "{tests} 多个测试在 CPU 上跑，用两个以上的进程。",
        "there": "[已有的结果；有多张卡的话，帮我们补测]({gpu})。",
        "here": "[结果](#results)。",
        "gpu": "{count} {name} 跑过 {chapters} 章",
        "never": "{} 章没有在显卡上跑过", "none": "单机多卡、多机多卡都还没有跑过",
        "range": "{} 到 {}", "and": "、", "comma": "；",
    },
}  # fmt: skip
COUNTS = {"en": {1: "one", 2: "two"}, "zh": {1: "一张", 2: "两张"}}


def chapters() -> list[str]:
    return sorted(path.parent.name[:2] for path in ROOT.glob("0?_*/main.py"))


def chapters_of(tests: list[str]) -> set[str]:
    return {found[1] or "09" for test in tests if (found := SMOKE.fullmatch(test))}


def from_log(text: str) -> set[str]:
    """Of a file of runs, each with a status: the chapters whose smoke tests passed."""
    passed = set()
    for run in re.split(r"^##### ", text, flags=re.MULTILINE)[1:]:
        names = re.findall(r"::(\S+) PASSED", run)
        head = run.partition("\n")[0]
        if head.endswith(" rc 0"):  # then what pytest --durations names has passed
            names += re.findall(r"s call +\S+::(\S+)", run)
        passed |= chapters_of(names)
    return passed


def on_gpus(folder: Path = RESULTS) -> list[tuple[str, int, set[str]]]:
    """Name and number of GPUs, and the chapters that ran on them. The most first."""
    found = {}
    for path in sorted(folder.glob("gpu-*/*")):
        if path.name == "runs.txt":
            text = path.read_text("utf-8")
            name, count = re.search(r"^GPU +one NVIDIA ([^,\n]+)", text, re.M)[1], 1
            passed = from_log(text)
        elif path.name == "gpu.json":  # of tools/gpu_check.py
            parts = {part["part"]: part for part in json.loads(path.read_text("utf-8"))["parts"]}
            row = next(row[1] for row in parts["machine"]["table"] if row[0] == "GPUs")
            count, name = re.fullmatch(r"(\d+) x (?:NVIDIA )?(.+)", row).groups()
            passed = chapters_of(parts.get("smoke tests", {}).get("data", {}).get("passed", []))
        else:
            continue
        name = re.sub(r" \d+GB.*", "", name)
        found.setdefault((name, int(count)), set()).update(passed)
    rows = [(*key, passed) for key, passed in found.items() if passed]
    return sorted(rows, key=lambda row: (-row[1], -len(row[2]), row[0]))


def never(folder: Path = RESULTS) -> list[str]:
    """Chapters that no GPU has run."""
    ran = set().union(*(passed for _, _, passed in on_gpus(folder)))
    return [chapter for chapter in chapters() if chapter not in ran]


def named(numbers: list[str], language: str) -> str:
    """Chapters in a row as a range: 01 to 07."""
    words, order, parts = WORDS[language], chapters(), []
    for chapter in sorted(numbers):
        if parts and order.index(chapter) == order.index(parts[-1][-1]) + 1:
            parts[-1].append(chapter)
        else:
            parts.append([chapter])
    texts = [
        words["range"].format(part[0], part[-1]) if len(part) > 2 else words["and"].join(part)
        for part in parts
    ]
    return words["and"].join(texts)


def tests() -> int:
    """Test functions, to the hundred below: a number that seldom changes."""
    files = [*ROOT.glob("tests/**/test_*.py"), *ROOT.glob("doctor/tests/**/test_*.py")]
    count = sum(len(re.findall(r"^def test_", path.read_text("utf-8"), re.M)) for path in files)
    return count // 100 * 100


def line(language: str, gpu: str, folder: Path = RESULTS) -> str:
    """gpu: the link to the page on GPUs; empty on that page itself, where it leads down to the
    results."""
    words, rows = WORDS[language], on_gpus(folder)
    told = []
    for name, count, passed in rows:
        number = COUNTS[language].get(count, f"{count}{' 张' * (language == 'zh')}")
        shown = named(list(passed), language)
        told.append(words["gpu"].format(count=number, name=name, chapters=shown))
    if missing := never(folder):
        told.append(words["never"].format(named(missing, language)))
    if all(count == 1 for _, count, _ in rows):
        told.append(words["none"])
    link = words["there" if gpu else "here"].format(gpu=gpu)
    return words["line"].format(ran=words["comma"].join(told), tests=tests()) + link
