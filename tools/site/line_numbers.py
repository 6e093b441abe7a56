"""python -m tools.site.line_numbers: links to code lead to its lines, #L10-L20, on GitHub too.
Writes what has moved; `make figures` calls it, and a test fails until somebody has."""

from pathlib import Path

from .forms import directive
from .source import ROOT, read

DOCS = ROOT / "docs"


def numbered(line: str, page: str) -> str:
    """The line of a page, such as en/convert.md, with today's numbers if it is a link to code."""
    found = directive(line)
    if not found or found.form != "code":
        return line
    part = read(found.path(page)).part(found.words[0], found.words[1:])
    file = found.target.partition("#")[0]
    return line.replace(f"]({found.target} ", f"]({file}#L{part[0]}-L{part[-1]} ", 1)


def stale() -> dict[Path, str]:
    """The pages whose numbers are no longer right, and what they should be."""
    pages = {}
    for path in sorted([*DOCS.glob("zh/**/*.md"), *DOCS.glob("en/**/*.md")]):
        text = path.read_text(encoding="utf-8")
        page = str(path.relative_to(DOCS))
        new = "\n".join(numbered(line, page) for line in text.split("\n"))
        if new != text:
            pages[path] = new
    return pages


if __name__ == "__main__":
    for path, text in stale().items():
        path.write_text(text, encoding="utf-8")
        print(path.relative_to(ROOT))
