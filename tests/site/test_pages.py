"""The pages as they are written: what they may bring in, that both languages match, and that links
in the READMEs lead somewhere. Each check is also shown something broken, which it must find."""

import ast
import html
import json
import re
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
from harness import CHAPTERS, ROOT

markdown = pytest.importorskip("markdown", reason="needs requirements-dev.txt")
pytest.importorskip("pymdownx.blocks", reason="needs requirements-dev.txt")  # not with tensorboard

from tools.site import check_twins, codealong, source  # noqa: E402
from tools.site.diffs import hunks  # noqa: E402
from tools.site.source import SiteError, Source, read, translated  # noqa: E402

DOCS = ROOT / "docs"
CHAPTER_HEADINGS = "skeleton run get when how walk changed log errors results exercises".split()
REPO = "https://example.org/repo"
EXTENSIONS = ["attr_list", "pymdownx.superfences", "toc", "tools.site.codealong"]


def render(text: str, repo: str = REPO, page: str = "") -> str:
    """As MkDocs would on that page; without one, as any other program does."""
    settings = {"tools.site.codealong": {"repo": repo}}
    md = markdown.Markdown(extensions=EXTENSIONS, extension_configs=settings)
    if page:
        place = markdown.treeprocessors.Treeprocessor(md)
        place.file = SimpleNamespace(src_uri=page)
        md.treeprocessors.register(place, "relpath", 0)
    return md.convert(text)


def plain(page: str) -> list[str]:
    """The lines of code in a page, without colours."""
    found = re.findall(r'<span class="ln[^>]*>(.*)</span>$', page, re.M)
    return [html.unescape(re.sub(r"<[^>]+>", "", line)) for line in found]


# --- what a line in a page brings in --------------------------------------------------------------

SAMPLE = '''\
"""Docstring
of three
lines."""

import os

LIMIT = 3
# Why there is a Box.
@decorated
class Box:
    """A box."""

    def open(self) -> int:
        first = 1
        for n in range(LIMIT):
            first += n
            print(
                "in the loop",
            )
        return first


def other(a: int) -> int:
    return a
'''


@pytest.fixture
def sample(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], str]:
    """Renders a page that includes parts of SAMPLE."""
    monkeypatch.setattr(codealong, "read", lambda path: Source(path, SAMPLE))
    return render


@pytest.mark.parametrize(
    ("line", "first", "last", "begins"),
    [
        ("other", 23, 24, "def other(a: int) -> int:"),
        ("Box", 8, 20, "# Why there is a Box."),
        ("Box.open", 13, 20, "def open(self) -> int:"),
        ('Box.open "for n in"', 15, 19, "for n in range(LIMIT):"),
        ('Box.open "first = 1" .. "in the loop"', 14, 19, "first = 1"),
        ('Box.open "in the loop" ..', 17, 20, "    print("),
        ('- "import os" .. "LIMIT ="', 5, 7, "import os"),
        ('- "of three"', 1, 3, '"""Docstring'),
    ],
)
def test_code(sample: Callable, line: str, first: int, last: int, begins: str) -> None:
    page = sample(f"before\n\n@code a/main.py {line}\n\nafter")
    numbers = [int(n) for n in re.findall(r'class="ln[^>]*data-l="(\d+)"', page)]
    assert numbers == list(range(first, last + 1))
    assert plain(page)[0] == begins
    assert "<p>before</p>" in page and "<p>after</p>" in page and "@code" not in page
    assert f"{REPO}/blob/main/a/main.py#L{first}-L{last}" in page


def test_code_is_dedented_and_highlighted(sample: Callable) -> None:
    page = sample('@code a/main.py Box.open "for n in" {hl="first += n" hl="in the loop"}')
    assert plain(page)[:2] == ["for n in range(LIMIT):", "    first += n"]
    assert re.findall(r'class="ln hll" data-l="(\d+)"', page) == ["16", "18"]


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("@code a/main.py Bax", "defines no Bax; there are: Box, Box.open, other"),
        ('@code a/main.py Box "nowhere"', "'nowhere' is in no line of Box of a/main.py"),
        ('@code a/main.py Box.open "first"', "in 3 lines: [14, 16, 20]"),
        ('@code a/main.py Box.open "return" .. "first = 1"', "is above"),
        ('@code a/main.py other {hl="gone"}', "hl='gone' is in none of lines 23 to 24"),
        ('@code a/main.py other "a', "a quote that is not closed"),
        ("@code a/main.py -", "say which lines"),
        ("@cod a/main.py other", "there is no @cod"),
    ],
)
def test_code_that_is_not_there(sample: Callable, line: str, says: str) -> None:
    with pytest.raises(SiteError, match=re.escape(says)) as error:
        sample(f"text\n\n{line}\n")
    assert str(error.value).startswith(line)


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("@code 02_distributed/main.py run", "more than 20"),
        ("@code 02_distributed/mian.py run", "beside it: 02_distributed/main.py"),
        ("@file ../other.py", "outside of the repository"),
        ("@table docs/assets/results/gone.md", "which tool writes it?"),
        ("/// walk\n@code 02_distributed/main.py cleanup\n///", "a note and at least one @code"),
    ],
)
def test_what_a_page_may_not_ask_for(line: str, says: str) -> None:
    with pytest.raises(SiteError, match=re.escape(says)):
        render(line)


