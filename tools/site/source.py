"""Parts of a source file, found by name or by text, and its lines, coloured."""

import ast
import io
import json
import re
import tokenize
from collections.abc import Collection
from functools import cache, cached_property
from html import escape
from itertools import groupby
from pathlib import Path

from pygments import lex
from pygments.lexers import get_lexer_by_name
from pygments.token import STANDARD_TYPES

from .forms import SiteError

ROOT = Path(__file__).resolve().parents[2]
LANGUAGES = {".py": "python", ".yaml": "yaml", ".diff": "diff"}  # others: text
LANGUAGES |= dict.fromkeys([".sh", ".sbatch"], "bash")
# Most tokens are of these classes, and all of them have the colour of plain text.
PLAIN = {"", "n", "w", "esc", "x"}
# A comment of which a phone has no need: a bar marks the line, the note names the step.
TAG = re.compile(r"# (\[dist\]|(step \d|第 \d 步).*)")
DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)

Tokens = list[tuple[str, str]]  # of one line: CSS class and text


def coloured(text: str, language: str) -> list[Tokens]:
    """The tokens of each line. The whole file at once: a line of a docstring is text only if the
    quotes above it are seen."""
    lines: list[Tokens] = [[]]
    for kind, value in lex(text, get_lexer_by_name(language, stripnl=False)):
        name = "c1 tag" if TAG.fullmatch(value) else STANDARD_TYPES.get(kind, "")
        for number, piece in enumerate(value.split("\n")):
            if number:
                lines.append([])
            if piece:
                lines[-1].append(("" if name in PLAIN else name, piece))
    return lines[: len(text.splitlines())]


def to_html(tokens: Tokens, marked: Collection[int] = ()) -> str:
    """One line as HTML. marked: the numbers of tokens that stand out inside of the line."""
    html = ""
    for stands_out, group in groupby(enumerate(tokens), lambda item: item[0] in marked):
        piece = ""
        for _, (name, text) in group:
            text = escape(text, quote=False)
            piece += f'<span class="{name}">{text}</span>' if name else text
        html += f"<mark>{piece}</mark>" if stands_out else piece
    return html


def style(path: Path) -> str:
    """A style sheet without what is there for who writes it, a fifth of it."""
    css = re.sub(r"/\*.*?\*/", "", path.read_text("utf-8"), flags=re.S)
    css = re.sub(r"\s*([{};])\s*", r"\1", css)
    return re.sub(r"([:,])\s+", r"\1", css).replace(";}", "}").strip()


