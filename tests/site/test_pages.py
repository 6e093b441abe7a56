"""The pages as they are written: what they may bring in, that both languages match, and that links
in the READMEs lead somewhere."""

import html
import json
import os
import re
from pathlib import Path
from types import SimpleNamespace

import check_twins
import pytest
from harness import CHAPTERS, ROOT

markdown = pytest.importorskip("markdown", reason="needs requirements-dev.txt")
pytest.importorskip("pymdownx", reason="needs requirements-dev.txt")
cmarkgfm = pytest.importorskip("cmarkgfm", reason="needs requirements-dev.txt")

from tools.site import approaches, codealong, draw, pages, ran  # noqa: E402
from tools.site.diffs import hunks, step_hunks  # noqa: E402
from tools.site.source import SiteError, Source, read, translated  # noqa: E402

DOCS = ROOT / "docs"
HUB = "02_distributed/main.py"
REPO = "https://example.org/repo"
EXTENSIONS = (
    "attr_list md_in_html toc pymdownx.quotes pymdownx.superfences pymdownx.tabbed "
    "tools.site.codealong"
).split()


def render(text: str, page: str = "") -> str:
    """As MkDocs would on that page; without one, as any other program does."""
    settings = {"tools.site.codealong": {"repo": REPO}}
    md = markdown.Markdown(extensions=EXTENSIONS, extension_configs=settings)
    if page:
        place = markdown.treeprocessors.Treeprocessor(md)
        place.file = SimpleNamespace(src_uri=page, url=page)
        md.treeprocessors.register(place, "relpath", 0)
    return md.convert(text)


# --- what a link in a page brings in --------------------------------------------------------------

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
            first += n  # [dist]
            print(
                "in the loop",
            )
        return first


def other(a: int) -> int:
    return a
