"""A Python-Markdown extension: in a walk, which lines of the code a note's code words are about.

The page gets their places, and site.js lights up one when the other is pointed at. What the rule
does not find, a comment behind the word does: `nan`<!-- = isfinite --> names a text of its lines.
A text that is in none ends the build.
"""

import html
import re
import xml.etree.ElementTree as etree
from collections.abc import Iterator

from markdown import Extension, Markdown
from markdown.treeprocessors import Treeprocessor
from markdown.util import HTML_PLACEHOLDER_RE

from .forms import SiteError

# A line of a part of a file, or of a difference; site.js counts the same elements.
LINE = re.compile(r'<(span|div) class="(?:ln|cd-(?:add|del|new))\b[^>]*>(.*?)(?:</div>|\n)')
MARK = re.compile(r"<!-- = (.+?) -->")


def lines_of(figure: str) -> list[str]:
    """The text of each line that the figure shows."""
    return [html.unescape(re.sub("<.*?>", "", line[2])) for line in LINE.finditer(figure)]


def forms(word: str) -> Iterator[str]:
    """What the code may have for it, the most likely first: the word itself, …"""
    yield word
    yield re.sub(r"\(.*", "", word)  # the name of what is called
    if word.startswith("--"):
        flag = re.split("[= ]", word)[0]
        yield flag
        yield flag[2:].replace("-", "_")  # as argparse names it
    yield re.sub(r"\(.*", "", word).split(".")[-1]
    yield word.split("=")[0].strip()


def places(word: str, lines: list[str]) -> list[int]:
    """Which lines have it; those where it stands in the code come before those of a comment."""
    bare = [line.split("  #")[0] if not line.strip().startswith("#") else "" for line in lines]
    for text in dict.fromkeys(forms(word)):
        parts = [re.escape(part.strip()) for part in re.split(r"…|\.\.\.", text)]
        if not any(parts):
            continue
        ends = [r"(?<!\w)" * text[0].isidentifier(), r"(?!\w)" * (text[-1].isidentifier())]
        form = re.compile(".*".join(parts).join(ends))
        for where in (bare, lines):
            if found := [n for n, line in enumerate(where) if form.search(line)]:
                return found
    return []


def rows(root: etree.Element) -> Iterator[tuple[etree.Element, etree.Element]]:
    """Notes and the code beside them."""
    for walk in root.iter("div"):
        if walk.get("class") == "walk":
            yield from zip(*[iter(walk)] * 2, strict=True)


class Words(Treeprocessor):
    def run(self, root: etree.Element) -> None:
        for note, code in rows(root):
            lines = [line for figure in code for line in lines_of(self.stashed(figure.text))]
            seen: set[str] = set()
            for word in note.iter("code"):
                self.find(word, lines, seen)

    def stashed(self, text: str | None) -> str:
        found = HTML_PLACEHOLDER_RE.match((text or "").strip())
        return str(self.md.htmlStash.rawHtmlBlocks[int(found[1])]) if found else ""

    def find(self, word: etree.Element, lines: list[str], seen: set[str]) -> None:
        name = html.unescape("".join(word.itertext()))
        mark = MARK.fullmatch(self.stashed(word.tail))
        if mark:
            word.tail = HTML_PLACEHOLDER_RE.sub("", word.tail, count=1)
        if found := places(mark[1] if mark else name, lines):
            word.set("data-at", " ".join(map(str, found)))
            if name not in seen:  # the keyboard stops at a word once in a note
                word.set("tabindex", "0")
            seen.add(name)
        elif mark:
            raise SiteError(f"{mark[0]}: no line of the code beside `{name}` has this text")


class WordsExtension(Extension):
    def extendMarkdown(self, md: Markdown) -> None:
        md.treeprocessors.register(Words(md), "words", 16)  # below 20, inline patterns


def makeExtension(**settings: object) -> WordsExtension:
    return WordsExtension(**settings)