class Source:
    """A file of the repository."""

    def __init__(self, path: str, text: str) -> None:
        self.path, self.text = path, text
        suffix = Path(path).suffix
        self.language = LANGUAGES.get(suffix, "text")
        self.lines = text.splitlines()
        self.tree = ast.parse(text if suffix == ".py" else "")  # empty if it is not Python

    @cached_property
    def tokens(self) -> list[Tokens]:
        return coloured(self.text, self.language)

    @cached_property
    def statements(self) -> list[ast.stmt]:
        """Outer ones first."""
        return [node for node in ast.walk(self.tree) if isinstance(node, ast.stmt)]

    @cached_property
    def comments(self) -> dict[int, str]:
        """What is said on a line: a comment, or a line of a docstring's first paragraph."""
        found = {}
        for token in tokenize.generate_tokens(io.StringIO(self.text).readline):
            if token.type == tokenize.COMMENT and (text := token.string.lstrip("# ")):
                found[token.start[0]] = text
        for node in ast.walk(self.tree):
            if isinstance(node, (ast.Module, *DEFINITIONS)) and ast.get_docstring(node):
                for n in range(node.body[0].lineno, node.body[0].end_lineno + 1):
                    if not (text := self.lines[n - 1].strip().strip('"')):
                        break
                    found[n] = text
        return found

    def definitions(self) -> dict[str, ast.AST]:
        """The top-level functions and classes, and by dotted names those right inside of them."""
        found: dict[str, ast.AST] = {}
        for node in self.tree.body:
            if isinstance(node, DEFINITIONS):
                found[node.name] = node
                for inner in node.body:
                    if isinstance(inner, DEFINITIONS):
                        found[f"{node.name}.{inner.name}"] = inner
        return found

    def first_line(self, node: ast.AST) -> int:
        """Where a definition begins for a reader: at the comment right above its decorators."""
        first = min([node.lineno, *(d.lineno for d in getattr(node, "decorator_list", []))])
        indent = " " * node.col_offset
        while first > 1 and self.lines[first - 2].startswith(f"{indent}#"):
            first -= 1
        return first

    def after_docstring(self) -> int:
        """The number of the first line that is not of the module's docstring nor blank."""
        number = 1
        if ast.get_docstring(self.tree):
            number = self.tree.body[0].end_lineno + 1
        while number <= len(self.lines) and not self.lines[number - 1].strip():
            number += 1
        return number

    def owner(self, number: int) -> str:
        """The top-level function or class that a line is in, "" between them."""
        for node in self.tree.body:
            if isinstance(node, DEFINITIONS) and self.first_line(node) <= number <= node.end_lineno:
                return node.name
        return ""

    def scope(self, selector: str) -> list[int]:
        """The line numbers of a definition, or for "-" those outside of all definitions."""
        everything = range(1, len(self.lines) + 1)
        if selector == "-":
            return [n for n in everything if not self.owner(n)]
        definitions = self.definitions()
        if selector not in definitions:
            known = ", ".join(definitions) or "none: use - for the whole file"
            raise SiteError(f"{self.path} defines no {selector}; there are: {known}")
        node = definitions[selector]
        return list(range(self.first_line(node), node.end_lineno + 1))

    def find(self, scope: list[int], selector: str, text: str) -> int:
        """The one line of the scope that holds the text."""
        found = [n for n in scope if text in self.lines[n - 1]]
        if len(found) != 1:
            where = f"{selector} of {self.path}"
            raise SiteError(f"{text!r} must be in one line of {where}, is in: {found or 'none'}")
        return found[0]

    def statement(self, number: int, *, block: bool) -> tuple[int, int]:
        """The lines of the smallest statement around a line; block: with the body below, if the
        line is the head of one."""
        best = (number, number)
        for node in self.statements:
            if not node.lineno <= number <= node.end_lineno:
                continue
            inner = [s for name in ("body", "orelse", "finalbody") for s in getattr(node, name, [])]
            last = node.end_lineno
            if inner and (number >= inner[0].lineno or not block):
                last = inner[0].lineno - 1
                if number > last:
                    continue
            best = (node.lineno, max(last, number))
        return best

    def part(self, selector: str, texts: list[str]) -> range:
        """Line numbers. Texts: none, the whole scope; one, the statement with it; with "..", from
        the one to the other, where a missing one stands for the scope's first or last line."""
        scope = self.scope(selector)

        def lines(text: str, block: bool = False) -> tuple[int, int]:
            return self.statement(self.find(scope, selector, text), block=block)

        begin, end = scope[0], scope[-1]
        match texts:
            case [] | [".."]:
                pass
            case [text]:
                begin, end = lines(text, block=True)
            case [first, ".."]:
                begin, _ = lines(first)
            case ["..", last]:
                _, end = lines(last)
            case [first, "..", last]:
                begin, _ = lines(first)
                _, end = lines(last)
            case _:
                raise SiteError("these texts are in none of its forms")
        if begin > end:
            raise SiteError(f"{self.path}: line {begin} to {end} is the wrong way round")
        return range(begin, end + 1)

    def indent(self, part: range) -> int:
        """How many blanks all of these lines begin with."""
        lines = [self.lines[n - 1] for n in part]
        return min((len(s) - len(s.lstrip()) for s in lines if s.strip()), default=0)


def read(path: str) -> Source:
    """A file of the repository."""
    file = ROOT / path
    if not file.is_file():
        near = sorted(str(p.relative_to(ROOT)) for p in file.parent.glob("*") if p.is_file())
        raise SiteError(f"there is no file {path}; beside it: {', '.join(near)}")
    return parsed(path, file.read_text(encoding="utf-8"))


# By its text: MkDocs builds each language by itself, and `make serve` anew after each change.
parsed = cache(Source)


def translated(source: Source, language: str) -> Source:
    """The same code with the comments of comments.LANGUAGE.json beside it, if there is one. Those
    of all minimal.py are in docs/examples: a chapter's folder holds what is copied, no more."""
    table = (ROOT / source.path).with_name(f"comments.{language}.json")
    if Path(source.path).name.startswith("minimal"):
        table = ROOT / f"docs/examples/minimal.{language}.json"
    if not table.is_file() or source.language != "python":
        return source
    known = json.loads(table.read_text(encoding="utf-8"))
    lines = list(source.lines)
    for n, text in source.comments.items():
        if text not in known:
            raise SiteError(f"{table.relative_to(ROOT)} lacks line {n} of {source.path}: {text!r}")
        before, _, after = lines[n - 1].rpartition(text)
        lines[n - 1] = before + known[text] + after
    return parsed(source.path, "\n".join(lines) + "\n")
