"""The first screen of the site, and the picture of README: what two processes do when a line of
docs/examples/convert/multi.py is forgotten. All of it is from break-it.json, which
record_breaks.py has recorded; what is said above the lanes follows from its numbers.

    make figures

docs/assets/images/card.en.png and card.zh.png, which a chat shows beside a link to the site, are
screenshots of 1200 x 630: the home page's sentence above the still in light colours.
"""

import json
import re
from html import escape
from pathlib import Path

from doctor import checks  # noqa: F401  (they name the kinds of findings)
from doctor.report import Report

from . import proof
from .record_breaks import BREAKS, EXAMPLES, LAUNCH, RECORDED, SINGLE, line_of
from .source import ROOT

IMAGES = ROOT / "docs/assets/images"
STYLE = ROOT / "docs/assets/stylesheets/break-it.css"
SCRIPT = ROOT / "docs/assets/javascripts/break-it.js"
STILL = "set_epoch"  # what is forgotten at first, without scripts, and in README
# The lines that are shown, by a text that no other line of multi.py has.
LISTED = (
    "dist.init_process_group", "rank, world_size =", "batch = args", "sampler = Dist",
    "train_loader = ", "share = ", "val_loader = ", "ddp_model = ", "for epoch in",
    "sampler.set_epoch", "in train_loader", "loss = ", "dist.all_reduce", "step 7: one line",
    'print(f"epoch', "step 7: one writer", "torch.save(",
)  # fmt: skip
WORDS = {
    "en": {
        "legend": "Untick a line. No error is printed: see what two processes do, and what the "
        "doctor says",
        "none": "All lines are there",
        "right": "Each image comes once, the copies of the model stay equal, one process saves.",
        "again": "Epoch 1 is epoch 0 again: the same {images} images in the same order.",
        "both": "Both processes train on the same {images} images.",
        "larger": "A step takes {size} images, not {before}: this is another training.",
        "apart": "The copies of the model drift apart. The log and the file are those of rank 0.",
        "twice": "Both processes evaluate all {images} images.",
        "part": "The accuracy is that of {images} of {before} images.",
        "lines": "Both processes print each line.",
        "file": "Both processes write the same file at the same time.",
        "weights": "weights",
        "heads": ("steps × images", "evaluates", "saves"),
        "recorded": "Nothing is made up: each is the record of a run of two processes, on CPUs "
        "with torch {torch}. The weights are their norm, near the end of the epoch.",
    },
    "zh": {
        "legend": "去掉一行，不会报错。看两个进程会怎样，doctor 又怎么说",
        "none": "一行不少",
        "right": "每张图片只用一次，两份模型始终一致，只有一个进程保存。",
        "again": "epoch 1 和 epoch 0 一样：同样的 {images} 张图片，顺序也相同。",
        "both": "两个进程训练的是同样的 {images} 张图片。",
        "larger": "一步用了 {size} 张图片，而不是 {before} 张：已经是另一种训练。",
        "apart": "两份模型各练各的，越差越远；日志和文件只来自 rank 0。",
        "twice": "两个进程都评估了全部 {images} 张图片。",
        "part": "准确率只来自 {before} 张图片里的 {images} 张。",
        "lines": "每一行都打印了两遍。",
        "file": "两个进程同时写同一个文件。",
        "weights": "权重",
        "heads": ("步数 × 图片", "评估图片数", "保存"),
        "recorded": "没有一个数是编的，都来自真实运行的记录：两个 CPU 进程，torch {torch}。"
        "权重一栏是 epoch 快结束时全部权重的范数。",
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
        found["apart"] = {}
    if total(run, "evaluated") > every:
        found["twice"] = {"images": every}
    if reported < every:
        found["part"] = {"images": reported, "before": every}
    if len(printed) > len(set(printed)):
        found["lines"] = {}
    if all(rank["writes"] for rank in ranks):
        found["file"] = {}
    return found or {"right": {}}


def lanes(run: dict, right: dict, language: str) -> str:
    """Two epochs of both processes, and what else each of them did."""
    words = WORDS[language]
    shown = seen(run, right)
    text = " ".join(words[name].format(**values) for name, values in shown.items())
    apart = "bk-bad" if "apart" in shown else ""
    html = [f'<p class="bk-seen{" bk-bad" * ("right" not in shown)}">{text}</p>']
    for n in range(2):
        head = f"epoch {n}<span>{words['weights']}</span>"
        html.append(f'<p class="bk-epoch">{head}</p>')
        marked = " bk-marked" * ("both" in shown or ("again" in shown and n == 1))
        for number, rank in enumerate(run["ranks"]):
            cells = "".join(f"<i>{image}</i>" for image in rank["epochs"][n])
            html.append(
                f'<div class="bk-lane{marked}"><b class="fig-rank{number}">rank {number}</b>'
                f"{cells}<span>… {rank['images']}</span>"
                f'<em class="{apart}">{rank["weights"][n]:.3f}</em></div>'
            )

    head = "".join(f'<th scope="col">{one}</th>' for one in words["heads"])
    rows = ""
    for number, (rank, usual) in enumerate(zip(run["ranks"], right["ranks"], strict=True)):
        steps, before = (f"{one['steps']} × {one['batch']}" for one in (rank, usual))
        cells = (
            (steps, steps != before),
            (rank["evaluated"], rank["evaluated"] != usual["evaluated"] or "part" in shown),
            ("model.pt" if rank["writes"] else "–", rank["writes"] != usual["writes"]),
        )
        bad = ("<td>", '<td class="bk-bad">')
        cells = "".join(f"{bad[is_bad]}{value}</td>" for value, is_bad in cells)
        rows += f'<tr><th scope="row">rank {number}</th>{cells}</tr>'
    return "\n".join([*html, f'<table class="bk-facts"><tr><td></td>{head}</tr>{rows}</table>'])


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
    found = [line for one in report.findings for line in one.lines()[:-1]]
    return lines + (found or [report.say("nothing")])


def terminal(run: dict, language: str) -> str:
    against = f'--against "{SINGLE}" ' * bool(run["against"])
    said = "\n".join(verdict(run, language))
    loud = r"(?m)^(WRONG RESULT|WASTED|DIFFERENT:|不同：)"
    said = re.sub(loud, r'<b class="wrong">\1</b>', escape(said, quote=False))
    printed = escape("\n".join(run["printed"]))
    return (
        f'<div class="bk-terminal"><span>$ python doctor {escape(against)}{" ".join(LAUNCH)}'
        f'</span>\n{printed}\n\n<span class="bk-verdict">{said}</span></div>'
    )


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


def listing(still: bool = False) -> list[str]:
    """The lines, each with a box if forgetting it has been recorded; the still has no inputs."""
    lines = (EXAMPLES / "multi.py").read_text(encoding="utf-8").splitlines()
    single = (EXAMPLES / "single.py").read_text(encoding="utf-8")
    names = {line_of(text): name for name, (text, _, _) in BREAKS.items()}
    html = []
    for n in map(line_of, LISTED):
        added = " bk-added" * (lines[n].strip() not in single)
        if n not in names:
            added += " bk-body" * (names.get(n - 1) in ("print", "save"))
            html.append(f'<div class="bk-line{added}">{code(lines[n])}</div>')
            continue
        name = names[n]
        box = f'<span class="bk-box"></span>{code(lines[n], name)}'
        if not still:
            checked = ' checked="checked"' * (name == STILL)
            box = f'<input type="radio" name="break" value="{name}"{checked}/>{box}'
            html.append(f'<label class="bk-line{added}">{box}</label>')
        elif name == STILL:  # two in one place, of which the first goes
            html.append('<div class="bk-two">')
            html.append(f'<div class="bk-line first{added}">{box}</div>')
            html.append(f'<div class="bk-line then bk-off{added}">{box}</div></div>')
        else:
            html.append(f'<div class="bk-line{added}">{box}</div>')
    return html


def panel(run: dict, right: dict, language: str) -> str:
    return lanes(run, right, language) + terminal(run, language)


def widget(language: str) -> str:
    """For the home page: without scripts, too, each box shows its run; its own style and script,
    which no other page needs."""
    words = WORDS[language]
    recorded = json.loads(RECORDED.read_text(encoding="utf-8"))
    runs = recorded["runs"]
    panels = [
        f'<section data-break="{name}">{panel(run, runs["right"], language)}</section>'
        for name, run in runs.items()
    ]
    shown = ",".join(f".bk:has([value={n}]:checked) [data-break={n}]" for n in runs)
    style = STYLE.read_text(encoding="utf-8") + f"{shown}{{visibility:visible;display:block}}"
    none = (
        '<label class="bk-line bk-none"><input type="radio" name="break" value="right"/>'
        f'<span class="bk-box"></span>{words["none"]}</label>'
    )
    return "\n".join(
        [
            f'<style>{style}</style><div class="bk" data-search-exclude><div class="bk-pair">',
            '<form autocomplete="off"><fieldset class="bk-code">',
            f"<legend>{words['legend']}</legend>",
            *listing(),
            none,
            '</fieldset></form><div class="bk-panels" aria-live="polite">',
            *panels,
            f'</div></div><p class="bk-foot">{words["recorded"].format(**recorded)}</p></div>',
            f"<script>{SCRIPT.read_text(encoding='utf-8')}</script>",
        ]
    )


# ---- the same, moving by itself ----
SIZES = {"": (960, 490), "-narrow": (390, 830)}  # CSS pixels
SCHEMES = {"light": "default", "dark": "slate"}
FONTS = (
    'system-ui, -apple-system, "Segoe UI", Roboto, "Noto Sans", "PingFang SC", "Microsoft YaHei", '
    '"Noto Sans CJK SC", sans-serif',
    'ui-monospace, "SF Mono", Menlo, Consolas, "DejaVu Sans Mono"',
)
# Six seconds, three times, then it rests. One who wants no motion has the still.
MOTION = """
.bk-two { display: grid; }
.bk-two > * { grid-area: 1 / 1; }
.first { opacity: 0; }
@media (prefers-reduced-motion: no-preference) {
  .first { animation: first 6s 3 both; }
  .then { animation: then 6s 3 both; }
  .then .bk-verdict { animation: verdict 6s 3 both; }
}
@keyframes first { 0%, 10% { opacity: 1; } 14%, 100% { opacity: 0; } }
@keyframes then { 0%, 10% { opacity: 0; } 14%, 100% { opacity: 1; } }
@keyframes verdict { 0%, 26% { opacity: 0; } 32%, 100% { opacity: 1; } }
"""


def picture(language: str, scheme: str, width: int, height: int) -> str:
    """An SVG for an <img>, which runs no scripts: it holds the widget's HTML and style."""
    runs = json.loads(RECORDED.read_text(encoding="utf-8"))["runs"]
    both = "".join(
        f'<section class="{kind}">{panel(runs[name], runs["right"], language)}</section>'
        for kind, name in (("first", "right"), ("then", STILL))
    )
    site = (STYLE.parent / "site.css").read_text(encoding="utf-8")
    text_font, code_font = FONTS
    colours = "".join(
        re.search(rf"^{re.escape(selector)} {{\n(.*?)\n}}", site, re.M | re.S)[1]
        for selector in (":root", f'[data-md-color-scheme="{SCHEMES[scheme]}"]')
    )
    style = (
        f"svg {{ font: 20px/1.5 {text_font}; }}\n"
        f".bk {{ {colours} --md-code-font-family: {code_font}; height: {height}px; padding: 12px; "
        "box-sizing: border-box; color: var(--md-default-fg-color); border-radius: 6px; "
        "background: var(--md-default-bg-color, #fff); }\n"
        ".fig-rank0 { background: #3b6fb6; } .fig-rank1 { background: #b5562b; }\n"
    )
    style = escape(style + STYLE.read_text(encoding="utf-8") + MOTION, quote=False)
    inner = "\n".join(listing(still=True))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        f'width="{width}" height="{height}"><style>{style}</style>'
        f'<foreignObject width="{width}" height="{height}">'
        '<div xmlns="http://www.w3.org/1999/xhtml" class="bk"><div class="bk-pair">\n'
        f'<div class="bk-code">{inner}</div>\n<div class="bk-two">{both}</div>\n'
        "</div></div></foreignObject></svg>\n"
    )


def pictures() -> dict[Path, str]:
    return {
        IMAGES / f"break-it.{language}-{scheme}{name}.svg": picture(language, scheme, *size)
        for language in WORDS
        for scheme in SCHEMES
        for name, size in SIZES.items()
    }


def main() -> None:
    for path, text in {**pictures(), **proof.pictures()}.items():
        path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
