"""A Python-Markdown extension: code beside its explanation, always that of the tested file.

A link on a line of its own, with a title that says so, stands for a part of a file, for the
difference of two files, or for a table that another tool wrote. docs/WRITING.md lists the forms.
What a line asks for and is not there ends the build, so a page cannot go on to explain code that is
gone. An extension, not a plug-in: it works in every program that renders Python-Markdown.
"""

import re
import xml.etree.ElementTree as etree
from html import escape
from pathlib import Path
from typing import Any

from markdown import Extension, Markdown
from markdown.postprocessors import Postprocessor
from markdown.preprocessors import Preprocessor
from markdown.treeprocessors import Treeprocessor
from markdown.util import HTML_PLACEHOLDER_RE, AtomicString

from .diffs import CONTEXT, DISTRIBUTED, WHOLE, Hunk, diff_html, hunks, step_hunks
from .forms import Directive, by_hand, directive, for_python_markdown, moving, repository_path
from .source import ROOT, SiteError, Source, read, to_html, translated
from .verdicts import verdict

MOST_LINES = 20  # of a group: note and code must fit on a screen together
MOST_FILE_LINES = 80
FORMS = ("code", "file", "diff", "table", "verdict", "figure")
MARKDOWN = ("table",)  # what stands below them the site shows as it is
COPIES = "source"  # the folder of the site that has the files, see hooks.py
UNSEEN = "https://repository/"  # before what MkDocs would look for among the pages
linked: set[str] = set()  # these
LEGEND = {
    "zh": "行号旁有竖线的行，只因为要做分布式训练才需要；底色标出正文在讲的行。",
    "en": "A bar beside its number marks a line that is there only because training is "
    "distributed; a tint marks the lines that the text is about.",
}


def difference(
    path: str, words: list[str], options: dict[str, list[str]], language: str
) -> tuple[Source, Source, list[Hunk]]:
    """The old file, the new one, and how they differ, with comments in the page's language."""
    before, step = words if len(words) > 1 else [*words, ""]
    old, new = (translated(read(name), language) for name in (before, path))
    if step:
        return old, new, step_hunks(old, new, read(path), step)
    return old, new, hunks(old, new, WHOLE if "whole" in options else CONTEXT)


def this_page(md: Markdown) -> Any:
    """MkDocs' own processor knows which one it is; elsewhere nobody does."""
    return md.treeprocessors["relpath"].file if "relpath" in md.treeprocessors else None


def name_of(md: Markdown) -> str:
    """Such as en/index.md."""
    page = this_page(md)
    return page.src_uri if page else ""


def language_of(md: Markdown) -> str:
    """zh or en, the name of the page's folder."""
    return name_of(md).partition("/")[0] or "en"


def link(md: Markdown, path: str, place: str = "", repo: str | None = None) -> str:
    page = this_page(md)
    repo = md.repo if repo is None else repo
    return file_address(path, place, repo, page.url.count("/") if page else 0)


def file_address(path: str, place: str, repo: str, depth: int) -> str:
    """Of a file of the repository: there, or of the site's copy, which has no anchors. depth: of
    the page, in folders of the site."""
    if repo:
        return f"{repo}/blob/main/{path}{place}"
    linked.add(path)
    return f"{'../' * depth or './'}{COPIES}/{path}.txt"


