"""The approaches side by side: the switch on the home page, and the tables made from minimal.py."""

import ast
import html
import re

import pytest
from harness import ROOT

pytest.importorskip("playwright", reason="needs requirements-dev.txt")
from playwright.sync_api import Browser, Page

from tools.benchmark.table import tables
from tools.site.approaches import (
    CHAPTERS,
    HUB,
    NAMES,
    ROWS,
    SHOWN,
    SINGLE,
    cell,
    launch_of,
    lines_of,
    minimal,
    sides,
    untried,
)

VALUES = [value for value, _, _ in NAMES["en"].values()]


def lines_for(chapter: str, row: str) -> list[str]:
    return [line for _, line, purpose in lines_of(chapter) if purpose == row]


@pytest.mark.parametrize("row", ROWS)
def test_table(row: str) -> None:
    """Whatever it shows is in a file, and where an approach has other lines it shows others."""
    assert NAMES["zh"].keys() == NAMES["en"].keys()
    everything = "\n".join(line for name in (SINGLE, *CHAPTERS) for line in lines_for(name, row))
    assert [text for text in SHOWN[row] if text.strip() not in everything] == []
    for chapter in CHAPTERS:
        same = lines_for(chapter, row) == lines_for(HUB, row)
        launched = launch_of(chapter).split()[0] == launch_of(HUB).split()[0]
        if row != "start":
            assert (cell(chapter, row) == cell(HUB, row)) == same, chapter
        elif same and launched:
            assert cell(chapter, row) == cell(HUB, row), chapter


@pytest.mark.parametrize("chapter", CHAPTERS)
def test_sides(chapter: str) -> None:
    """They are the files, without blank lines; what is not lit is the same on both sides."""
    pair = (SINGLE, HUB) if chapter == HUB else (HUB, chapter)
    plain = []
    for name, side, lit in zip(pair, sides(chapter, "en"), ("del", "ins"), strict=True):
        lines = (ROOT / minimal(name)).read_text().splitlines()
        shown = html.unescape(re.sub(r"<s>\n+</s>|<.*?>", "", side)).splitlines()
        assert [line for line in lines[lines.index("", 2) :] if line.strip()] == shown
        plain.append(re.sub(rf"(?s)<{lit}>.*?</{lit}>\n|<s>\n+</s>", "", side))
    assert plain[0] == plain[1] and plain[0].count("\n") > 10


@pytest.mark.parametrize("language", ["en", "zh"])
def test_readme_has_them(language: str) -> None:
    text = (ROOT / {"en": "README.md", "zh": "README.zh-CN.md"}[language]).read_text()
    rows = re.findall(r"^\| \[(\d\d) (.+?)\]\(\S+\) \| (.+?) \| `(\w+)` \|", text, re.M)
    known = [
        (chapter[:2], name, whom + untried(chapter, language), launch_of(chapter).split()[0])
        for chapter, (_, name, whom) in NAMES[language].items()
    ]
    assert rows[:-1] == known
    assert rows[-1][0] == "09" and rows[-1][3] == "torchrun"  # of another data set


@pytest.mark.parametrize("language", ["en", "zh"])
def test_speed_is_what_was_measured(language: str) -> None:
    """Each figure is the one of the table that its column names; those of 2019 are in no file."""
    cpu = "\n".join(tables(ROOT / "docs/assets/results/cpu-2-cores.json", "en"))
    page = (ROOT / f"docs/{language}/chapters/index.md").read_text()
    rows = re.findall(r"^\| (0\d) (.+?) \| (.+) \| (.+) \|$", page, re.M)
    names = [(chapter[:2], name) for chapter, (_, name, _) in NAMES[language].items()]
    assert [row[:2] for row in rows] == names
    in_2019 = {"02": ["1189"], "04": ["1187"], "05": ["1200"], "01": ["4138"]}
    for chapter, _, seconds, ratio in rows:
        form = rf"^\| `{chapter}(?: --amp-dtype bf16)?` \| [\d.]+ \| ([\d.]+) "
        measured = re.findall(form, cpu, re.M)[:1]  # training comes first
        known = [in_2019.get(chapter, []), measured]
        assert [re.findall(r"^[\d.]+", shown) for shown in (seconds, ratio)] == known

    gpu = "\n".join(tables(ROOT / "docs/assets/results/gpu-h200/speed.json", "en"))
    [ratio] = re.findall(r"^\| `02` \| \d+ \| ([\d.]+) ", gpu, re.M)[:1]
    assert f" {ratio} " in page


