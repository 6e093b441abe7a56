"""On the home page: two runs on two processes, of which one lacks a line of
docs/examples/convert/multi.py. All of it is from break-it.json, which record_breaks.py has
recorded; what is said of a run follows from its numbers.
"""

import json
import re
import sys
from fractions import Fraction
from html import escape

from .record_breaks import BREAKS, EXAMPLES, LAUNCH, RECORDED, SINGLE, line_of
from .source import ROOT, style

sys.path.append(str(ROOT / "doctor"))
from ddp_doctor import checks  # noqa: F401  (they name the kinds of findings)
from ddp_doctor.report import Report

STYLE = ROOT / "docs/assets/stylesheets/break-it.css"
STILL = "set_epoch"  # what is forgotten at first, and on the cards
# The lines that are shown, by a text that no other line of multi.py has.
LISTED = (
    "batch = args", "sampler = Dist", "train_loader = ", "val_loader = ", "ddp_model = ",
    "for epoch in", "sampler.set_epoch", "loss = ", "dist.all_reduce", "step 7: one line",
    'print(f"epoch', "if right / count", "step 7: one writer", "torch.save(",
)  # fmt: skip
WORDS = {
    "en": {
        "headline": "Which of these two runs is broken?",
        "legend": "B ran without the struck part. Click another line.",
        "whole": "B ran with all lines. Click one to take it out.",
        "without": "B, line {line}: {instead} in place of {part}",
        "nothing": "nothing",
        "all": "B has all lines",
        "back": "put it back",
        "broken": "B is broken{better}: line {line} {how}.",
        "wasteful": "B does the work twice: line {line} {how}.",
        "loud": "B says everything twice, which is no error: line {line} {how}.",
        "better": ", with the better score",
        "missing": "is missing",
        "instead": "is as on one GPU",
        "right": "Neither. No sample comes twice in an epoch, the copies of the model stay equal, "
        "one process saves.",
        "again": "Epoch 1 is epoch 0 again: the same {images} samples in the same order.",
        "both": "Both processes train on the same {images} samples.",
        "larger": "A step takes {size} samples, not {before}: this is another training.",
        "apart": "The copies of the model drift apart: the norm of the weights is {one:.2f} on "
        "rank 0, {other:.2f} on rank 1. The log and the file are those of rank 0.",
        "twice": "Both processes evaluate all {images} samples.",
        "part": "The accuracy is that of {images} of {before} samples.",
        "lines": "Both processes print each line.",
        "file": "Both processes write the same file at the same time.",
        "recorded": "All numbers are recorded: two processes on CPUs, torch {torch}.",
    },
    "zh": {
        "headline": "这两次训练，哪一次是错的？",
        "legend": "B 少了划掉的部分。点别的行试试。",
        "whole": "B 一行不少。点一行，去掉它。",
        "without": "B，第 {line} 行：{part} 换成 {instead}",
        "nothing": "空",
        "all": "B 一行不少",
        "back": "恢复",
        "broken": "错的是 B{better}：第 {line} 行{how}。",
        "wasteful": "B 把同样的事做了两遍：第 {line} 行{how}。",
        "loud": "B 的输出重复，但不算错：第 {line} 行{how}。",
        "better": "，它答对的还更多",
        "missing": "没写",
        "instead": "还是单卡写法",
        "right": "都没错。一个 epoch 里没有样本重复，两份模型始终一致，只有一个进程保存。",
        "again": "epoch 1 和 epoch 0 一样：同样的 {images} 个样本，顺序也相同。",
        "both": "两个进程训练的是同样的 {images} 个样本。",
        "larger": "一步用了 {size} 个样本，而不是 {before} 个：已经是另一种训练。",
        "apart": "两份模型各练各的，越差越远：权重的范数在 rank 0 上是 {one:.2f}，在 rank 1 上是 "
        "{other:.2f}。日志和文件只来自 rank 0。",
        "twice": "两个进程都评估了全部 {images} 个样本。",
        "part": "准确率只来自 {before} 个样本里的 {images} 个。",
        "lines": "每一行都打印了两遍。",
        "file": "两个进程同时写同一个文件。",
        "recorded": "数据均为实测：两个 CPU 进程，torch {torch}。",
    },
}