def test_whole_files_and_fences() -> None:
    path = "docs/examples/skeletons/03.py"
    assert "\n".join(plain(render(f"@file {path}"))) == (ROOT / path).read_text().rstrip()
    assert len(plain(render('@code 02_distributed/main.py run {long="1"}'))) > 20
    fence = "@code 02_distributed/main.py nothing"
    assert fence in render(f"```text\n{fence}\n```\n")


def without_docstrings(text: str) -> str:
    tree = ast.parse(text)
    for node in ast.walk(tree):
        if isinstance(node, (ast.Module, *source.DEFINITIONS)) and ast.get_docstring(node):
            node.body[0].value.value = ""
    return ast.dump(tree)


EXAMPLES = sorted(
    str(file.relative_to(ROOT))
    for table in DOCS.glob("examples/*/comments.zh.json")
    for file in table.parent.glob("*.py")
)


@pytest.mark.parametrize("path", EXAMPLES)
def test_comments_in_chinese(path: str) -> None:
    """Of the same code, on the same lines."""
    english, chinese = read(path), translated(read(path), "zh")
    assert len(chinese.lines) == len(english.lines)
    assert without_docstrings(chinese.text) == without_docstrings(english.text)
    said = chinese.comments().values()
    assert said and all(re.search("[\u4e00-\u9fff]", text) for text in said)


@pytest.mark.parametrize(
    "line",
    [
        "@file docs/examples/convert/single.py",
        "@code docs/examples/convert/multi.py evaluate",
        '@diff docs/examples/convert/single.py docs/examples/convert/multi.py {whole="1"}',
    ],
)
def test_comments_in_the_language_of_the_page(line: str) -> None:
    said = "预测正确数和总数。"
    assert said in render(line, page="zh/page.md")
    assert said not in render(line, page="en/page.md") and said not in render(line)


def test_comments_without_translation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source, "ROOT", tmp_path)
    (tmp_path / "a.py").write_text("# One.\na = 1  # two\n")
    says = {"One.": "一。", "two": "二"}
    table = tmp_path / "comments.zh.json"
    table.write_text(json.dumps(says))
    assert translated(read("a.py"), "zh").text == "# 一。\na = 1  # 二\n"
    table.write_text(json.dumps({"One.": "一。"}))
    with pytest.raises(SiteError, match="comments.zh.json lacks line 2 of a.py: 'two'"):
        translated(read("a.py"), "zh")
    table.write_text(json.dumps(says | {"three": "三"}))
    with pytest.raises(SiteError, match="comments.zh.json has what no file says: 'three'"):
        translated(read("a.py"), "zh")


def test_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(codealong, "ROOT", tmp_path)
    (tmp_path / "r.md").write_text("<!-- a -->\n*one*\n\n<!-- b -->\n*two*\n")
    assert "<em>one</em>" in render("@table r.md a") and "two" not in render("@table r.md a")
    assert "<em>two</em>" in render("@table r.md b")
    with pytest.raises(SiteError, match="no part c; there are: a, b"):
        render("@table r.md c")


def test_walk() -> None:
    note = "/// walk\n### Title {#t}\n\nThe note.\n\n@code 02_distributed/main.py cleanup\n///\n"
    text, code = render(note).split('<div class="walk-code">')
    assert '<h3 id="t">' in text and "The note." in text and "figure" not in text
    assert "destroy_process_group" in code


def test_diff_is_that_of_the_files() -> None:
    """Its rows, put together, are exactly the lines that differ; numbers are the real ones."""
    old, new = read("02_distributed/main.py"), read("03_multiprocessing/main.py")
    rows = [row for _, found in hunks(old, new) for row in found]
    for kind, left, right, markup, _ in rows:
        text = html.unescape(re.sub(r"<[^>]+>", "", markup))
        assert kind == "+" or text == old.lines[left - 1]
        assert kind == "-" or text == new.lines[right - 1]
    gone = {row[1] for row in rows if row[0] == "-"}
    come = {row[2] for row in rows if row[0] == "+"}
    first, then = old.after_docstring(), new.after_docstring()
    kept = [line for n, line in enumerate(old.lines, 1) if n >= first and n not in gone]
    assert kept == [line for n, line in enumerate(new.lines, 1) if n >= then and n not in come]
    assert len(gone) + len(come) > 20  # how many at most: test_static.py


