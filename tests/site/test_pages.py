"""The pages as they are written: what they may bring in, that both languages match, and that links
in the READMEs lead somewhere. Each check is also shown something broken, which it must find."""

import html
import re
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
from harness import CHAPTERS, ROOT

markdown = pytest.importorskip("markdown", reason="needs requirements-dev.txt")
pytest.importorskip("pymdownx.blocks", reason="needs requirements-dev.txt")  # not with tensorboard

from tools.site import check_twins, codealong, diagrams  # noqa: E402
from tools.site.diffs import hunks, step_hunks  # noqa: E402
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
        ("Box", 8, 20, "# Why there is a Box."),
        ("Box.open", 13, 20, "def open(self) -> int:"),
        ('Box.open "for n in"', 15, 19, "for n in range(LIMIT):"),
        ('Box.open "first = 1" .. "in the loop"', 14, 19, "first = 1"),
        ('Box.open "in the loop" ..', 17, 20, "    print("),
        ('- "import os" .. "LIMIT ="', 5, 7, "import os"),
    ],
)
def test_code(sample: Callable, line: str, first: int, last: int, begins: str) -> None:
    page = sample(f"before\n\n@code a/main.py {line}\n\nafter")
    numbers = [int(n) for n in re.findall(r'class="ln[^>]*data-l="(\d+)"', page)]
    assert numbers == list(range(first, last + 1))
    shown = re.search(r'<span class="ln[^>]*>(.*)</span>$', page, re.M)[1]
    assert html.unescape(re.sub(r"<[^>]+>", "", shown)) == begins
    assert "<p>before</p>" in page and "<p>after</p>" in page and "@code" not in page
    assert f"{REPO}/blob/main/a/main.py#L{first}-L{last}" in page


def test_code_is_highlighted(sample: Callable) -> None:
    page = sample('@code a/main.py Box.open "for n in" {hl="first += n" hl="in the loop"}')
    assert re.findall(r'class="ln hll" data-l="(\d+)"', page) == ["16", "18"]


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("@code 02_distributed/mian.py run", "beside it: 02_distributed/main.py"),
        ("@code 02_distributed/main.py rum", "defines no rum; there are: "),
        ('@code 02_distributed/main.py run "nowhere"', "'nowhere' must be in one line of run of"),
        ('@code 02_distributed/main.py run "args"', "is in: ["),
        ('@code 02_distributed/main.py check_same {hl="gone"}', "hl='gone' is in none of lines"),
        ("@code 02_distributed/main.py run", "more than 20"),
        ("@cod 02_distributed/main.py run", "there is no @cod"),
    ],
)
def test_code_that_is_not_there(line: str, says: str) -> None:
    with pytest.raises(SiteError, match=re.escape(says)) as error:
        render(f"text\n\n{line}\n")
    assert str(error.value).startswith(line)


EXAMPLES = sorted(
    str(file.relative_to(ROOT))
    for table in DOCS.glob("examples/*/comments.zh.json")
    for file in table.parent.glob("*.py")
) + [f"{chapter}/minimal.py" for chapter in CHAPTERS]


@pytest.mark.parametrize("path", EXAMPLES)
def test_comments_in_chinese(path: str) -> None:
    """Of the same code, on the same lines."""
    english, chinese = read(path), translated(read(path), "zh")
    said = english.comments()
    for n, (old, new) in enumerate(zip(english.lines, chinese.lines, strict=True), start=1):
        assert old == new or n in said
    assert said.keys() == chinese.comments().keys()
    for text in chinese.comments().values():
        assert re.search("[\u4e00-\u9fff]", text)


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


def test_steps_are_parts_of_the_diff() -> None:
    """Each line that differs is in exactly one step, with its real number."""
    folder = "docs/examples/convert"
    old, new = read(f"{folder}/single.py"), read(f"{folder}/multi.py")
    whole = [row for _, rows in hunks(old, new) for row in rows if row[0] != "="]
    parts = []
    for n in range(1, 9):
        for _, rows in step_hunks(old, translated(new, "zh"), new, f"step {n}"):
            parts += [row for row in rows if row[0] != "="]
    said = [row[:3] for row in whole if not row[2] or new.lines[row[2] - 1]]
    assert sorted(row[:3] for row in parts) == sorted(said) and len(said) > 20
    page = render(f'@diff {folder}/single.py {folder}/multi.py "step 2"', page="zh/page.md")
    assert page.count("cd-del") == page.count("cd-add") == 1 and "第 2 步" in page
    with pytest.raises(SiteError, match="has the mark 'step 9'"):
        render(f'@diff {folder}/single.py {folder}/multi.py "step 9"')