def seen(run: dict, right: dict) -> dict[str, dict]:
    """What its numbers show: names of WORDS, and what fills them."""

    def total(run: dict, key: str) -> int:
        return sum(rank[key] for rank in run["ranks"])

    ranks, printed = run["ranks"], run["printed"]
    images = ranks[0]["images"]
    size, usual = total(run, "batch"), total(right, "batch")
    every = total(right, "evaluated")
    reported = int(re.search(r"of (\d+) right", printed[0])[1])
    found = {}
    if all(rank["again"] == images for rank in ranks):
        found["again"] = {"images": images}
    if ranks[0]["both"] == images:
        found["both"] = {"images": images}
    if size > usual:
        found["larger"] = {"size": size, "before": usual}
    if ranks[0]["weights"] != ranks[1]["weights"]:
        found["apart"] = {"one": ranks[0]["weights"][-1], "other": ranks[1]["weights"][-1]}
    if total(run, "evaluated") > every:
        found["twice"] = {"images": every}
    if reported < every:
        found["part"] = {"images": reported, "before": every}
    if len(printed) > len(set(printed)):
        found["lines"] = {}
    if all(rank["writes"] for rank in ranks):
        found["file"] = {}
    return found or {"right": {}}


def lanes(run: dict, shown: dict) -> str:
    """The images, where they show it: of one process in two epochs, or of both in one."""
    one, other = (rank["epochs"] for rank in run["ranks"])
    if "again" in shown:
        rows = [("epoch 0", 0, one[0], ""), ("epoch 1", 0, one[1], " bk-marked")]
    elif shown.keys() & {"both", "right"}:
        marked = " bk-marked" * ("both" in shown)
        rows = [("rank 0", 0, one[0], marked), ("rank 1", 1, other[0], marked)]
    else:
        return ""
    return "".join(
        f'<div class="bk-lane{marked}"><b class="fig-rank{rank}">{name}</b>'
        f"{''.join(f'<i>{image}</i>' for image in images)}"
        f"<span>… {run['ranks'][0]['images']}</span></div>"
        for name, rank, images, marked in rows
    )


def verdict(run: dict, language: str) -> list[str]:
    """What the doctor says of it."""
    report = Report(language)
    lines = []
    for row in run["against"]:
        text, *advice = report.words[f"against:{row['name']}"][:2]
        lines += [report.say("against_runs", a=SINGLE, b=" ".join(LAUNCH))]
        lines += [report.headed("against_differs", text.format(**row["values"]))]
        lines += [f"  -> {one}" for one in advice] + [""]
    for row in run["findings"]:
        report.find(row["name"], row["at"], **row["values"])
    found = [line for one in report.findings for line in report.told(one)[:-1]]
    return lines + (found or [report.say("nothing_else" if lines else "nothing")])


def terminal(run: dict, language: str) -> str:
    flags = "--lang zh " * (language == "zh")
    flags += f'--against "{SINGLE}" ' * bool(run["against"])
    said = "\n".join(verdict(run, language))
    loud = r"(?m)^(WRONG RESULT|WASTED|DIFFERENT:|结果错误|浪费|不同：)"
    said = re.sub(loud, r'<b class="wrong">\1</b>', escape(said, quote=False))
    return (
        f'<div class="bk-terminal"><span>$ python doctor.pyz {escape(flags)}{" ".join(LAUNCH)}'
        f"</span>\n{said}</div>"
    )


def log(letter: str, printed: str) -> str:
    """What a run printed: no more than that is seen without the doctor."""
    return f'<div class="bk-log"><b>{letter}</b><span>$ {" ".join(LAUNCH)}</span>\n{printed}</div>'


def panel(name: str, run: dict, right: dict, language: str) -> str:
    words = WORDS[language]
    shown = seen(run, right)
    said = " ".join(words[one].format(**values) for one, values in shown.items())
    if name in BREAKS:
        how = words["instead" if BREAKS[name][2] else "missing"]
        better = words["better"] * (answers(run) > answers(right))
        kind = {("twice",): "wasteful", ("lines",): "loud"}.get(tuple(shown), "broken")
        broken = words[kind].format(line=line_of(BREAKS[name][0]) + 1, how=how, better=better)
        said = f'<b class="bk-bad">{broken}</b> {said}'
    return f"<p>{said}</p>{lanes(run, shown)}{terminal(run, language)}"


