"""The picture of what notices real mistakes: bars from docs/assets/results/cases/comparison.json,
and from docs/en/cases.md, which has a table of reports that the doctor had not seen."""

import json
import re
from pathlib import Path

from .source import ROOT, SiteError
from .verdicts import COMPARISON

LOUD = ("wrong result", "hang ahead")
WORDS = {
    "en": {
        "known": "Noticed, of {all}",
        "unknown": "Noticed, of {exam} more that the doctor had not seen",
        "detail": "torch's DETAIL",
        "traincheck": "traincheck, taught by the right program",
        "doctor": "the doctor: {loud} as errors, {mild} as waste or notes",
        "exam": "the doctor, as it was then",
        "title": "Of {all} real mistakes, torch's DETAIL notices {detail}, traincheck "
        "{traincheck}, the doctor {doctor}. Of {exam} more that the doctor had not seen, it named "
        "{named}.",
    },
    "zh": {
        "known": "{all} 个里发现了多少",
        "unknown": "另外 {exam} 份 doctor 没见过的报告里，发现了多少",
        "detail": "torch 的 DETAIL",
        "traincheck": "traincheck，事先学过正确的程序",
        "doctor": "doctor：{loud} 个报错误或将卡住，{mild} 个报浪费或提示",
        "exam": "当时的 doctor",
        "title": "{all} 个真实错误里，torch 的 DETAIL 发现 {detail} 个，traincheck "
        "{traincheck} 个，doctor {doctor} 个。另外 {exam} 份 doctor 没见过的报告，它发现 {named} "
        "个。",
    },
}
STYLE = (
    "svg{color:#1c2733;--grey:#55636f;--track:#e1e6eb}@media(prefers-color-scheme:dark)"
    "{svg{color:#e3e9ef;--grey:#a3b0bd;--track:#2a3541}}text{fill:currentColor}"
    ".t{fill:var(--track)}.s{fill:var(--grey)}"
)


def counts() -> dict[str, int]:
    """A finding counts where the mended program does not have it, and a broken rule of traincheck
    where a second right run does not break it."""
    cases = json.loads(COMPARISON.read_text(encoding="utf-8"))["cases"].values()

    def new(row: dict) -> set[str]:
        had = [(one["id"], one["severity"]) for one in row["doctor"]["mended"]]
        found = [(one["id"], one["severity"]) for one in row["doctor"]["faulty"]]
        return {severity for id, severity in found if (id, severity) not in had}

    page = (ROOT / "docs/en/cases.md").read_text(encoding="utf-8")
    exam = re.search(r'<a id="exam"></a>.*?\n\| --- .*?\n(.+?)\n\n', page, re.S)
    if not exam:
        raise SiteError("docs/en/cases.md has no table of reports below #exam")
    rows = exam[1].splitlines()
    found = [new(row) for row in cases]
    loud = sum(bool(severities & set(LOUD)) for severities in found)
    return {
        "all": len(cases),
        "detail": sum(bool(r["detail-faulty"] and not r["detail-mended"]) for r in cases),
        "traincheck": sum(bool(r.get("traincheck", {}).get("broken")) for r in cases),
        "doctor": sum(map(bool, found)),
        "loud": loud,
        "mild": sum(map(bool, found)) - loud,
        "exam": len(rows),
        "named": sum(bool(re.fullmatch(r"\|.*\| `\w+` \|", row)) for row in rows),
    }


def title(language: str) -> str:
    return WORDS[language]["title"].format(**counts())


def picture(language: str) -> str:
    words, number = WORDS[language], counts()
    parts = [f"<title>{title(language)}</title>", f"<style>{STYLE}</style>"]
    y = 0

    def head(name: str) -> None:
        nonlocal y
        y += 20
        parts.append(f'<text x="0" y="{y}" font-weight="700">{words[name].format(**number)}</text>')
        y += 10

    def bar(name: str, count: int, of: int, colour: str, mild: int = 0) -> None:
        nonlocal y
        scale = 390 / number["all"]
        parts.append(f'<text class="s" x="0" y="{y + 16}">{words[name].format(**number)}</text>')
        parts.append(f'<rect class="t" y="{y + 23}" width="{of * scale:.1f}" height="16" rx="2"/>')
        for width, opacity in ((count, 0.55), (count - mild, 1)):
            parts.append(
                f'<rect y="{y + 23}" width="{width * scale:.1f}" height="16" rx="2" '
                f'fill="{colour}" fill-opacity="{opacity}"/>'
            )
        parts.append(
            f'<text x="{of * scale + 10:.1f}" y="{y + 36}" font-weight="700">{count} / {of}</text>'
        )
        y += 48

    head("known")
    bar("detail", number["detail"], number["all"], "#8a94a0")
    bar("traincheck", number["traincheck"], number["all"], "#8a94a0")
    bar("doctor", number["doctor"], number["all"], "#c2410c", number["mild"])
    y += 8
    head("unknown")
    bar("exam", number["named"], number["exam"], "#c2410c")
    body = "\n".join(parts)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 460 {y}" width="460" height="{y}" '
        "role=\"img\" font-family=\"system-ui, -apple-system, 'Segoe UI', Roboto, 'Noto Sans', "
        f'\'Noto Sans CJK SC\', sans-serif" font-size="14">\n{body}\n</svg>\n'
    )


def pictures() -> dict[Path, str]:
    return {ROOT / f"docs/assets/images/proof.{one}.svg": picture(one) for one in WORDS}
