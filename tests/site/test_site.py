"""The documentation: what pages may ask for, that both languages match, and the site that is built,
looked at in Chromium. Each check is also shown something broken, which it must find."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from harness import CHAPTERS, ROOT

markdown = pytest.importorskip("markdown", reason="needs requirements-dev.txt")
pytest.importorskip("playwright", reason="needs requirements-dev.txt")
from playwright.sync_api import Browser, Page  # noqa: E402

from tools.site import check_built, check_twins, shots  # noqa: E402
from tools.site.diffs import hunks  # noqa: E402
from tools.site.source import SiteError, Source, read  # noqa: E402

MERMAID = ROOT / "docs/assets/javascripts/mermaid.min.js"
DOCS = ROOT / "docs"
NAMES = sorted(str(p.relative_to(DOCS / "zh"))[:-3] for p in (DOCS / "zh").rglob("*.md"))
ADDRESSES = ["" if n == "index" else f"{n}/" for n in NAMES]
CHAPTER_HEADINGS = "get when run how walk changed skeleton log errors results exercises".split()
WALKED = "chapters/03_multiprocessing/"
REPO = "https://example.org/repo"
EXTENSIONS = ["attr_list", "pymdownx.superfences", "toc", "tools.site.codealong"]


def render(text: str) -> str:
    settings = {"tools.site.codealong": {"repo": REPO}}
    return markdown.markdown(text, extensions=EXTENSIONS, extension_configs=settings)


def plain(html: str) -> list[str]:
    """The lines of code in a page, without colours."""
    found = re.findall(r'<span class="ln[^>]*>(.*)</span>$', html, re.M)
    return [
        re.sub(r"<[^>]+>", "", line).replace("&lt;", "<").replace("&gt;", ">") for line in found
    ]


def numbers(html: str) -> list[int]:
    return [int(n) for n in re.findall(r'class="ln[^>]*data-l="(\d+)"', html)]


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
LOOP = [
    "for n in range(LIMIT):", "    first += n", "    print(", '        "in the loop",', "    )",
]  # fmt: skip


@pytest.fixture
def sample(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], str]:
    """Renders a page that includes parts of SAMPLE."""
    from tools.site import codealong

    monkeypatch.setattr(codealong, "read", lambda path: Source(path, SAMPLE))
    return render


@pytest.mark.parametrize(
    ("line", "first", "last", "begins"),
    [
        ("other", 23, 24, "def other(a: int) -> int:"),
        ("Box", 8, 20, "# Why there is a Box."),
        ("Box.open", 13, 20, "def open(self) -> int:"),
        ('Box.open "for n in"', 15, 19, LOOP[0]),
        ('Box.open "first = 1" .. "in the loop"', 14, 19, "first = 1"),
        ('Box.open "in the loop" ..', 17, 20, "    print("),
        ('Box.open .. "first = 1"', 13, 14, "def open(self) -> int:"),
        ("- 'LIMIT ='", 7, 7, "LIMIT = 3"),
        ('- "import os" .. "LIMIT ="', 5, 7, "import os"),
        ('- "of three"', 1, 3, '"""Docstring'),
    ],
)
def test_code(sample: Callable, line: str, first: int, last: int, begins: str) -> None:
    html = sample(f"before\n\n@code a/main.py {line}\n\nafter")
    assert numbers(html) == list(range(first, last + 1))
    assert plain(html)[0] == begins
    assert "<p>before</p>" in html and "<p>after</p>" in html and "@code" not in html
    assert f"{REPO}/blob/main/a/main.py#L{first}-L{last}" in html


def test_code_is_dedented_and_highlighted(sample: Callable) -> None:
    html = sample('@code a/main.py Box.open "for n in" {hl="first += n" hl="in the loop"}')
    assert plain(html) == LOOP
    marked = re.findall(r'class="ln hll" data-l="(\d+)"', html)
    assert marked == ["16", "18"]


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("@code a/main.py Bax", "defines no Bax; there are: Box, Box.open, other"),
        ('@code a/main.py Box "nowhere"', "'nowhere' is in no line of Box of a/main.py"),
        ('@code a/main.py Box.open "first"', "in 3 lines: [14, 16, 20]"),
        ('@code a/main.py - "return a"', "'return a' is in no line of a/main.py"),
        ('@code a/main.py Box.open "return" .. "first = 1"', "is above"),
        ('@code a/main.py other {hl="gone"}', "hl='gone' is in none of lines 23 to 24"),
        ('@code a/main.py other {high="a"}', "no option ['high']"),
        ("@code a/main.py", "write @code FILE NAME"),
        ("@code a/main.py other a b", "write @code FILE NAME"),
        ('@code a/main.py other "a', "a quote that is not closed"),
        ("@code a/main.py -", "say which lines"),
        ("@cod a/main.py other", "there is no @cod"),
    ],
)
def test_code_that_is_not_there(sample: Callable, line: str, says: str) -> None:
    with pytest.raises(SiteError, match=re.escape(says)) as error:
        sample(f"text\n\n{line}\n")
    assert str(error.value).startswith(line)


