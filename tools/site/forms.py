"""How pages are written: so that GitHub and editors show them well as they are. docs/WRITING.md has
the list. Here it is read, and turned into the forms of Python-Markdown's extensions."""

import posixpath
import re
import shlex
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

try:  # mkdocs shows its own exceptions as one line, any other as a traceback
    from mkdocs.exceptions import BuildError
except ImportError:
    BuildError = Exception

# A link to a file, alone on its line, whose title says what the build puts there.
DIRECTIVE = re.compile(r"""( *)\[(.*)\]\(([^\s()]+) (["'])(.*)\4\) *""")
OPTION = re.compile(r"(hl|long|whole)=(.*)", re.S)
HEADING_ID = re.compile(r' <a id="([A-Za-z][\w-]*)"></a>$')
FENCE = re.compile(r"((?:> )? *)(`{3,})(.*)")
OPENED = re.compile("<(div|details)(?: class=.*)? markdown>")
CLOSED = re.compile(r"</(div|details)>")
ALERT = re.compile(r"> \[!(\w+)\]")
# What GitHub calls them: the name that Material has, and the title in Chinese.
ALERTS = {
    "NOTE": ("note", "说明"),
    "TIP": ("tip", "建议"),
    "IMPORTANT": ("info", "重要"),
    "WARNING": ("warning", "注意"),
    "CAUTION": ("danger", "危险"),
}
TITLE = re.compile(r"^\*\*([^*]+)\*\*$")
CONTENTS = "<!-- toc -->"
END = "<!-- end -->"  # of what `make pages` has written below a link
# Of a page, its first line: front matter would show as a table on GitHub.
DESCRIPTION = re.compile(r"<!-- description: (.+) -->\n+")


class SiteError(BuildError):
    """What a page asks for is not there: the build must end."""


@dataclass
class Directive:
    indent: str
    text: str  # what the link shows
    target: str  # its file, seen from the page
    form: str  # code, table...
    words: list[str]
    options: dict[str, list[str]]
    title: str

    def path(self, page: str) -> str:
        """The file, from the repository's root; a reader must be told the same one."""
        path = in_repository(page, self.target)
        if not {f"`{path}`", f"`{posixpath.basename(path)}`"} & set(re.findall("`.+?`", self.text)):
            raise SiteError(f"the link leads to {path}: its text must have `{path}`")
        return path


def directive(line: str) -> Directive | None:
    found = DIRECTIVE.fullmatch(line)
    if not found:
        return None
    indent, text, target, quote, title = found.groups()
    title = title.replace(f"\\{quote}", quote)
    form, *rest = shlex.split(title) or [""]
    options: dict[str, list[str]] = {}
    words = []
    for word in rest:
        if option := OPTION.fullmatch(word):
            options.setdefault(option[1], []).append(option[2])
        else:
            words.append(word)
    return Directive(indent, text, target, form, words, options, title)


def by_hand(text: str, but: Collection[str] = ()) -> dict[int, str]:
    """The lines of a page by their numbers, without what `make pages` has written into it: from
    below a link to END. but: of these forms it stays, without the link."""
    lines: dict[int, str] = {}
    at, link = 0, None
    for number, line in enumerate(text.split("\n"), 1):
        if line.strip() != END:
            lines[number] = line
            if found := directive(line):
                at, link = number, found
        elif link is None:
            raise SiteError(f"line {number}: above {END} is no link to code")
        else:
            stays = link.form in but
            lines = {n: kept for n, kept in lines.items() if n < at or stays != (n == at)}
            link = None
    return lines


def in_repository(page: str, target: str) -> str:
    """Where a link of a page leads, from the repository's root. page: such as en/index.md; "": a
    file in the root."""
    folder = posixpath.join("docs", posixpath.dirname(page)) if page else ""
    return posixpath.normpath(posixpath.join(folder, target))


def repository_path(page: str, target: str) -> str:
    """The file of the repository that a link of a page leads to, with #id; "" if it leads to a page
    or elsewhere."""
    if re.match(r"[a-z]+:|[#/]|$", target):
        return ""
    path = in_repository(page, target)
    return "" if path.startswith(("docs/zh/", "docs/en/")) else path


def closed(first: str, lines: list[str], last: str) -> list[str]:
    """A block for Python-Markdown, which has its own form of tabs."""
    if first != '<div class="tabs" markdown>':
        return [first, *lines, last]
    titles = [TITLE.sub(r'=== "\1"', line) for line in lines]
    return ["", *(t if t.startswith("=== ") or not t else f"    {t}" for t in titles), ""]


def for_python_markdown(page: list[str], language: str) -> list[str]:
    """The lines of a page, all but its directives."""
    blocks: list[tuple[str, list[str]]] = [("", [])]  # the line that opens each, and those inside
    fence = ""
    for line in page:
        inside = blocks[-1][1]
        if found := FENCE.fullmatch(line):
            indent, ticks, kind = found.groups()
            if not fence:
                fence = ticks
                if len(names := kind.split()) > 1:
                    line = f"{indent}{ticks} {{ {' '.join(f'.{name}' for name in names)} }}"
            elif ticks == fence and not kind:
                fence = ""
            inside.append(line)
        elif fence:
            inside.append(line)
        elif OPENED.fullmatch(line):
            blocks.append((line, []))
        elif found := CLOSED.fullmatch(line):
            first, _ = blocks.pop()
            if not first.startswith(f"<{found[1]}"):
                raise SiteError(f"{line} closes {first or 'nothing'}")
            blocks[-1][1].extend(closed(first, inside, line))
        elif found := ALERT.fullmatch(line):
            if found[1] not in ALERTS:
                raise SiteError(f"{line}: GitHub has {', '.join(ALERTS)}")
            kind, title = ALERTS[found[1]]
            inside.append(f"> [!{kind}] {title * (language == 'zh')}")
        elif inside and inside[-1].startswith("> [!") and (found := TITLE.fullmatch(line[2:])):
            inside[-1] = f"{inside[-1].partition(']')[0]}] {found[1]}"
        elif line.startswith("<summary>"):
            title = line.replace("<summary>", '<summary markdown="span">')
            inside.append(re.sub("</?code>", "`", title))
        elif line == CONTENTS:
            inside.append("[TOC]")
        else:
            inside.append(HEADING_ID.sub(r" {#\1}", line) if line.startswith("#") else line)
    if len(blocks) > 1:
        raise SiteError(f"{blocks[-1][0]} is never closed")
    return blocks[0][1]


def moving(assets: Path, still: str, language: str) -> str:
    """HTML of a figure that moves: its still picture, such as "overlap-start", which
    assets/javascripts/figures/NAME.js sets in motion, and what that script reads."""
    name = still.partition("-")[0]
    data = ""
    if name == "overlap":
        models = (assets / "results/scaling-models.json").read_text("utf-8")
        data = f'<script type="application/json">{models.strip()}</script>'
    # Without blank lines, at which a later processor would begin a paragraph.
    text = (assets / f"figures/{still}.{language}.html").read_text("utf-8").strip()
    return f'<figure class="fig" id="fig-{name}" data-figure="{name}">{text}{data}</figure>'