# --- both languages match -------------------------------------------------------------------------


def twins(folder: Path, zh: str, en: str) -> list[str]:
    for language, text in (("zh", zh), ("en", en)):
        (folder / language).mkdir(parents=True, exist_ok=True)
        (folder / language / "page.md").write_text(text)
    return check_twins.problems(folder)


GOOD = """\
---
hide: [toc]
---
# {title} {{#top}}

{text} [x](other.md#a) `[not](a-link)`

@table docs/assets/results/a.{language}.md

```bash
# {text}
python 02_distributed/main.py --synthetic  # {text}
```

```text
{text}
```
"""
ZH = GOOD.format(title="题", text="字", language="zh")
EN = GOOD.format(title="T", text="words", language="en")


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("{#top}", "{#other}", "headings differ: zh # {#top}, en # {#other}"),
        (" {#top}", "", "no id"),
        ("@table", "@file", "lines differ"),
        ("--synthetic", "--data D", "fences at line 10 and 10 differ"),
        ("other.md#a", "other.md#b", "links are not the same"),
        ("words\n```\n", "words\n", "never closed"),
        ("```text\nwords", "```python\na = 1", "use @code, or mark it"),
    ],
)
def test_twins_that_do_not_match(tmp_path: Path, old: str, new: str, says: str) -> None:
    assert old in EN
    assert says in "\n".join(twins(tmp_path, ZH, EN.replace(old, new)))


def test_twins_that_match(tmp_path: Path) -> None:
    assert twins(tmp_path, ZH, EN) == []
    assert "would show as a gap" in twins(tmp_path / "gap", ZH + "\n训练\n循环\n", EN)[0]
    (tmp_path / "zh/more.md").write_text(ZH)
    assert check_twins.problems(tmp_path) == ["more.md: only in zh"]
    assert check_twins.problems(tmp_path / "nothing") == [f"{tmp_path / 'nothing'}: no pages"]


def test_pasted_code_is_found(tmp_path: Path) -> None:
    lines = (ROOT / "02_distributed/main.py").read_text().splitlines()
    at = next(n for n, line in enumerate(lines) if "= setup_distributed(" in line)
    page = "# T {#t}\n\n``` { .python .example }\n" + "\n".join(lines[at : at + 6]) + "\n```\n"
    assert "is pasted from 0" in "\n".join(twins(tmp_path, page, page))
    page = "# T {#t}\n\n``` { .python .example }\nmodel = Model().to(device)\n```\n"
    assert twins(tmp_path, page, page) == []


def test_pages_match() -> None:
    assert check_twins.problems(DOCS) == []


READMES = {"zh": "README.zh-CN.md", "en": "README.md"}


def readme_links(language: str, text: str) -> list[str]:
    """Where a README leads to: pages of its language, and files; what is not there has a ! before
    it."""
    found = []
    for link in re.findall(r"\]\(([^)\s]+)\)", text):
        path, _, place = link.partition("#")
        there = re.match("[a-z]+:", link) or (ROOT / path).is_file()
        if place and there:
            there = f"{{#{place}}}" in (ROOT / path).read_text("utf-8")
        general = link.replace(f"docs/{language}/", "docs/").replace(f".{language}.", ".")
        found.append(f"{'' if there else '!'}{general}")
    return [link for link in found if not link.startswith("README")]  # the other language


def test_readmes_match() -> None:
    """Both READMEs lead to the same places, each in its own language, and all of them are there."""
    texts = {language: (ROOT / name).read_text("utf-8") for language, name in READMES.items()}
    ours, theirs = (readme_links(language, texts[language]) for language in READMES)
    assert ours == theirs
    assert [link for link in ours if link.startswith("!")] == []
    assert {f"docs/chapters/{chapter}.md" for chapter in CHAPTERS} <= set(ours)
    assert "docs/convert.md" in ours[:2]
    assert readme_links("en", "[a](LICENCE) [b](README.md)") == ["!LICENCE"]


def test_links_to_files_of_the_repository() -> None:
    page = "[x](https://repository/LICENSE)\n\n```bash\ngit clone REPOSITORY_URL cookbook\n```"
    html = render(page)
    assert f'href="{REPO}/blob/main/LICENSE"' in html and f"</span>{REPO}<span" in html
    assert 'href="./source/LICENSE.txt"' in render(page, "")
    with pytest.raises(SiteError, match="LICENCE: there is no such file"):
        render("[x](https://repository/LICENCE)")


def test_chapter_headings() -> None:
    for chapter in CHAPTERS:
        page = check_twins.read_page((DOCS / "zh/chapters" / f"{chapter}.md").read_text())
        found = [h.split("#")[-1].rstrip("}") for h in page.headings if h.startswith("## ")]
        assert found == CHAPTER_HEADINGS, chapter