def test_code_has_a_limit() -> None:
    with pytest.raises(SiteError, match="more than 20"):
        render("@code 02_distributed/main.py run")
    assert len(plain(render('@code 02_distributed/main.py run {long="1"}'))) > 20


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("@code 02_distributed/mian.py run", "beside it: 02_distributed/main.py"),
        ("@file docs/examples/gone.py", "there is no file docs/examples/gone.py"),
        ("@file ../other.py", "outside of the repository"),
        ("@diff 02_distributed/main.py", "write @diff OLD NEW"),
        ("@table docs/assets/results/gone.md", "which tool writes it?"),
    ],
)
def test_file_that_is_not_there(line: str, says: str) -> None:
    with pytest.raises(SiteError, match=re.escape(says)):
        render(line)


def test_lines_in_a_fence_are_text() -> None:
    html = render("```text\n@code 02_distributed/main.py nothing\n```\n")
    assert "@code 02_distributed/main.py nothing" in html


def test_file() -> None:
    path = "docs/examples/skeletons/03.py"
    assert "\n".join(plain(render(f"@file {path}"))) == (ROOT / path).read_text().rstrip()


def test_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from tools.site import codealong

    monkeypatch.setattr(codealong, "ROOT", tmp_path)
    (tmp_path / "r.md").write_text("<!-- a -->\n*one*\n\n<!-- b -->\n*two*\n")
    assert "<em>one</em>" in render("@table r.md a") and "two" not in render("@table r.md a")
    assert "<em>two</em>" in render("@table r.md b")
    with pytest.raises(SiteError, match="no part c; there are: a, b"):
        render("@table r.md c")


def test_walk() -> None:
    note = "/// walk\n### Title {#t}\n\nThe note.\n\n@code 02_distributed/main.py cleanup\n///\n"
    html = render(note)
    text, code = html.split('<div class="walk-code">')
    assert '<h3 id="t">' in text and "The note." in text and "figure" not in text
    assert "destroy_process_group" in code
    for broken in (
        "/// walk\nonly a note\n///",
        "/// walk\n@code 02_distributed/main.py cleanup\n///",
    ):
        with pytest.raises(SiteError, match="a note and at least one @code"):
            render(broken)


def test_wrapped_chinese_has_no_gap() -> None:
    html = render("训练\n循环，\n**梯度**\n求和 a\nb 进程\n`run` 之后")
    assert "训练循环，<strong>梯度</strong>求和 a\nb 进程\n<code" in html


def test_diff_is_that_of_the_files() -> None:
    """Its rows, put together, are exactly the lines that differ; numbers are the real ones."""
    old, new = read("02_distributed/main.py"), read("03_multiprocessing/main.py")
    rows = [row for _, found in hunks(old, new) for row in found]
    for kind, left, right, html, _ in rows:
        text = re.sub(r"<[^>]+>", "", html)
        for char, entity in (("<", "&lt;"), (">", "&gt;"), ("&", "&amp;")):
            text = text.replace(entity, char)
        assert kind == "+" or text == old.lines[left - 1]
        assert kind == "-" or text == new.lines[right - 1]
    gone = {row[1] for row in rows if row[0] == "-"}
    come = {row[2] for row in rows if row[0] == "+"}
    first, then = old.after_docstring(), new.after_docstring()
    kept = [line for n, line in enumerate(old.lines, 1) if n >= first and n not in gone]
    assert kept == [line for n, line in enumerate(new.lines, 1) if n >= then and n not in come]
    assert 20 < len(gone) + len(come) < 60


# --- the checks of the pages find what is wrong ---------------------------------------------------


