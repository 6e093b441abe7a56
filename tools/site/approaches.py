"""The approaches as the minimal.py of the chapters show them: the same lines in the same order, and
where they differ, what each of these lines is for. tests/chapters/test_minimal.py holds the chain.
"""

import ast
import re
from difflib import SequenceMatcher
from functools import cache
from html import escape
from pathlib import Path

from .codealong import file_address
from .ran import never
from .source import ROOT, read, style, translated

HUB, SINGLE = "02_distributed", "docs/examples/minimal_single.py"
# As people choose, the commonest first: its address, its name, and who takes it.
NAMES = {
    "en": {
        HUB: ("ddp", "DDP", "nearly everything"),
        "08_fsdp2": ("fsdp2", "FSDP2", "CUDA out of memory: a model that one GPU cannot hold"),
        "03_multiprocessing": ("spawn", "mp.spawn", "one python command starts all"),
        "06_slurm": ("slurm", "Slurm", "a cluster that Slurm runs"),
        "04_apex": ("amp", "Mixed precision", "fp16, or code for Apex"),
        "05_horovod": ("horovod", "Horovod", "where it is in use"),
        "07_dist_eval": (
            "evaluation",
            "Exact evaluation",
            "accuracy by class, confusions, each prediction",
        ),
        "01_dataparallel": ("dp", "DataParallel", "to understand old code"),
    },
    "zh": {
        HUB: ("ddp", "DDP", "几乎所有场合"),
        "08_fsdp2": ("fsdp2", "FSDP2", "CUDA out of memory：模型一张卡放不下"),
        "03_multiprocessing": ("spawn", "mp.spawn", "一条 python 命令启动全部"),
        "06_slurm": ("slurm", "Slurm", "Slurm 管理的集群"),
        "04_apex": ("amp", "混合精度", "fp16，或 Apex 老代码"),
        "05_horovod": ("horovod", "Horovod", "已经在用它"),
        "07_dist_eval": ("evaluation", "精确评估", "每类准确率、混淆矩阵、逐张图片的预测"),
        "01_dataparallel": ("dp", "DataParallel", "看懂老代码"),
    },
}
CHAPTERS = tuple(NAMES["en"])
# What lines of main() and below it are for, by what stands in them: the first that fits. A line
# that none fits is training itself, and is in every file.
ROWS = {
    "start": r"def main|__main__|^main\(|mp\.spawn|processes = |folder:|meeting = |STEP_ID|raise ",
    "who": r"device = |is_available|set_device|\"RANK|\"LOCAL_RANK|gpus = ",
    "others": r"backend|rank, world_size = |hvd\.init|hostnames|first_node|MASTER|\"WORLD_SIZE",
    "sampler": r"sampler|loader = DataLoader",
    "wrap": r"_model = |fully_shard|for layer|broadcast_parameters",
    "call": r"autocast|logits = |fp16 = |dtype = ",
    "average": r"backward\(|optimizer\.step|scaler|DistributedOptimizer",
    "evaluate": "a block, see below",
    "save": r"rank == 0|torch\.save|whole = |weights = ",
    "end": r"destroy_process_group|shutdown",
}
EVALUATION = ("torch.manual_seed(1)", "accuracy")  # in its first line, and in its last


def minimal(chapter: str) -> str:
    return chapter if chapter.endswith(".py") else f"{chapter}/minimal.py"


def bare(line: str) -> str:
    """A line without its comment and its indentation."""
    return re.sub(r"(^|  )# .*", "", line).strip()


@cache
def lines_of(chapter: str) -> list[tuple[int, str, str]]:
    """From main() on: number, bare line, what it is for; "": training."""
    lines = read(minimal(chapter)).lines
    first = lines.index(next(line for line in lines if line.startswith("def main")))
    found, evaluates = [], False
    for n, line in enumerate(map(bare, lines[first:]), first + 1):
        evaluates |= EVALUATION[0] in line
        row = next((row for row, form in ROWS.items() if re.search(form, line)), "")
        found += [(n, line, "evaluate" if evaluates else row)] * bool(line)
        evaluates &= EVALUATION[1] not in line
    return found


