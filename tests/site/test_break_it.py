"""Forgetting a line, on the home page: as recorded, which a run today does again."""

import copy
import json
import re

import pytest
from harness import ROOT
from tiers import table

pytest.importorskip("playwright", reason="needs requirements-dev.txt")
from playwright.sync_api import Browser, Page

from tools.site import break_it, proof
from tools.site.record_breaks import BREAKS, RECORDED, record

RUNS = json.loads(RECORDED.read_text())["runs"]


@pytest.mark.parametrize("name", table(["right", *BREAKS], []))
def test_recorded(name: str) -> None:
    """The weights but for rounding: another CPU adds up in another order."""
    recorded, again = copy.deepcopy(RUNS[name]), record(name)
    for before, now in zip(recorded["ranks"], again["ranks"], strict=True):
        assert now.pop("weights") == pytest.approx(before.pop("weights"), rel=1e-3)
    assert again == recorded


def test_what_is_said_follows_from_the_numbers() -> None:
    said = {name: set(break_it.seen(run, RUNS["right"])) for name, run in RUNS.items()}
    assert said == {
        "right": {"right"},
        "world_size": {"larger"},
        "sampler": {"both"},
        "share": {"twice"},
        "wrap": {"apart"},
        "set_epoch": {"again"},
        "call": {"apart"},
        "all_reduce": {"part"},
        "print": {"lines"},
        "save": {"file"},
    }


def test_pages_are_fresh() -> None:
    """What is written of it where nothing can be clicked, and the picture of the mistakes."""
    for path, text in proof.pictures().items():
        assert path.read_text() == text, f"{path.name} is out of date: make figures"
    logs = [RUNS[name]["printed"] for name in ("right", break_it.STILL)]
    logs = [letter + "  " + "\n   ".join(log) for letter, log in zip("AB", logs, strict=True)]
    fence = "\n\n".join(logs)
    for language, readme in (("en", "README.md"), ("zh", "README.zh-CN.md")):
        page = (ROOT / f"docs/{language}/index.md").read_text()
        headline = f"\n## {break_it.WORDS[language]['headline']}"
        for text in (page, (ROOT / readme).read_text()):
            assert f"```text\n{fence}\n```" in text and headline in text
        assert f"[![{proof.title(language)}](" in page
        cases = len(list((ROOT / "docs/examples/cases").glob("*.py")))
        assert re.search(rf"^## {cases} ", page, re.M)


# --- in a browser ---------------------------------------------------------------------------------


def shown(page: Page) -> str:
    """The run whose log and verdict are in sight: that of the line which is struck."""
    places = [part for part in page.locator(".bk [data-of]").all() if part.is_visible()]
    log, panel = (part.get_attribute("data-of") for part in places)
    assert page.locator(".bk input:checked").get_attribute("value") == log == panel
    return log


SCROLLED = """() => new Promise(done => {
    addEventListener("scroll", done, {once: true});
    scrollBy(0, 50);
})"""


@pytest.mark.xdist_group("site")
def test_lines(page: Page, address: str) -> None:
    """By mouse and by keyboard; each has an address, and a second press puts it back. What a screen
    reader says of a button is what is undone, and the number of the line that the doctor names
    stands out."""
    page.clock.install()
    page.goto(f"{address}en/")
    assert shown(page) == "set_epoch"
    undone = "line 54: shuffle=True in place of sampler=sampler"
    assert page.get_by_role("radio", name=undone).get_attribute("value") == "sampler"
    page.locator("label:has([value=sampler])").click()
    assert shown(page) == "sampler"
    # What the theme does a quarter of a second after scrolling leaves the address alone.
    page.evaluate(SCROLLED)
    page.clock.run_for(2000)
    assert page.evaluate("location.hash") == "#break=sampler"
    assert page.locator("[data-of=sampler] .wrong").text_content() == "WRONG RESULT"
    named = page.locator("[data-n='54'] .bk-n").evaluate("e => getComputedStyle(e).fontWeight")
    assert named == "700"
    page.keyboard.press("ArrowDown")
    assert shown(page) == "share"
    page.locator("label:has([value=wrap])").click()
    assert shown(page) == "wrap"
    page.locator(".bk-can:has([value=wrap])").click()
    assert shown(page) == "right"
    legend = page.locator(".bk legend").inner_text()
    assert "all lines" in legend and "struck" not in legend

    # Putting it back on a low screen keeps the line where it is.
    page.set_viewport_size({"width": 1280, "height": 650})
    page.goto(f"{address}en/#break=1")
    page.reload()
    back = page.locator(".bk-back:visible")
    back.scroll_into_view_if_needed()
    before = page.evaluate("scrollY")
    back.click()
    assert shown(page) == "right" and page.evaluate("scrollY") == before

    page.goto(f"{address}#break=all_reduce")
    assert shown(page) == "all_reduce"
    page.evaluate("location.hash = '#break=save'")
    page.wait_for_function("document.querySelector('.bk [value=save]').checked")
    assert shown(page) == "save"


@pytest.mark.xdist_group("site")
def test_without_scripts(chromium: Browser, address: str) -> None:
    opened = chromium.new_page(java_script_enabled=False, viewport={"width": 390, "height": 844})
    opened.goto(f"{address}en/")
    assert shown(opened) == "set_epoch"
    opened.locator("label:has([value=wrap])").click()
    assert shown(opened) == "wrap"
    opened.close()