def twins(folder: Path, zh: str, en: str, name: str = "page.md") -> list[str]:
    for language, text in (("zh", zh), ("en", en)):
        (folder / language).mkdir(parents=True, exist_ok=True)
        (folder / language / name).write_text(text)
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


def test_twins_that_match(tmp_path: Path) -> None:
    assert twins(tmp_path, ZH, EN) == []


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("{#top}", "{#other}", "headings differ: zh # {#top}, en # {#other}"),
        (" {#top}", "", "no id"),
        ("# T", "## T", "headings differ"),
        ("@table", "@file", "lines differ"),
        ("hide: [toc]", "hide: [navigation]", "lines differ"),
        ("--synthetic", "--data D", "fences at line 10 and 10 differ"),
        ("```text", "```json", "fences differ"),
        ("other.md#a", "other.md#b", "links are not the same"),
        ("words\n```\n", "words\n", "never closed"),
        ("```text\nwords", "```python\na = 1", "use @code, or mark it"),
    ],
)
def test_twins_that_do_not_match(tmp_path: Path, old: str, new: str, says: str) -> None:
    assert old in EN
    assert says in "\n".join(twins(tmp_path, ZH, EN.replace(old, new)))


def test_twin_that_is_not_there(tmp_path: Path) -> None:
    twins(tmp_path, ZH, EN)
    (tmp_path / "zh/more.md").write_text(ZH)
    assert check_twins.problems(tmp_path) == ["more.md: only in zh"]
    assert check_twins.problems(tmp_path / "nothing") == [f"{tmp_path / 'nothing'}: no pages"]


def test_pasted_code_is_found(tmp_path: Path) -> None:
    source = (ROOT / "02_distributed/main.py").read_text().splitlines()
    lines = source[
        source.index("    rank, world_size, device = setup_distributed(args)  # [dist]") :
    ]
    page = "# T {#t}\n\n``` { .python .example }\n" + "\n".join(lines[:6]) + "\n```\n"
    assert "is pasted from 0" in "\n".join(twins(tmp_path, page, page))
    page = "# T {#t}\n\n``` { .python .example }\nmodel = Model().to(device)\n```\n"
    assert twins(tmp_path, page, page) == []


def test_pages_match() -> None:
    assert check_twins.problems(DOCS) == []


READMES = {"zh": ("README.zh-CN.md", ""), "en": ("README.md", "en/")}


def readme_links(language: str, text: str) -> list[str]:
    """Where a README leads to: pages by their address in its language, files by their path; what
    is not there has a ! before it."""
    url = re.search(r"^site_url: (\S+)", (ROOT / "mkdocs.yml").read_text(), re.M)[1]
    found = []
    for link in re.findall(r"\]\(([^)\s]+)\)", text):
        address, _, place = link.removeprefix(url + READMES[language][1]).partition("#")
        page = DOCS / language / f"{address.strip('/') or 'index'}.md"
        if link.startswith(url):
            there = page.is_file() and (not place or f"{{#{place}}}" in page.read_text("utf-8"))
        else:
            there = re.match("[a-z]+:", link) or (ROOT / link).exists()
        found.append(f"{'' if there else '!'}{address}#{place}")
    return [link for link in found if not link.startswith("README")]  # the other language


def test_readmes_and_pages_match() -> None:
    """Both READMEs lead to the same places, each in its own language, and all of them are there."""
    texts = {language: (ROOT / name).read_text("utf-8") for language, (name, _) in READMES.items()}
    ours, theirs = (readme_links(language, texts[language]) for language in READMES)
    assert ours == theirs
    assert [link for link in ours if link.startswith("!")] == []
    assert {f"{name}/#" for name in NAMES if name.startswith("chapters/")} <= set(ours)
    wrong = texts["en"].replace("en/faq/", "faq/").replace("#imagenet", "#gone")
    wrong = wrong.replace("(LICENSE)", "(LICENCE)")
    lost = [link.rstrip("#") for link in readme_links("en", wrong) if link.startswith("!")]
    assert [re.sub(r"https://[^/]+/", "", link) for link in lost] == [
        "!getting-started/#gone",
        "!faq/",
        "!LICENCE",
    ]


@pytest.mark.parametrize("chapter", CHAPTERS)
def test_chapter_headings(chapter: str) -> None:
    page = check_twins.read_page((DOCS / "zh/chapters" / f"{chapter}.md").read_text())
    found = [h.split("#")[-1].rstrip("}") for h in page.headings if h.startswith("## ")]
    assert found == CHAPTER_HEADINGS