class CodeAlong(Preprocessor):
    """Replaces these links, and turns GitHub's forms into those of Python-Markdown."""

    def run(self, lines: list[str]) -> list[str]:
        result: list[str] = []
        written = [*by_hand("\n".join(lines), but=MARKDOWN).values()]
        for line in for_python_markdown(written, language_of(self.md)):
            line = line.replace("REPOSITORY_URL", self.md.repo or "REPOSITORY_URL")
            try:
                found = directive(line)
                result += self.replace(found) if found else [line]
            # OSError: a table or a figure is not there; ValueError: a quote is not closed, or there
            # are too many words
            except (SiteError, OSError, ValueError) as error:
                raise SiteError(f"{line.strip()}\n    {error}") from None
        return result

    def replace(self, found: Directive) -> list[str]:
        if found.form not in FORMS:
            raise SiteError(f"there is no {found.form}: a title begins with {', '.join(FORMS)}")
        if found.form in MARKDOWN:
            raise SiteError("what belongs below it is not there yet: make pages")
        path = found.path(name_of(self.md))
        if found.form == "verdict":
            head, said = verdict(path, *found.words, language_of(self.md))
            return ["", *head, "```text", *said, "```", ""]
        made = getattr(self, found.form)(path, found.words, found.options)
        return ["", found.indent + self.md.htmlStash.store(made), ""]

    def link(self, path: str, part: range | None = None) -> str:
        return link(self.md, path, f"#L{part.start}-L{part.stop - 1}" if part else "")

    def code(self, path: str, words: list[str], options: dict[str, list[str]]) -> str:
        selector, *texts = words
        source = read(path)
        return self.listing(source, source.part(selector, texts), options, MOST_LINES)

    def file(self, path: str, words: list[str], options: dict[str, list[str]]) -> str:
        () = words
        source = read(path)
        part = range(1, len(source.lines) + 1)
        return self.listing(source, part, options, MOST_FILE_LINES)

    def listing(self, source: Source, part: range, options: dict[str, list[str]], most: int) -> str:
        """Real line numbers, and as Material has it: its copy button and colours find the code."""
        first, last = part[0], part[-1]
        where = f"lines {first} to {last}"
        if len(part) > most and "long" not in options:
            raise SiteError(f"{where} are more than {most}: take a part, or long=1")
        marked = set()
        for text in options.get("hl", []):
            found = {n for n in part if text in source.lines[n - 1]}
            if not found:
                raise SiteError(f"hl={text!r} is in none of {where} of {source.path}")
            marked |= found
        # In a minimal.py what is marked is there only because training is distributed; 04's is not.
        skeleton = re.fullmatch(r"0[1-35-8]_\w+/minimal\.py", source.path)
        indent = source.indent(part)
        tokens = translated(source, language_of(self.md)).tokens
        lines = []
        for n in part:
            html = re.sub(rf'^(<span class="\w+">)? {{{indent}}}', r"\1", to_html(tokens[n - 1]))
            kind = " hll" * (n in marked)
            if DISTRIBUTED in source.lines[n - 1] or (skeleton and n in marked):
                kind += " dist"
            lines.append(f'<span class="ln{kind}" data-l="{n}">{html}</span>')
        whole = part == range(1, len(source.lines) + 1)
        numbers = f"{first}–{last}" if len(part) > 1 else str(first)
        head = escape(source.path)
        if not whole:
            head += f' <span class="cb-lines">{numbers}</span>'
        url = self.link(source.path, None if whole else part)
        code = "\n".join(lines)
        # data-search-exclude: seven chapters share most lines; the index would be full of them.
        return (
            f'<figure class="cb" data-search-exclude style="--digits:{len(str(last))}">'
            f'<figcaption><a href="{url}">{head}</a></figcaption>'
            f'<div class="language-{source.language} highlight"><pre><code>{code}'
            "\n</code></pre></div></figure>"
        )

    def diff(self, path: str, words: list[str], options: dict[str, list[str]]) -> str:
        old, new, found = difference(path, words, options, language_of(self.md))
        return diff_html(old, new, self.link, found, *words[1:])

    def figure(self, path: str, words: list[str], options: dict[str, list[str]]) -> str:
        (preset,) = words
        return moving(ROOT / "docs/assets", f"{Path(path).stem}-{preset}", language_of(self.md))


class RepositoryLinks(Treeprocessor):
    """A link that leaves the pages, ../../tests/FAULTS.md, is to a file of the repository."""

    def run(self, root: etree.Element) -> None:
        page = name_of(self.md)
        for a in root.iter("a"):
            if page and (target := repository_path(page, a.get("href", ""))):
                path, mark, place = target.partition("#")
                if not (ROOT / path).is_file():
                    raise SiteError(f"{path}: there is no such file")
                repo = self.md.repo
                if a.get("title") == "download":  # the site's own copy, under the file's name
                    repo = ""
                    a.set("download", Path(path).name)
                    del a.attrib["title"]
                a.set("href", UNSEEN + link(self.md, path, mark + place, repo))


