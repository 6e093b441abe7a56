"""What a class needs, in one file: `make class.zip`, and on the site the page "An hour and a half".

    python tools/class_kit.py class.zip doctor.pyz

The sheet and the eight steps in both languages, single.py, the doctor, and six scripts: each is
multi.py with one mistake and without a word about it. What is wrong with which is in answers/, for
the teacher. Needs Python alone.
"""

import difflib
import re
import sys
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "docs/examples/doctor")]

from faults import changed  # noqa: E402

from tools.site.plain import plain  # noqa: E402

EXAMPLES = ROOT / "docs/examples/convert"
COMMENT = re.compile(r"  # (step \d.*|it shuffles)$", re.M)
# What stands in multi.py and what in the script instead, in pairs; what the doctor finds, "" if
# --against alone does; what is wrong.
MISTAKES = {
    "1.py": (
        ("        sampler.set_epoch(epoch)\n", ""),
        "same_order",
        "Every epoch has the same order. Nothing tells; the accuracy ends a little lower.",
        "每个 epoch 的顺序都一样。没有任何报错，只是最后的准确率低一点。",
    ),
    "2.py": (
        ("ddp_model(inputs)", "model(inputs)"),
        "unequal_gradients",
        "The wrapper is there and is not called: each process trains a model of its own.",
        "包装了却没有调用：每个进程各练各的模型。",
    ),
    "3.py": (
        ("        dist.all_reduce(totals)\n", ""),
        "wrong_evaluation",
        "Each process has its own share, and rank 0 prints the accuracy of its own: 151 images.",
        "每个进程只有自己的一份，rank 0 打印的是它那 151 张的结果。",
    ),
    "4.py": (
        (
            "sampler=sampler, drop_last=True)\n    share",
            "shuffle=True, drop_last=True)\n    share",
            "    sampler = DistributedSampler(train_set, drop_last=True)\n",
            "",
            "        sampler.set_epoch(epoch)\n",
            "",
        ),
        "same_samples",
        "Each process goes through all samples, with equal seeds in one order: all is done twice.",
        "每个进程都从头到尾练一遍全部样本，种子相同，顺序也相同：什么都做了两遍。",
    ),
    "5.py": (
        (
            "        dist.all_reduce(totals)\n        right, count = totals.tolist()\n"
            "        if rank == 0:\n",
            "        if rank == 0:\n            dist.all_reduce(totals)\n"
            "        right, count = totals.tolist()\n        if rank == 0:\n",
        ),
        "collective_order",
        "A collective that one rank alone calls: it waits for ever, or meets another call of the"
        " other rank, which ends in an error about sizes or connections, or in wrong numbers.",
        "只有一个 rank 调用了集合通信：它会一直等，或者撞上另一个 rank 的别的调用，"
        "报一个关于大小或连接的错误，或者得到错的数。",
    ),
    "6.py": (
        ("batch = args.batch_size // world_size", "batch = args.batch_size"),
        "",
        "The batch of all processes is twice that of single.py, at the same rate: another training."
        " By itself it is a right program, so only --against tells.",
        "全局 batch 是 single.py 的两倍，学习率却没变：是另一个训练。单看它是正确的程序，"
        "所以只有 --against 能发现。",
    ),
}
STEPS = ("convert.md#diff", "convert.md#steps", "convert.md#check")
# What the sheet asks below its table.
QUESTIONS = {
    "en": """## The questions

1. `1.py` step 5, `2.py` step 4, `3.py` step 6, `4.py` steps 3 and 5, `5.py` step 6 on rank 1,
   `6.py` step 2.
2. All but `3.py` and `5.py`. The first indices of an epoch, printed on each rank, tell of `1.py`
   and `4.py`, and the weights of `2.py`; the steps of an epoch, 20, tell of `4.py`, which has 41,
   and of `6.py`, which has 10.
3. The doctor says `Nothing found.`, and with `--against` `Nothing differs.`
""",
    "zh": """## 三个问题

1. `1.py` 缺第 5 步，`2.py` 第 4 步，`3.py` 第 6 步，`4.py` 第 3 和第 5 步，
   `5.py` 的 rank 1 缺第 6 步，`6.py` 缺第 2 步。
2. 除了 `3.py` 和 `5.py` 都数到了。在每个 rank 上打印一个 epoch 开头的几个下标，
   就能发现 `1.py` 和 `4.py`；打印权重能发现 `2.py`；
   一个 epoch 应该有 20 步，`4.py` 有 41 步，`6.py` 只有 10 步。
3. doctor 说`没有发现问题。`，加 `--against` 则是`没有差别。`
""",
}


def right() -> str:
    """multi.py without its docstring and its steps."""
    text = (EXAMPLES / "multi.py").read_text("utf-8")
    return COMMENT.sub("", text.partition('"""\n\n')[2])


def script(name: str) -> str:
    """multi.py with the mistake of that name."""
    return changed(right(), MISTAKES[name][0])


def answers(language: str) -> str:
    """For the teacher: the mistake as a difference, what the doctor finds, and why it matters."""
    title, nothing = {
        "en": ("Answers", "nothing; `--against` does"),
        "zh": ("答案", "查不出，`--against` 能"),
    }[language]
    text = f"# {title}\n"
    for name, (_, finding, *said) in MISTAKES.items():
        lines = difflib.unified_diff(
            right().splitlines(), script(name).splitlines(), "multi.py", name, n=1, lineterm=""
        )
        found = f"`{finding}`" if finding else nothing
        text += f"\n## {name}: {found}\n\n{said[language == 'zh']}\n\n"
        text += "```diff\n" + "\n".join(lines) + "\n```\n"
    return f"{text}\n{QUESTIONS[language]}"


def printed(page: Path, steps: str) -> str:
    """A page to be read from the folder, which has the eight steps in a file of that name: without
    the names of its headings."""

    def lead(to: str) -> str:
        return steps if to in STEPS else to * to.startswith("http")

    return re.sub(r" \{#[\w-]+\}$", "", plain(page.read_text("utf-8"), lead), flags=re.M)


def main() -> None:
    out, doctor = map(Path, sys.argv[1:])
    made = {
        "single.py": (EXAMPLES / "single.py").read_bytes(),
        "doctor.pyz": doctor.read_bytes(),
        **{f"mistakes/{name}": script(name) for name in MISTAKES},
        "answers/multi.py": (EXAMPLES / "multi.py").read_bytes(),
    }
    for language, end in (("en", ".md"), ("zh", ".zh-CN.md")):
        pages, steps = ROOT / f"docs/{language}", f"STEPS{end}"
        made[f"SHEET{end}"] = printed(pages / "class.md", steps)
        made[steps] = printed(pages / "convert.md", steps)
        made[f"answers/ANSWERS{end}"] = answers(language)
    beside = out.with_name(f"{out.name}.tmp")  # a full disk leaves no half file
    with zipfile.ZipFile(beside, "w", zipfile.ZIP_DEFLATED) as file:
        for name, content in made.items():  # of one date: the same pages give the same file
            info = zipfile.ZipInfo(f"class/{name}", (2026, 1, 1, 0, 0, 0))
            info.external_attr = 0o644 << 16
            file.writestr(info, content, zipfile.ZIP_DEFLATED)
    beside.replace(out)


if __name__ == "__main__":
    main()