# --- the built site -------------------------------------------------------------------------------


def build(config: Path, target: Path) -> subprocess.CompletedProcess:
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "-f", config, "-d", target]
    env = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    return subprocess.run(command, cwd=ROOT, env=env, text=True, capture_output=True, timeout=600)


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if not MERMAID.is_file():
        pytest.skip("needs mermaid.min.js: bash tools/site/fetch_mermaid.sh")
    target = tmp_path_factory.mktemp("built") / "site"
    result = build(ROOT / "mkdocs.yml", target)
    assert result.returncode == 0, result.stdout + result.stderr
    return target


def test_every_page_is_built_in_both_languages(site: Path) -> None:
    assert len(NAMES) >= 19
    for address in ADDRESSES:
        for language, prefix in (("zh", ""), ("en", "en/")):
            html = (site / prefix / address / "index.html").read_text()
            assert f'<html lang="{language}"' in html
    assert not list(site.rglob("WRITING*")) and not (site / "examples").exists()


def test_built_links_and_resources(site: Path) -> None:
    assert check_built.problems(site) == []


def test_zensical_builds_the_same_pages(site: Path, tmp_path: Path) -> None:
    """By Material's successor, from the same configuration: the site has a future."""
    tool = ROOT / ".venv-zensical/bin/zensical-i18n"
    if not tool.is_file():
        pytest.skip("needs Zensical: make site-zensical")
    for name in ("mkdocs.yml", "docs"):  # it writes beside them
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
        copy(ROOT / name, tmp_path / name)
    env = os.environ | {"PYTHONPATH": str(ROOT)}
    command = [tool, "build", "--strict"]
    result = subprocess.run(
        command, cwd=tmp_path, env=env, text=True, capture_output=True, timeout=300
    )
    assert result.returncode == 0, result.stdout + result.stderr
    shown = 0
    for path in site.rglob("index.html"):
        made, wanted = (
            re.findall(r'data-l="\d+">(.*)', (root / path.relative_to(site)).read_text())
            for root in (tmp_path / "site", site)
        )
        assert made == wanted, path
        shown += len(made)
    assert shown > 1000  # lines of code, in both languages
    # In Chinese, whose pages begin at the root, it goes up one folder too far for pictures, which
    # a browser takes as "/assets".
    found = check_built.problems(tmp_path / "site")
    assert [line for line in found if not re.search(r" (\.\./)+assets/", line)] == []


@pytest.mark.parametrize(
    ("html", "says"),
    [
        ('<a href="gone/">x</a>', "gone/ leads nowhere"),
        ('<a href="#gone">x</a>', "#gone has no such place"),
        ('<img src="gone.png">', "gone.png leads nowhere"),
        ('<img src="https://example.org/a.png">', "fetches https://example.org/a.png"),
        ('<script src="//example.org/a.js"></script>', "fetches //example.org/a.js"),
        ('<link rel="stylesheet" href="https://example.org/a.css">', "fetches"),
        ('<p style="background: url(https://example.org/a.png)">', "fetches"),
        ("", ""),
    ],
)
def test_built_problems_are_found(tmp_path: Path, html: str, says: str) -> None:
    (tmp_path / "index.html").write_text(f'<p id="a"></p><a href="#a">x</a>{html}')
    found = check_built.problems(tmp_path)
    assert (says in "\n".join(found)) if says else found == []
    (tmp_path / "a.css").write_text("@import 'https://example.org/b.css';")
    assert "a.css: fetches https://example.org/b.css" in check_built.problems(tmp_path)


BROKEN = {
    "an unknown name": ("@code 02_distributed/main.py nothing", "defines no nothing"),
    "a broken anchor": ("[x](index.md#gone)", "gone"),
    "a broken link": ("[x](gone.md)", "gone.md"),
    "nothing": ("fine", ""),
}


