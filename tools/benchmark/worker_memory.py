"""The memory that loader workers take for the list of ImageNet's paths: ImageFolder's, and packed
(docs/examples/performance/packed_samples.py).

    python tools/benchmark/worker_memory.py    # minutes; into docs/assets/results/worker-memory.*

The loaders are chapter 02's, and images are made up: only the list counts.
"""

import os
import platform
import re
import runpy
import sys
from argparse import Namespace
from concurrent.futures import ProcessPoolExecutor
from datetime import date
from importlib.metadata import version
from multiprocessing import get_context
from pathlib import Path

import torch
from processes import ROOT
from torchvision.datasets import ImageFolder

sys.path.append(str(ROOT / "docs/examples/performance"))
from packed_samples import pack

TRAIN, VAL = 1_281_167, 50_000
LOOKS = (3_000, 300_000)  # images loaded when the memory is read
TEXTS = {
    "en": (
        "List | workers | after {:,} images | after {:,} images",
        {False: "`ImageFolder`'s", True: "packed"},
        "MB, on {cpu}, {cores} CPU cores, torch {torch}; {train:,} training and {val:,} validation "
        "paths of {length} characters; {day}.",
    ),
    "zh": (
        "列表 | worker | {:,} 张图片之后 | {:,} 张图片之后",
        {False: "`ImageFolder` 自带", True: "存成张量"},
        "单位 MB；{cpu}，{cores} 个 CPU 核，torch {torch}；训练路径 {train:,} 条，"
        "验证路径 {val:,} 条，每条 {length} 个字符；{day}。",
    ),
}


class Folder(ImageFolder):
    """Of so many pictures that no disk has."""

    def __init__(self, part: str, count: int) -> None:
        classes = [f"n{number:08}" for number in range(1000)]
        self.samples = self.imgs = [
            (f"data/imagenet/{part:5}/{classes[n % 1000]}/{n:017}.JPEG", n % 1000)
            for n in range(count)
        ]
        self.targets = [target for _, target in self.samples]
        self.loader = lambda path: torch.zeros(3, 1, 1, dtype=torch.uint8)
        self.transform = self.target_transform = None


def megabytes(pids: list[int]) -> float:
    """What these processes have together; what several share is divided among them."""
    texts = [Path(f"/proc/{pid}/smaps_rollup").read_text() for pid in pids]
    return sum(int(re.search(r"^Pss: *(\d+) kB", text, re.M)[1]) for text in texts) / 1000


def measure(packed: bool, workers: int) -> list[float]:
    """In a process of its own."""
    sets = [Folder("train", TRAIN), Folder("val", VAL)]
    for each in sets if packed else ():
        pack(each)
    chapter = runpy.run_path(str(ROOT / "02_distributed/main.py"))
    args = Namespace(batch_size=250, workers=workers, seed=0, evaluate=False)
    loader, _ = chapter["build_loaders"](args, *sets, 0, 1)
    found = []
    for number, _ in enumerate(loader, 1):
        if number * args.batch_size == LOOKS[len(found)]:
            children = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
            found.append(megabytes([os.getpid(), *map(int, children)]))
            if len(found) == len(LOOKS):
                return found


def main() -> None:
    rows = []
    for workers in (2, 8):
        for packed in (False, True):
            with ProcessPoolExecutor(1, get_context("spawn")) as alone:
                figures = alone.submit(measure, packed, workers).result()
            rows.append((packed, workers, figures))
            print(*rows[-1], flush=True)
    found = re.search(r"^model name\s*: (.+)", Path("/proc/cpuinfo").read_text(), re.M)
    cpu = found[1] if found else platform.machine()
    cores, torch_version = len(os.sched_getaffinity(0)), version("torch")
    length = len(Folder("train", 1).samples[0][0])
    for language, (head, names, caption) in TEXTS.items():
        lines = [f"| {head.format(*LOOKS)} |", "| --- | ---: | ---: | ---: |"]
        for packed, workers, figures in rows:
            cells = [names[packed], workers, *(f"{figure:,.0f}" for figure in figures)]
            lines.append(f"| {' | '.join(map(str, cells))} |")
        said = caption.format(cpu=cpu, cores=cores, torch=torch_version, train=TRAIN, val=VAL,
                              length=length, day=date.today())  # fmt: skip
        path = ROOT / f"docs/assets/results/worker-memory.{language}.md"
        path.write_text("\n".join([*lines, "", said]) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