def answers(run: dict) -> Fraction:
    """The share of right ones that it printed last."""
    return Fraction(*map(int, re.search(r"(\d+) of (\d+) right", run["printed"][-1]).groups()))


def code(line: str, name: str = "") -> str:
    """A line of multi.py without its comment: what is forgotten, and what then stands there."""
    text = line.split("  # ")[0].removeprefix("    ")
    indent = len(text) - len(text.lstrip())
    html = escape(text.strip(), quote=False)
    if name:
        _, part, instead = (escape(one, quote=False) for one in BREAKS[name])
        before, after = html.split(part)
        html = f'{before}<span class="bk-gone">{part}</span>'
        html += f'<span class="bk-new">{instead}</span>{after}'
    return f'<code style="--in:{indent}">{html}</code>'


def listing(language: str) -> list[str]:
    """The lines with their numbers. Where forgetting one has been recorded, it has a radio button,
    and a label over it that puts it back."""
    words = WORDS[language]
    lines = (EXAMPLES / "multi.py").read_text(encoding="utf-8").splitlines()
    single = (EXAMPLES / "single.py").read_text(encoding="utf-8")
    names = {line_of(text): name for name, (text, _, _) in BREAKS.items()}
    html = []
    for n in map(line_of, LISTED):
        added = " bk-added" * (lines[n].strip() not in single)
        line = f'<b class="bk-n">{n + 1}</b>'
        name = names.get(n, "")
        line += code(lines[n], name)
        if not name:
            html.append(f'<div class="bk-line{added}" data-n="{n + 1}">{line}</div>')
        else:
            checked = ' checked="checked"' * (name == STILL)
            _, part, instead = BREAKS[name]
            said = words["without"].format(
                line=n + 1, part=part.strip(" /,"), instead=instead or words["nothing"]
            )
            html.append(
                f'<div class="bk-line bk-can{added}" data-n="{n + 1}"><label>'
                f'<input type="radio" name="break" value="{name}"{checked} '
                f'aria-label="{escape(said)}"/>{line}</label>'
                f'<label class="bk-back" for="bk-right">{words["back"]}</label></div>'
            )
    return html


def pointed(run: dict, of: str) -> str:
    """A style for the number of the line that the doctor names."""
    lines = ",".join(f'{of} [data-n="{one["at"][1]}"] .bk-n' for one in run["findings"])
    return f"{lines}{{color:var(--minus);font-weight:700}}" if lines else ""


def widget(language: str) -> str:
    """Without scripts, too, each line shows its run; its own style, which no other page needs."""
    words = WORDS[language]
    recorded = json.loads(RECORDED.read_text(encoding="utf-8"))
    runs = recorded["runs"]
    printed = {name: escape("\n".join(run["printed"])) for name, run in runs.items()}
    logs = [f'<section data-of="{name}">{text}</section>' for name, text in printed.items()]
    panels = [
        f'<section data-of="{name}">{panel(name, run, runs["right"], language)}</section>'
        for name, run in runs.items()
    ]
    css = style(STYLE)
    for name, run in runs.items():
        of_it = f".bk:has([value={name}]:checked)"
        css += f"{of_it} [data-of={name}]{{visibility:visible;display:block}}"
        css += pointed(run, of_it)
    return "\n".join(
        [
            f'<style>{css}</style><form class="bk" autocomplete="off" data-search-exclude>',
            f'<div class="bk-pair">{log("A", printed["right"])}{log("B", "".join(logs))}',
            f'</div><div class="bk-pair"><fieldset><legend><span>{words["legend"]}</span>'
            f'<span class="bk-whole">{words["whole"]}</span></legend>',
            '<div class="bk-code">',
            *listing(language),
            '</div><input type="radio" name="break" value="right" id="bk-right" '
            f'aria-label="{words["all"]}"/></fieldset>',
            '<div class="bk-panels" aria-live="polite">',
            *panels,
            f'</div></div><p class="bk-foot">{words["recorded"].format(**recorded)}</p></form>',
        ]
    )
