"""How pages are written: so that GitHub and editors show them well as they are. docs/WRITING.md has
the list. Here it is read, and turned into the forms of Python-Markdown's extensions."""

import posixpath
import re
import shlex
from dataclasses import dataclass, field

try:  # mkdocs shows its own exceptions as one line, any other as a traceback
    from mkdocs.exceptions import BuildError
except ImportError:
    BuildError = Exception

# A link to a file, alone on its line, whose title says what the build puts there.
DIRECTIVE = re.compile(r"""( *)\[(.*)\]\(([^\s()]+) (["'])(.*)\4\) *""")
OPTION = re.compile(r"(hl|long|whole)=(.*)", re.S)
HEADING_ID = re.compile(r' <a id="([A-Za-z][\w-]*)"></a>$')
FENCE = re.compile(r"( *)(`{3,})(.*)")
OPENED = re.compile(r'<(div|details)(?: class="([\w -]+)")? markdown>')
CLOSED = re.compile(r"</(div|details)>")
SUMMARY = re.compile(r"<summary>(.*)</summary>")
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
        path = in_repository(page, self.target.partition("#")[0])
        if f"`{path}`" not in self.text:
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


@dataclass
class Block:
    """What has been opened and not yet closed."""

    tag: str  # div, details, or > for an alert
    kind: str  # walk, tabs, note...
    first: str  # the line that opens it
    lines: list[str] = field(default_factory=list)

    def closed(self, language: str) -> list[str]:
        """For Python-Markdown."""
        lines = self.lines
        if self.tag == "div" and self.kind == "walk":
            return ["/// walk", *lines, "///"]
        if self.tag == "div" and self.kind == "tabs":
            tabs = [TITLE.sub(r'=== "\1"', line) for line in lines]
            return ["", *(t if t.startswith("=== ") else indented(t) for t in tabs), ""]
        if self.tag == "div":
            return [self.first, *lines, "</div>"]
        if self.tag == "details":
            summary = SUMMARY.fullmatch(lines[0] if lines else "")
            if not summary:
                raise SiteError(f"{self.first}: the next line must be <summary>…</summary>")
            title, lines = re.sub("</?code>", "`", summary[1]), lines[1:]
            head = f'??? {self.kind or "note"} "{title}"'
        else:
            kind, title = ALERTS[self.kind]
            head = f"!!! {kind}" + f' "{title}"' * (language == "zh")
            if lines and (own := TITLE.fullmatch(lines[0])):
                head, lines = f'!!! {kind} "{own[1]}"', lines[1:]
        return ["", head, "", *map(indented, lines), ""]


def indented(line: str) -> str:
    return f"    {line}" if line else ""


def for_python_markdown(page: list[str], language: str) -> list[str]:
    """The lines of a page, all but its directives."""
    blocks = [Block("", "", "")]
    fence = ""

    def close() -> None:
        done = blocks.pop()
        blocks[-1].lines += done.closed(language)

    for line in page:
        if blocks[-1].tag == ">":
            if line.startswith(">"):
                line = line.removeprefix(">").removeprefix(" ")
            else:
                close()
        inside = blocks[-1].lines
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
        elif found := OPENED.fullmatch(line):
            blocks.append(Block(found[1], found[2] or "", line))
        elif found := CLOSED.fullmatch(line):
            if blocks[-1].tag != found[1]:
                raise SiteError(f"{line} closes {blocks[-1].first or 'nothing'}")
            close()
        elif found := ALERT.fullmatch(line):
            if found[1] not in ALERTS:
                raise SiteError(f"{line}: GitHub has {', '.join(ALERTS)}")
            blocks.append(Block(">", found[1], line))
        elif line == CONTENTS:
            inside.append("[TOC]")
        else:
            inside.append(HEADING_ID.sub(r" {#\1}", line) if line.startswith("#") else line)
    if blocks[-1].tag == ">":
        close()
    if len(blocks) > 1:
        raise SiteError(f"{blocks[-1].first} is never closed")
    return blocks[0].lines
