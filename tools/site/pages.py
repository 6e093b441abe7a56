"""Every page is whole as a Markdown file, on GitHub and in editors: below each link that stands for
code, a difference, a verdict, a table or a figure stands what it is for, up to <!-- end -->.

    make pages    # writes it; a test fails until somebody has
"""

import re
import textwrap
from pathlib import Path

from ..benchmark.table import tables
from .approaches import differing, overview
from .codealong import difference
from .forms import END, Directive, SiteError, by_hand, directive
from .ran import line as ran
from .source import ROOT, Source, read, translated
from .verdicts import verdict

DOCS = ROOT / "docs"
# Here the marked lines are what a reader adds or changes, and the text says so: they get a "+".
SKELETON = re.compile(r"0\d_\w+/(minimal\.py|\w+\.sbatch)")


def fenced(kind: str, lines: list[str]) -> list[str]:
    ticks = "````" if any("```" in line for line in lines) else "```"
    return [f"{ticks}{kind}", *lines, ticks]


def wrapped(lines: list[str]) -> list[str]:
    """What the doctor says, for a page of GitHub; a Chinese character is two columns wide."""
    parts = []
    for line in lines:
        wide = re.sub("([^\0-\xff])", "\\1\0", line)
        hang = "     " if line.startswith("  ->") else "  "
        parts += textwrap.wrap(wide, 108, subsequent_indent=hang, break_on_hyphens=False)
    return [part.replace("\0", "") for part in parts]


def code(source: Source, found: Directive, language: str) -> list[str]:
    part = range(1, len(source.lines) + 1)
    if found.form == "code":
        part = source.part(found.words[0], found.words[1:])
    shown = translated(source, language).lines
    lines = textwrap.dedent("\n".join(shown[n - 1] for n in part)).splitlines()
    marks = found.options.get("hl", [])
    if found.form == "file" and marks and SKELETON.fullmatch(source.path):
        marked = [any(mark in source.lines[n - 1] for mark in marks) for n in part]
        return fenced("diff", [" +"[m] + line for m, line in zip(marked, lines, strict=True)])
    return fenced(source.language, lines)


def diff(path: str, found: Directive, language: str) -> list[str]:
    old, new, hunks = difference(path, found.words, found.options, language)
    lines = []
    for name, rows in hunks:
        lines += [f"@@ {name} @@"] * bool(name or lines)
        for kind, left, right, _ in rows:
            line = new.lines[right - 1] if right else old.lines[left - 1]
            lines.append(kind.replace("=", " ") + line)
    return fenced("diff", lines)


def table(path: str, page: str, key: str = "") -> list[str]:
    """A result of the benchmark, or the rows of the chapter `key`; or a file of Markdown, or its
    part from <!-- key --> on; or what approaches.py or ran.py makes. page: such as en/gpu.md."""
    language = page[:2]
    if path.endswith("approaches.py"):
        return differing(language) if key else overview(language)
    if path.endswith("ran.py"):
        return [ran(language, "" if page == f"{language}/gpu.md" else "gpu.md")]
    if path.endswith(".json"):
        return tables(ROOT / path, language, key)
    text = (ROOT / path).read_text(encoding="utf-8")
    if key:
        _, there, text = text.partition(f"<!-- {key} -->")
        if not there:
            raise SiteError(f"{path} has no part {key}")
        text, _, _ = text.partition("<!-- ")
    return text.strip().splitlines()


def figure(path: str, preset: str, page: str) -> list[str]:
    """Its still picture, and the sentence below it."""
    still = f"assets/figures/{Path(path).stem}-{preset}.{page[:2]}"
    html = (DOCS / f"{still}.html").read_text(encoding="utf-8")
    title = re.search("<figcaption>(.*?)</figcaption>", html)[1]
    sentence = re.search('<p class="fig-sentence">(.*?)</p>', html, re.S)[1].replace(
        "<small>", "<br><small>"
    )
    return [f"![{title}]({'../' * page.count('/')}{still}.svg)", "", sentence]


def made_of(found: Directive, page: str) -> list[str]:
    """What stands below such a link, as Markdown. page: such as en/index.md."""
    language = page[:2]
    path = found.path(page)
    match found.form:
        case "code" | "file":
            return code(read(path), found, language)
        case "diff":
            return diff(path, found, language)
        case "figure":
            return figure(path, *found.words, page)
        case "table":
            return table(path, page, *found.words)
        case "verdict":
            (first, *rest), said = verdict(path, *found.words, language)
            first = first.partition(" · ")[0]  # the link above names the file
            return [first, *rest, *fenced("text", wrapped(said))]
    raise SiteError(f"there is no {found.form}")


def whole(text: str, page: str) -> str:
    """A page with what its links stand for as it is today."""
    lines: list[str] = []
    for line in by_hand(text).values():
        lines.append(line)
        if found := directive(line):
            made = ["", *made_of(found, page), "", END]
            lines += [(found.indent + one).rstrip() for one in made]
    return "\n".join(lines)


# In a README, where a link with a title would be one that readers see.
RAN = re.compile(r"(<!-- made by tools/site/ran\.py -->\n\n).*?(?=\n\n<!-- end -->)", re.S)


def stale() -> dict[Path, str]:
    """The pages that are no longer whole, and what they should be."""
    pages = {}
    for path in sorted(DOCS.glob("??/**/*.md")):
        text = path.read_text(encoding="utf-8")
        try:
            new = whole(text, path.relative_to(DOCS).as_posix())
        except SiteError as error:
            raise SiteError(f"{path.relative_to(ROOT)}: {error}") from None
        if new != text:
            pages[path] = new
    for name, language in (("README.md", "en"), ("README.zh-CN.md", "zh")):
        text = (ROOT / name).read_text(encoding="utf-8")
        shown = ran(language, f"docs/{language}/gpu.md")
        new = RAN.sub(lambda found: found[1] + shown, text)  # noqa: B023
        if new != text:
            pages[ROOT / name] = new
    return pages


if __name__ == "__main__":
    for path, text in stale().items():
        path.write_text(text, encoding="utf-8")
        print(path.relative_to(ROOT))