# ---- the switch on the home page, and tables of pages ----
STYLE = ROOT / "docs/assets/stylesheets/approaches.css"
WORDS = {
    "en": {
        "legend": "Approach",
        "take": "Take {main}: ImageNet, resuming, exact evaluation in one file",
        "coming": "Whole programs",
        "page": "explained line by line",
        "untried": "run on no GPU yet",
        "head": "| Approach | Take it for | Started by | The approach alone | To take |",
        "rows": dict(
            start="start", who="who am I", others="who else is there", sampler="sampler",
            wrap="wrap", call="forward", average="average", evaluate="evaluate", save="save",
            end="end", single="One GPU", none="–", same="as DDP", of="The line",
        ),
    },
    "zh": {
        "legend": "方法",
        "take": "拿走 {main}：一个文件，训练 ImageNet、断点续训、精确评估",
        "coming": "完整的程序",
        "page": "逐行讲解",
        "untried": "还没有在显卡上跑过",
        "head": "| 方法 | 什么时候用 | 由谁启动 | 方法本身 | 拿走 |",
        "rows": dict(
            start="启动", who="我是谁", others="还有谁", sampler="采样器", wrap="包装",
            call="前向", average="平均梯度", evaluate="评估", save="保存", end="结束",
            single="单卡", none="–", same="同 DDP", of="哪一行",
        ),
    },
}  # fmt: skip
# Of each purpose what the table shows, where a file has it.
SHOWN = {
    "start": ("mp.spawn(main", "SLURM_STEP_ID"),
    "who": (
        'device("cuda" if', 'os.environ["LOCAL_RANK"]', 'device("cuda", rank)', "hvd.local_rank()",
        "SLURM_LOCALID",
    ),
    "others": (
        "dist.init_process_group(backend)", "dist.init_process_group(backend, meeting",
        "hvd.init()", "SLURM_STEP_NUM_TASKS", "MASTER_ADDR",
    ),
    "sampler": (
        "shuffle=True", "DistributedSampler(data)", "DistributedSampler(data, world_size, rank)",
        "sampler.set_epoch(epoch)",
    ),
    "wrap": (
        "DistributedDataParallel(model)", "nn.DataParallel(model)", "hvd.broadcast_parameters",
        "fully_shard(layer)",
    ),
    "call": ("torch.autocast", " ddp_model(inputs", " dp_model(inputs", " model(inputs"),
    "average": (
        "hvd.DistributedOptimizer", "loss.backward()", "scaler.scale(loss).backward()",
        "scaler.step(optimizer)",
    ),
    "evaluate": (
        "nn.functional.pad", "range(rank, len(val_data), world_size)", "dist.broadcast",
        "dist.all_reduce(sums)",
    ),
    "save": (
        "if rank == 0", "get_model_state_dict", "torch.save(model.state_dict()",
        "torch.save(weights",
    ),
    "end": ("dist.destroy_process_group()", "hvd.shutdown()"),
}  # fmt: skip


def launch_of(chapter: str) -> str:
    return ast.get_docstring(read(minimal(chapter)).tree).splitlines()[-1]


def untried(chapter: str, language: str) -> str:
    """What has to be said of a chapter that no GPU has run."""
    words = {"en": "; ", "zh": "；"}[language] + WORDS[language]["untried"]
    return words * (chapter[:2] in never())


def overview(language: str) -> list[str]:
    """Which there are, as a table of the home page: what the switch is on the site."""
    lines = [WORDS[language]["head"], "| --- | --- | --- | --- | --- |"]
    for chapter, (_, name, whom) in NAMES[language].items():
        page = f"chapters/{chapter}.md"
        if not (ROOT / "docs" / language / page).is_file():
            page = "handbook/too-large.md"
        main = f"[main.py](../../{chapter}/main.py)" * (ROOT / chapter / "main.py").is_file()
        lines += [
            f"| [{name}]({page}) | {whom}{untried(chapter, language)} | "
            f"`{launch_of(chapter).split()[0]}` | [minimal.py](../../{minimal(chapter)}) | {main} |"
        ]
    return lines


def cell(chapter: str, row: str) -> str:
    """What a file has for a purpose."""
    lines = [line for _, line, purpose in lines_of(chapter) if purpose == row]
    found = [
        f"`{text.strip()}{'…)' * (text.count('(') > text.count(')'))}`"
        for text in SHOWN[row]
        if any(text in line for line in lines)
    ]
    if row == "start":
        found.insert(0, f"`{launch_of(chapter).split()[0]}`")
    return "<br>".join(found)


