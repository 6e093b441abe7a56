"""Pages as plain Markdown, with their code in them: for assistants, and for the folder skill/.

python -m tools.site.plain docs/en/convert.md convert.md    # for a folder that has this one alone
"""

import re
import sys
import textwrap
from difflib import unified_diff
from pathlib import Path

from .codealong import COPIES, FORMS, table
from .diffs import step_hunks
from .forms import CONTENTS, FENCE, HEADING_ID, OPENED, Directive, directive, repository_path
from .source import Source, read, translated
from .verdicts import HOST, comparison, verdict

LINK = re.compile(r"(\[[^]]+\]\()([^)\s]+)(?=\))")
FOR_LOOKS = re.compile(rf"<div.*>|</div>|{CONTENTS}")


def fenced(kind: str, lines: list[str]) -> list[str]:
    return [f"```{kind}", *lines, "```"]


def made_of(found: Directive, page: str) -> list[str]:
    """What stands in place of such a link; nothing for what moves or is a picture."""
    language = page.partition("/")[0]
    path = found.path(page)

    def shown(path: str) -> Source:
        return translated(read(path), language)

    if found.form in ("code", "file"):
        source = read(path)
        part = range(1, len(source.lines) + 1)
        if found.form == "code":
            part = source.part(found.words[0], found.words[1:])
        text = "\n".join(shown(path).lines[n - 1] for n in part)
        return [f"`{path}`:", "", *fenced(source.language, textwrap.dedent(text).splitlines())]
    if found.form == "diff":
        paths = [found.words[0], path]
        if step := found.words[1:]:
            old, new = map(shown, paths)
            lines = []
            for _, rows in step_hunks(old, new, read(path), *step):
                lines.append(f"@@ {path} @@")
                for kind, a, b, *_ in rows:
                    line = new.lines[b - 1] if b else old.lines[a - 1]
                    lines.append(kind.replace("=", " ") + line)
            return fenced("diff", lines)
        bodies = [one.lines[one.after_docstring() - 1 :] for one in map(shown, paths)]
        return fenced("diff", list(unified_diff(*bodies, *paths, lineterm="")))
    if found.form == "table":
        return table(path, *found.words)
    if found.form == "verdict":
        return verdict(*found.words, language)
    return comparison(language) if found.form == "comparison" else []


def plain(text: str, page: str, repository: str = "") -> str:
    """A page's Markdown, with what its links to code stand for. page: such as en/index.md."""
    text = re.sub(r"\A---\n.*?\n---\n+", "", text, flags=re.S)
    copies = "../" * page.removeprefix("zh/").count("/") + COPIES

    def public(found: re.Match) -> str:
        target = found[2]
        made_by_us = target.startswith(HOST)
        path = target.removeprefix(HOST) if made_by_us else repository_path(page, target)
        if path:
            target = f"{repository}/blob/main/{path}" if repository else f"{copies}/{path}.txt"
        return found[1] + target

    lines: list[str] = []
    fence = False
    for line in text.splitlines():
        if opened := FENCE.fullmatch(line):
            fence = not fence
            lines.append(opened[1] + opened[2] + " ".join(opened[3].split()[:1]))
        elif fence:
            lines.append(line)
        elif (found := directive(line)) and found.form in FORMS:
            lines += [found.indent + one if one else "" for one in made_of(found, page)]
        elif not FOR_LOOKS.fullmatch(line):
            line = "<details>" if OPENED.fullmatch(line) else line
            lines.append(HEADING_ID.sub(r" {#\1}", line))
    text = LINK.sub(public, "\n".join(lines))
    return re.sub(r"\n{3,}", "\n\n", text).strip() + "\n"


def linked_inside(text: str, pages: list[str]) -> str:
    """For a folder that has these pages alone: links to others become text."""

    def kept(found: re.Match) -> str:
        target = found[2].partition("#")[0]
        return found[0] if target.startswith("http") or target in ("", *pages) else found[1]

    return re.sub(r"\[([^]]+)\]\(([^)]*)\)", kept, text)


if __name__ == "__main__":
    path = Path(sys.argv[1])
    page = plain(path.read_text(encoding="utf-8"), path.relative_to("docs").as_posix())
    print(linked_inside(page, sys.argv[2:]), end="")