# --- diagrams -------------------------------------------------------------------------------------


def test_diagrams_have_pictures() -> None:
    """Each has one, with a name, and no other picture is kept. make figures makes it so."""
    assert set(diagrams.FOLDER.iterdir()) == diagrams.all_wanted().keys()
    for path in diagrams.FOLDER.iterdir():
        assert re.search(r'^<svg [^>]*role="img".*?<title id="[^"]+">.+?</title>', path.read_text())


def test_diagram_that_changed() -> None:
    text = diagrams.FENCE.search((DOCS / "en/concepts.md").read_text())[2]
    assert diagrams.fence(text, "", "", {}, None).count("<figure") == 2
    with pytest.raises(SiteError, match="make figures"):
        diagrams.fence(f"{text}    a --> b\n", "", "", {}, None)


# --- both languages match -------------------------------------------------------------------------


def twins(folder: Path, zh: str, en: str) -> list[str]:
    for language, text in (("zh", zh), ("en", en)):
        (folder / language).mkdir(parents=True, exist_ok=True)
        (folder / language / "page.md").write_text(text)
    return check_twins.problems(folder)


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("{#data}", "{#other}", "headings differ: zh ## {#data}, en ## {#other}"),
        (" {#data}", "", "no id"),
        ("{#data}", "{#data}\n\n训练\n循环", "would show as a gap"),
        ("recipes.py wrap", "recipes.py one_cycle", "lines differ"),
        ("--nnodes 2", "--nnodes 3", "fences at line"),
        ("(launching.md)", "(concepts.md)", "links are not the same"),
        ("{ .python .example }", "{ .python }", "use @code, or mark it"),
    ],
)
def test_twins_that_do_not_match(tmp_path: Path, old: str, new: str, says: str) -> None:
    """A real page, with a mistake in English."""
    zh, en = ((DOCS / language / "recipes.md").read_text() for language in ("zh", "en"))
    assert old in en
    assert says in "\n".join(twins(tmp_path, zh, en.replace(old, new)))


def test_twin_that_is_missing(tmp_path: Path) -> None:
    (tmp_path / "zh").mkdir()
    (tmp_path / "zh/more.md").write_text("# T {#t}")
    assert check_twins.problems(tmp_path) == ["more.md: only in zh"]


def test_pasted_code_is_found(tmp_path: Path) -> None:
    lines = (ROOT / "02_distributed/main.py").read_text().splitlines()
    at = next(n for n, line in enumerate(lines) if "device = setup_device(" in line)
    page = "# T {#t}\n\n``` { .python .example }\n" + "\n".join(lines[at : at + 6]) + "\n```\n"
    assert "is pasted: use @code" in "\n".join(twins(tmp_path, page, page))


def test_pages_match() -> None:
    assert check_twins.problems(DOCS) == []


def test_chinese_words() -> None:
    assert check_twins.wrong_words("一个缓冲区，损失 14 %，`钩子`") == [
        "line 1: 缓冲区: write buffer",
        "line 1: 损失: write loss",
        "line 1: 4 %: write 1%",
    ]
    assert check_twins.wrong_words("buffer（缓冲区），损失函数，梯度检查点\n```\n屏障\n```") == []
    for file in (
        *(ROOT / "doctor/words").glob("*zh.*"),
        *DOCS.glob("examples/**/*.zh.json"),
        *DOCS.glob("assets/results/**/*.zh.md"),
    ):
        assert check_twins.wrong_words(file.read_text("utf-8")) == [], file


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
    assert readme_links("en", "[a](LICENCE) [b](README.md)") == ["!LICENCE"]


def test_links_to_files_of_the_repository() -> None:
    assert f'href="{REPO}/blob/main/LICENSE"' in render("[x](https://repository/LICENSE)")
    with pytest.raises(SiteError, match="LICENCE: there is no such file"):
        render("[x](https://repository/LICENCE)")


def test_chapter_headings() -> None:
    for chapter in CHAPTERS:
        page = check_twins.read_page((DOCS / "zh/chapters" / f"{chapter}.md").read_text())
        found = [h.split("#")[-1].rstrip("}") for h in page.headings if h.startswith("## ")]
        skeleton, run, *rest = CHAPTER_HEADINGS
        first = [run, skeleton] if chapter == "06_slurm" else [skeleton, run]  # its job file
        assert found == [*first, *rest], chapter
        others = {f"{other}.md" for other in CHAPTERS if other != chapter}
        assert others | {"index.md"} <= set(page.links), chapter  # the row above the title
