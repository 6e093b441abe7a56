"""Pages as plain Markdown, for assistants: beside each page of the site, and in the folder that
`make skill` makes, where nothing but Python is installed.

    python -m tools.site.plain FOLDER docs/en/convert.md docs/en/recipes.md
"""

import re
import sys
from collections.abc import Callable
from pathlib import Path

# What is for the site or for GitHub alone goes.
CHANGES = [
    (r"^ *(<div.*>|</div>|<!--.*-->|\[?!\[.*)$\n?", ""),
    (r"^<details.*>$", "<details>"),
    (r"^(#.*) <a id=\"(.+)\"></a>$", r"\1 {#\2}"),
    (r"^( *\[.*\]\(\S+) ([\"']).*\2\)$", r"\1)"),  # what the build puts there
    (r'(\]\(\S+) "download"\)', r"\1)"),
    (r"\n{3,}", "\n\n"),
]
# A fence, or all that is before the next one.
PART = re.compile(r"^(?P<ticks>(> )? *`{3,}).*?^(?P=ticks)$|.+?(?=^(> )? *```|\Z)", re.M | re.S)
LINK = re.compile(r"\[([^]]+)\]\(([^)]*)\)")


def plain(page: str, lead: Callable[[str], str]) -> str:
    """Its code stays as it is. lead: where a link leads from there; "": it becomes text."""

    def changed(part: re.Match) -> str:
        text = part[0]
        if part["ticks"]:
            return re.sub(r"\A([> ]*`+\w+) .*", r"\1", text)  # ```bash run
        for form, instead in CHANGES:
            text = re.sub(form, instead, text, flags=re.M)
        return LINK.sub(lambda a: f"[{a[1]}]({to})" if (to := lead(a[2])) else a[1], text)

    return PART.sub(changed, page).strip() + "\n"


def sections(page: str) -> dict[str, str]:
    """Of a plain page those that show a difference, by the names of files of their own."""
    found = re.findall(r"^(## .+ \{#([\w-]+)\}\n(?:(?!## ).*\n)*)", page, re.M)
    return {f"task-{name}.md": text for text, name in found if "```diff" in text}


if __name__ == "__main__":
    folder, *pages = map(Path, sys.argv[1:])
    # A page of many differences becomes a file for each: an assistant reads no more than it needs.
    beside = ("http", "#", *(path.name for path in pages if path.name != "tasks.md"))
    for path in pages:
        text = plain(path.read_text("utf-8"), lambda to: to * to.startswith(beside))
        made = {path.name: text} if path.name in beside else sections(text)
        for name, part in made.items():
            (folder / name).write_text(part, "utf-8")
