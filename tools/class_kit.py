"""What a class needs, in one file: `make class.zip`, and on the site the page "An hour and a half".

    python tools/class_kit.py class.zip doctor.pyz

The sheet in both languages, single.py, the doctor, and six scripts: each is multi.py with one
mistake and without a word about it. What is wrong with which is in answers/, for the teacher. Needs
Python alone.
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
LAUNCH = "torchrun --standalone --nproc-per-node 2"


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
    return text


def main() -> None:
    out, doctor = map(Path, sys.argv[1:])
    made = {
        "single.py": (EXAMPLES / "single.py").read_bytes(),
        "doctor.pyz": doctor.read_bytes(),
        **{f"mistakes/{name}": script(name) for name in MISTAKES},
        "answers/multi.py": (EXAMPLES / "multi.py").read_bytes(),
    }
    for language, sheet in (("en", "SHEET.md"), ("zh", "SHEET.zh-CN.md")):
        page = (ROOT / f"docs/{language}/class.md").read_text("utf-8")
        made[sheet] = plain(page, lambda to: to * to.startswith("http"))
        made[f"answers/{sheet.replace('SHEET', 'ANSWERS')}"] = answers(language)
    beside = out.with_name(f"{out.name}.tmp")  # a full disk leaves no half file
    with zipfile.ZipFile(beside, "w", zipfile.ZIP_DEFLATED) as file:
        for name, content in made.items():  # of one date: the same pages give the same file
            info = zipfile.ZipInfo(f"class/{name}", (2026, 1, 1, 0, 0, 0))
            info.external_attr = 0o644 << 16
            file.writestr(info, content, zipfile.ZIP_DEFLATED)
    beside.replace(out)


if __name__ == "__main__":
    main()