@pytest.mark.parametrize("what", [*BROKEN, "a missing twin", "a page that no menu has"])
def test_strict_build_finds(tmp_path: Path, what: str) -> None:
    """With the settings of the real mkdocs.yml, on a site of one page."""
    text, says = BROKEN.get(what, ("fine", "more.md" if "menu" in what else "index.md"))
    for language in ("zh", "en"):
        (tmp_path / "docs" / language).mkdir(parents=True)
        (tmp_path / "docs" / language / "index.md").write_text(f"# T {{#t}}\n\n{text}\n")
        if "menu" in what:
            (tmp_path / "docs" / language / "more.md").write_text("# T {#t}\n")
    if "twin" in what:
        (tmp_path / "docs/en/index.md").unlink()
    theme = f"theme: {{custom_dir: {DOCS / 'overrides'}}}"
    rest = "nav: [index.md]\nwatch: []\nextra_javascript: []\nextra_css: []"
    (tmp_path / "mkdocs.yml").write_text(f"INHERIT: {ROOT / 'mkdocs.yml'}\n{theme}\n{rest}\n")
    result = build(tmp_path / "mkdocs.yml", tmp_path / "site")
    assert (result.returncode == 0) == (what == "nothing"), result.stderr
    assert says in result.stderr


def test_code_is_not_in_the_search_index(site: Path) -> None:
    """All chapters share most lines: prose would drown in them."""
    assert "last_epoch" in (site / "chapters/02_distributed/index.html").read_text()
    index = json.loads((site / "search/search_index.json").read_text())
    assert len(index["docs"]) > len(NAMES)
    assert not [d["location"] for d in index["docs"] if "last_epoch" in d["text"]]


def test_size_of_the_compare_page(site: Path) -> None:
    assert (site / "compare/index.html").stat().st_size < 800_000


# --- in a browser ---------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def chromium() -> Iterator[Browser]:
    if not shots.chromium():
        pytest.skip("needs Chromium: sudo apt install chromium fonts-noto-cjk")
    with shots.browser() as started:
        yield started


@pytest.fixture(scope="session")
def address(site: Path) -> Iterator[str]:
    with shots.served(site) as url:
        yield url


def watched(chromium: Browser, address: str) -> tuple[Page, list[str]]:
    """A page, and what goes wrong in it: requests that leave this machine, answers that say no,
    errors of scripts."""
    opened = chromium.new_page(viewport={"width": 1440, "height": 900})
    wrong: list[str] = []

    def request(url: str) -> None:
        if not url.startswith((address, "data:", "blob:")):
            wrong.append(url)

    def response(status: int, url: str) -> None:
        # The theme tries for a sitemap beside the page until it finds one.
        if status >= 400 and not url.endswith("/sitemap.xml"):
            wrong.append(f"{status} {url}")

    opened.on("request", lambda r: request(r.url))
    opened.on("response", lambda r: response(r.status, r.url))
    opened.on("pageerror", lambda e: wrong.append(str(e)))
    return opened, wrong


@pytest.fixture
def page(chromium: Browser, address: str) -> Iterator[Page]:
    """A page in which nothing may go wrong."""
    opened, wrong = watched(chromium, address)
    yield opened
    opened.close()
    assert wrong == []


@pytest.mark.parametrize("prefix", ["", "en/"])
def test_no_page_is_wider_than_a_phone(page: Page, address: str, prefix: str) -> None:
    page.set_viewport_size({"width": 390, "height": 844})
    wide = {}
    for name in ADDRESSES:
        page.goto(address + prefix + name)
        shots.settle(page)
        width = page.evaluate("document.documentElement.scrollWidth")
        if width > 390:
            wide[prefix + name] = width
    assert wide == {}


def test_wide_page_is_found(page: Page, address: str) -> None:
    page.set_viewport_size({"width": 390, "height": 844})
    page.goto(address)
    wide = "document.querySelector('article').innerHTML += '<div style=\"width: 900px\">x</div>'"
    page.evaluate(wide)
    assert page.evaluate("document.documentElement.scrollWidth") > 390


@pytest.mark.parametrize(
    ("script", "says"),
    [
        ("new Image().src = 'http://192.0.2.1/a.png'", "http://192.0.2.1/a.png"),
        ("new Image().src = 'gone.png'", "404 {}gone.png"),
        ("setTimeout(() => { throw Error('broken') })", "broken"),
    ],
)
def test_what_goes_wrong_is_found(chromium: Browser, address: str, script: str, says: str) -> None:
    opened, wrong = watched(chromium, address)
    opened.goto(address)
    opened.evaluate(f"{script}; 1")
    for _ in range(100):
        opened.wait_for_timeout(100)
        if wrong:
            break
    opened.close()
    assert wrong == [says.format(address)]