'''


def test_code(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lines with their numbers, marked where the text is about them, or where they are there only
    because training is distributed."""
    monkeypatch.setattr(codealong, "read", lambda path: Source(path, SAMPLE))
    link = r"""[`a/main.py`](a/main.py "code Box 'for n in' hl=first hl=\"the loop\"")"""
    page = render(f"before\n\n{link}\n\nafter")
    lines = re.findall(r'class="ln ?([^"]*)" data-l="(\d+)"', page)
    assert lines == [("", "15"), ("hll dist", "16"), ("", "17"), ("hll", "18"), ("", "19")]
    assert f"{REPO}/blob/main/a/main.py#L15-L19" in page
    assert "<p>before</p>" in page and "<p>after</p>" in page and "code Box" not in page


def test_a_block_that_is_never_closed() -> None:
    """Or the rest of its page would be lost."""
    with pytest.raises(SiteError, match='<div class="walk" markdown> is never closed'):
        render('<div class="walk" markdown>\n\na')


def test_comments_in_the_language_of_the_page() -> None:
    path = "docs/examples/convert/multi.py"
    line = f'[`{path}`](../../{path} "code evaluate")'
    said = "预测正确数和总数。"
    assert said in render(line, page="zh/page.md")
    assert said not in render(line, page="en/page.md")


def test_diff_is_that_of_the_files() -> None:
    """Its rows, put together, are exactly the lines that differ; numbers are the real ones."""
    old, new = read("02_distributed/main.py"), read("03_multiprocessing/main.py")
    rows = [row for _, found in hunks(old, new) for row in found]
    for kind, left, right, markup in rows:
        text = html.unescape(re.sub(r"<[^>]+>", "", markup))
        assert kind == "+" or text == old.lines[left - 1]
        assert kind == "-" or text == new.lines[right - 1]
    gone = {row[1] for row in rows if row[0] == "-"}
    come = {row[2] for row in rows if row[0] == "+"}
    first, then = old.after_docstring(), new.after_docstring()
    kept = [line for n, line in enumerate(old.lines, 1) if n >= first and n not in gone]
    assert kept == [line for n, line in enumerate(new.lines, 1) if n >= then and n not in come]
    assert len(gone) + len(come) > 20  # how many at most: test_static.py


CONVERTED = ("docs/examples/convert/single.py", "docs/examples/convert/multi.py")


def test_first_screen_of_convert_is_of_the_files() -> None:
    """The lines above the eight steps are picked by hand: each is in its file, and they are all of
    what differs but comments."""
    for language in ("en", "zh"):
        page = (DOCS / language / "convert.md").read_text("utf-8")
        picked = re.search(r"```diff\n(.+?)```", page, re.S)[1]
        shown = [line[1:].strip() for line in picked.splitlines() if line[:1] in "-+"]
        differ = [row for _, rows in hunks(*map(read, CONVERTED)) for row in rows if row[0] != "="]
        gone = [
            read(CONVERTED[row[0] == "+"]).lines[row[2 if row[0] == "+" else 1] - 1]
            for row in differ
        ]
        assert sorted(filter(None, shown)) == sorted(
            filter(None, (line.split("  # ")[0].strip() for line in gone))
        )
        for line in picked.splitlines():
            sides = {"-": ["single"], "+": ["multi"], " ": ["single", "multi"]}[line[:1] or " "]
            for side in sides:
                code = (ROOT / f"docs/examples/convert/{side}.py").read_text("utf-8").splitlines()
                assert line[1:].strip() in {"", *(c.split("  # ")[0].strip() for c in code)}, line


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
    line = f"[`{folder}/multi.py`](../../{folder}/multi.py 'diff {folder}/single.py \"step 2\"')"
    for language, said in (("zh", "第 2 步"), ("en", "step 2")):
        page = render(line, page=f"{language}/page.md")
        assert page.count("cd-del") == page.count("cd-add") == 1 and said in page


# --- diagrams -------------------------------------------------------------------------------------


def test_diagrams_have_pictures() -> None:
    """Each has one, with a name, and no other picture is kept. make figures makes it so."""
    assert set(draw.DIAGRAMS.iterdir()) == draw.all_wanted().keys()
    for path in draw.DIAGRAMS.iterdir():
        assert re.search(r'^<svg [^>]*role="img".*?<title id="[^"]+">.+?</title>', path.read_text())


# --- both languages match -------------------------------------------------------------------------


def twins(folder: Path, zh: str, en: str) -> list[str]:
    for language, text in (("zh", zh), ("en", en)):
        (folder / language).mkdir(parents=True, exist_ok=True)
        (folder / language / "page.md").write_text(text)
    return check_twins.problems(folder)


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ('"data"', '"other"', "headings differ: zh ## #data, en ## #other"),
        (' <a id="data"></a>', "", "no id"),
        ('<a id="data"></a>', '<a id="data"></a>\n\n训练\n循环', "would show as a gap"),
        ("code wrap", "code one_cycle", "lines differ"),
        ("--epochs 2", "--epochs 3", "fences at line"),
        ("`records_of`", "`RecordFiles`", "is there twice"),
        ("(tasks.md)", "(concepts.md)", "links are not the same"),
        ("python example", "python", "use a link, or mark it"),
    ],
)
def test_twins_that_do_not_match(tmp_path: Path, old: str, new: str, says: str) -> None:
    """A real page, with a mistake in English."""
    zh, en = ((DOCS / language / "recipes.md").read_text() for language in ("zh", "en"))
    assert old in en
    assert says in "\n".join(twins(tmp_path, zh, en.replace(old, new)))


def test_pages_are_whole() -> None:
    """What their links stand for is in them, as it is today. After a change: make pages."""
    assert [str(path) for path in pages.stale()] == [], "run make pages"


LOG = """
GPU      one NVIDIA L4, 24 GB

##### verbose: 9s rc -9
tests/chapters/test_smoke.py::test_trains_resumes_and_evaluates[01_dataparallel] PASSED [ 14%]
tests/chapters/test_smoke.py::test_trains_resumes_and_evaluates[02_distributed] FAILED [ 28%]

##### failed: 9s rc 1
1.45s call     tests/chapters/test_smoke.py::test_trains_resumes_and_evaluates[04_apex]

##### passed: 9s rc 0
1.45s call     tests/chapters/test_smoke.py::test_trains_resumes_and_evaluates[06_slurm]
1.15s setup    tests/chapters/test_smoke.py::test_trains_resumes_and_evaluates[07_dist_eval]
"""


def test_what_ran_where(tmp_path: Path) -> None:
    """Only what passed has run, in a log that was put together or a file of `make gpu`; and of what
    has not, the rows of the READMEs, the home page's tiles and the chapters' first paragraphs say
    so."""
    (tmp_path / "gpu-one").mkdir()
    (tmp_path / "gpu-one/runs.txt").write_text(LOG)
    assert ran.on_gpus(tmp_path) == [("L4", 1, {"01", "06"})]
    line = ran.line("en", "gpu.md", tmp_path)
    assert "chapters 01 and 06 on one L4; 02 to 05 and 07 to 09 on no GPU; nothing yet on" in line
    assert ran.WORDS["zh"]["none"] in ran.line("zh", "gpu.md", tmp_path)
    (tmp_path / "gpu-eight").mkdir()
    smoke = ["test_trains_resumes_and_evaluates[08_fsdp2]", "test_alone_in_a_folder[by_torchrun]"]
    machine = {"part": "machine", "table": [["GPUs", "8 x NVIDIA H100 80GB HBM3", ""]]}
    parts = [machine, {"part": "smoke tests", "data": {"passed": smoke}}]
    (tmp_path / "gpu-eight/gpu.json").write_text(json.dumps({"parts": parts}))
    assert ran.on_gpus(tmp_path)[0] == ("H100", 8, {"08", "09"})
    line = ran.line("zh", "gpu.md", tmp_path)
    assert "8 张 H100 跑过 08、09 章；一张 L4" in line
    assert ran.WORDS["zh"]["none"] not in line
    assert "02 到 05、07 章没有在显卡上跑过" in line

    for name, there in (("index.md", "gpu.md"), ("gpu.md", "#results")):  # not to its own top
        for language in ("en", "zh"):
            (line,) = pages.table("tools/site/ran.py", f"{language}/{name}")
            assert re.findall(r"\]\((.*?)\)", line) == [there], (language, name)

    missing = ran.never()
    for language, readme in (("en", "README.md"), ("zh", "README.zh-CN.md")):
        words = approaches.WORDS[language]["untried"]
        rows = re.findall(r"^\| \[(\d\d) .*", (ROOT / readme).read_text(), re.M)
        said = re.findall(rf"^\| \[(\d\d) .*{words}", (ROOT / readme).read_text(), re.M)
        assert len(rows) == len(ran.chapters()) and sorted(said) == missing
        for page in (DOCS / language / "chapters").glob("0*.md"):
            first = page.read_text().partition("\n# ")[2].split("\n\n")[1]
            told = any(words in link for link in re.findall(r"\[([^]]+)\]\(\.\./gpu\.md\)", first))
            assert told == (page.name[:2] in missing), page


def test_pages_match() -> None:
    assert check_twins.problems(DOCS) == []


def test_old_addresses() -> None:
    """Headings that are gone: their ids stand where their subject is told now."""
    chapters = [f"chapters/{path.stem}" for path in DOCS.glob("en/chapters/0[1-7]_*.md")]
    gone = dict.fromkeys(chapters, ["exercises", "results", "get"])
    gone["handbook/by-hand"] = ["missing", "ring", "sgd-why"]
    gone["handbook/cifar10"] = ["mistakes", "save"]
    gone["performance"] = ["original", "pays", "worker-life"]
    assert len(chapters) == 7
    for language in ("en", "zh"):
        for name, ids in gone.items():
            text = (DOCS / language / f"{name}.md").read_text()
            for place in ids:
                # Behind a sentence, not alone: an empty paragraph shows what happens to follow.
                assert re.search(rf'^\S.*<a id="{place}">', text, re.M), (name, place)


def test_chinese_words() -> None:
    for file in (
        *(ROOT / "doctor/ddp_doctor/words").glob("*zh.*"),
        *DOCS.glob("examples/**/*.zh.json"),
        *DOCS.glob("assets/results/**/*.zh.md"),
    ):
        assert check_twins.wrong_words(file.read_text("utf-8")) == [], file


READMES = {"zh": "README.zh-CN.md", "en": "README.md"}


def readme_links(language: str) -> list[str]:
    """Where a README leads to, in whichever language."""
    text = (ROOT / READMES[language]).read_text("utf-8")
    found = re.findall(r"\]\(([^)\s]+)\)", text)
    general = [n.replace(f"docs/{language}/", "docs/").replace(f".{language}.", ".") for n in found]
    return [link for link in general if not link.startswith("README")]  # the other language


def test_readmes_match() -> None:
    """Both READMEs lead to the same places, each in its own language."""
    assert readme_links("zh") == readme_links("en")
    assert {f"docs/chapters/{chapter}.md" for chapter in CHAPTERS} <= set(readme_links("en"))
    cases = f"**[{len(list(ROOT.glob('docs/examples/cases/*.py')))} "
    assert all(cases in (ROOT / readme).read_text("utf-8") for readme in READMES.values())


# --- on GitHub ------------------------------------------------------------------------------------

PAGES = sorted(str(p.relative_to(ROOT)) for p in DOCS.glob("??/**/*.md")) + [*READMES.values()]
PAGES += ["CHANGELOG.md", "CONTRIBUTING.md", "tests/README.md"]  # in one language
PAGES += ["doctor/README.md", "doctor/CONTRIBUTING.md", "doctor/EVENTS.md"]
# What a reader must not see outside of code: forms of the build, and Markdown that is none there,
# because no blank line is between it and a tag.
RAW = re.compile(
    r"^\s*(?:@\w+ .*/|///|\?{3}|!{3}|={3})|\{ ?[#.:\w]|\[TOC\]|\[!|//repository/|\]\(|```|\*\*",
    re.M,
)


def on_github(text: str) -> str:
    """By GitHub's own program for Markdown; the blocks that begin with [!NOTE] are made later."""
    assert not text.startswith("---\n")  # front matter, which GitHub shows as a table
    shown = cmarkgfm.github_flavored_markdown_to_html(text, cmarkgfm.cmark.Options.CMARK_OPT_UNSAFE)
    return re.sub(r"<blockquote>\n<p>\[!(NOTE|TIP|IMPORTANT|WARNING|CAUTION)\]\n", "<p>", shown)


def raw(shown: str) -> list[str]:
    without_code = re.sub(r"<(pre|code)\b.*?</\1>", "", shown, flags=re.S)
    return RAW.findall(html.unescape(re.sub(r"<[^>]+>", "", without_code)))


MADE = {"doctor.pyz", "class.zip"}  # by the build of the site


def gone(name: str, shown: str) -> list[str]:
    """Links of a page that lead nowhere in the repository."""
    found = []
    for link in re.findall(r'<(?:a href|img src)="([^"]*)"', shown):
        if re.match("[a-z]+:", link) or link in MADE:
            continue
        path, _, place = html.unescape(link).partition("#")
        file = ROOT / os.path.normpath(Path(name).parent / path) if path else ROOT / name
        id_of = f'<a id="{place}">'
        if not file.is_file() or (place and file.suffix == ".md" and id_of not in file.read_text()):
            found.append(link)
    return found


@pytest.mark.parametrize("name", PAGES)
def test_page_on_github(name: str) -> None:
    """Nothing raw stands in it, and all of its links lead somewhere."""
    shown = on_github((ROOT / name).read_text("utf-8"))
    assert raw(shown) == [] and gone(name, shown) == []


def test_cases_have_symptoms() -> None:
    """The table by which people find them has them all."""
    table = (DOCS / "en/cases.md").read_text("utf-8").split("\n## ")[1]
    linked = set(re.findall(r"\(#(\w+)\)", table))
    assert linked == {path.stem for path in DOCS.glob("examples/cases/*.py")}


def test_rules_name_what_is_there() -> None:
    """The tests and files of which CONTRIBUTING.md says that they hold a rule, and the doctor's."""
    files = (ROOT / "CONTRIBUTING.md", ROOT / "doctor/CONTRIBUTING.md")
    text = "".join(file.read_text("utf-8") for file in files)
    tests = re.findall(r"\b(test_\w+\.py)::(test_\w+)", text)
    paths = re.findall(r"`((?:docs|doctor|tests|tools)/[\w./]+)`", text)
    assert len(tests) > 9 and len(paths) > 9
    for file, name in tests:
        [path] = [*(ROOT / "tests").rglob(file), *(ROOT / "doctor/tests").rglob(file)]
        assert f"def {name}(" in path.read_text("utf-8"), (file, name)
    shown = re.search("```python\n(.*?)```", (ROOT / "tests/README.md").read_text(), re.S)[1]
    assert shown in (ROOT / "tests/chapters/test_resume.py").read_text()
    gone = [path for path in paths if not (ROOT / path).exists()]
    assert gone == ["doctor/ddp_doctor/checks/SUBJECT.py"]


def contrast(one: str, other: str) -> float:
    """As WCAG 2 defines it."""
    light = []
    for colour in (one, other):
        digits = colour[1:] if len(colour) == 7 else "".join(2 * digit for digit in colour[1:])
        parts = [int(digits[at : at + 2], 16) / 255 for at in (0, 2, 4)]
        parts = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
        light.append(0.2126 * parts[0] + 0.7152 * parts[1] + 0.0722 * parts[2] + 0.05)
    return max(light) / min(light)


@pytest.mark.parametrize(
    "path", sorted((DOCS / "assets/images").glob("*.svg")), ids=lambda p: p.name
)
def test_labels_of_pictures_can_be_read(path: Path) -> None:
    """4.5 : 1 on light and on dark ground, which the picture's own style knows, and in boxes."""
    light = dark = path.read_text("utf-8")
    if grey := re.search(r"<style>svg\{color:(.*?)\}@media.*?svg\{color:(.*?)\}(.*)\}", light):
        light, dark = (light.replace("currentColor", colour) for colour in grey.groups()[:2])
        for fill, other in re.findall(r'text\[fill="(.*?)"\]\{fill:(.*?)\}', grey[3]):
            dark = re.sub(f'(<text[^>]* fill="){fill}', rf"\g<1>{other}", dark)
    for drawn, ground in ((light, "#fff"), (dark, "#12181f")):
        box = ""
        for kind, fill in re.findall(r"<(rect|text)\b[^>]*\bfill(?:=\"|: )(#\w+)", drawn):
            if kind == "rect":
                box = fill
            else:
                assert contrast(fill, box if fill == "#fff" else ground) >= 4.5, (ground, fill)