class Seen(Postprocessor):
    def run(self, text: str) -> str:
        return text.replace(UNSEEN, "")


class ShortCode(Treeprocessor):
    """Names inline code that fits on a line of a phone: style sheets cannot measure, and a flag
    should not be torn at its hyphens. Of longer code it names the words."""

    LONGEST = 26

    def run(self, root: etree.Element) -> None:
        codes = [
            child
            for parent in root.iter()
            for child in parent
            if child.tag == "code" and parent.tag != "pre" and child.text and len(child) == 0
        ]
        for code in codes:
            if len(code.text) <= self.LONGEST:
                code.set("class", f"{code.get('class', '')} nb".strip())
            elif " " in code.text:
                words, code.text = code.text.split(" "), ""
                for n, word in enumerate(words):
                    span = etree.SubElement(code, "span")
                    span.text = AtomicString(word)
                    span.tail = " " * (n < len(words) - 1)
                    if len(word) <= self.LONGEST:
                        span.set("class", "nb")


class CellNames(Treeprocessor):
    """Each cell says which column it is of: on a phone a row of a table is a card. A head without
    words is a cell."""

    def run(self, root: etree.Element) -> None:
        for table in root.iter("table"):
            names = ["".join(head.itertext()).strip() for head in table.iter("th")]
            for row in table.iter("tr"):
                for name, cell in zip(names, row, strict=False):
                    if name:
                        cell.set("data-th", name)
                    elif cell.tag == "th":
                        cell.tag = "td"


class Walks(Treeprocessor):
    """A note and the code that it is about, side by side where there is room: rows of both. Text
    below code begins the next row."""

    def run(self, root: etree.Element) -> None:
        for block in [div for div in root.iter("div") if div.get("class") == "walk"]:
            rows: list[tuple[list[etree.Element], list[etree.Element]]] = []
            for child in block:
                code = self.is_code(child)
                if not rows or (rows[-1][1] and not code):
                    rows.append(([], []))
                rows[-1][code].append(child)
            if not rows or not all(note and code for note, code in rows):
                raise SiteError("each row of a walk needs a note and at least one link to code")
            block[:] = []
            for row in rows:
                for name, members in zip(("text", "code"), row, strict=True):
                    etree.SubElement(block, "div", {"class": f"walk-{name}"}).extend(members)

    def is_code(self, child: etree.Element) -> bool:
        match = HTML_PLACEHOLDER_RE.fullmatch((child.text or "").strip())
        if child.tag != "p" or not match:
            return False
        html = str(self.md.htmlStash.rawHtmlBlocks[int(match[1])])
        return html.startswith(('<figure class="cb"', '<figure class="cd'))


class CodeAlongExtension(Extension):
    def __init__(self, **settings: object) -> None:
        self.config = {"repo": ["", "address of the repository, for links to the source"]}
        super().__init__(**settings)

    def extendMarkdown(self, md: Markdown) -> None:
        md.repo = (self.getConfig("repo") or "").rstrip("/")
        # Below 30, where line ends are normalised, which would tear our placeholders; above 25,
        # where the fences of pymdownx are taken out.
        md.preprocessors.register(CodeAlong(md), "codealong", 27)
        md.treeprocessors.register(RepositoryLinks(md), "repository_links", 1)  # 0 is MkDocs' own
        md.postprocessors.register(Seen(md), "seen", 0)
        md.treeprocessors.register(ShortCode(md), "short_code", 15)  # below 20, inline patterns
        md.treeprocessors.register(CellNames(md), "cell_names", 14)
        md.treeprocessors.register(Walks(md), "walks", 25)


def makeExtension(**settings: object) -> CodeAlongExtension:
    return CodeAlongExtension(**settings)