@pytest.mark.parametrize(("width", "beside"), [(1440, True), (390, False)])
def test_walk_is_beside_or_below(page: Page, address: str, width: int, beside: bool) -> None:
    page.set_viewport_size({"width": width, "height": 900})
    page.goto(address + WALKED)
    note, code = (page.locator(f".walk-{n}").first.bounding_box() for n in ("text", "code"))
    assert (code["x"] >= note["x"] + note["width"]) == beside
    assert (code["y"] >= note["y"] + note["height"]) != beside


def test_longest_line_is_seen_whole(page: Page, address: str) -> None:
    """On a laptop no line of code beside its note is cut."""
    page.goto(address + WALKED)
    pairs = page.eval_on_selector_all(
        ".walk-code pre > code", "a => a.map(e => [e.scrollWidth, e.clientWidth])"
    )
    assert pairs and all(scroll <= client for scroll, client in pairs)


def test_diagrams_are_drawn(page: Page, address: str) -> None:
    page.goto(address + WALKED)
    shots.settle(page)
    assert page.locator("div.mermaid").first.bounding_box()["height"] > 100


def test_copy_button_copies_code_alone(page: Page, address: str) -> None:
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page.goto(address + WALKED)
    figure = page.locator("figure.cb").first
    figure.hover()
    figure.locator("button[data-clipboard-target], button.md-clipboard").first.click()
    copied = page.evaluate("navigator.clipboard.readText()").rstrip()
    (line,) = re.findall(
        r"^@code 03_multiprocessing.*$", (DOCS / "zh" / f"{WALKED[:-1]}.md").read_text(), re.M
    )[:1]
    assert copied.splitlines() == plain(render(line))


@pytest.mark.parametrize("prefix", ["", "en/"])
def test_compare_any_two(page: Page, address: str, prefix: str) -> None:
    """It shows what the chapter page has from the start, and the opposite the other way round."""

    def lines() -> list[tuple[str, str]]:
        both = "a => a.map(e => [e.className, e.textContent])"
        return [tuple(x) for x in page.eval_on_selector_all(".cd-hunk > *", both)]

    page.goto(f"{address}{prefix}{WALKED}")
    static = lines()
    page.goto(f"{address}{prefix}compare/?from=02&to=03")
    assert lines() == static and len(static) > 50
    page.click(".cd-swap")
    assert page.url.endswith("?from=03&to=02")
    added = sorted(text for kind, text in static if kind == "cd-add")
    assert sorted(text for kind, text in lines() if kind == "cd-del") == added
    for a in range(len(CHAPTERS)):
        for b in range(len(CHAPTERS)):
            page.select_option("select[name=from]", str(a))
            page.select_option("select[name=to]", str(b))
            assert (page.locator(".cd-hunk").count() > 0) == (a != b)


SEARCHES = ["梯度", "全归约", "混合精度", "all_reduce", "optimizer"]


@pytest.mark.parametrize(
    ("prefix", "query"), [*(("", q) for q in SEARCHES), *(("en/", q) for q in SEARCHES[3:])]
)
def test_search(page: Page, address: str, prefix: str, query: str) -> None:
    page.goto(address + prefix)
    page.locator(".md-search__input").focus()
    page.keyboard.insert_text(query)
    page.keyboard.press("End")  # Material looks at the field when a key goes up
    result = page.locator(".md-search-result__item:visible a").first
    result.wait_for(timeout=30_000)
    href = result.get_attribute("href")
    assert ("/en/" in href) == (prefix == "en/")


def test_search_for_what_is_nowhere(page: Page, address: str) -> None:
    page.goto(address)
    page.locator(".md-search__input").focus()
    page.keyboard.insert_text("zzqqxxyy")
    page.keyboard.press("End")
    page.wait_for_timeout(2000)
    assert page.locator(".md-search-result__item").count() == 0


@pytest.mark.parametrize(("here", "there"), [(WALKED, f"en/{WALKED}"), (f"en/{WALKED}", WALKED)])
def test_language_switch_keeps_the_page(page: Page, address: str, here: str, there: str) -> None:
    page.goto(address + here)
    page.hover(".md-select")
    other = "en" if there.startswith("en/") else "zh"
    page.click(f".md-select__link[hreflang={other}]")
    page.wait_for_url(address + there)
