"""What a class needs, in one file: `make class.zip`, and on the site the page "An hour and a half".

    python tools/class_kit.py class.zip doctor.pyz

The sheet, the eight steps and two figures in both languages, single.py, the doctor, and six
scripts: each is multi.py with one mistake and without a word about it. What is wrong with which is
in answers/, for the teacher. Needs Python alone.
"""

import difflib
import re
import sys
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "docs/examples/doctor")]

from faults import changed  # noqa: E402

from tools.site.forms import moving  # noqa: E402
from tools.site.plain import plain  # noqa: E402

EXAMPLES = ROOT / "docs/examples/convert"
COMMENT = re.compile(r"  # (step \d.*|it shuffles)$", re.M)
# What stands in multi.py and what in the script instead, in pairs; what the doctor finds, "" if
# --against alone does; what is wrong, what it costs (two CPU processes, torch 2.15, 2026-11-29),
# and why the doctor's line is another one.
MISTAKES = {
    "1.py": (
        ("        sampler.set_epoch(epoch)\n", ""),
        "same_order",
        "Every epoch has the same order. Nothing tells, nor does the end: 239 of 301 right, 240"
        " without the mistake. Only longer trainings pay. The doctor names the loader, line 49; the"
        " line that is missing stood behind 59.",
        "每个 epoch 的顺序都一样。没有任何报错，最后的准确率也看不出来："
        "301 张对了 239 张，正确的脚本是 240 张，训练久了才有代价。"
        "doctor 指向 DataLoader（49 行），少的那一行原来在 59 行后面。",
    ),
    "2.py": (
        ("ddp_model(inputs)", "model(inputs)"),
        "unequal_gradients",
        "The wrapper is there and is not called: DDP averages nothing, and each process trains a"
        " model of its own, on half of the images (220 right). The doctor names line 66, where"
        " gradients come; the mistake is in 64.",
        "包装了却没有调用：DDP 什么都没有平均，每个进程用一半图片各练各的模型（对了 220 张）。"
        "doctor 指向产生梯度的 66 行，写错的是 64 行。",
    ),
    "3.py": (
        ("        dist.all_reduce(totals)\n", ""),
        "wrong_evaluation",
        "Each process has its own share, and rank 0 prints the accuracy of its own: 151 images. Of"
        " the training nothing is lost, but the number, and which file is the best one. The doctor"
        " names the loop that evaluates, line 25; the sum stood behind 69.",
        "每个进程只有自己的一份，rank 0 打印的是它那 151 张的结果。训练本身没有损失，"
        "但这个数不对，按它选出的最好的文件也可能不对。"
        "doctor 指向评估循环（25 行），求和原来在 69 行后面。",
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
        "Each process goes through all samples, with equal seeds in one order: all is done twice,"
        " so two GPUs are as slow as one (and 218 right, as each step has half of the images).",
        "每个进程都从头到尾练一遍全部样本，种子相同，顺序也相同："
        "什么都做了两遍，"
        "两张卡和一张一样慢（对了 218 张，因为每一步只有一半的图片）。",
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
        " other rank, which ends in an error about sizes or connections, or in wrong numbers."
        " The doctor's heading names what the other rank called then, line 66; its text has this"
        " one, 71.",
        "只有一个 rank 调用了集合通信：它会一直等，或者撞上另一个 rank 的别的调用，"
        "报一个关于大小或连接的错误，或者得到错的数。"
        "doctor 的标题指向另一个 rank 当时的调用（66 行），写错的 71 行在正文里。",
    ),
    "6.py": (
        ("batch = args.batch_size // world_size", "batch = args.batch_size"),
        "",
        "The batch of all processes is twice that of single.py, at the same rate: another training."
        " By itself it is a right program, so only --against tells; here it ends at 252 right, more"
        " than without the mistake.",
        "全局 batch 是 single.py 的两倍，学习率却没变：是另一个训练。单看它是正确的程序，"
        "所以只有 --against 能发现；这里它最后对了 252 张，比正确的脚本还多。",
    ),
}
STEPS = ("convert.md#diff", "convert.md#steps", "convert.md#check")
FIGURES = {"convert.md#step-3": "shares-two", "performance.md#overlap": "overlap-start"}
STYLE = """:root { --ember: #c2410c; --sea: #0f6a86; --line: #ccc; --md-code-bg-color: #f5f5f5;
  --md-default-fg-color--light: #555; --md-default-fg-color--lighter: #bbb; }
body { font: 16px/1.5 sans-serif; max-width: 54rem; margin: 1rem auto; }
"""
# What the sheet asks below its table.
QUESTIONS = {
    "en": """## The questions

1. `1.py` step 5, `2.py` step 4, `3.py` step 6, `4.py` steps 3 and 5, `6.py` step 2.
   `5.py` has step 6 where step 7 wants nothing that communicates: below `if rank == 0:`.
2. All but `3.py` and `5.py`. The first indices of an epoch, printed on each rank, tell of `1.py`
   and `4.py`, and the weights of `2.py`; the steps of an epoch, 20, tell of `4.py`, which has 41,
   and of `6.py`, which has 10.
3. The doctor says `Nothing found.`, and with `--against` `Nothing differs.`
""",
    "zh": """## 三个问题

1. `1.py` 缺第 5 步，`2.py` 第 4 步，`3.py` 第 6 步，`4.py` 第 3 和第 5 步，
   `6.py` 缺第 2 步。`5.py` 违反了第 7 步：第 6 步的求和写在 `if rank == 0:` 下面。
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
        "en": ("Answers", "nothing by itself; `--against` does"),
        "zh": ("答案", "单独查不出，加 `--against` 才行"),
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


def figures(language: str) -> str:
    """The two figures as a page by itself, which a browser opens from the folder."""
    assets = ROOT / "docs/assets"
    body = "\n".join(moving(assets, still, language) for still in FIGURES.values())
    names = ["shared", *(still.partition("-")[0] for still in FIGURES.values())]
    scripts = [assets / f"javascripts/figures/{name}.js" for name in names]
    style = STYLE + (assets / "stylesheets/figures.css").read_text("utf-8")
    script = "\n".join(path.read_text("utf-8") for path in scripts)
    return (
        f'<!doctype html><html lang="{language}"><meta charset="utf-8"><title>class</title>\n'
        f'<style>{style}</style>\n<body class="md-typeset">\n{body}\n<script>{script}</script>\n'
    )


def printed(page: Path, end: str) -> str:
    """A page to be read from the folder, whose files of its language end so: without the names of
    its headings."""

    def lead(to: str) -> str:
        if to in FIGURES:
            return f"FIGURES{end.replace('.md', '.html')}"
        return f"STEPS{end}" if to in STEPS else to * to.startswith("http")

    return re.sub(r" \{#[\w-]+\}$", "", plain(page.read_text("utf-8"), lead), flags=re.M)


def main() -> None:
    out, doctor = map(Path, sys.argv[1:])
    made = {
        # Without its docstring: lines are as in mistakes/, once the steps are made.
        "single.py": (EXAMPLES / "single.py").read_text("utf-8").partition('"""\n\n')[2],
        "doctor.pyz": doctor.read_bytes(),
        **{f"mistakes/{name}": script(name) for name in MISTAKES},
        "answers/multi.py": right(),
    }
    for language, end in (("en", ".md"), ("zh", ".zh-CN.md")):
        pages = ROOT / f"docs/{language}"
        made[f"SHEET{end}"] = printed(pages / "class.md", end)
        made[f"STEPS{end}"] = printed(pages / "convert.md", end)
        made[f"FIGURES{end.replace('.md', '.html')}"] = figures(language)
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
