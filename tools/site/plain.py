"""Pages as plain Markdown, with their code in them: for assistants, and for the folder skill/.

python -m tools.site.plain docs/en/convert.md convert.md    # for a folder that has this one alone
"""

import re
import sys
import textwrap
from difflib import unified_diff
from pathlib import Path

from .codealong import FORMS, parse
from .diffs import step_hunks
from .source import ROOT, Source, read, translated
from .verdicts import comparison, verdict

FENCE = re.compile(r"^( *)``` \{ \.(\w+).*\}$")


def fenced(kind: str, lines: list[str]) -> list[str]:
    return [f"```{kind}", *lines, "```"]


def made_of(form: str, words: list[str], language: str) -> list[str]:
    """What stands in place of an @ line; nothing for what moves or is a picture."""

    def shown(path: str) -> Source:
        return translated(read(path), language)

    if form in ("code", "file"):
        path, *rest = words
        source = read(path)
        part = source.part(rest[0], rest[1:]) if rest else range(1, len(source.lines) + 1)
        text = "\n".join(shown(path).lines[n - 1] for n in part)
        return [f"`{path}`:", "", *fenced(source.language, textwrap.dedent(text).splitlines())]
    if form == "diff":
        old, new = (shown(path) for path in words[:2])
        if words[2:]:
            found = step_hunks(old, new, read(new.path), words[2])
            parts = [
                [
                    kind.replace("=", " ") + (new.lines[b - 1] if b else old.lines[a - 1])
                    for kind, a, b, *_ in rows
                ]
                for _, rows in found
            ]
            return fenced("diff", sum(([f"@@ {new.path} @@", *lines] for lines in parts), []))
        bodies = [one.lines[one.after_docstring() - 1 :] for one in (old, new)]
        return fenced("diff", list(unified_diff(*bodies, *words, lineterm="")))
    if form == "table":
        path, *key = words
        text = (ROOT / path).read_text(encoding="utf-8")
        if key:
            text = text.partition(f"<!-- {key[0]} -->")[2].partition("<!-- ")[0]
        return text.strip().splitlines()
    if form == "verdict":
        return verdict(*words, language)
    return comparison(language) if form == "comparison" else []


def plain(text: str, language: str, repository: str = "") -> str:
    """A page's Markdown, with what its @ lines stand for."""
    text = re.sub(r"\A---\n.*?\n---\n+", "", text, flags=re.S)
    if repository:
        text = text.replace("https://repository/", f"{repository}/blob/main/")
    lines = []
    for line in text.splitlines():
        found = re.match(r"( *)@(\w+)(?=\s|$)(.*)", line)
        if found and found[2] in FORMS:
            made = made_of(found[2], parse(found[3])[0], language)
            lines += [found[1] + one if one else "" for one in made]
        elif not re.match(r" *(///|\[TOC\])", line):
            lines.append(FENCE.sub(r"\1```\2", line))
    return re.sub(r"\n{3,}", "\n\n", "\n".join(lines)).strip() + "\n"


def linked_inside(text: str, pages: list[str]) -> str:
    """For a folder that has these pages alone: links to others become text."""

    def kept(found: re.Match) -> str:
        target = found[2].partition("#")[0]
        public = target.startswith("http") and not target.startswith("https://repository/")
        return found[0] if public or target in ("", *pages) else found[1]

    return re.sub(r"\[([^]]+)\]\(([^)]*)\)", kept, text)


if __name__ == "__main__":
    path = Path(sys.argv[1])
    page = plain(path.read_text(encoding="utf-8"), path.parts[1])
    print(linked_inside(page, sys.argv[2:]), end="")