def differing(language: str) -> list[str]:
    """The lines that differ, taken from the files: a row a purpose, a column an approach."""
    words = WORDS[language]["rows"]
    names = [name for _, name, _ in NAMES[language].values()]
    lines = [f"| {' | '.join([words['of'], words['single'], *names])} |"]
    lines += ["| --- " * (len(names) + 2) + "|"]
    for row in ROWS:
        cells = [cell(chapter, row) for chapter in (SINGLE, *CHAPTERS)]
        shown = [
            words["same"] if n > 1 and one and one == cells[1] else one or words["none"]
            for n, one in enumerate(cells)
        ]
        lines += [f"| {' | '.join([words[row], *shown])} |"]
    return lines


def sides(chapter: str, language: str) -> tuple[str, str]:
    """DDP's file and this one, beside DDP's the script for one GPU: as many lines each, and the
    same ones beside each other, without blank lines. Each side runs, pasted as it is."""
    pair = [
        [line for line in source.lines[source.after_docstring() - 1 :] if line.strip()]
        for source in (
            translated(read(minimal(one)), language)
            for one in ((SINGLE, HUB) if chapter == HUB else (HUB, chapter))
        )
    ]
    left, right = "", ""
    for kind, a1, a2, b1, b2 in SequenceMatcher(None, *pair, autojunk=False).get_opcodes():
        old, new = pair[0][a1:a2], pair[1][b1:b2]
        height, lit = max(len(old), len(new)), kind != "equal"
        left += part(old, "del" * lit, height)
        right += part(new, "ins" * lit, height)
    return left, right


def part(lines: list[str], lit: str, height: int) -> str:
    """Lines beside others, filled up with blank ones."""
    html = "\n".join(escape(line, quote=False) for line in lines)
    html = re.sub("(# .+)", r"<i>\1</i>", html)
    shown = (f"<{lit}>{html}</{lit}>\n" if lit else f"{html}\n") * bool(lines)
    return shown + f"<s>{chr(10) * (height - len(lines))}</s>" * (height > len(lines))


def panel(chapter: str, language: str, page: str, depth: int) -> str:
    def copy(path: str, text: str) -> str:
        where = file_address(path, "", "", depth)
        return f'<a href="{where}" download="{Path(path).name}">{text}</a>'

    words = WORDS[language]
    one, other = (SINGLE, HUB) if chapter == HUB else (HUB, chapter)
    main = f"{chapter}/main.py"
    take = f'<a href="{page}">{words["coming"]}</a>'
    if (ROOT / main).is_file():
        take = words["take"].format(main=copy(main, "<b>main.py</b>"))
        take += f' · <a href="{page}">{words["page"]}</a>'
    columns = zip((one, other), sides(chapter, language), strict=True)
    shown = "".join(
        f"<figure><figcaption>{copy(minimal(name), minimal(name))}</figcaption>"
        f'<pre tabindex="0"><code>{code}</code></pre></figure>'
        for name, code in columns
    )
    run = escape(launch_of(chapter))
    return (
        f'<section data-of="{NAMES[language][chapter][0]}"><p class="ap-run">$ {run}</p>'
        f'<p class="ap-take">{take}</p><div class="ap-pair">{shown}</div></section>'
    )


def switch(table: str, language: str, depth: int) -> str:
    """All of them, one at a time, without scripts too. table: the one above, built: it knows
    where the pages are."""
    words = WORDS[language]
    pages = re.findall(r'<tr>\s*<td[^>]*><a href="(.+?)"', table)
    css = style(STYLE)
    labels, panels = "", ""
    for chapter, page in zip(CHAPTERS, pages, strict=True):
        value, name, whom = NAMES[language][chapter]
        css += f".ap:has([value={value}]:checked) [data-of={value}]{{display:block}}"
        labels += (
            f'<label><input type="radio" name="take" value="{value}"'
            f"{' checked' * (chapter == HUB)}><b>{name}</b> "
            f"<span>{whom}{untried(chapter, language)}</span></label>"
        )
        panels += panel(chapter, language, page, depth)
    return (
        f'<style>{css}</style><form class="ap" autocomplete="off" data-search-exclude><fieldset>'
        f"<legend>{words['legend']}</legend>{labels}</fieldset>{panels}</form>"
    )
