"""A word of a note and the lines that it is about light each other up."""

import re

import pytest

pytest.importorskip("playwright", reason="needs requirements-dev.txt")
import markdown
from playwright.sync_api import Browser, Page

from tools.site.source import SiteError
from tools.site.words import places

pytestmark = pytest.mark.xdist_group("site")

LINES = [
    "import torch.distributed as dist",
    "add('--batch-size', type=int)  # of all ranks",
    "sampler = DistributedSampler(train_set, drop_last=True)",
    "# The sampler shuffles: rank + 1 comes next.",
    "loss.backward()",
]


@pytest.mark.parametrize(
    ("word", "found"),
    [
        ("sampler", [2]),  # in the code, and not the comment
        ("shuffles", [3]),
        ("DistributedSampler(…, drop_last=True)", [2]),
        ("torch.distributed.DistributedSampler", [2]),
        ("--batch-size 256", [1]),
        ("backward()", [4]),
        ("drop_last", [2]),
        ("drop", []),
        ("rank + 1", [3]),
        ("…", []),
    ],
)
def test_which_lines(word: str, found: list[int]) -> None:
    assert places(word, LINES) == found


def test_a_mark_names_lines_or_ends_the_build() -> None:
    extensions = ["md_in_html", "pymdownx.superfences", "tools.site.codealong", "tools.site.words"]
    page = '<div class="walk" markdown>\n\nIt ends: `bye`<!-- = {} -->.\n\n{}\n\n</div>'
    link = '[`02_distributed/minimal.py`](02_distributed/minimal.py "file")'

    def built(text: str) -> str:
        return markdown.markdown(page.format(text, link), extensions=extensions)

    html = built("dist.init_process_group(")
    assert '<code class="nb" data-at="' in html and "<!-- =" not in html
    with pytest.raises(SiteError, match="no line of the code beside `bye`"):
        built("hvd.init(")


# How far a word is from the nearest of its lines, in CSS pixels.
APART = """words => words.map(word => {
    const lines = word.closest(".walk-text").nextElementSibling.querySelectorAll(LINE);
    const top = (element) => element.getBoundingClientRect().top;
    const seen = word.dataset.at.split(" ").map(n => lines[n]);
    return Math.min(...seen.map(line => Math.abs(top(line) - top(word))));
})""".replace("LINE", "'.ln, .cd-hunk > [data-l]'")


@pytest.mark.parametrize(("name", "found"), [("convert/", 18), ("chapters/02_distributed/", 75)])
def test_words_have_lines_that_are_near(page: Page, address: str, name: str, found: int) -> None:
    for prefix in ("", "en/"):
        page.goto(f"{address}{prefix}{name}")
        apart = page.locator(".walk-text [data-at]").evaluate_all(APART)
        assert len(apart) >= found and max(apart) <= 200


# Notes that lie over the next one.
COVERED = """() => [...document.querySelectorAll(".walk-text + .walk-code + .walk-text")]
    .filter((next) => next.getBoundingClientRect().top <
        next.previousElementSibling.previousElementSibling.getBoundingClientRect().bottom)
    .map((next) => next.textContent)"""
GROUND = "e => getComputedStyle(e).backgroundColor"
LIT = "all => all.map(e => e.textContent.trim())"


def test_word_and_line(chromium: Browser, address: str) -> None:
    """By pointer and keyboard on a laptop, both ways; by a finger on a phone."""
    opened = chromium.new_page(viewport={"width": 1440, "height": 900})
    opened.goto(f"{address}en/chapters/02_distributed/")
    word = opened.locator(".walk-text code[data-at]", has_text="set_device_index").first
    line = opened.locator(".walk", has=word).locator(".ln", has_text="set_device_index")
    lit = opened.locator(".lit")
    assert lit.count() == 0
    word.hover()
    opened.mouse.wheel(0, 300)  # now the walk's first pair has reached the header
    opened.wait_for_function("scrollY > 300")
    assert opened.evaluate(COVERED) == []
    word.hover()
    both = lit.evaluate_all(LIT)
    assert both == [word.text_content(), line.text_content().strip()]
    red, _, blue = map(float, re.findall(r" ([\d.]+)", line.evaluate(GROUND)))
    assert red < blue  # not that of a line that is gone
    opened.mouse.move(1, 1)
    assert lit.count() == 0
    line.hover()
    assert set(both) <= set(lit.evaluate_all(LIT))
    opened.mouse.move(1, 1)
    word.focus()
    assert lit.evaluate_all(LIT) == both
    opened.close()

    phone = chromium.new_context(viewport={"width": 390, "height": 844}, has_touch=True)
    opened = phone.new_page()
    opened.goto(f"{address}convert/")
    word = opened.locator(".walk-text code[data-at]", has_text="ddp_model").first
    word.tap()
    named, *lines = opened.locator(".lit").evaluate_all(LIT)
    assert named == "ddp_model" and lines and all("ddp_model" in text for text in lines)
    phone.close()
