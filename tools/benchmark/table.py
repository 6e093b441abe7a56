"""From the runs of benchmark.py to tables in two languages: medians, and ratios within a round.

A result holds for each part rows of a round and a variant with their figures. Of images/s a table
also has the ratio to the part's first variant: the median of those of each round, whose two runs
met the machine in one state, and in brackets the smallest and the largest.
"""

import json
from pathlib import Path
from statistics import median

# What heads say in Chinese.
ZH = {
    "variant": "方案", "training": "训练", "validation": "验证", "images/s": "张/秒",
    "x ": "相对 ", "first step s": "首步完成 秒", "start s": "启动 秒", " ms": " 毫秒",
}  # fmt: skip
CAPTION = {
    "en": "{cpu}, {cores} CPU cores{gpus}, torch {torch}; {processes} process{s}, {arch}, "
    "{image_size} px, batch {batch_size_per_rank} a process, {steps} steps, generated images; the "
    "median of {rounds} rounds, in brackets the smallest and the largest; {date:.10}, commit "
    "{commit}.",
    "zh": "{cpu}，{cores} 个 CPU 核{gpus}，torch {torch}；{processes} 个进程，{arch}，{image_size} "
    "像素，每进程 batch {batch_size_per_rank}，{steps} 步，生成的图片；{rounds} 轮的中位数，"
    "括号内为最小值和最大值；{date:.10}，提交 {commit}。",
}


def number(value: float, digits: int = 3) -> str:
    """In so many significant digits."""
    return f"{value:.0f}" if abs(value) >= 10 ** (digits - 1) else f"{value:.{digits}g}"


def spread(values: list[float]) -> str:
    """The median, and in brackets the smallest and the largest."""
    if not values:
        return "-"
    around = f" ({number(min(values))}–{number(max(values))})" if len(values) > 1 else ""
    return number(median(values)) + around


def table(rows: list[dict], language: str, wanted: str = "") -> list[str]:
    """The lines of a Markdown table: of all variants, or of a chapter and of the first variant."""
    first = rows[0]["variant"] if rows else ""
    rows = [row for row in rows if "failed" not in row]
    if not rows:
        return []
    figures = [name for name in rows[0] if name not in ("round", "variant")]
    names = list(dict.fromkeys(row["variant"] for row in rows))
    by_round = {(row["round"], row["variant"]): row for row in rows}
    head, lines = ["variant"], []
    for figure in figures:
        head += [figure, f"x {first}"] if "images/s" in figure else [figure]
    for name in names:
        if wanted and name != first and wanted not in name.split():
            continue
        own, cells = [row for row in rows if row["variant"] == name], [f"`{name}`"]
        for figure in figures:
            cells.append(number(median(row[figure] for row in own)))
            if "images/s" in figure:
                pairs = [(row, by_round.get((row["round"], first))) for row in own]
                ratios = [row[figure] / base[figure] for row, base in pairs if base]
                cells.append("1" if name == first else spread(ratios))
        lines.append(cells)
    for there, here in ZH.items() if language == "zh" else ():
        head = [cell.replace(there, here) for cell in head]
    text = [f"| {' | '.join(cells)} |" for cells in [head, *lines]]
    return [text[0], "| --- " + "| ---: " * (len(head) - 1) + "|", *text[1:], ""]


def tables(path: Path, language: str, wanted: str = "") -> list[str]:
    """All tables of a result as lines of Markdown, or that of a chapter, by its number."""
    result = json.loads(path.read_text(encoding="utf-8"))
    machine, comma = result["machine"], {"en": ", ", "zh": "，"}[language]
    gpus = "".join(comma + name for name in machine["gpus"])
    places = result | machine | result["versions"] | result["settings"] | {"gpus": gpus}
    lines = []
    for part, rows in result["runs"].items():
        if part == "training" or not wanted:
            lines += table(rows, language, wanted)
    return [*lines, CAPTION[language].format(**places, s="es" * (places["processes"] > 1)), ""]