# --- in a browser ---------------------------------------------------------------------------------


def shown_in(page: Page) -> str:
    """The approach whose program is in sight."""
    (panel,) = [part for part in page.locator(".ap [data-of]").all() if part.is_visible()]
    assert page.locator(".ap input:checked").get_attribute("value") == panel.get_attribute(
        "data-of"
    )
    return panel.get_attribute("data-of")


@pytest.mark.xdist_group("site")
def test_switch(page: Page, address: str) -> None:
    """By mouse, keyboard and address; on the first screen stand all names and the launch line, and
    one takes main.py as it is."""
    page.goto(f"{address}en/")
    assert shown_in(page) == "ddp" and page.evaluate("scrollY") == 0
    assert [e.get_attribute("value") for e in page.locator(".ap input").all()] == VALUES
    assert page.locator("[data-of=ddp] .ap-pair").bounding_box()["y"] < 450
    page.locator("label:has([value=horovod])").click()
    assert shown_in(page) == "horovod" and page.url.endswith("#take=horovod")
    page.keyboard.press("ArrowRight")
    assert shown_in(page) == "evaluation"
    with page.expect_download() as download:
        page.locator("[data-of=evaluation] a[download='main.py']").click()
    main = (ROOT / "07_dist_eval/main.py").read_bytes()
    assert download.value.path().read_bytes() == main
    assert download.value.suggested_filename == "main.py"

    # What the buttons copy is the file, to be run.
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    for chapter, (value, _, _) in NAMES["en"].items():
        page.locator(f"label:has([value={value}])").click()
        page.locator(f"[data-of={value}] figure:last-child [data-md-type=copy]").click()
        copied = page.evaluate("navigator.clipboard.readText()")
        whole = ast.parse((ROOT / minimal(chapter)).read_text())
        assert ast.dump(ast.parse(copied)) == ast.dump(ast.Module(whole.body[1:], []))
        assert "import torch\n" in copied and "\n\n" not in copied

    page.goto(f"{address}#take=slurm")
    page.reload()
    assert shown_in(page) == "slurm"
    page.evaluate("location.hash = '#take=amp'")
    page.wait_for_function("document.querySelector('.ap [value=amp]').checked")
    page.locator("[data-of=amp] .ap-take a:last-of-type").click()
    page.wait_for_url(f"{address}chapters/04_apex/")


# Words of its code, of which a longer one has spans.
TORN = """() => [...document.querySelectorAll("table:has(th:nth-child(9)) td > code")]
    .flatMap((code) => (code.children.length ? [...code.children] : [code]))
    .filter((word) => word.getClientRects().length > 1).map((word) => word.textContent)"""
SCROLLS = """() => [...document.querySelectorAll(".ap pre > code")]
    .filter((code) => code.scrollWidth > code.clientWidth).map((code) => code.textContent)"""


@pytest.mark.xdist_group("site")
def test_at_the_zoom_of_a_projector(page: Page, address: str) -> None:
    """960 pixels are 200 % of a wide screen: the chosen program alone, and of the table of lines a
    card a row, so that nothing is cut or torn. At 1280 two programs stand beside each other."""
    for width, beside in ((1280, 2), (960, 1)):
        page.set_viewport_size({"width": width, "height": 720})
        page.goto(f"{address}en/")
        assert page.locator(".ap figure").filter(visible=True).count() == beside
    assert page.evaluate(SCROLLS) == []
    page.goto(f"{address}en/chapters/")
    assert page.locator("td > code").filter(visible=True).count() > 30
    assert page.evaluate(TORN) == []


@pytest.mark.xdist_group("site")
def test_switch_without_scripts(chromium: Browser, address: str) -> None:
    """On a phone, which shows the chosen program alone."""
    opened = chromium.new_page(java_script_enabled=False, viewport={"width": 390, "height": 844})
    opened.goto(f"{address}en/")
    assert shown_in(opened) == "ddp"
    opened.locator("label:has([value=spawn])").click()
    assert shown_in(opened) == "spawn"
    names = opened.locator(".ap figcaption").filter(visible=True).all_text_contents()
    assert names == ["03_multiprocessing/minimal.py"]
    opened.close()
