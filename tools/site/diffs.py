"""The difference of two files as rows, and the rows as HTML."""

import re
from bisect import bisect
from collections.abc import Callable
from difflib import SequenceMatcher
from html import escape
from itertools import groupby, zip_longest
from pathlib import Path

from .source import SiteError, Source, Tokens, to_html

CONTEXT = 3
DISTRIBUTED = "[dist]"  # in the comment of a line that is there only because training is
WHOLE = 10_000
MARK = re.compile(r"# (step \d+)\b")  # diff OLD "step 3"
# kind ("=", "-" or "+"), line number in the old file, in the new file (0: not in it), HTML
Row = tuple[str, int, int, str]
Hunk = tuple[str, list[Row]]  # the function that it begins in, and the rows


def words(tokens: Tokens) -> Tokens:
    """The tokens in smaller pieces, to be compared one by one."""
    return [(name, word) for name, text in tokens for word in re.findall(r"\w+|\s+|.", text)]


def alike(old: Tokens, new: Tokens) -> SequenceMatcher:
    return SequenceMatcher(None, words(old), words(new), autojunk=False)


def uncommented(tokens: Tokens) -> Tokens:
    return [token for token in tokens if not token[0].startswith("c1")]


def replaced(old: Tokens, new: Tokens) -> tuple[str, str]:
    """The HTML of a line and of the one in its place, with what changed marked: nothing if they
    have little in common, where marks would only flicker."""
    matcher = alike(old, new)
    if matcher.ratio() < 0.5:
        return to_html(old), to_html(new)
    ours, theirs = set(range(len(matcher.a))), set(range(len(matcher.b)))
    for block in matcher.get_matching_blocks():
        ours -= {*range(block.a, block.a + block.size)}
        theirs -= {*range(block.b, block.b + block.size)}
    return to_html(matcher.a, ours), to_html(matcher.b, theirs)


def hunks(old: Source, new: Source, context: int = CONTEXT) -> list[Hunk]:
    """All changes but those of the docstrings, with so many lines around them."""
    skip = (old.after_docstring() - 1, new.after_docstring() - 1)
    a, b = old.lines[skip[0] :], new.lines[skip[1] :]
    # Blank lines are everywhere: matched for themselves they tear a new function into pieces.
    matcher = SequenceMatcher(lambda line: not line.strip(), a, b, autojunk=False)
    result = []
    for group in matcher.get_grouped_opcodes(context):
        rows: list[Row] = []
        for tag, a1, a2, b1, b2 in group:
            left, right = range(a1 + skip[0], a2 + skip[0]), range(b1 + skip[1], b2 + skip[1])
            if tag == "equal":
                for i, j in zip(left, right, strict=True):
                    rows.append(("=", i + 1, j + 1, to_html(old.tokens[i])))
            else:
                olds = [old.tokens[i] for i in left]
                news = [new.tokens[j] for j in right]
                pairs = [replaced(*pair) for pair in zip_longest(olds, news, fillvalue=[])]
                rows += [("-", i + 1, 0, pairs[n][0]) for n, i in enumerate(left)]
                rows += [("+", 0, j + 1, pairs[n][1]) for n, j in enumerate(right)]
        result.append((new.owner(rows[0][2] or group[0][3] + skip[1] + 1), rows))
    return result


def steps_of(rows: list[Row], old: Source, new: Source, marks: Source) -> list[str]:
    """Which step each row of a difference is of. A mark, `# step 3`, is that of its line and of the
    new lines below it, up to the next mark; above the first mark of a change they are of that one.
    A line that is gone is of the same step as the new line that is most like it, with which it is
    compared anew: another one may stand opposite."""
    steps = [""] * len(rows)
    for changed, group in groupby(range(len(rows)), lambda n: rows[n][0] != "="):
        run = list(group)
        added = [n for n in run if rows[n][0] == "+"]
        if not changed or not added:
            continue
        found = [MARK.search(marks.lines[rows[n][2] - 1]) for n in added]
        now = next((match[1] for match in found if match), "")
        for n, match in zip(added, found, strict=True):
            now = steps[n] = match[1] if match else now
        come = {n: new.tokens[rows[n][2] - 1] for n in added}
        html = {n: to_html(line) for n, line in come.items()}
        for n in run:
            if rows[n][0] == "-":
                gone = old.tokens[rows[n][1] - 1]
                near = max(added, key=lambda m: alike(gone, uncommented(come[m])).ratio())
                steps[n] = steps[near]
                html[n], html[near] = replaced(gone, come[near])
        for n in run:
            rows[n] = (*rows[n][:3], html[n])
    return steps


def step_hunks(old: Source, new: Source, marks: Source, step: str) -> list[Hunk]:
    """The changes of one step, with up to two equal lines around them. marks: the new file before
    its comments were translated."""
    ((_, rows),) = hunks(old, new, WHOLE)
    shown = {n for n, of in enumerate(steps_of(rows, old, new, marks)) if of == step}
    if not shown:
        raise SiteError(f"no line of {new.path} that is new has the mark {step!r}")
    for n in list(shown):
        for way in (-1, 1):
            for m in (n + way, n + 2 * way):
                if not 0 <= m < len(rows) or rows[m][0] != "=":
                    break
                shown.add(m)
    result: list[Hunk] = []
    # A hunk ends where an equal line is left out.
    left_out = [n for n, row in enumerate(rows) if row[0] == "=" and n not in shown]
    for _, group in groupby(sorted(shown), lambda n: bisect(left_out, n)):
        part = [rows[n] for n in group]
        for end in (0, -1):
            while part[end][2] and not new.lines[part[end][2] - 1].strip():
                part.pop(end)
        result.append((new.owner(max(row[2] for row in part)), part))
    return result


def row_html(row: Row) -> str:
    kind, old, new, html = row
    name = {"-": "del", "+": "add", "=": "new"}[kind] + " dist" * (DISTRIBUTED in html)
    return f'<div class="cd-{name}" data-l="{new or old}">{html}</div>'


def diff_html(
    old: Source, new: Source, link: Callable[[str], str], found: list[Hunk], step: str = ""
) -> str:
    """A difference, with a head that names both files, of a step without their folders."""
    names = [Path(source.path).name if step else source.path for source in (old, new)]
    kinds = [row[0] for _, rows in found for row in rows]
    added, removed = kinds.count("+"), kinds.count("-")
    body = "".join(
        f'<div class="cd-hunk"><div class="cd-name">{escape(name)}</div>'
        f"{''.join(map(row_html, rows))}</div>"
        for name, rows in found
    )
    # <figure>, not <div>: the search index takes the first </div> inside for the end of what it
    # was told to leave out.
    return (
        f'<figure class="cd" data-search-exclude><figcaption>'
        f'<span><a href="{link(old.path)}">{names[0]}</a> <span class="cd-to">→</span> '
        f'<a href="{link(new.path)}">{names[1]}</a></span>'
        f'<span class="cd-count"><b class="cd-plus">+{added}</b> <b class="cd-minus">−{removed}</b>'
        f'</span></figcaption><div class="cd-body highlight">{body}</div></figure>'
    )
